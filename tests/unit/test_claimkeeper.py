"""How a server judges that another's claim is over."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from cod.store.claims import Claim
from cod.workers.claimkeeper import ClaimKeeper

THEIRS = Claim("manager", "b", 1, 100.0, acts=1)


def test_a_look_that_takes_long_counts_from_its_end() -> None:
    """The row may have been read last of all, after a database that was away."""
    clock = Clock()
    looks: list[Deferred[Claim | None]] = []
    taken: list[Claim | None] = []

    def find() -> Deferred[Claim | None]:
        looks.append(Deferred())
        return looks[-1]

    def hold(_: float, __: Claim | None, over: Claim | None) -> Deferred[Claim | None]:
        taken.append(over)
        return Deferred()

    keeper = ClaimKeeper(clock, find, hold, "a", 15.0)

    def look(seconds: float) -> None:
        Deferred.fromCoroutine(keeper.keep(0.0))
        clock.advance(seconds)
        looks[-1].callback(THEIRS)

    look(20.0)
    look(14.0)
    look(2.0)
    assert taken == [], "it was there unchanged for 14 seconds when this look began"
    look(0.0)
    assert taken == [THEIRS]
