"""Limits of VCMs: the number of connections, and rates as token buckets."""

from __future__ import annotations

from collections.abc import Callable, Container

from cod.tokenbucket import Bucket, Buckets
from cod.wire.nmp.frames import Fault

MOST_CONNECTIONS = 20_000
MOST_STRANGERS = 64  # connections from one address that have not said hello
RATE, BURST = 50.0, 200.0  # messages: a second, at once
BYTES = 64 * 1024.0, 512 * 1024.0  # the same for bytes: reading them costs time that all share
# the same, of verbs that leave rows, read many, or sign
COSTLY = {
    "request-nodes": (1.0, 100.0),
    "status": (1.0, 10.0),
    "park-nodes": (1.0, 10.0),
    "maintenance-status": (1.0, 10.0),
    "renew": (0.1, 10.0),
}
MOST_FAULTS = 1.0, 100.0  # the same, of faults; then the connection is closed
# the same, of greetings by one certificate, or from one address: each costs a transaction
HELLOS = 1.0, 60.0


class Quota:
    """Rate limits of one VCM for messages, bytes and faults, on one connection or on several in
    turn."""

    def __init__(self, now: float) -> None:
        self._messages = Bucket(RATE, BURST, now)
        self._bytes = Bucket(*BYTES, now)
        self._faults = Bucket(*MOST_FAULTS, now)
        self._costly: dict[str, Bucket] = {}

    def heard(self, size: int, now: float) -> None:
        self._bytes.spend(now, size)

    def is_spent(self, now: float) -> bool:
        """Return whether the peer has sent more bytes than it may."""
        return self._bytes.level(now) < 0

    def may_say(self, verb: str, now: float) -> None:
        """Count a message. Raises `Fault`."""
        if not self._messages.take(now):
            raise Fault("too-many", f"at most {RATE:.0f} messages a second")
        if verb in COSTLY:
            bucket = self._costly.setdefault(verb, Bucket(*COSTLY[verb], now))
            if not bucket.take(now):
                raise Fault("too-many", f"at most {COSTLY[verb][0] * 60:.0f} {verb!r} a minute")

    def may_err(self, now: float) -> bool:
        """Count a fault; return False if the peer has made too many."""
        return self._faults.take(now)

    def is_whole(self, now: float) -> bool:
        """Return whether the whole quota is available again."""
        return all(
            each.is_full(now)
            for each in (self._messages, self._bytes, self._faults, *self._costly.values())
        )


class Quotas:
    """The quotas of VCMs. They outlive connections, so that reconnecting does not renew a quota.

    clock  any seconds that do not run backwards
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._of: dict[int, Quota] = {}
        self._greetings = Buckets()

    def of(self, vcluster_id: int) -> Quota:
        """Return the quota of a vcluster's VCM."""
        return self._of.setdefault(vcluster_id, Quota(self._clock()))

    def greets(self, who: str) -> None:
        """Count a hello with that certificate, or from that address. Raises `Fault`."""
        now = self._clock()
        if not self._greetings.of(who, now, *HELLOS).take(now):
            raise Fault("too-many", "it has come too often: come again later", fatal=True)

    def forget(self, connected: Container[int]) -> None:
        """Delete quotas that are full again, except those of `connected` VCMs."""
        now = self._clock()
        self._of = {
            one: quota
            for one, quota in self._of.items()
            if one in connected or not quota.is_whole(now)
        }
