"""A VCM's reconcile loop: each round takes every step that is due.

An active node that was not added is added. A lost node is removed from the pool's records. A
leaving node is removed, then released. A reclaim without an answer is answered. A request that COD
has not confirmed is repeated. A crash may interrupt a step at any point: the step is written to the
state file before COD is told, and COD treats a repeated message like one message. The failure of
one step does not stop the others.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from math import inf
from typing import Any

from twisted.internet.defer import DeferredLock

from cod.vcm.link import LastingError
from cod.vcm.pool import Ending, GivenUp, Maintained, Pool
from cod.vcm.retry import AFTER_TROUBLE, Options, RetryingSteps
from cod.vcm.state import OpenRequest, OwnNode, VcmState
from cod.wire.nmp.bodies import (
    Body,
    Extend,
    MaintenanceStatus,
    Named,
    NeededNodes,
    NodeMaintenance,
    ParkNodes,
    Reclaim,
    ReclaimAnswer,
    ReleaseNodes,
    Request,
    RequestNodes,
    Status,
    Vcluster,
    Wanted,
    Window,
    Withdraw,
)

# seconds for which nodes are not requested (or released) again after COD has refused that
AFTER_REFUSAL = 60.0
MOST_PARKED = 500  # nodes in a question: a longer one could be more than COD reads
log = logging.getLogger("cod.vcm")


class Reconciler(RetryingSteps):
    """The reconcile loop: carries out the steps that are due.

    ask       sends COD a question; raises `LinkLost` or `NmpError`
    remember  writes the state to disk
    """

    def __init__(
        self,
        reactor: Any,
        threads: Any,
        options: Options,
        pool: Pool,
        clock: Callable[[], float],
        ask: Callable[[Body], Awaitable[Body]],
        remember: Callable[[], None],
    ) -> None:
        super().__init__(reactor, threads)
        self._options, self._pool = options, pool
        self._clock, self._ask, self._remember = clock, ask, remember
        self._state = VcmState()
        self._open = False
        self._next_look = self._keep_until = 0.0
        self.parked = 0  # nodes, at the last look
        self._quiet_until: dict[str, float] = {}  # by nodeset
        self._in_vain = Counter[str]()  # pauses since one of the nodeset was of use
        self._choosing = DeferredLock()
        # the windows that COD told last; None: not asked since the start
        self._windows: dict[int, Window] | None = None

    def pause_requests(self, nodeset: str, seconds: float = AFTER_REFUSAL) -> None:
        """Request no further nodes of this nodeset for a while, because COD has refused one, or one
        was useless."""
        self._quiet_until[nodeset] = self._clock() + seconds

    async def run(self, state: VcmState, connected: bool) -> float:
        """Run one round; return the seconds until the next."""
        self._state, self._open = state, connected
        self._next = min(AFTER_TROUBLE, self._options.interval)
        if connected and not state.sure:
            await self._attempt("the vcluster is looked up", self._learn())
        if state.sure and self._options.dry_run:
            await self._attempt("the pool is looked at", self._look())
        elif state.sure:
            for what, step in (
                ("the lease is extended", self._extend),
                ("lost nodes are struck off", self._drop_lost),
                ("reclaims are answered", self._answer),
                ("nodes are added", self._add),
                ("maintenance is prepared", self._maintain),
                ("nodes are given back", self._release),
                ("requests are made", self._confirm),
                ("the pool is looked at", self._look),
            ):
                await self._attempt(what, step())
        return self._next

    async def answer(self) -> None:
        """Answer reclaims while a round is under way, because the round may be waiting for a
        command that takes a minute."""
        if self._state.sure and not self._options.dry_run:
            await self._attempt("reclaims are answered", self._answer())

    # ------------------------------------------------------------ what there is

    async def _learn(self) -> None:
        """Replace the state by the vcluster's nodes, requests and reclaims as COD tells them."""
        if not self._open:
            return
        before = self._state.seen
        now = await self._ask(Status())
        assert isinstance(now, Vcluster)
        # messages that arrived while the answer was on its way may be newer than the answer
        if self._state.seen != before:
            self._come_back(0.0)
            return
        self._state.learn(now)
        self._remember()

    async def _extend(self) -> None:
        if self._state.warned and self._options.extend and self._open:
            try:
                await self._ask(Extend(self._options.extend))
            except LastingError as refusal:
                log.warning("COD does not extend the lease: %s", refusal)
            self._state.warned = False
            self._remember()

    # ------------------------------------------------------------ joining

    async def _add(self) -> None:
        hosts = [node.member.hostname for node in self._state.nodes.values()]
        new = [
            node
            for node in self._state.nodes.values()
            if node.member.state == "active"
            and not node.added
            and not node.leaving
            # otherwise the earlier node of that name is removed first
            and hosts.count(node.member.hostname) == 1
        ]
        await self._all_of(self._add_one(node) for node in new)

    async def _add_one(self, node: OwnNode) -> None:
        member, what = node.member, f"{node.member.hostname} is added"
        given_up: list[str] = []

        def add() -> None:
            try:
                self._pool.add(member)
            except GivenUp as reason:
                given_up.append(str(reason))

        added = await self._done(what, add)
        if given_up:
            log.error("%s (%s) is given back: %s", member.hostname, member.node, given_up[0])
            node.leaving = given_up[0]
            # each useless node is installed and erased for nothing
            if self._clock() >= self._quiet_until.get(member.nodeset, 0.0):
                self.pause_requests(
                    member.nodeset, AFTER_REFUSAL * 2 ** min(self._in_vain[member.nodeset], 5)
                )
                self._in_vain[member.nodeset] += 1
            self._remember()
            return
        if added and node.member == member:  # it may have started anew meanwhile
            log.info("%s (%s) takes part now", member.hostname, member.node)
            self._in_vain.pop(member.nodeset, None)
            node.added, node.member = True, replace(member, since=member.since or self._clock())
            self._remember()

    # ------------------------------------------------------------ leaving

    async def _drop_lost(self) -> None:
        await self._all_of(
            self._drop_lost_one(node) for node in list(self._state.nodes.values()) if node.lost
        )

    async def _drop_lost_one(self, node: OwnNode) -> None:
        if await self._done(
            f"{node.member.hostname} is struck off", self._pool.remove, node.member, True
        ):
            self._forget(node)

    async def _release(self) -> None:
        nodes, unanswered = self._state.nodes.values(), self._state.reclaims
        # the pool has not decided yet how long the work of these nodes may go on
        windows_unknown = isinstance(self._pool, Maintained) and self._windows is None
        leaving = [
            node
            for node in nodes
            if node.leaving
            and not node.lost
            and node.reclaim not in unanswered
            and not (node.maintenance and windows_unknown)
        ]
        await self._all_of(self._release_one(node) for node in leaving)

    async def _release_one(self, node: OwnNode) -> None:
        member = node.member
        if node.added:
            node.added = False  # should it stay after all, it is added again
            self._remember()
        if not await self._done(f"{member.hostname} is removed", self._pool.remove, member, False):
            return
        if node.lost or not node.leaving:  # meanwhile it was taken, or may stay
            self._come_back(0.0)
            return
        log.debug("%s (%s) is out of the pool", member.hostname, member.node)
        try:
            await self._ask(ReleaseNodes((Named(member.hostname),), node.leaving))
        except LastingError as refusal:
            log.warning("COD does not take %s back: %s", member.hostname, refusal)
            node.stays()
            self._keep_until = self._clock() + AFTER_REFUSAL
            self._remember()
        else:
            log.info("%s (%s) was given back: %s", member.hostname, member.node, node.leaving)
            self._forget(node)

    def _forget(self, node: OwnNode) -> None:
        if self._state.forget(node):
            self._remember()

    # ------------------------------------------------------------ reclaims

    async def _answer(self) -> None:
        await self._all_of(
            self._answer_one(reclaim) for reclaim in list(self._state.reclaims.values())
        )

    async def _answer_one(self, reclaim: Reclaim) -> None:
        await self._choosing.acquire()  # two that chose at the same time would choose the same node
        try:
            if reclaim.reclaim not in self._state.reclaims:
                return
            await self._promise(reclaim)
        finally:
            self._choosing.release()
        if not self._open or reclaim.reclaim not in self._state.reclaims:
            return
        named = tuple(
            Named(node.member.hostname, max(1.0, node.within - self._clock()))
            for node in self._state.of_reclaim(reclaim.reclaim)
            if not node.lost
        )
        short = "" if len(named) >= reclaim.count else "no more nodes can be given"
        try:
            await self._ask(ReclaimAnswer(reclaim.reclaim, named, short))
        except LastingError as refusal:
            log.warning("COD does not want that answer: %s", refusal)
        else:
            log.info(
                "reclaim %d is answered: %s",
                reclaim.reclaim,
                ", ".join(one.node for one in named) or short,
            )
        self._state.reclaims.pop(reclaim.reclaim, None)
        self._remember()

    async def _promise(self, reclaim: Reclaim) -> None:
        """Choose as many nodes as the reclaim still needs, beginning with nodes that are leaving
        already."""
        suitable = {named.node for named in reclaim.nodes}
        fit = [
            node
            for node in self._state.nodes.values()
            if not node.lost
            and (not suitable or suitable & {node.member.hostname, node.member.node})
        ]
        lacking = reclaim.count - len(self._state.of_reclaim(reclaim.reclaim))
        free = [node for node in fit if not node.reclaim]
        going = [node for node in free if node.leaving and node.within <= reclaim.deadline]
        for node in going[: max(0, lacking)]:
            node.reclaim, node.maintenance = reclaim.reclaim, False
            lacking -= 1
        # the pool decides how long the work of nodes may go on that would have left later
        hosts = {
            node.member.hostname: node
            for node in free
            if not node.leaving or node.within > reclaim.deadline
        }
        if lacking > 0 and hosts:
            members = {host: node.member for host, node in hosts.items()}
            chosen = await self._in_thread(
                self._pool.choose, replace(reclaim, count=lacking), members, self._clock()
            )
            for one in [one for one in chosen if one.node in hosts and not hosts[one.node].lost][
                :lacking
            ]:
                node = hosts[one.node]
                node.leaving, node.reclaim = f"reclaimed: {reclaim.reason}", reclaim.reclaim
                node.within, node.maintenance = self._clock() + one.within, False
        self._remember()

    # ------------------------------------------------------------ maintenance

    async def _maintain(self) -> None:
        """Ask COD for the maintenance windows, and let nodes leave that the pool gives up for them.
        Servers of a release without this question refuse it."""
        pool = self._pool
        if not self._open or self._clock() < self._next_look or not isinstance(pool, Maintained):
            return
        try:
            answer = await self._ask(MaintenanceStatus())
        except LastingError as refusal:
            log.debug("COD does not tell of maintenance: %s", refusal)
            self._windows = self._windows or {}
            return
        assert isinstance(answer, NodeMaintenance)
        hosts = self._state.hosts()
        nodes = {
            host: node
            for host, node in hosts.items()
            if not node.reclaim and (node.maintenance or (node.added and not node.leaving))
        }
        members = {host: node.member for host, node in nodes.items()}
        next_look = self._clock() + self._options.interval
        within = dict(await self._in_thread(pool.maintain, answer.windows, members, next_look))
        # COD does not accept the release of a vcluster's last node
        if within and all(host in within or node.leaving for host, node in hosts.items()):
            within.pop(max(within, key=lambda host: (within[host], host)))
        for host, node in nodes.items():
            if node.maintenance and not (node.lost or host in within):
                log.info("%s (%s) stays: no maintenance is near", host, node.member.node)
                node.stays()
                self._remember()
            elif node.maintenance:
                node.within = within[host]
        if within and self._clock() >= self._keep_until:
            self._mark_leaving(within, "maintenance", maintenance=True)
        self._log_windows({window.window: window for window in answer.windows})

    def _log_windows(self, windows: dict[int, Window]) -> None:
        """Log windows that are new, moved or withdrawn since COD was last asked."""
        before = self._windows or {}
        for number, window in windows.items():
            if window != before.get(number):
                log.info(
                    "maintenance window %d (%s) takes %s %s",
                    number,
                    window.reason,
                    ", ".join(one.node for one in window.nodes),
                    f"at {datetime.fromtimestamp(window.begins, UTC)}"
                    if window.begins
                    else "as they come free",
                )
        for number in before.keys() - windows:
            log.info("maintenance window %d takes no node of ours any more", number)
        self._windows = windows

    # ------------------------------------------------------------ what is wanted

    async def _confirm(self) -> None:
        """Repeat requests whose number COD has not told, with the same keys."""
        for key, asked in list(self._state.requests.items()):
            if self._open and not asked.request:
                await self._request(key, asked)

    async def _look(self) -> None:
        if not self._open or self._clock() < self._next_look:
            return
        state = self._state
        members = {
            host: node.member
            for host, node in state.hosts().items()
            if node.added and not node.leaving
        }
        if state.ends and isinstance(self._pool, Ending) and not self._options.dry_run:
            left = state.ends - self._clock() - self._options.interval
            await self._in_thread(self._pool.ending, max(0.0, left), members)
        demand = await self._in_thread(self._pool.look, members, state.coming(), self._clock())
        # a failed request is repeated in the next round
        self._next_look = self._clock() + self._options.interval
        if self._options.dry_run:
            if demand.grow or demand.leave or demand.drain:
                log.info(
                    "would ask for %d nodes, give back %s: %s",
                    sum(demand.grow.values()),
                    [*demand.leave, *demand.drain],
                    demand.why,
                )
            return
        await self._withdraw(demand.withdraw)
        if self._clock() >= self._keep_until:
            within = dict.fromkeys(demand.leave, 0.0) | dict.fromkeys(demand.drain, inf)
            self._mark_leaving(within, demand.why)
        # a request for each node: available nodes need not wait for others
        for nodeset in [nodeset for nodeset, count in demand.grow.items() for _ in range(count)]:
            if self._clock() < self._quiet_until.get(nodeset.name, 0.0):
                continue
            key = state.new_key()
            state.requests[key] = OpenRequest(1, nodeset=nodeset)
            self._remember()  # first: asked twice under one key is asked once
            await self._request(key, state.requests[key], demand.why)
        await self._park(demand.parked)

    async def _withdraw(self, surplus: Mapping[str, int]) -> None:
        """Withdraw the newest requests of each nodeset, because older ones have waited longer."""
        known = [
            (key, asked) for key, asked in reversed(self._state.requests.items()) if asked.request
        ]
        for key, asked in [
            one
            for name, count in surplus.items()
            for one in [one for one in known if one[1].nodeset.name == name][: max(0, count)]
        ]:
            try:
                await self._ask(Withdraw(asked.request))
            except LastingError as refusal:
                log.warning("COD does not take request %d back: %s", asked.request, refusal)
            self._state.requests.pop(key, None)
            self._remember()

    def _mark_leaving(
        self, within: Mapping[str, float], why: str, *, maintenance: bool = False
    ) -> None:
        """Let nodes leave, by host name: when their work has ended, at the latest at the given time
        (0: at once; infinity: without a limit)."""
        hosts = self._state.hosts()
        going = {name: hosts[name] for name in within if name in hosts and not hosts[name].leaving}
        for name, node in going.items():
            node.leaving = why or "not needed any more"
            node.within, node.maintenance = within[name], maintenance
        if going:
            self._remember()
            self._come_back(0.0)

    async def _park(self, hostnames: Sequence[str]) -> None:
        """Let those of the parked nodes leave that COD needs for requests. Servers of a release
        without this question refuse it: then the nodes stay until their time is over."""
        self.parked = len(hostnames)
        if not hostnames or self._clock() < self._keep_until:
            return
        try:
            answer = await self._ask(ParkNodes(tuple(map(Named, hostnames[:MOST_PARKED]))))
        except LastingError as refusal:
            log.debug("COD does not know of parked nodes: %s", refusal)
            return
        assert isinstance(answer, NeededNodes)
        needed = [one.node for one in answer.nodes if one.node in hostnames]
        self._mark_leaving(dict.fromkeys(needed, 0.0), "parked, and a request needs it")

    async def _request(self, key: str, asked: OpenRequest, why: str = "") -> None:
        """Send the request to COD. A request that COD refuses is forgotten."""
        wanted = Wanted(
            asked.count,
            asked.nodeset.template or self._options.template,
            asked.nodeset.requires or self._options.requires,
        )
        try:
            answer = await self._ask(RequestNodes(key, (wanted,), reason=why))
        except LastingError as refusal:
            log.warning("COD does not take the request: %s", refusal)
            self.pause_requests(asked.nodeset.name)
            self._state.requests.pop(key, None)
            self._remember()
            return
        assert isinstance(answer, Request)
        log.info(
            "asked for %d node (%s), request %d: %s",
            asked.count,
            why or key,
            answer.request,
            answer.state,
        )
        if key in self._state.requests:  # its grant may have come first
            asked.request = answer.request
            if answer.state in ("withdrawn", "rejected"):
                del self._state.requests[key]
            self._remember()
