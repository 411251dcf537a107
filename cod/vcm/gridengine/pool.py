"""A Grid Engine pool as a `cod.vcm.pool.Pool`: the four functions, and the settings of `[gridengine]`."""

from __future__ import annotations

import logging
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Annotated

from pydantic import AfterValidator, Field

from cod.vcm.gridengine import resize
from cod.vcm.gridengine.commands import CommandFailed, GridEngine
from cod.vcm.gridengine.resize import NodeOffer, ResizeRules
from cod.vcm.gridengine.view import Host, View
from cod.vcm.pool import Demand, GivenUp, NotYet
from cod.vcm.settings import Seconds, Settings, Table
from cod.wire.nmp.bodies import Member, Named, Reclaim

LEAVING = 30.0  # seconds for jobs to be rescheduled and a node to be taken out

log = logging.getLogger("cod.vcm")


def _command(text: str) -> str:
    try:
        _filled(text, "host", "10.0.0.1")
    except (ValueError, LookupError):
        raise ValueError(f"{text!r}: only {{hostname}} and {{address}} are filled in; other braces are written twice, "
                         "and quotes in pairs") from None
    return text


def _filled(command: str, hostname: str, address: str) -> list[str]:
    return [word.format(hostname=hostname, address=address) for word in shlex.split(command)]


Command = Annotated[str, AfterValidator(_command)]


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
    unheard_limit: Seconds = Field(300.0, description="seconds after which a node whose daemon does not report is "
                                   "given back, its jobs put back into the queue")
    calm: float = Field(60.0, ge=0, description="seconds after growth, and after the last job that waited, in which "
                        "no node goes back")
    keep: tuple[str, ...] = Field((), description="hostnames of the vcluster that are no execution hosts: its head")
    placeholder: str = Field("", description="host that stands in the queue, disabled, so that there is one while the "
                             "pool is empty; empty: the first of keep, or the master's")
    start: Command = Field("", description="command that starts the execution daemon on a node: {hostname} and "
                           "{address} are filled in; empty: its image does so by itself")
    stop: Command = Field("", description="the same before the node is given back; empty: qconf -kej does it")
    drain: bool = Field(False, description="let jobs end before a reclaimed node goes, as far as the deadline allows")
    join_time: Seconds = Field(120.0, description="seconds that a node's execution daemon has to report; then the node "
                               "is given back")


class GridEngineSettings(Settings):
    """The whole file of `cod vcm sge`."""

    gridengine: GridEngineTable = GridEngineTable.model_validate({})


