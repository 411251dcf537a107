"""How a server judges that another's claim is over."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from cod.choices import FileServerDriverKind
from cod.claimkeeper import ClaimKeeper
from cod.fileservers.edge import COMPARE, FileServerEdge
from cod.flows import claims
from cod.flows.claims import Claim
from cod.flows.volumes import exports
from cod.model import FileServer, Site, SiteRef


class Alone:
    """The pool of a server that alone wants the claim. `renewed`: times when it was renewed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.renewed: list[float] = []

    def run(self, flow: object, *_: object) -> Deferred[object]:
        if flow is exports.began:
            self._clock.advance(0.5)  # the first look waits for a connection
        if flow is not claims.hold:
            return succeed([])
        self.renewed.append(self._clock.seconds())
        return succeed(Claim("fileservers", "a", 1, 0.0))

    def read(self, *_: object) -> Deferred[object]:
        return succeed(None)


class Nothing:
    """A file server that exports nothing."""

    async def exports(self, _server: FileServer) -> list[object]:
        return []


def test_comparisons_of_file_servers_renew_their_claim_in_time(site: Site) -> None:
    clock = Clock()
    clock.advance(1000.0)
    pool: Any = Alone(clock)
    drivers: Any = {"kernel": Nothing()}
    server = FileServer("files", FileServerDriverKind("kernel"), "files.example", "/volumes")
    sites = SiteRef(replace(site, fileservers=(server,)))
    edge = FileServerEdge(clock, pool, drivers, "a", clock.seconds, sites, list)
    for second in range(int(3 * COMPARE)):
        clock.advance(max(1000.0 + second - clock.seconds(), 0.0))
        Deferred.fromCoroutine(edge.look())
    gaps = [later - before for before, later in pairwise(pool.renewed)]
    assert gaps
    assert max(gaps) < COMPARE + 2.0, "it is over after twice as long"


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
