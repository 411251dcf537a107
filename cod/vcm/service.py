"""Keeps a pool and COD in agreement: the connection, and the messages that arrive on it.

COD's messages are written to the state file, synced and acknowledged. All else follows from that
state alone, in rounds (cod/vcm/reconcile.py) that may be interrupted at any point.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import Deferred, DeferredList, DeferredSemaphore, ensureDeferred

from cod.vcm import state as store
from cod.vcm.link import Link, LinkLost
from cod.vcm.pool import Pool, Recalling
from cod.vcm.reconcile import Reconciler
from cod.vcm.renewal import Renewal
from cod.vcm.retry import Options
from cod.vcm.state import VcmState
from cod.wire.nmp.bodies import (
    Body,
    Grant,
    Hello,
    Lease,
    NodeState,
    Progress,
    Reclaim,
    Refusal,
    Welcome,
)

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds between attempts to connect
PARTING = 2.0  # seconds that a goodbye may take
MOST_ASKED = 32  # questions without an answer; COD allows for some more

log = logging.getLogger("cod.vcm")


class VcmService(Service):
    """The service of a VCM, which connects its pool to COD.

    reactor   needs callLater; `threads` is a running thread pool for blocking calls
    connect   connects a protocol; fires when it is connected
    clock     seconds since the epoch
    renewal   renews the VCM's certificate; None: it has none
    """

    def __init__(
        self,
        reactor: Any,
        threads: Any,
        options: Options,
        pool: Pool,
        connect: Callable[[Link], Deferred[Any]],
        clock: Callable[[], float],
        renewal: Renewal | None = None,
    ) -> None:
        self._reactor, self._options, self._connect = reactor, options, connect
        self.state, self._pool = VcmState(options.vcluster), pool
        self.reconciler = Reconciler(
            reactor, threads, options, pool, clock, self._ask, self._remember
        )
        self.began, self._renewal = False, renewal
        self._limit = DeferredSemaphore(MOST_ASKED)
        self._link: Link | None = None
        self._open = False
        self._pause = FIRST_PAUSE
        self._timer: Any = None
        self._working = self._again = False
        self._work: Deferred[None] | None = None
        self._link_ended: Deferred[None] | None = None  # fires when the last connection has ended

    # ------------------------------------------------------------ the connection

    def startService(self) -> None:
        """Read the state file, and connect. Raises `state.BadState`."""
        super().startService()  # type: ignore[no-untyped-call]
        self.state = store.load(self._options.state, self._options.vcluster) or self.state
        promised = self.state.promised()
        if promised and isinstance(self._pool, Recalling):
            self._pool.recall(promised)
        self.began = True
        self._call()
        self._wake(0.0)

    def stopService(self) -> Deferred[Any]:
        """Finish the round that is under way, and send a bye. The result fires when it has been
        sent."""
        super().stopService()  # type: ignore[no-untyped-call]
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        left = [self._work] if self._work is not None else []
        if self._link is not None and self._link.transport is not None:
            self._link_ended = Deferred()
            left.append(self._link_ended.addTimeout(PARTING, self._reactor, lambda *_: None))
        if self._link is not None:
            self._link.leave("the VCM is being stopped")
        return DeferredList(left)

    def page(self) -> str:
        """Return metrics in Prometheus's text format."""
        nodes = self.state.nodes.values()
        counts = {
            "cod_vcm_connected": int(self._open),
            "cod_vcm_members": sum(node.added for node in nodes),
            "cod_vcm_coming": self.state.coming().total(),
            "cod_vcm_parked": self.reconciler.parked,
            "cod_vcm_leaving": sum(bool(node.leaving) for node in nodes),
            "cod_vcm_reclaims": len(self.state.reclaims),
            "cod_vcm_last_message": self.state.seen,
        }
        label = f'{{vcluster="{self._options.vcluster}"}}'
        return "".join(
            f"# TYPE {name} gauge\n{name}{label} {value}\n" for name, value in counts.items()
        )

    def _call(self) -> None:
        if not self.running:
            return
        hello = Hello(self._options.vcluster, self._options.vcm, self.state.seen)
        self._link = Link(
            self._reactor, hello, welcomed=self._welcomed, received=self._received, lost=self._lost
        )
        self._connect(self._link).addErrback(lambda failure: self._lost(failure.getErrorMessage()))

    def _welcomed(self, welcome: Welcome) -> None:
        log.info("connected with %s, for vcluster %s", welcome.server, welcome.vcluster)
        self._open, self._pause = True, FIRST_PAUSE
        # one side has lost messages, and COD does not send them again
        if welcome.sequence != self.state.seen:
            self.state.seen, self.state.sure = welcome.sequence, False
            self._remember()
        self._wake(0.0)

    def _lost(self, why: str) -> None:
        self._open, self._link = False, None
        if self._link_ended is not None and not self._link_ended.called:
            self._link_ended.callback(None)
        if self.running:
            pause = self._pause * random.uniform(0.8, 1.2)
            log.warning("no connection with COD: %s; again in %.0f s", why, pause)
            self._pause = min(self._pause * 2, LONGEST_PAUSE)
            self._reactor.callLater(pause, self._call)

    async def _renew(self) -> None:
        """Renew the VCM's certificate when it is time, and then reconnect to show it."""
        if self._renewal is None or self._options.dry_run or not self._open:
            return
        if await self._renewal.run(self._ask) and self._link is not None:
            self._open = False
            self._link.leave("it comes again with its new certificate")

    async def _ask(self, body: Body) -> Body:
        """Send a question as soon as few enough questions are without an answer."""
        await self._limit.acquire()
        try:
            if self._link is None or not self._open:
                raise LinkLost("there is no connection")
            return await self._link.ask(body)
        finally:
            self._limit.release()

    # ------------------------------------------------------------ what COD says

    def _received(self, sequence: int, body: Body | None) -> None:
        if sequence and sequence <= self.state.seen:
            self._acknowledge()  # heard before: the acknowledgement was lost
            return
        if body is None:
            self.state.sure = False  # whatever it was: the whole picture has it
        else:
            self._react(body)
            self.state.hear(body)
        if sequence:
            self.state.seen = sequence
            self._remember()
            self._acknowledge()
        self._wake(0.0)

    def _acknowledge(self) -> None:
        if self._link is not None:
            self._link.acknowledge(self.state.seen)

    def _react(self, body: Body) -> None:
        """Carry out the effects of a message besides the change of the state."""
        if isinstance(body, Refusal) and body.key in self.state.requests:
            self.reconciler.pause_requests(self.state.requests[body.key].nodeset.name)
            count = self.state.requests[body.key].count
            log.warning("COD refused %d more node%s: %s", count, "s" * (count > 1), body.reason)
        elif isinstance(body, Grant):
            nodes = ", ".join(f"{member.hostname} ({member.node})" for member in body.members)
            log.info("request %d is granted: %s", body.request, nodes)
        elif isinstance(body, NodeState):
            log.debug("%s (%s) is %s", body.hostname, body.node, body.state)
        elif isinstance(body, Reclaim):
            log.info(
                "reclaim %d: %d nodes are wanted back: %s", body.reclaim, body.count, body.reason
            )
        elif isinstance(body, Lease):
            log.info(
                "the lease: %s; its end: %s", body.event, datetime.fromtimestamp(body.expires, UTC)
            )
        elif isinstance(body, Progress):
            log.debug("%s: %s %d of %d", body.node, body.phase, body.done, body.total)

    def _remember(self) -> None:
        store.save(self.state, self._options.state)

    # ------------------------------------------------------------ rounds

    def _wake(self, seconds: float) -> None:
        """Begin a round in at most `seconds`."""
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
            ensureDeferred(self.reconciler.answer())
        elif self.running:
            self._working = True
            self._work = ensureDeferred(self._round())

    async def _round(self) -> None:
        seconds = 0.0
        try:
            seconds = await self.reconciler.run(self.state, self._open)
            await self._renew()
        finally:
            self._working, again, self._again = False, self._again, False
            self._wake(0.0 if again else seconds)
