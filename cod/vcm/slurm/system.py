"""A partition of Slurm as a `cod.vcm.batch.system.BatchSystem`. Its nodes are dynamic (`slurmd
-Z`)."""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from math import inf
from threading import Lock

from cod.vcm.batch.commands import CommandFailed
from cod.vcm.batch.system import Downtime, Host, Job, Wants
from cod.vcm.pool import ANY, GivenUp, Member, NotYet
from cod.vcm.slurm import needs
from cod.vcm.slurm.blackholes import JOBS, QUICK, BlackHoles
from cod.vcm.slurm.commands import PLANNED, Reservation, Slurm, StillPlanned, View
from cod.vcm.slurm.limits import AccountingLimits
from cod.vcm.slurm.needs import NodeKind, Rules
from cod.vcm.slurm.settings import SlurmTable
from cod.vcm.slurm.signals import end_signal
from cod.vcm.slurm.view import SlurmJob, SlurmNode

# reasons with which the VCM drains nodes, and by which it recognises them after a restart
READY = "cod: waits for its one job"
LEAVES = "cod: leaves"
BLACK_HOLE = f"cod: its last {JOBS} jobs all failed within {QUICK:.0f} s"
MOST_CLOSED = 4  # one of so many nodes may be drained for that: jobs can fail on purpose
RULES_LAST = 60.0  # seconds for which what the configuration says is taken for true
HELD_BACK = frozenset({"JobHeldUser", "JobHeldAdmin", "Dependency", "DependencyNeverSatisfied"})

log = logging.getLogger("cod.vcm")