class GridEnginePool:
    """Resizes a cell's pool. The clock is an argument for tests; `prepare`: set the queue up where it is not."""

    def __init__(
        self, settings: GridEngineSettings, *, clock: Callable[[], float] = time.time, prepare: bool = True
    ) -> None:
        table = settings.gridengine
        self._table, self._clock, self._prepare = table, clock, prepare
        self._cell = GridEngine(table.queue, table.hostgroup, table.environment, table.path)
        self._rules = ResizeRules(
            settings.interval, table.jobs_per_node, table.idle_limit, table.reserve, table.minimum, table.maximum,
            table.calm, table.slots)
        self._placeholder = table.placeholder or next(iter(table.keep), "")
        self._prepared = False
        self._idle_since: dict[str, float] = {}
        self._unheard_since: dict[str, float] = {}
        self._grown_at = float("-inf")
        self._asked_in_vain: set[str] = set()
        self._shown: dict[str, str] = {}
        self._joining: dict[str, float] = {}  # since when each is being added
        self._begun: set[str] = set()  # which of them the master was told of
        self._drained_by: dict[str, float] = {}
        self._emptied_from: dict[str, float] = {}
        self._one_at_a_time = Lock()  # qconf rewrites whole objects: two of them at once lose a change

    # ------------------------------------------------------------ what is wanted

    def look(self, members: Mapping[str, Member], coming: int, now: float) -> Demand:
        """Return what the pool wants by `resize.resize`, from what qstat says; nodes that are not heard of any more go
        first of all."""
        view = self._view()
        ours = [name for name in members if name not in self._table.keep]
        self._watch(view, ours, now)
        gone = tuple(sorted(name for name, since in self._unheard_since.items()
                            if now >= since + self._table.unheard_limit))
        if gone:
            return Demand(leave=gone, why=f"not heard of for {self._table.unheard_limit:.0f} s")
        offer = self._offer(view, ours)
        change = resize.resize(view, ours, coming, self._idle_since, self._grown_at, offer, self._rules, now)
        self._tell_never(change.never)
        if change.grow or coming or change.waits:
            self._grown_at = now
        return Demand(change.grow, change.leave, change.excess, change.why)

    def _view(self) -> View:
        """Return the pool; with a placeholder in it."""
        view = self._cell.view()
        if not self._prepare or (self._prepared and self._placeholder in view.hosts):
            return view
        self._placeholder = self._placeholder or self._cell.master()
        with self._one_at_a_time:
            self._cell.prepare(self._placeholder)
        self._prepared = True
        return self._cell.view()

    def _watch(self, view: View, ours: Sequence[str], now: float) -> None:
        idle = {name for name in ours if resize.is_idle(view.hosts.get(name))}
        self._idle_since = {name: self._idle_since.get(name, now) for name in idle}
        unheard = {name for name in ours if (host := view.hosts.get(name)) is None or "u" in host.states}
        self._unheard_since = {name: self._unheard_since.get(name, now) for name in unheard}

    def _offer(self, view: View, ours: Sequence[str]) -> NodeOffer:
        wanted = any(job.resources for job in view.waiting)
        if wanted:
            self._shown |= self._cell.offered(ours)
        whole = self._cell.whole_environments() if any(job.parallel for job in view.waiting) else frozenset()
        return NodeOffer(self._table.slots, {**self._shown, **self._table.offers}, whole,
                         self._cell.relops() if wanted else {}, self._table.queue, self._table.hostgroup)

    def _tell_never(self, never: Sequence[str]) -> None:
        for sentence in set(never) - self._asked_in_vain:
            log.warning("no node of this pool could run %s", sentence)
        self._asked_in_vain = set(never)

    # ------------------------------------------------------------ joining

    def add(self, member: Member) -> None:
        """Admit it, start its daemon, put it into the queue, and enable it when it has reported. A host that was never
        put there by a VCM is no member, and so never comes here.
        """
        name = member.hostname
        if name in self._table.keep:
            return
        for known in (self._drained_by, self._emptied_from):  # it was to leave, and may stay
            known.pop(name, None)
        late = self._clock() >= self._joining.setdefault(name, self._clock()) + self._table.join_time
        if name not in self._begun and not late:
            self._begin(member)
            self._begun.add(name)
        host = self._cell.view().hosts.get(name)
        if host is not None and host.heard and "u" not in host.states:
            self._cell.enable(name)
            self._joined(name)
        elif not late:
            raise NotYet(f"{name} has not reported")
        else:
            self._joined(name)
            raise GivenUp(f"it has not reported within {self._table.join_time:.0f} s: does its execution daemon run, "
                          "and does it find the master by name?")

    def _joined(self, name: str) -> None:
        self._joining.pop(name, None)
        self._begun.discard(name)

    def _begin(self, member: Member) -> None:
        name = member.hostname
        with self._one_at_a_time:
            self._cell.admit(name)
            self._cell.join(name, self._table.slots)
            self._cell.disable(name)
        if self._table.start:
            self._on_node(self._table.start, member)

    def _on_node(self, command: str, member: Member) -> None:
        words = _filled(command, member.hostname, member.address)
        try:
            done = subprocess.run(words, capture_output=True, timeout=self._table.join_time, check=False,
                                  stdin=subprocess.DEVNULL)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CommandFailed(f"{' '.join(words)}: {error}") from None
        if done.returncode:
            said = (done.stderr or done.stdout).decode(errors="replace").strip()
            raise CommandFailed(f"{' '.join(words)}: {said or f'exit status {done.returncode}'}")

    # ------------------------------------------------------------ leaving

    def choose(self, reclaim: Reclaim, members: Mapping[str, Member], now: float) -> Sequence[Named]:
        """Idle ones first, then the busy one whose last job started last."""
        view = self._cell.view()
        ours = [name for name in members if name not in self._table.keep]
        chosen = resize.victims(view, ours, self._idle_since, reclaim.count)
        spare = max(1.0, reclaim.deadline - now - LEAVING) if self._table.drain else 1.0
        busy = {name for name in chosen if (host := view.hosts.get(name)) and host.running}
        self._drained_by.update((name, now + spare) for name in busy if self._table.drain)
        return [Named(name, spare if name in busy else 1.0) for name in chosen]

    def recall(self, promised: Mapping[str, float]) -> None:
        """Jobs on nodes that were promised in a former life may still end until then."""
        if self._table.drain:
            self._drained_by.update(promised)

    def remove(self, member: Member, lost: bool) -> None:
        """Disable it, put its jobs back into the queue, stop its daemon, remove every trace of it."""
        name = member.hostname
        if name in self._table.keep:
            return
        self._joined(name)
        host = self._cell.view().hosts.get(name)
        if host is not None:
            if "d" not in host.states:
                self._cell.disable(name)
            self._empty(host, lost)
        if not lost:
            self._stop(member)
        with self._one_at_a_time:
            self._cell.expel(name)
        for known in (self._idle_since, self._unheard_since, self._drained_by, self._emptied_from):
            known.pop(name, None)

    def _empty(self, host: Host, lost: bool) -> None:
        """Jobs are rescheduled, and seen to be gone: one that is leaked goes on running where nobody looks. Those of a
        host that is lost have no daemon to end with; while the master thinks that they run, nobody runs them again."""
        now = self._clock()
        if not host.running:
            return
        if not lost and now < self._drained_by.get(host.name, 0.0):
            raise NotYet(f"jobs on {host.name} may end by themselves")
        if now >= self._emptied_from.setdefault(host.name, now) + LEAVING and not lost:
            log.warning("jobs on %s do not go: they end with its daemon", host.name)
            return
        for job in host.running:
            if "d" in job.state:
                self._cell.delete(job.job, job.task)
            elif "R" not in job.state or "r" in job.state:
                self._cell.reschedule(job.job, job.task)
        raise NotYet(f"jobs on {host.name} are being rescheduled")

    def _stop(self, member: Member) -> None:
        if self._table.stop:
            try:
                self._on_node(self._table.stop, member)
            except CommandFailed as error:  # its power is cut soon
                log.warning("%s", error)
        self._cell.stop_daemon(member.hostname)
