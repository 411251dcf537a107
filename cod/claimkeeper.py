"""A worker's claim to work that only one server does at a time."""

from __future__ import annotations

from typing import Any

from cod.flows import claims
from cod.flows.claims import Claim
from cod.pool import Pool


class ClaimKeeper:
    """Gets the claim `name` for `server`, renews it in time, and knows when another server's claim
    is over: when that claim was not renewed for `seconds`, as counted by this host. So clocks that
    differ, or that are set, do no harm.

    claim  this server's claim; None: another server has it
    """

    def __init__(self, reactor: Any, pool: Pool, name: str, server: str, seconds: float) -> None:
        self.claim: Claim | None = None
        self._reactor, self._pool = reactor, pool
        self._name, self._server, self._seconds = name, server, seconds
        self._renewed = self._since = 0.0
        self._seen: Claim | None = None  # another server's claim, unchanged since `_since`

    def is_due(self) -> bool:
        """Return whether this server should renew its claim, or look at another server's."""
        age = self._reactor.seconds() - self._renewed
        return self.claim is None or age >= self._seconds / 2

    async def keep(self, now: float) -> Claim | None:
        """Return the claim, renewed in time; None while it is another server's."""
        if not self.is_due():
            return self.claim
        begun, over = self._reactor.seconds(), self.claim
        if over is None:
            over = await self._pool.read(claims.find, self._name)
            if over is not None and over.owner != self._server and not self._is_over(over, begun):
                return None
        self.claim = await self._pool.run(
            claims.hold, self._name, self._server, now, self._seconds, self.claim, over
        )
        self._renewed = begun
        return self.claim

    async def give_up(self) -> None:
        """Let other servers have the claim at once, if this server has it."""
        claim, self.claim = self.claim, None
        if claim is not None:
            await self._pool.run(claims.give_up, claim)

    def _is_over(self, claim: Claim, begun: float) -> bool:
        """Return whether another server's claim is over. The claim was read at some time after
        `begun`; when it differs from the one seen before, its time counts from now."""
        if self._seen is None or not claims.is_unchanged(claim, self._seen):
            self._seen, self._since = claim, self._reactor.seconds()
        return claim.is_given_up() or begun >= self._since + self._seconds
