"""Keeps a pool and COD in agreement: the connection, what is remembered, and the calls of a `Pool`'s four functions.

What COD says is written into the memory, synced and acknowledged; everything else follows from the memory alone, step
by step, and may be interrupted after any: a node that is active and not added is added; one that is to leave is
removed, then released; a reclaim that has no answer is answered; a request that COD has not confirmed is made again.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from twisted.application.service import Service
from twisted.internet.defer import Deferred, ensureDeferred, gatherResults
from twisted.internet.threads import deferToThreadPool

from cod.vcm import memory as store
from cod.vcm.link import Link, Lost, Refusal
from cod.vcm.memory import Asked, Memory, Ours
from cod.vcm.pool import NotYet, Pool, Wish
from cod.wire.nmpbodies import (
    Body,
    Done,
    Extend,
    Hello,
    Lease,
    Named,
    Progress,
    Reclaim,
    ReclaimAnswer,
    ReleaseNodes,
    Request,
    RequestNodes,
    Status,
    Vcluster,
    Wanted,
    Welcome,
    Withdraw,
)
from cod.wire.nmpbodies import (
    Refusal as Refused,
)

T = TypeVar("T")
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds between attempts to connect
AFTER_TROUBLE = 5.0  # seconds after which a step that failed is tried again
AFTER_REFUSAL = 60.0  # seconds in which nothing is asked for after COD has refused

log = logging.getLogger("cod.vcm")


@dataclass(frozen=True, slots=True)
class Terms:
    """How a VCM goes about it.

    vcluster, vcm   whom it acts for, what it is
    state      the file it remembers in
    interval   seconds between looks at the pool
    template, requires   of the nodes it asks for; '' the vcluster's own
    extend     seconds to extend the lease by when COD warns of its end; 0: let it end
    dry_run    say what would be asked for and given back, and do neither
    """

    vcluster: str
    vcm: str
    state: Path
    interval: float = 15.0
    template: str = ""
    requires: str = ""
    extend: float = 0.0
    dry_run: bool = False


class Keeper(Service):
    """Runs a pool.

    reactor   needs callLater; `threads` is a running thread pool for what may block
    connect   makes a connection for a protocol; fires when it is there
    clock     seconds since the epoch
    """

    def __init__(
        self, reactor: Any, threads: Any, terms: Terms, pool: Pool, connect: Callable[[Link], Deferred[Any]],
        clock: Callable[[], float],
    ) -> None:
        self._reactor, self._threads, self._terms, self._pool = reactor, threads, terms, pool
        self._connect, self._clock = connect, clock
        self.memory = Memory(terms.vcluster)
        self.began = False
        self._known = False  # is the memory all there is to know?
        self._link: Link | None = None
        self._open = False
        self._pause = FIRST_PAUSE
        self._timer: Any = None
        self._working = self._again = False
        self._next_look = 0.0
        self._quiet_until = 0.0
        self._work: Deferred[None] | None = None

    # ------------------------------------------------------------ the connection

    def startService(self) -> None:
        """Read the memory, and connect. Raises `memory.Forgetful`."""
        super().startService()  # type: ignore[no-untyped-call]
        found = store.load(self._terms.state, self._terms.vcluster)
        if found is not None:
            self.memory, self._known = found, True
        self.began = True
        self._call()
        self._wake(0.0)

    def stopService(self) -> Deferred[None] | None:
        """Finish the step that is under way, and say goodbye."""
        super().stopService()  # type: ignore[no-untyped-call]
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        if self._link is not None:
            self._link.leave("the VCM is being stopped")
        return self._work

    def page(self) -> str:
        """How things are, in Prometheus's text format."""
        nodes = self.memory.nodes.values()
        counts = {
            "cod_vcm_connected": int(self._open),
            "cod_vcm_members": sum(ours.added for ours in nodes),
            "cod_vcm_coming": self.memory.coming(),
            "cod_vcm_leaving": sum(bool(ours.leaving) for ours in nodes),
            "cod_vcm_reclaims": len(self.memory.reclaims),
            "cod_vcm_last_message": self.memory.seen,
        }
        label = f'{{vcluster="{self._terms.vcluster}"}}'
        return "".join(f"# TYPE {name} gauge\n{name}{label} {value}\n" for name, value in counts.items())

    def _call(self) -> None:
        if not self.running:
            return
        hello = Hello(self._terms.vcluster, self._terms.vcm, self.memory.seen)
        self._link = Link(self._reactor, hello, welcomed=self._welcomed, told=self._told, lost=self._lost)
        self._connect(self._link).addErrback(lambda failure: self._lost(failure.getErrorMessage()))

    def _welcomed(self, welcome: Welcome) -> None:
        log.info("connected with %s, for vcluster %s", welcome.server, welcome.vcluster)
        self._open, self._pause = True, FIRST_PAUSE
        self._wake(0.0)

    def _lost(self, why: str) -> None:
        self._open, self._link = False, None
        if self.running:
            pause = self._pause * random.uniform(0.8, 1.2)
            log.warning("no connection with COD: %s; again in %.0f s", why, pause)
            self._pause = min(self._pause * 2, LONGEST_PAUSE)
            self._reactor.callLater(pause, self._call)

    # ------------------------------------------------------------ what COD says

    def _told(self, sequence: int, body: Body | None) -> None:
        if sequence and sequence <= self.memory.seen:
            return self._acknowledge()  # heard before: the acknowledgement was lost
        if body is None:
            self._known = False  # whatever it was: the whole picture has it
        else:
            self.memory.hear(body)
            self._also(body)
        if sequence:
            self.memory.seen = sequence
            store.save(self.memory, self._terms.state)
            self._acknowledge()
        self._wake(0.0)
        return None

    def _acknowledge(self) -> None:
        if self._link is not None:
            self._link.acknowledge(self.memory.seen)

    def _also(self, body: Body) -> None:
        """What else a message means than what is remembered."""
        if isinstance(body, Refused):
            self._quiet_until = self._clock() + AFTER_REFUSAL
            log.warning("COD refused %s: %s", body.key, body.reason)
        elif isinstance(body, Lease):
            log.info("the lease: %s", body.event)
            if body.event == "warning" and self._terms.extend:
                self._say(Extend(self._terms.extend))
        elif isinstance(body, Progress):
            log.debug("%s: %s %d of %d", body.node, body.phase, body.done, body.total)

    # ------------------------------------------------------------ the work

    def _wake(self, seconds: float) -> None:
        """Work in so many seconds at the latest."""
        if not self.running:
            return
        if self._timer is not None and self._timer.active():
            if self._timer.getTime() <= self._reactor.seconds() + seconds:
                return
            self._timer.cancel()
        self._timer = self._reactor.callLater(seconds, self._start)

    def _start(self) -> None:
        if self._working:
            self._again = True
        elif self.running:
            self._working = True
            self._work = ensureDeferred(self._step())

    async def _step(self) -> None:
        try:
            if self._open and not self._known:
                await self._learn()
            if self._known:
                await self._add()
                await self._answer()
                await self._let_go()
                await self._look()
        except (Lost, Refusal) as error:
            log.warning("COD: %s", error)
        except Exception:
            log.exception("the work failed; again in %.0f s", AFTER_TROUBLE)
        finally:
            self._working, again, self._again = False, self._again, False
            self._wake(0.0 if again else min(AFTER_TROUBLE, self._terms.interval))

    async def _learn(self) -> None:
        """Not everything is remembered: COD knows which nodes are the vcluster's."""
        now = await self._ask(Status())
        assert isinstance(now, Vcluster)
        self.memory.learn(now)
        self._known = True
        self._remember()

    async def _add(self) -> None:
        new = [ours for ours in self.memory.nodes.values()
               if ours.member.state == "active" and not ours.added and not ours.leaving]
        await self._each(self._add_one(ours) for ours in new)

    async def _add_one(self, ours: Ours) -> None:
        if await self._tried(f"{ours.member.hostname} is added", self._pool.add, ours.member):
            log.info("%s (%s) takes part now", ours.member.hostname, ours.member.node)
            ours.added = True
            self._remember()

    async def _answer(self) -> None:
        for reclaim in list(self.memory.reclaims.values()):
            would_do = {named.node for named in reclaim.nodes}
            members = {host: ours.member for host, ours in self.memory.hosts().items()
                       if (not would_do or would_do & {host, ours.member.node}) and not ours.leaving}
            named = list(await self._in_thread(self._pool.choose, reclaim, members, self._clock()))
            self._promise(reclaim, named)
            if self._open:
                await self._ask(ReclaimAnswer(reclaim.reclaim, tuple(named),
                                              "" if len(named) >= reclaim.count else "no more nodes can be given"))
                self.memory.reclaims.pop(reclaim.reclaim, None)
                self._remember()

    def _promise(self, reclaim: Reclaim, named: list[Named]) -> None:
        hosts = self.memory.hosts()
        for one in named:
            ours = hosts.get(one.node)
            if ours is not None:
                ours.leaving, ours.reclaim = f"reclaimed: {reclaim.reason}", reclaim.reclaim
                ours.within = self._clock() + one.within
        self._remember()

    async def _let_go(self) -> None:
        lost = [ours for ours in self.memory.nodes.values() if ours.member.state == "lost"]
        leaving = [ours for ours in self.memory.nodes.values() if ours.leaving and ours.member.state != "lost"]
        await self._each(self._remove_one(ours, True) for ours in lost)
        await self._each(self._remove_one(ours, False) for ours in leaving)

    async def _remove_one(self, ours: Ours, lost: bool) -> None:
        name = ours.member.hostname
        if self._terms.dry_run and not lost:
            log.info("would give back %s: %s", name, ours.leaving)
            return
        if not await self._tried(f"{name} is removed", self._pool.remove, ours.member, lost):
            return
        ours.added = False
        self._remember()
        if not lost:
            await self._ask(ReleaseNodes((Named(name),), ours.leaving))
            log.info("%s (%s) was given back: %s", name, ours.member.node, ours.leaving)
        self.memory.nodes.pop(ours.member.node, None)
        self._remember()

    async def _look(self) -> None:
        if not self._open:
            return
        for key, asked in list(self.memory.requests.items()):
            if not asked.request:
                await self._request(key, asked)
        if self._clock() < self._next_look:
            return
        self._next_look = self._clock() + self._terms.interval
        members = {host: ours.member for host, ours in self.memory.hosts().items() if ours.added and not ours.leaving}
        wish = await self._in_thread(self._pool.look, members, self.memory.coming(), self._clock())
        await self._carry_out(wish)

    async def _carry_out(self, wish: Wish) -> None:
        if self._terms.dry_run:
            if wish.grow or wish.leave:
                log.info("would ask for %d nodes, give back %s: %s", wish.grow, list(wish.leave), wish.why)
            return
        if wish.withdraw:
            for key, asked in list(self.memory.requests.items()):
                await self._ask(Withdraw(asked.request))
                self.memory.requests.pop(key, None)
        hosts = self.memory.hosts()
        for name in wish.leave:
            hosts[name].leaving = wish.why or "not needed any more"
        if self._clock() >= self._quiet_until:
            await self._grow(wish)
        self._remember()
        if wish.leave:
            self._wake(0.0)

    async def _grow(self, wish: Wish) -> None:
        """One request a node: what can be had now shall not wait for what cannot."""
        for _ in range(wish.grow):
            self.memory.keys += 1
            key = f"{self._terms.vcluster}-{self.memory.keys}"
            self.memory.requests[key] = Asked(1)
            self._remember()  # first: asked twice under one key is asked once
            await self._request(key, self.memory.requests[key], wish.why)

    async def _request(self, key: str, asked: Asked, why: str = "") -> None:
        wanted = Wanted(asked.count, self._terms.template, self._terms.requires)
        answer = await self._ask(RequestNodes(key, (wanted,), reason=why))
        assert isinstance(answer, Request)
        log.info("asked for %d node (%s), request %d: %s", asked.count, why or key, answer.request, answer.state)
        if key in self.memory.requests:  # its grant may have come first
            self.memory.requests[key].request = answer.request
            self._remember()

    # ------------------------------------------------------------ steps

    def _remember(self) -> None:
        store.save(self.memory, self._terms.state)

    def _in_thread(self, function: Callable[..., T], *args: Any) -> Deferred[T]:
        return deferToThreadPool(self._reactor, self._threads, function, *args)

    async def _tried(self, what: str, function: Callable[..., None], *args: Any) -> bool:
        """Call a function of the pool's; False, and mostly a line in the log, when it raised."""
        try:
            await self._in_thread(partial(function, *args))
        except NotYet as reason:
            log.debug("%s: not yet: %s", what, reason)
            return False
        except Exception as error:
            log.error("%s: %s: %s", what, type(error).__name__, error)
            return False
        return True

    async def _each(self, work: Any) -> None:
        """Several nodes at a time."""
        await gatherResults([ensureDeferred(one) for one in work], consumeErrors=True)

    async def _ask(self, body: Body) -> Body:
        if self._link is None or not self._open:
            raise Lost("there is no connection")
        return await self._link.ask(body)

    def _say(self, body: Body) -> None:
        """Ask, and only log what comes of it."""

        async def said() -> None:
            try:
                answer = await self._ask(body)
            except (Lost, Refusal) as error:
                log.warning("COD: %s", error)
            else:
                log.info("COD: %s", answer.about if isinstance(answer, Done) else "done")

        ensureDeferred(said())
