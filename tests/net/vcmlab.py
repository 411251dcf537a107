"""A VCM's service and the NMP server in one thread, on one clock, with a pipe between them: either
can be killed at any step, as kill -9 would, and started again.

A step is whatever an outside could see: a message said or heard, the memory written, a call of the
pool's, a transaction. Nothing here imitates either side: service, link, sessions, flows and
database are the real ones.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sqlalchemy import Engine
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionRefusedError
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from cod.flows.people import groups
from cod.flows.scheduler import vclusters
from cod.flows.vcms import vcms
from cod.model import AskedVcluster, Site, SiteRef
from cod.net.nmp.server import NmpServer
from cod.net.nmp.session import VcmSession
from cod.net.nmp.tls import PeerIdentity
from cod.pool import in_transaction
from cod.store.database import connect
from cod.store.engine import Tx
from cod.store.nodes import nodes
from cod.store.scheduler import vclusters as vcluster_rows
from cod.vcm.link import Link
from cod.vcm.pool import ANY, Demand, GivenUp
from cod.vcm.retry import Options
from cod.vcm.service import VcmService
from cod.wire.nmp import bodies as b
from tests.contexts import flow_context
from tests.store import manager_world as world

NOW = 1_000_000.0
TICK = 0.25


class Killed(BaseException):
    """kill -9: nothing that would handle an error may catch it."""


class Life:
    """One process, from its start until it is killed: its reactor, its threads, the steps that it
    has taken.

    kill_at  the step at which it dies, counted from 1, or its name; 0: none
    """

    def __init__(self, clock: Clock, kill_at: int | str = 0) -> None:
        self._clock, self.kill_at = clock, kill_at
        self.steps: list[str] = []
        self.dead = False
        self.ends: list[End] = []

    def step(self, what: str) -> None:
        """Something that an outside could see."""
        if self.dead:
            raise Killed
        self.steps.append(what)
        if self.kill_at in (what, len(self.steps)):
            self.die()
            raise Killed

    def die(self) -> None:
        self.dead = True
        for end in self.ends:
            end.cut()

    def seconds(self) -> float:
        return self._clock.seconds()

    def callLater(self, seconds: float, function: Callable[..., Any], *args: Any) -> Any:
        def call() -> None:
            if not self.dead:
                with_death(function, *args)

        return self._clock.callLater(seconds, call)

    def callFromThread(self, function: Callable[..., Any], *args: Any) -> None:
        self.callLater(0, function, *args)

    def callInThreadWithCallback(
        self,
        done: Callable[[bool, Any], None],
        function: Callable[..., Any],
        *args: Any,
        **kwargs: Any,
    ) -> None:
        try:
            value = function(*args, **kwargs)
        except Exception:
            done(False, Failure())
        else:
            done(True, value)


def with_death(function: Callable[..., Any], *args: Any) -> None:
    """Call it; should it be killed in the midst, it is just gone."""
    with suppress(Killed):
        function(*args)


class End:
    """One end of a connection: the transport of the protocol here. What it writes is heard on the
    other, in order."""

    def __init__(self, life: Life, protocol: Any, heard: str = "", said: str = "") -> None:
        self._life, self._protocol = life, protocol
        self._heard, self._said = heard, said
        self.other: End = self
        self.shown: PeerIdentity | None = None
        self._open, self._inbox = True, deque[bytes]()
        life.ends.append(self)

    def write(self, data: bytes) -> None:
        if self._said:
            self._life.step(f"{self._said} {_verb(data)}")
        if self._open:
            self.other.arrives(data)
        if self._said:
            self._life.step(f"has {self._said} {_verb(data)}")

    def arrives(self, data: bytes) -> None:
        self._inbox.append(data)
        self._life.callLater(0, self._hear)

    def _hear(self) -> None:
        data = self._inbox.popleft()
        if self._open:
            if self._heard:
                self._life.step(f"{self._heard} {_verb(data)}")
            self._protocol.dataReceived(data)

    def loseConnection(self) -> None:
        self._end(ConnectionDone())

    def abortConnection(self) -> None:
        self._end(ConnectionAborted())

    def cut(self) -> None:
        """The process at this end is gone: what it has said is still on its way."""
        self._open = False
        self.other.ends(ConnectionDone())

    def _end(self, why: Exception) -> None:
        if self._open:
            self.ends(why)
            self.other.ends(ConnectionDone())

    def ends(self, why: Exception) -> None:
        self._life.callLater(0, self._ended, why)

    def _ended(self, why: Exception) -> None:
        if self._open:
            self._open = False
            self._protocol.connectionLost(Failure(why))

    def getPeer(self) -> Any:
        return SimpleNamespace(host="10.77.9.9")

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        pass

    def unregisterProducer(self) -> None:
        pass

    def pauseProducing(self) -> None:
        pass

    def resumeProducing(self) -> None:
        pass


def _verb(data: bytes) -> str:
    return data.split(b"\r\n")[0].decode().partition(" ")[2]


class Books:
    """What a batch system remembers by itself, whatever happens to its VCM; and who wants how many
    nodes."""

    def __init__(self) -> None:
        self.want, self.members, self.crippled = 1, dict[str, str](), set[str]()
        self.recalled = dict[str, float]()
        self.parked: tuple[str, ...] = ()


class Toy:
    """A pool on those books; each of its functions can be cut short in the middle."""

    def __init__(self, books: Books, life: Life) -> None:
        self._books, self._life = books, life

    def look(self, members: Any, coming: Counter[str], now: float) -> Demand:
        self._life.step("look")
        assert members.keys() <= self._books.members.keys()
        parked = self._books.parked  # then it is content with what it has
        more = 0 if parked else self._books.want - len(members) - coming.total()
        leave = tuple(sorted(members)[self._books.want :]) if not coming else ()
        return Demand(
            {ANY: max(0, more)},
            leave,
            withdraw={"": max(0, -more)},
            why="told to",
            parked=parked,
        )

    def add(self, member: b.Member) -> None:
        self._life.step("add")
        if member.node in self._books.crippled:
            raise GivenUp("its daemon does not run")
        self._books.members[member.hostname] = member.node
        self._life.step("added")

    def choose(self, reclaim: b.Reclaim, members: Any, now: float) -> list[b.Named]:
        self._life.step("choose")
        return [b.Named(name, 5.0) for name in sorted(members)[-reclaim.count :]]

    def recall(self, promised: Mapping[str, float]) -> None:
        self._books.recalled = dict(promised)

    def remove(self, member: b.Member, lost: bool) -> None:
        self._life.step("remove")
        self._books.members.pop(member.hostname, None)
        self._life.step("removed")


class CarefulToy(Toy):
    """One that empties nodes 100 s before maintenance."""

    def maintain(
        self, windows: Sequence[b.Window], members: Any, next_look: float
    ) -> Mapping[str, float]:
        self._life.step("maintain")
        return {
            one.node: math.inf if window.drain else window.begins
            for window in windows
            for one in window.nodes
            if one.node in members and (window.drain or next_look >= window.begins - 100)
        }


class Databases:
    """Stands in for cod.pool.Pool: flows are run at once, in this thread."""

    def __init__(self, engine: Engine, life: Life) -> None:
        self._engine, self._life = engine, life

    def run(self, flow: Callable[..., Any], *args: Any, **kwargs: Any) -> Deferred[Any]:
        self._life.step("begin")
        done = self.read(flow, *args, **kwargs)
        self._life.step("committed")
        return done

    def run_once(
        self, _: object, flow: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Deferred[Any]:
        return self.run(flow, *args, **kwargs)

    def read(self, flow: Callable[..., Any], *args: Any, **kwargs: Any) -> Deferred[Any]:
        try:
            return succeed(in_transaction(self._engine, flow, *args, **kwargs))
        except Exception:
            return fail(Failure())

    def is_away(self, error: BaseException) -> bool:
        return False


class MortalService(VcmService):
    """A VCM's service; each writing of its state is a step."""

    life: Life

    async def _round(self) -> None:
        with suppress(Killed):
            await super()._round()

    def _remember(self) -> None:
        self.life.step("remember")
        super()._remember()
        self.life.step("remembered")


