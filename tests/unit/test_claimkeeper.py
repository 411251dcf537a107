"""How a server judges that another's claim is over."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from cod.claimkeeper import ClaimKeeper
from cod.flows.claims import Claim

THEIRS = Claim("manager", "b", 1, 100.0, acts=1)


def test_a_look_that_takes_long_counts_from_its_end() -> None:
    """The row may have been read last of all, after a database that was away."""
    clock = Clock()
    looks: list[Deferred[Claim | None]] = []
    taken: list[object] = []

    class Late:
        """A pool whose answers come when the test gives them."""

        def read(self, *_: object) -> Deferred[Claim | None]:
            looks.append(Deferred())
            return looks[-1]

        def run(self, *args: object) -> Deferred[Claim | None]:
            taken.append(args[-1])
            return Deferred()

    keeper = ClaimKeeper(clock, Late(), "manager", "a", 15.0)

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