class SlurmSystem:
    """A partition of Slurm. `dry_run`: change nothing; `clock` is in seconds."""

    def __init__(
        self,
        table: SlurmTable,
        slurm: Slurm | None = None,
        *,
        dry_run: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._table, self._dry_run = table, dry_run
        self._slurm = slurm or Slurm(table.partition, table.environment, table.path)
        self._kinds = [one.kind(table.feature) for one in table.nodesets]
        self._typical_kind = NodeKind(ANY, features=frozenset({table.feature}), guessed=True)
        self._rules: Rules | None = None
        self._clock, self._rules_read = clock, 0.0
        self._kept_back: set[str] = set()
        # nodes that may take jobs already, but still count as on their way
        self._joining: set[str] = set()
        self._departed: dict[str, str] = {}  # addresses of nodes that have left, by name
        # when maintenance takes nodes, by name and on `clock`; None: not told since the start
        self._downtimes: dict[str, float] | None = None
        self._changing = Lock()
        self._limits, self._black_holes = AccountingLimits(clock), BlackHoles()
        self._end_signal = lru_cache(10_000)(lambda job: end_signal(self._slurm.script(job)))

    # ------------------------------------------------------------ what there is, and what is wanted

    def hosts(self) -> Mapping[str, Host]:
        return self._hosts(self._slurm.view())

    def host(self, name: str) -> Host | None:
        """Return a node without its jobs, so that the queue, which may be long, is not read."""
        node = self._slurm.node(name)
        return None if node is None else self._host(node)

    def look(self, ours: Collection[str], coming: Counter[str]) -> tuple[Mapping[str, Host], Wants]:
        """Return the hosts that Slurm lists, and the nodes that the waiting jobs need in addition
        to the room on present nodes."""
        never, ready = list[str](), list[SlurmNode]()
        with self._changing:
            seen, rules = self._slurm.view(), self._read_rules()
            self._strike_off_revived(seen, coming)
            self._close_black_holes(seen, ours)
            if self._table.fresh:
                if self._serve(seen, ours, never):
                    seen = self._slurm.view()
                ready = [
                    node
                    for node in _listed(seen, ours)
                    if self._is_ready(node) and not self._bound(seen.reservations, node.name)
                ]
                usable = [node for node in ready if "RESERVED" not in node.flags]
            else:
                joining = self._joining - set(ours)
                usable = [one for one in self._taking_jobs(seen) if one.name not in joining]
                # drained without need: a slurmctld that was killed forgets its last `resume`
                for node in _listed(seen, ours):
                    if node.heard and node.closed and not node.reason and not self._dry_run:
                        self._slurm.resume(node.name)
            usable = [self._bounded(node) for node in usable]
            fixed = [node.name for node in usable if node.name not in ours]
            kinds = self._offered(seen, ours)
            jobs = self._limits.believed(
                seen.jobs,
                rules.partition,
                lambda job: needs.counts(job, rules),
                bool(self._taking_jobs(seen)),
            )
            self._limits.ran(seen.over, rules.partition)
            found = needs.plan(
                jobs, usable, coming, kinds, rules, fixed, untried=self._limits.untried
            )
            if self._table.fresh and not self._dry_run:
                self._assign(seen, found.placed, never)
        spent = self._spent(seen, ours, ready) if self._table.fresh else ()
        kept = frozenset(
            node.name
            for node in _listed(seen, ours)
            if needs.could_run(found.sizes, self._bounded(node), rules)
        )
        return self._hosts(seen), Wants(
            found.nodes, found.jobs, kept, spent, (*found.never, *never), kinds[0].nodeset
        )

    def _taking_jobs(self, seen: View) -> list[SlurmNode]:
        """Return the partition's nodes that take jobs, of this pool or not."""
        partition = self._table.partition
        return [one for one in seen.nodes.values() if one.usable and partition in one.partitions]

    def _close_black_holes(self, seen: View, ours: Collection[str]) -> None:
        """Drain nodes on which all jobs fail at once. They stay in the pool for an administrator to
        examine. At most a part of the pool is drained: if more nodes fail, the cause is the jobs,
        or something that all nodes share."""
        closed = sum(
            node.name in ours and node.closed and node.reason == BLACK_HOLE
            for node in seen.nodes.values()
        )
        for name in self._black_holes.found(seen.over, ours):
            why = BLACK_HOLE.removeprefix("cod: ")
            if closed >= max(1, len(ours) // MOST_CLOSED):
                log.error(
                    "%s stays open though %s: %d of %d nodes are drained for that already. Look at"
                    " the jobs, and at what all nodes share",
                    name,
                    why,
                    closed,
                    len(ours),
                )
                continue
            closed += 1
            log.error(
                "%s takes no more jobs: %s. Look at its clock and its slurmd's log", name, why
            )
            if not self._dry_run:
                self._slurm.drain(name, BLACK_HOLE)

    def _read_rules(self) -> Rules:
        """Return the rules of Slurm's configuration. They are read again now and then, because
        `scontrol reconfigure` changes them."""
        now = self._clock()
        if self._rules is None or now >= self._rules_read + RULES_LAST:
            self._rules_read = now
            rules = self._slurm.rules(self._table.maximum)
            self._rules = replace(rules, alone=rules.alone or self._table.fresh)
        return self._rules

    def _offered(self, seen: View, ours: Collection[str]) -> list[NodeKind]:
        """Return the kinds of new nodes: those of the settings, or else one with the largest
        resources of all nodes that have joined."""
        if self._kinds:
            return self._kinds
        for node in _listed(seen, ours):
            now = self._typical_kind
            gres = {
                name: max(node.gres.get(name, 0), now.gres.get(name, 0))
                for name in {*node.gres, *now.gres}
            }
            self._typical_kind = NodeKind(
                ANY,
                max(now.cpus, node.cpus),
                max(now.memory or 0, node.memory),
                gres,
                now.features | node.features,
                max(now.threads, node.threads),
            )
        return [self._typical_kind]

    def _hosts(self, seen: View) -> dict[str, Host]:
        running: dict[str, list[Job]] = {}
        for job in seen.jobs:
            if not job.waits:
                for name in job.nodes:
                    running.setdefault(name, []).append(Job(job.name, job.started, job.state))
        return {
            node.name: self._host(node, running.get(node.name, ())) for node in seen.nodes.values()
        }

    def _host(self, node: SlurmNode, jobs: Sequence[Job] = ()) -> Host:
        return Host(
            node.name,
            "" if node.address == node.name else node.address,
            node.heard,
            node.closed and not self._is_ready(node),
            node.usable or self._is_ready(node),
            tuple(jobs),
            PLANNED in node.flags,
        )

    # ------------------------------------------------------------ joining

    def begin(self, member: Member) -> None:
        """Delete the record of a node with this name and another address, and requeue its jobs: a
        new node that registers under the name would keep the old address."""
        self._departed.pop(member.hostname, None)
        self._joining.add(member.hostname)
        host = self.host(member.hostname)
        if host is not None and host.address not in ("", member.address):
            log.info("%s is struck off at its former address %s", host.name, host.address)
            self.close(self.hosts().get(host.name, host), lost=True)
            self._slurm.delete(host.name)

    def open(self, member: Member) -> None:
        """Give the node the features of its nodeset, and let it take jobs."""
        self._departed.pop(member.hostname, None)
        node = self._slurm.node(member.hostname)
        if node is None:
            raise NotYet(f"{member.hostname} has not registered")
        any_node = NodeKind(ANY, features=frozenset({self._table.feature}))
        kind = next((one for one in self._kinds if one.nodeset.name == member.nodeset), any_node)
        wanted = node.features | kind.features
        if wanted != node.features:
            self._slurm.set_features(node.name, wanted)
        if self._table.partition not in node.partitions:
            raise GivenUp(
                f"it is not in the partition {self._table.partition}: its slurmd has to register"
                " with the feature of the partition's NodeSet: slurmd -Z --conf"
                f" 'Feature={self._table.feature}'"
            )
        if found := _shortfall(node, kind):
            raise GivenUp(
                f"it has {found}, less than its nodeset {kind.nodeset.name} in the VCM's settings"
            )
        if not self._table.fresh:
            if node.closed:
                self._slurm.resume(node.name)
        elif node.closed and not node.reason:
            self._slurm.drain(node.name, READY)
        elif not node.closed and not self._bound(self._slurm.reservations(), node.name):
            raise GivenUp(
                "other jobs may have run on it before it was bound to one: with `fresh` its slurmd"
                f" has to register drained: slurmd -Z --conf 'Feature={self._table.feature}"
                " State=DRAIN'"
            )

    # ------------------------------------------------------------ leaving

    def close(self, host: Host, lost: bool) -> None:
        """Drain the node. A lost node is set down instead, and all its jobs are requeued."""
        if lost:
            for job in host.jobs:
                self.requeue(job)
            self._slurm.down(host.name, LEAVES)
        else:
            self._slurm.drain(host.name, LEAVES)

    def requeue(self, job: Job) -> None:
        """Requeue the job. An interactive job cannot run again, and is cancelled."""
        if job.state != "COMPLETING" and not self._slurm.requeue(job.id):
            log.warning(
                "job %s ends with its node: it was not submitted by sbatch, and cannot run again",
                job.id,
            )
            self._slurm.cancel(job.id)

    def notice(self, job: Job) -> float:
        """Return how many seconds before its end the job's script requests a signal; 0 if it
        requests none."""
        wanted = self._end_signal(job.id)
        return float(wanted.seconds) if wanted else 0.0

    def warn(self, job: Job) -> None:
        if wanted := self._end_signal(job.id):
            self._slurm.signal(job.id, wanted.signal, wanted.batch)

    def stop(self, name: str) -> None:
        """Do nothing: slurmd ends with its machine."""

    def expel(self, name: str, lost: bool) -> None:
        """Delete a node's record from Slurm. Raises `StillPlanned` while the backfill scheduler has
        a job planned on the node, and `NotYet` while its jobs have not ended. With `lost`, or from
        the second attempt on, the node is set down first, which ends its jobs."""
        with self._changing:
            host = self.host(name)
            try:
                if lost or name in self._kept_back:
                    self._slurm.down(name, LEAVES)
                if self._table.fresh:
                    self._unbind(name)
                if self._downtimes != {}:
                    for reservation in self._window_reservations(name):
                        self._slurm.release(reservation)
                self._slurm.delete(name)
            except StillPlanned:
                raise
            except NotYet:
                self._kept_back.add(name)
                raise
            self._kept_back.discard(name)
            self._joining.discard(name)
            if host is not None:
                self._departed[name] = host.address

    def _strike_off_revived(self, seen: View, coming: Counter[str]) -> None:
        """Delete records of nodes that have left: a controller that was killed forgets its last
        changes, and would start jobs there. A node that reports may be a new one, if nodes are on
        their way."""
        hosts = self._hosts(seen)
        for host in [
            hosts[name] for name in list(self._departed) if name in hosts and not self._dry_run
        ]:
            if host.address == self._departed[host.name] and not (host.heard and coming.total()):
                log.warning(
                    "%s has left, and slurmctld has a record of it again: it is struck off",
                    host.name,
                )
                self.close(host, lost=True)
                with suppress(NotYet):
                    self._slurm.delete(host.name)

    # ------------------------------------------------------------ maintenance

    # Each node has a reservation for each window that takes it. Its name contains window, node and
    # times, so names show which reservations are missing or out of date, also after a crash.

    def foresee(self, downtimes: Collection[Downtime], now: float) -> float:
        """Reserve nodes for their downtimes, so that Slurm starts only jobs that end before. If
        that fails for a node, it still leaves in time."""
        wanted = {
            f"cod-window-{one.window}-{one.host}-{one.begins:.0f}-{one.ends:.0f}"
            f".{self._table.partition}": one
            for one in downtimes
        }
        with self._changing:
            known = self._window_reservations() if wanted or self._downtimes != {} else set()
            for name in known - wanted.keys():
                with suppress(NotYet):
                    self._slurm.release(name)
            for name, one in wanted.items():
                if name in known or one.begins <= now:
                    continue
                try:
                    self._slurm.keep_free(Reservation(name, (one.host,)), one.begins, one.ends)
                except CommandFailed as error:
                    log.warning("jobs on %s may run into its maintenance: %s", one.host, error)
            self._downtimes = {}
            for one in downtimes:
                begins = self._clock() + one.begins - now
                self._downtimes[one.host] = min(self._downtimes.get(one.host, inf), begins)
        return 0.0

    def _bounded(self, node: SlurmNode) -> SlurmNode:
        """Return the node with the seconds that are left until its maintenance."""
        begins = (self._downtimes or {}).get(node.name)
        return node if begins is None else replace(node, left=begins - self._clock())

    def _window_reservations(self, host: str = "") -> set[str]:
        """Return the names of the reservations for maintenance windows, of this pool's nodes or of
        one."""
        host = host or "[a-z0-9-]+"
        name = re.compile(
            rf"cod-window-\d+-{host}-\d+-(\d+|inf)\.{re.escape(self._table.partition)}"
        )
        return {one for one in self._slurm.all_reservations() if name.fullmatch(one)}

    # ------------------------------------------------------------ nodes for one job

    # A node registers drained, and stays so until a job is bound to it: the node gets a reservation
    # named after the partition and the job, and the job is made to request that reservation. So no
    # other job can start there, and Slurm itself records which job the node is for, also over a
    # crash. The reservation ends when the job is over, or has to run elsewhere. Reservations with
    # other names belong to an administrator or another pool.

    def _is_ready(self, node: SlurmNode) -> bool:
        return self._table.fresh and node.heard and node.closed and node.reason == READY

    def _bound(self, reservations: Mapping[str, Reservation], name: str) -> Reservation | None:
        """Return the reservation that binds a node to a job."""
        return next(
            (one for one in reservations.values() if self._job_of(one) and name in one.nodes),
            None,
        )

    def _reservation(self, job: str) -> str:
        return f"cod-{self._table.partition}-{job}"

    def _job_of(self, reservation: Reservation) -> str:
        """Return the name of a reservation's job; '' for a reservation of another pool."""
        job = reservation.name.removeprefix(self._reservation(""))
        return job if job != reservation.name and re.fullmatch(r"\d+(_\d+)?", job) else ""

    def _serve(self, seen: View, ours: Collection[str], never: list[str]) -> bool:
        """End the reservations of jobs that are over or held, or whose nodes are leaving, and
        complete interrupted bindings of other jobs. Return whether anything changed."""
        jobs = {job.name: job for job in seen.jobs}
        changed = False
        for one in seen.reservations.values():
            name = self._job_of(one)
            job = jobs.get(name)
            if not name or self._dry_run or (job is not None and not job.waits):
                continue
            changed = True
            held = job is not None and (job.state != "PENDING" or job.reason in HELD_BACK)
            with suppress(NotYet), self._only_this_job(name, never):
                if job is not None and not held and set(one.nodes) <= set(ours):
                    if job.reservation != one.name:
                        self._slurm.bind(job.name, one.name)
                    for node in _listed(seen, one.nodes):
                        if node.closed:
                            self._slurm.resume(node.name)
                else:
                    self._end(one, job)
        return changed

    def _assign(self, seen: View, placed: Mapping[str, tuple[str, ...]], never: list[str]) -> None:
        """Bind jobs to nodes that wait for a job."""
        users = {job.name: job.user for job in seen.jobs} | {
            str(job.array): job.user for job in seen.jobs if job.array
        }
        for name, nodes in placed.items():
            reservation = Reservation(self._reservation(name), nodes)
            with self._only_this_job(name, never):
                self._slurm.reserve(reservation, users[name.partition("_")[0]])
                self._slurm.bind(name, reservation.name)
                for node in nodes:
                    self._slurm.resume(node)
                log.info("job %s has %s for itself", name, ", ".join(nodes))

    @contextmanager
    def _only_this_job(self, name: str, never: list[str]) -> Iterator[None]:
        """Let a command fail for one job without failing the others, for example if Slurm does not
        know the job's user. The error is added to `never`."""
        try:
            yield
        except CommandFailed as error:
            self._slurm.view()  # raises where Slurm does not answer anybody
            never.append(f"job {name}: {error}")

    def _end(self, reservation: Reservation, job: SlurmJob | None) -> None:
        """End a reservation. Its nodes are drained first, so that no other job starts there."""
        for name in reservation.nodes:
            self._slurm.drain(name, LEAVES)
        if job is not None:
            self._slurm.bind(job.name, "")
        self._slurm.release(reservation.name)

    def _unbind(self, name: str) -> None:
        """End the reservation that binds a leaving node to a job."""
        seen = self._slurm.view()
        if reservation := self._bound(seen.reservations, name):
            waiting = self._job_of(reservation)
            self._end(reservation, next((job for job in seen.jobs if job.name == waiting), None))

    def _spent(
        self, seen: View, ours: Collection[str], ready: Collection[SlurmNode]
    ) -> tuple[str, ...]:
        """Return the nodes that no queued or running job is bound to, and that do not wait for
        one."""
        here = {job.name for job in seen.jobs}
        serving = {
            name
            for one in seen.reservations.values()
            if self._job_of(one) in here
            for name in one.nodes
        }
        waiting = {node.name for node in ready}
        present = {node.name for node in _listed(seen, ours) if node.heard}
        return tuple(sorted(present - serving - waiting))


def _listed(seen: View, names: Iterable[str]) -> list[SlurmNode]:
    """Return those of the named nodes that Slurm lists."""
    return [seen.nodes[name] for name in names if name in seen.nodes]


def _shortfall(node: SlurmNode, kind: NodeKind) -> str:
    """Return the resource of which a node has less than its nodeset promises; '' if there is none.
    Jobs that need the resource would wait for ever, and each look would request a further node."""
    if node.cpus < kind.cpus:
        return f"{node.cpus} CPUs"
    if node.memory < (kind.memory or 0):
        return f"{node.memory} MiB"
    return next(
        (
            f"{name}:{node.gres.get(name, 0)}"
            for name, count in kind.gres.items()
            if node.gres.get(name, 0) < count
        ),
        "",
    )
