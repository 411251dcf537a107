"""Admission of machines never seen before (newcomers), limited against floods of invented MACs.

A machine that is in the database is no newcomer. A newcomer is subject to three limits, each a rate
with a burst (`policy.rate_limit`): for its subnet, for its relay or wire, and for its switch port,
if option 82 names the port. So a flood behind one port does not affect machines behind other ports,
and a flood behind one relay does not affect other relays.

Behind one port, an invented MAC differs from a true one in a single respect: a machine that gets no
answer asks again with the same MAC, 4 s later (PXE 2.1, section 2.2.3; iPXE sooner). A fifth of
each burst is therefore kept for MACs that have been refused before.
"""

from __future__ import annotations

from collections import OrderedDict

from cod.model import DhcpQuery, Policy
from cod.policy.rate_limit import done_once

SUBNET, PORT = 4.0, 1 / 8  # limits of a subnet and of a switch port, as multiples of a relay's
KEPT = 0.2  # part of each burst, for machines that ask again
AGAIN = (0.5, 120.0)  # seconds between two messages of a machine that asks again
REMEMBERED = 20_000  # refused MACs that are remembered
# seconds within which a machine that was admitted becomes a node, unless its registration fails
COMMITTED = 5.0
MARKS = 4096  # limits kept in memory; beyond that, limits that are full again are dropped

_Key = tuple[str, ...]


class Newcomers:
    """A DHCP server's memory of the newcomers that it has admitted and refused.

    refused   number of messages of newcomers refused so far
    """

    def __init__(self) -> None:
        self.refused = 0
        self._marks: dict[_Key, float] = {}
        self._waiting: OrderedDict[str, float] = OrderedDict()
        self._admitted: dict[str, float] = {}

    def admits(self, query: DhcpQuery, subnet: str, policy: Policy, now: float) -> bool:
        """Return whether the newcomer that sent `query` may be registered now, and count it. It is
        counted only once, even if its transaction fails and is run again."""
        if now - self._admitted.get(query.mac, -COMMITTED) < COMMITTED:
            return True
        asked = self._waiting.get(query.mac)
        again = asked is not None and AGAIN[0] <= now - asked <= AGAIN[1]
        marks: dict[_Key, float] = {}
        for key, share in _limits(query, subnet):
            burst = max(1.0, policy.new_burst * share)
            span = burst / (policy.new_rate * share)
            after, wait = done_once(self._marks.get(key), now, burst, span)
            if wait or (
                not again and after > now + span * (1 - KEPT) and after > now + span / burst
            ):
                self.refuse(query.mac, now)
                return False
            marks[key] = after
        self._waiting.pop(query.mac, None)
        self._admitted[query.mac] = now
        if len(self._admitted) > MARKS:
            self._admitted = {mac: at for mac, at in self._admitted.items() if now - at < COMMITTED}
        self._marks |= marks
        if len(self._marks) > MARKS:
            self._marks = {key: mark for key, mark in self._marks.items() if mark > now}
        return True

    def refuse(self, mac: str, now: float) -> None:
        """Count a refusal and remember the MAC."""
        self.refused += 1
        if now - self._waiting.get(mac, 0.0) > AGAIN[1]:
            self._waiting[mac] = now
            self._waiting.move_to_end(mac)
            if len(self._waiting) > REMEMBERED:
                self._waiting.popitem(last=False)


def _limits(query: DhcpQuery, subnet: str) -> list[tuple[_Key, float]]:
    """Return (limit, multiple of a relay's limit) for each limit that a newcomer is subject to, the
    narrowest first."""
    wide: list[tuple[_Key, float]] = [((subnet, query.giaddr), 1.0), ((subnet,), SUBNET)]
    if query.circuit is None and query.remote is None:
        return wide
    return [((subnet, query.giaddr, query.remote or "", query.circuit or ""), PORT), *wide]
