"""A queue of Grid Engine as a `cod.vcm.batch.system.BatchSystem`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from threading import Lock

from cod.vcm.batch.system import Downtime, Host, Job, Wants
from cod.vcm.gridengine import needs, view
from cod.vcm.gridengine.commands import GridEngine
from cod.vcm.gridengine.needs import NodeOffer
from cod.vcm.gridengine.settings import GridEngineTable
from cod.vcm.pool import ANY, Member


class GridEngineSystem:
    """Grid Engine as a batch system. `prepare`: set the queue up if that is necessary."""

    def __init__(
        self, table: GridEngineTable, cell: GridEngine | None = None, *, prepare: bool = True
    ) -> None:
        self._table, self._prepare = table, prepare
        self._cell = cell or GridEngine(table.queue, table.hostgroup, table.environment, table.path)
        self._placeholder = table.placeholder or next(iter(table.keep), "")
        self._prepared = False
        self._shown: dict[str, str] = {}
        self._preparing = Lock()

    def hosts(self) -> Mapping[str, Host]:
        return _hosts(self._cell.view())

    def look(self, ours: Collection[str], coming: Counter[str]) -> tuple[Mapping[str, Host], Wants]:
        """Return the hosts that qstat lists, and the nodes that the waiting jobs need in addition
        to idle hosts."""
        seen = self._view()
        hosts, offer = _hosts(seen), self._offer(seen, ours)
        can, never = needs.sorted_out(seen.waiting, offer)
        idle = sum(name in hosts and hosts[name].idle for name in ours)
        lacking = max(0, needs.wanted_nodes(can, offer, self._table.jobs_per_node) - idle)
        return hosts, Wants(
            {ANY: lacking}, sum(job.tasks for job in can), frozenset(ours if can else ()), (), never
        )

    def _view(self) -> view.View:
        """Return the queue, with a placeholder host in it if `prepare` is set."""
        seen = self._cell.view()
        if not self._prepare or (self._prepared and self._placeholder in seen.hosts):
            return seen
        self._placeholder = self._placeholder or self._cell.master()
        with self._preparing:
            self._cell.prepare(self._placeholder)
        self._prepared = True
        return self._cell.view()

    def _offer(self, seen: view.View, ours: Collection[str]) -> NodeOffer:
        wanted = any(job.resources for job in seen.waiting)
        if wanted:
            self._shown |= self._cell.offered(ours)
        whole = (
            self._cell.whole_environments()
            if any(job.parallel for job in seen.waiting)
            else frozenset()
        )
        others = sum(
            host.slots for host in seen.hosts.values() if host.usable and host.name not in ours
        )
        most = max(self._table.maximum, len(ours)) * self._table.slots + others
        return NodeOffer(
            self._table.slots,
            {**self._shown, **self._table.offers},
            whole,
            self._cell.relops() if wanted else {},
            self._table.queue,
            self._table.hostgroup,
            most,
        )

    def begin(self, member: Member) -> None:
        """Admit the host, and put it into the queue, disabled. Hosts that COD did not give are not
        passed to this method."""
        name = member.hostname
        self._cell.admit(name)
        self._cell.join(name, self._table.slots)
        self._cell.disable(name)

    def open(self, member: Member) -> None:
        self._cell.enable(member.hostname)

    def close(self, host: Host, lost: bool) -> None:
        if not host.closed:
            self._cell.disable(host.name)

    def requeue(self, job: Job) -> None:
        """Reschedule a running job. A job that is being rescheduled already is left alone, and a
        job that its owner has deleted is deleted."""
        number, _, task = job.id.partition(".")
        if "d" in job.state:
            self._cell.delete(int(number), int(task or 0))
        elif "R" not in job.state or "r" in job.state:
            self._cell.reschedule(int(number), int(task or 0))

    def foresee(self, downtimes: Collection[Downtime], now: float) -> float:
        """Return the setting `maintenance_notice`. Grid Engine does not tell how long a job may
        run, so hosts are closed early enough for every job to end."""
        return self._table.maintenance_notice

    def stop(self, name: str) -> None:
        self._cell.stop_daemon(name)

    def expel(self, name: str, lost: bool) -> None:
        self._cell.expel(name)


def _hosts(seen: view.View) -> dict[str, Host]:
    """Return the hosts in the form of all batch systems. A host whose used slots belong to no
    listed job counts as busy."""
    return {
        host.name: Host(
            host.name,
            "",
            host.heard and "u" not in host.states,
            "d" in host.states,
            host.usable and (bool(host.running) or not host.used),
            tuple(
                Job(f"{job.job}.{job.task}" if job.task else str(job.job), job.started, job.state)
                for job in host.running
            ),
        )
        for host in seen.hosts.values()
    }
