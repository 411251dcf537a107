"""A Grid Engine pool as a `cod.vcm.pool.Pool`: the four functions, and the settings of `[gridengine]`."""

from __future__ import annotations

import logging
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from threading import Lock

from pydantic import Field

from cod.vcm.gridengine import resize
from cod.vcm.gridengine.commands import CommandFailed, GridEngine
from cod.vcm.gridengine.resize import Knobs, Offer
from cod.vcm.gridengine.view import View
from cod.vcm.pool import NotYet, Wish
from cod.vcm.settings import Seconds, Settings, Table
from cod.wire.nmpbodies import Member, Named, Reclaim

log = logging.getLogger("cod.vcm")


class GridEngineTable(Table):
    """The pool."""

    queue: str = Field("all.q", min_length=1, description="the cluster queue that nodes join")
    hostgroup: str = Field("@cod", pattern="^@", description="the host group that they are put into")
    path: str = Field("", description="folder of qstat, qconf, qmod; empty: PATH")
    environment: dict[str, str] = Field({}, description="SGE_ROOT, SGE_CELL …, where they are not in the environment")
    slots: int = Field(1, ge=1, le=100_000, description="slots of one node")
    offers: dict[str, str] = Field({}, description="what a node offers to -l beside what the pool's hosts show: "
                                   "{ gpu = '1' }")
    jobs_per_node: int = Field(1, ge=1, description="one node more for so many queued jobs")
    idle_limit: Seconds = Field(300.0, description="seconds after which an idle node goes back")
    reserve: int = Field(0, ge=0, description="idle nodes that stay all the same")
    minimum: int = Field(0, ge=0, description="nodes of the pool at least")
    maximum: int = Field(64, ge=0, description="nodes of the pool at most")
    calm: float = Field(60.0, ge=0, description="seconds after growth in which no node goes back")
    keep: tuple[str, ...] = Field((), description="hostnames of the vcluster that are no execution hosts: its head")
    start: str = Field("", description="command that starts the execution daemon on a node: {hostname} and {address} "
                       "are filled in; empty: its image does so by itself")
    stop: str = Field("", description="the same before the node is given back; empty: qconf -kej does it")
    drain: bool = Field(False, description="let jobs end before a reclaimed node goes, as far as the deadline allows")
    join_time: Seconds = Field(120.0, description="seconds that a node's execution daemon has to report")


class GridEngineSettings(Settings):
    """The whole file of `cod vcm sge`."""

    gridengine: GridEngineTable = GridEngineTable.model_validate({})


