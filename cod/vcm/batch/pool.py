"""The pool of any batch system as a `cod.vcm.pool.Pool`."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from math import inf
from threading import Lock

from cod.vcm.batch import resize
from cod.vcm.batch.commands import CommandFailed, run_own
from cod.vcm.batch.settings import BatchTable
from cod.vcm.batch.system import (
    BatchSystem,
    Downtime,
    EndSignals,
    Foresees,
    Host,
    OneHost,
    Wants,
)
from cod.vcm.pool import Demand, GivenUp, Member, Named, NotYet, Reclaim, Window

# seconds at most for which the jobs of a node that leaves after them are not read again
STALE = 5.0
MOST_LOGGED = 100  # lines of the log about jobs, at a look
LEAVING = 30.0  # seconds for jobs to be put back into the queue and a node to be taken out

log = logging.getLogger("cod.vcm")


class BatchPool:
    """The pool of a batch system, which this object resizes. Tests pass a clock of their own."""

    def __init__(
        self, table: BatchTable, system: BatchSystem, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._table, self._system, self._clock = table, system, clock
        # seconds from the end of a node's work to its release
        self._leaving = LEAVING + (table.save_time if table.save else 0.0)
        self._idle_since: dict[str, float] = {}
        self._unheard_since: dict[str, float] = {}
        self._wanted_at: dict[str, float] = {}
        self._logged_impossible: set[str] = set()
        self._joining: dict[str, float] = {}  # since when each is being added
        self._begun: set[str] = set()  # which of them the batch system was told of
        self._drained_by: dict[str, float] = {}
        self._maintained = frozenset[str]()  # of these, nodes that leave for maintenance
        self._emptied_from: dict[str, float] = {}
        self._saved: set[str] = set()
        # jobs that have got the signal before their end, by host
        self._warned: dict[str, set[str]] = {}
        self._warning = Lock()
        # the hosts, and when they were asked for
        self._seen: tuple[float, Mapping[str, Host]] = (-inf, {})
        self._asking = Lock()
        # some systems rewrite whole objects: two changes at once lose one
        self._changing = Lock()

    # ------------------------------------------------------------ what is wanted

    def look(self, members: Mapping[str, Member], coming: Counter[str], now: float) -> Demand:
        """Return the pool's demand by `resize.resize`. Nodes with silent daemons leave first, then
        nodes that have become too old."""
        ours = [name for name in members if name not in self._table.keep]
        hosts, wants = self._system.look(ours, coming)
        self._watch(hosts, ours, now)
        self._log_impossible_jobs(wants)
        gone = self._longer(
            {name: self._unheard_since[name] for name in ours if name in self._unheard_since},
            self._table.unheard_limit,
            now,
        )
        spent = tuple(name for name in wants.spent if name not in gone)
        ages = {name: members[name].since or now for name in ours if name not in {*gone, *spent}}
        old = self._longer(ages, self._table.lifetime, now) if self._table.lifetime else ()
        self._drained_by.update(dict.fromkeys(old, inf))
        staying = [name for name in ours if name not in {*gone, *spent, *old}]
        going = (
            len(ours)
            - len(staying)
            + sum(
                name not in ours and (by == inf or name in self._maintained)
                for name, by in self._drained_by.items()
            )
        )
        idle_since = {name: since for name, since in self._idle_since.items() if name in staying}
        change = resize.resize(
            len(staying), going, coming, wants, idle_since, self._wanted_at, self._table, now
        )
        wanted = ours if change.grow else wants.kept
        self._wanted_at = {
            name: now if name in wanted else self._wanted_at.get(name, members[name].since)
            for name in ours
        }
        reasons = [
            f"not heard of for {self._table.unheard_limit:.0f} s" if gone else "",
            "the job that it was for is over" if spent else "",
            f"it has been here for {self._table.lifetime:.0f} s" if old else "",
            change.why,
        ]
        return Demand(
            change.grow,
            (*gone, *spent, *change.leave),
            old,
            change.withdraw,
            "; ".join(filter(None, reasons)),
            change.parked,
        )

    def _watch(self, hosts: Mapping[str, Host], ours: Collection[str], now: float) -> None:
        idle = {name for name in ours if name in hosts and hosts[name].idle}
        self._idle_since = {name: self._idle_since.get(name, now) for name in idle}
        unheard = {
            name
            for name in {*ours, *self._drained_by}
            if name not in hosts or not hosts[name].heard
        }
        self._unheard_since = {name: self._unheard_since.get(name, now) for name in unheard}

    def _longer(self, since: Mapping[str, float], limit: float, now: float) -> tuple[str, ...]:
        return tuple(sorted(name for name, began in since.items() if now >= began + limit))

    def _log_impossible_jobs(self, wants: Wants) -> None:
        new = [sentence for sentence in wants.never if sentence not in self._logged_impossible]
        for sentence in new[:MOST_LOGGED]:
            log.warning("no node of this pool could run %s", sentence)
        if len(new) > MOST_LOGGED:
            log.warning("no node of this pool could run %d jobs more", len(new) - MOST_LOGGED)
        self._logged_impossible = set(wants.never)

    def ending(self, left: float, members: Mapping[str, Member]) -> None:
        """Send jobs the signals that they request before their end, because the lease ends."""
        hosts = self._hosts() if isinstance(self._system, EndSignals) else {}
        for name in members:
            if name in hosts:
                self._warn(hosts[name], left)

    def _hosts(self, age: float = 0.0) -> Mapping[str, Host]:
        """Return the hosts as they were at most `age` seconds ago. Simultaneous threads share an
        answer."""
        asked = self._clock() - age
        with self._asking:
            now = self._clock()
            if not asked < self._seen[0] <= now:
                self._seen = now, self._system.hosts()
            return self._seen[1]

    # ------------------------------------------------------------ joining

    def add(self, member: Member) -> None:
        """Register the host with the batch system, start its daemon, and let it take jobs when the
        daemon has reported."""
        name = member.hostname
        if name in self._table.keep:
            return
        # the host may have been leaving, and stays now
        for known in (self._drained_by, self._emptied_from, self._warned):
            known.pop(name, None)
        self._saved.discard(name)
        try:
            host = self._joining_host(name)
        except CommandFailed:  # a batch system that does not answer is no fault of the node's
            self._joining.pop(name, None)
            raise
        late = (
            self._clock() >= self._joining.setdefault(name, self._clock()) + self._table.join_time
        )
        another = host is not None and host.address not in ("", member.address)
        if not late and (name not in self._begun or another):
            with self._changing:
                self._system.begin(member)
            if self._table.start:
                run_own(self._table.start, self._fields(member), self._table.join_time)
            self._begun.add(name)
            host = self._joining_host(name)
        if host is not None and host.heard and host.address in ("", member.address):
            self._restore(member, late)
            self._system.open(member)
            self._joined(name)
        elif not late:
            raise NotYet(f"{name} has not reported")
        else:
            self._joined(name)
            raise GivenUp(
                f"it has not reported within {self._table.join_time:.0f} s: does its execution"
                " daemon run, and does it find its server by name?"
            )

    def _joining_host(self, name: str) -> Host | None:
        """Return the host, perhaps without its jobs: reading a long queue at each join would be
        slow."""
        if isinstance(self._system, OneHost):
            return self._system.host(name)
        return self._hosts().get(name)

    def _restore(self, member: Member, late: bool) -> None:
        if not self._table.restore:
            return
        try:
            run_own(self._table.restore, self._fields(member), self._table.save_time)
        except CommandFailed as error:
            if not late:
                raise
            self._joined(member.hostname)
            raise GivenUp(str(error)) from None

    def _joined(self, name: str) -> None:
        self._joining.pop(name, None)
        self._begun.discard(name)

    def _fields(self, member: Member, jobs: Sequence[str] = ()) -> dict[str, str]:
        return {"hostname": member.hostname, "address": member.address, "jobs": ",".join(jobs)}

    # ------------------------------------------------------------ leaving

    def choose(
        self, reclaim: Reclaim, members: Mapping[str, Member], now: float
    ) -> Sequence[Named]:
        """Choose idle nodes first, then the busy node whose last job started last. Jobs on a chosen
        node may run for the notice that they request before their end, or until the deadline if
        that is earlier; with `drain`, they may run until the deadline."""
        hosts = self._hosts()
        ours = [name for name in members if name not in self._table.keep]
        chosen = resize.victims(hosts, ours, self._idle_since, reclaim.count)
        spare = max(1.0, reclaim.deadline - now - self._leaving)
        within = {}
        for name in chosen:
            host = hosts.get(name)
            # a node that is leaving because of its age cannot wait for its jobs any longer
            self._drained_by.pop(name, None)
            drains = self._table.drain and host is not None and host.jobs
            notice = spare if drains else self._notice(host)
            within[name] = max(1.0, min(spare, notice))
            if notice:
                self._drained_by[name] = now + within[name]
        return [Named(name, seconds) for name, seconds in within.items()]

    def maintain(
        self, windows: Sequence[Window], members: Mapping[str, Member], next_look: float
    ) -> Mapping[str, float]:
        """Keep jobs from running into maintenance windows. Give nodes up early enough that, before
        a window begins, their jobs get the signals that they request, are saved, and are back in
        the queue. Drained nodes leave when their jobs have ended."""
        going, downtimes = dict[str, float](), list[Downtime]()
        for window in windows:
            begins = window.begins - self._leaving if window.begins else inf
            for name in (one.node for one in window.nodes):
                if name not in members or name in self._table.keep:
                    continue
                if window.drain:
                    going[name] = min(going.get(name, inf), begins)
                elif begins < inf:
                    downtimes.append(Downtime(window.window, name, begins, window.ends or inf))
        staying = [one for one in downtimes if one.host not in going]
        system = self._system
        closed_for = system.foresee(staying, self._clock()) if isinstance(system, Foresees) else 0.0
        hosts = self._hosts() if downtimes else {}
        for one in downtimes:
            if next_look >= one.begins - max(closed_for, self._notice(hosts.get(one.host))):
                going[one.host] = min(going.get(one.host, inf), one.begins)
        for name in self._maintained & members.keys() - going.keys():
            self._drained_by.pop(name, None)
        self._drained_by.update(going)
        self._maintained = frozenset(going)
        return going

    def _notice(self, host: Host | None) -> float:
        """Return the longest notice, in seconds, that jobs on the host request before their end."""
        if host is None or not isinstance(self._system, EndSignals):
            return 0.0
        return max(map(self._system.notice, host.jobs), default=0.0)

    def recall(self, promised: Mapping[str, float]) -> None:
        """Let jobs run on until the time for which their nodes were promised before a restart."""
        timed = self._table.drain or isinstance(self._system, EndSignals)
        self._drained_by.update((name, by) for name, by in promised.items() if timed or by == inf)

    def remove(self, member: Member, lost: bool) -> None:
        """Close the host, requeue its jobs, stop its daemon, and delete its records."""
        name = member.hostname
        if name in self._table.keep:
            return
        self._joined(name)
        if not lost and self._stays(name):
            raise NotYet(f"jobs on {name} may end by themselves")
        host = self._hosts().get(name)
        if host is not None and (lost or not host.closed):
            self._system.close(host, lost)
            host = self._hosts().get(name)  # a job may have started there before
        if host is not None:
            self._empty(member, host, lost)
        if not lost:
            if self._table.stop:
                self._own(self._table.stop, self._fields(member), self._table.join_time)
            self._system.stop(name)
        with self._changing:
            self._system.expel(name, lost)
        for known in (
            self._idle_since,
            self._unheard_since,
            self._wanted_at,
            self._drained_by,
            self._emptied_from,
            self._warned,
        ):
            known.pop(name, None)
        self._saved.discard(name)

    def _stays(self, name: str) -> bool:
        """Return whether a node stays for its jobs, either for hours or however long they take. The
        answer uses hosts read a moment ago."""
        by = self._drained_by.get(name, 0.0)
        if by != inf and (
            name not in self._maintained
            or self._clock() >= by
            or isinstance(self._system, EndSignals)
        ):
            return False
        host = self._hosts(min(STALE, self._table.lifetime / 60 or STALE)).get(name)
        return host is not None and host.closed and host.heard and bool(host.jobs)

    def _empty(self, member: Member, host: Host, lost: bool) -> None:
        """Requeue the host's jobs, and check that they are gone: a forgotten job would go on
        running unseen. A lost host has no daemon to end its jobs, and the batch system does not run
        jobs again that it believes to be running."""
        now = self._clock()
        if not host.jobs:
            return
        by = self._drained_by.get(host.name, 0.0)
        silent = now >= self._unheard_since.get(host.name, now) + self._table.unheard_limit
        if not lost and now < by and not silent:
            self._warn(host, by - now)
            raise NotYet(f"jobs on {host.name} may end by themselves")
        if now >= self._emptied_from.setdefault(host.name, now) + LEAVING and not lost:
            log.warning("jobs on %s do not go: they end with its daemon", host.name)
            return
        if self._table.save and not lost and host.name not in self._saved:
            self._saved.add(host.name)
            self._own(
                self._table.save,
                self._fields(member, [job.id for job in host.jobs]),
                self._table.save_time,
            )
            self._emptied_from[host.name] = self._clock()
        for job in host.jobs:
            self._system.requeue(job)
        raise NotYet(f"jobs on {host.name} are being put back into the queue")

    def _warn(self, host: Host, left: float) -> None:
        """Send the signal that jobs request before their end, if `left` seconds are within their
        notice. A job is signalled once by all threads, because it may run on several nodes."""
        if not isinstance(self._system, EndSignals):
            return
        with self._warning:
            warned = set().union(*self._warned.values())
            for job in host.jobs:
                if job.id not in warned and max(left, 1.0) <= self._system.notice(job):
                    self._system.warn(job)
                    self._warned.setdefault(host.name, set()).add(job.id)
                    log.info("job %s on %s is told that it has %.0f s", job.id, host.name, left)

    def _own(self, command: str, fields: Mapping[str, str], seconds: float) -> None:
        """Run a site's command. A failure is only logged, as the node's power is cut soon in any
        case."""
        try:
            run_own(command, fields, seconds)
        except CommandFailed as error:
            log.warning("%s", error)