class Lab:
    """A site of five nodes, the vcluster 'pool' of one of them, its VCM."""

    def __init__(self, database: Path, site: Site, state: Path) -> None:
        self.clock, self.site, self.books = Clock(), site, Books()
        self.engine = connect(f"sqlite:///{database}")
        self.state, self._due = state, True
        self.cod = self.vcm = Life(self.clock)
        self.connected = True  # does the network carry?
        self.away = False  # nobody tells the pool that a node is gone
        self.reviving = True  # is who dies started again at once?
        self.toy: type[Toy] = Toy
        self._options: dict[str, Any] = {}

    def close(self) -> None:
        self.vcm.die()
        self.cod.die()
        self.engine.dispose()

    def now(self) -> float:
        return NOW + self.clock.seconds()

    # ------------------------------------------------------------ the two processes

    def start_cod(self, kill_at: int | str = 0) -> None:
        self.cod = Life(self.clock, kill_at)
        self.server = NmpServer(
            self.cod,
            Databases(self.engine, self.cod),
            SiteRef(self.site),
            "cod1",
            lambda factory: (),
            lambda transport: PeerIdentity("7", "pool", True),
            self.now,
            self._effects,
        )
        with_death(self.server.startService)

    def _effects(self, effects: Any) -> None:
        self._due = True

    def start_vcm(self, kill_at: int | str = 0, **options: Any) -> None:
        life = self.vcm = Life(self.clock, kill_at)
        self._options = options
        told = Options("pool", "toy 1.0", self.state, 1.0, **options)
        self.service = MortalService(
            life, life, told, self.toy(self.books, life), self._connect, self.now
        )
        self.service.life = life
        with_death(self.service.startService)

    def _connect(self, link: Link) -> Deferred[Any]:
        if self.cod.dead or not self.connected:
            return fail(ConnectionRefusedError())
        session = VcmSession(self.server, "10.77.9.9")
        here, there = End(self.vcm, link, "hear", "say"), End(self.cod, session)
        here.other, there.other = there, here
        self.cod.callLater(0, session.makeConnection, there)
        self.vcm.callLater(0, link.makeConnection, here)
        return succeed(link)

    def cut(self) -> None:
        """The network is gone, and nobody is told."""
        self.connected, nobody = False, Life(self.clock)
        nobody.dead = True
        for end in [*self.vcm.ends, *self.cod.ends]:
            end.other = End(nobody, None)

    # ------------------------------------------------------------ time

    def tick(self) -> None:
        if self.vcm.dead and self.reviving:
            self.start_vcm(**self._options)
        if self.cod.dead and self.reviving:
            self.start_cod()
        self.clock.advance(TICK)
        if self._due or round(self.clock.seconds() / TICK) % 8 == 0:
            self._due = False
            in_transaction(self.engine, self._pass)
        if not self.away:
            assert self.books.members.keys() <= self.held("pool"), (
                "the pool uses a node that was given away"
            )

    def _pass(self, tx: Tx) -> None:
        world.run_pass(tx, self.site, self.now())
        world.arrive(tx, self.now())
        world.check_world(tx)

    def ticks(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK)):
            self.tick()

    def until(self, truth: Callable[[], Any], what: str, ticks: int = 400) -> None:
        for _ in range(ticks):
            if truth():
                return
            self.tick()
        raise AssertionError(f"it never came to this: {what}")

    # ------------------------------------------------------------ what there is

    def create(self, name: str, size: int, group: str) -> None:
        """Request another vcluster."""
        in_transaction(
            self.engine,
            vclusters.create,
            flow_context(self.site, self.now()),
            AskedVcluster(name=name, size=size, template="debian", group=group),
        )

    def held(self, name: str) -> set[str]:
        """The host names of a vcluster's nodes."""
        return set(in_transaction(self.engine, _held, name))


def _held(tx: Tx, name: str) -> list[str]:
    vcluster = vcluster_rows.by_name(tx, name)
    if vcluster is None:
        return []
    return [node.hostname or "" for node in nodes.every(tx, vcluster_id=vcluster.id)]


def furnish(tx: Tx, site: Site) -> None:
    """A site of five nodes, a group that goes first, the vcluster 'pool' of one node, and its VCM's
    certificate."""
    world.furnish(tx, 5)
    groups.create(tx, name="top", priority=10, default_lease=None, max_lease=None, now=NOW)
    vclusters.create(
        tx,
        flow_context(site, NOW),
        AskedVcluster(name="pool", size=1, template="debian", group="site"),
    )
    world.run_pass(tx, site, NOW)
    world.arrive(tx, NOW)
    vcms.enrol(tx, vcluster="pool", serial="7", address="", now=NOW)