class GridEnginePool:
    """Resizes a cell's pool. The clock and the pause are arguments for tests."""

    def __init__(
        self, settings: GridEngineSettings, *, clock: Callable[[], float] = time.time,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        table = settings.gridengine
        self._table, self._clock, self._pause = table, clock, pause
        self._cell = GridEngine(table.queue, table.hostgroup, table.environment, table.path)
        self._knobs = Knobs(settings.interval, table.jobs_per_node, table.idle_limit, table.reserve, table.minimum,
                            table.maximum, table.calm, table.slots)
        self._idle_since: dict[str, float] = {}
        self._grown_at = float("-inf")
        self._asked_in_vain: set[str] = set()
        self._drained_by: dict[str, float] = {}
        self._one_at_a_time = Lock()  # qconf rewrites whole objects: two of them at once lose a change

    # ------------------------------------------------------------ what is wanted

    def look(self, members: Mapping[str, Member], coming: int, now: float) -> Wish:
        """By `resize.resize`, from what qstat says."""
        view = self._cell.view()
        ours = [name for name in members if name not in self._table.keep]
        self._watch(view, ours, now)
        offer = self._offer(view, ours)
        change = resize.resize(view, ours, coming, self._idle_since, self._grown_at, offer, self._knobs, now)
        self._tell_never(change.never)
        if change.grow or coming:
            self._grown_at = now
        waiting = any(job.ready for job in view.waiting)
        return Wish(change.grow, change.leave, bool(coming) and not waiting and not change.grow, change.why)

    def _watch(self, view: View, ours: Sequence[str], now: float) -> None:
        idle = {name for name in ours if resize.is_idle(view.hosts.get(name))}
        self._idle_since = {name: self._idle_since.get(name, now) for name in idle}

    def _offer(self, view: View, ours: Sequence[str]) -> Offer:
        heard = next((name for name in ours if name in view.hosts and view.hosts[name].heard), None)
        wanted = any(job.resources for job in view.waiting)
        shown = self._cell.values(heard) if heard and wanted else {}
        whole = self._cell.whole_environments() if any(job.parallel for job in view.waiting) else frozenset()
        return Offer(self._table.slots, {**shown, **self._table.offers}, whole)

    def _tell_never(self, never: Sequence[str]) -> None:
        for sentence in set(never) - self._asked_in_vain:
            log.warning("no node of this pool could run %s", sentence)
        self._asked_in_vain = set(never)

    # ------------------------------------------------------------ joining

    def add(self, member: Member) -> None:
        """Admit it, start its daemon, put it into the queue, and enable it when it has reported."""
        name = member.hostname
        if name in self._table.keep:
            return
        with self._one_at_a_time:
            self._cell.ensure_hostgroup()
            self._cell.admit(name)
            self._cell.join(name, self._table.slots)
            self._cell.disable(name)
        if self._table.start:
            self._on_node(self._table.start, member)
        self._await_report(name)
        self._cell.enable(name)

    def _await_report(self, name: str) -> None:
        until = self._clock() + self._table.join_time
        while not ((host := self._cell.view().hosts.get(name)) and host.heard and "u" not in host.states):
            if self._clock() >= until:
                raise CommandFailed(f"{name} has not reported within {self._table.join_time:.0f} s: does its execution "
                                    "daemon run, and does it find the master by name?")
            self._pause(1.0)

    def _on_node(self, command: str, member: Member) -> None:
        words = [word.format(hostname=member.hostname, address=member.address) for word in shlex.split(command)]
        done = subprocess.run(words, capture_output=True, timeout=self._table.join_time, check=False,
                              stdin=subprocess.DEVNULL)
        if done.returncode:
            said = (done.stderr or done.stdout).decode(errors="replace").strip()
            raise CommandFailed(f"{' '.join(words)}: {said or f'exit status {done.returncode}'}")

    # ------------------------------------------------------------ leaving

    def choose(self, reclaim: Reclaim, members: Mapping[str, Member], now: float) -> Sequence[Named]:
        """Idle ones first, then the busy one whose last job started last."""
        view = self._cell.view()
        ours = [name for name in members if name not in self._table.keep]
        chosen = resize.victims(view, ours, self._idle_since, reclaim.count)
        spare = max(0.0, reclaim.deadline - now - 30.0) if self._table.drain else 0.0
        busy = {name for name in chosen if (host := view.hosts.get(name)) and host.running}
        self._drained_by.update((name, now + spare) for name in busy)
        return [Named(name, spare if name in busy else 1.0) for name in chosen]

    def remove(self, member: Member, lost: bool) -> None:
        """Disable it, put its jobs back into the queue, stop its daemon, remove every trace of it."""
        name = member.hostname
        if name in self._table.keep:
            return
        if name in self._cell.view().hosts:
            self._cell.disable(name)
            self._empty(name)
        if not lost:
            if self._table.stop:
                self._on_node(self._table.stop, member)
            self._cell.stop_daemon(name)
        with self._one_at_a_time:
            self._cell.expel(name)
        self._idle_since.pop(name, None)
        self._drained_by.pop(name, None)

    def _empty(self, name: str) -> None:
        """Jobs are rescheduled, and seen to be gone: one that is leaked goes on running where nobody looks."""
        if self._clock() < self._drained_by.get(name, 0.0) and self._cell.view().hosts[name].running:
            raise NotYet(f"jobs on {name} may end by themselves")
        for _ in range(30):
            host = self._cell.view().hosts.get(name)
            if host is None or not host.running:
                return
            for job in host.running:
                if "R" not in job.state or "r" in job.state:
                    self._cell.reschedule(job.job, job.task)
            self._pause(1.0)
        raise CommandFailed(f"jobs still run on {name}")
