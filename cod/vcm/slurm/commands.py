"""Slurm's commands, and the meaning of their errors.

Some of them fail with status 1 if the requested state is reached already, and `squeue --json`
succeeds with an empty list when the controller does not answer (both seen with 22.05.8), so status
and text are read together. Each function sets a state, so a repeated call does no harm.
"""

from __future__ import annotations

import logging
import re
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import inf

from cod.vcm.batch.commands import CommandFailed, NotUnderstood, failure, run
from cod.vcm.pool import NotYet
from cod.vcm.slurm.layouts.choice import choose
from cod.vcm.slurm.layouts.document import SILENT, Layout
from cod.vcm.slurm.needs import Rules
from cod.vcm.slurm.view import SlurmJob, SlurmNode, hostlist

GONE = "Invalid node name"
NOBODY = "Unable to contact slurm controller"
NO_JOB = r"Invalid job id|already finished|already completing|pending execution"
NO_SCRIPT = "script not specified"
NO_RESERVATION = "reservation is invalid"
WHOLE_LISTS = {"SLURM_BITSTR_LEN": "0"}  # otherwise lists of tasks end in '...' after 64 characters

PLANNED = "PLANNED"  # the backfill scheduler counts on the node, for a job that waits

log = logging.getLogger("cod.vcm")


class StillPlanned(NotYet):
    """Raised for a node that cannot be deleted yet, because the backfill scheduler has planned a
    job on it."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """An active reservation of nodes."""

    name: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class View:
    """The cluster at one moment. Nodes in an active reservation have the flag RESERVED. `over` has
    jobs that have ended, `jobs` all others."""

    nodes: Mapping[str, SlurmNode]
    jobs: list[SlurmJob]
    reservations: Mapping[str, Reservation]
    over: Sequence[SlurmJob] = ()


class Slurm:
    """A cluster. `environment`: SLURM_CONF, if it differs from the process's own; `path`: the
    folder of the commands."""

    def __init__(self, partition: str, environment: Mapping[str, str], path: str = "") -> None:
        self.partition, self.environment, self.path = partition, environment, path
        self._known_layout: Layout | None = None
        self._version = self._logged = ""

    # ------------------------------------------------------------ looking

    def view(self) -> View:
        """Return the cluster now. Raises `NotUnderstood`, or `CommandFailed` when the controller
        does not answer."""
        with self._layout() as layout:
            nodes = layout.read_nodes(self._output(*layout.nodes))
            listed = layout.read_jobs(self._output(*layout.queue))
        jobs = [job for job in listed if not job.over]
        reservations = self.reservations()
        kept = {name for one in reservations.values() for name in one.nodes}
        shown = {
            name: replace(node, flags=node.flags | {"RESERVED"}) if name in kept else node
            for name, node in _in_step(nodes, jobs).items()
        }
        return View(shown, jobs, reservations, [job for job in listed if job.over])

    def node(self, name: str) -> SlurmNode | None:
        """Return the node of that name; None if Slurm does not know it."""
        with self._layout() as layout:
            return layout.read_nodes(self._output(*layout.node(name))).get(name)

    def reservations(self) -> dict[str, Reservation]:
        """Return the active reservations, by name. Raises `NotUnderstood`."""
        found = {}
        for values in self._listed_reservations():
            if values["State"] == "ACTIVE":
                names = hostlist("" if values["Nodes"] == "(null)" else values["Nodes"])
                found[values["ReservationName"]] = Reservation(values["ReservationName"], names)
        return found

    def all_reservations(self) -> set[str]:
        """Return the names of all reservations, including future ones."""
        return {values["ReservationName"] for values in self._listed_reservations()}

    def _listed_reservations(self) -> Iterator[dict[str, str]]:
        output = self._output("scontrol", "--oneliner", "show", "reservation")
        for line in filter(None, map(str.strip, output.decode(errors="replace").splitlines())):
            if line == "No reservations in the system":
                continue
            values = dict(word.partition("=")[::2] for word in line.split())
            if not {"ReservationName", "Nodes", "State"} <= values.keys():
                raise NotUnderstood(f"scontrol show reservation: {line[:80]!r}")
            yield values

    @contextmanager
    def _layout(self) -> Iterator[Layout]:
        """Provide the layout of this Slurm's output. It is determined once, and again when output
        cannot be read, because another release may have been installed. The error names the release
        that could not be read."""
        try:
            layout = self._known_layout  # another thread may forget it meanwhile
            if layout is None:
                self._version = ""
                listed = run(["squeue", "--json=list"], self.environment, self.path)
                layout = choose((listed.stdout + listed.stderr).decode(errors="replace"))
                read_as = f"{self.version()} is read as {layout.releases}"
                if self._logged != read_as:
                    self._logged = read_as
                    log.info("%s", read_as)
                self._known_layout = layout
            yield layout
        except CommandFailed:
            self._known_layout = None
            raise
        except NotUnderstood as error:
            self._known_layout = None
            raise NotUnderstood(f"{self.version()}: {error}") from None

    def version(self) -> str:
        """Return the version that Slurm's commands print: 'slurm 24.11.5'."""
        if not self._version:
            self._version = self._output("squeue", "--version").decode(errors="replace").strip()
        return self._version

    def rules(self, limit: int) -> Rules:
        """Return the rules by which the configured partition's jobs share nodes, for a pool of
        `limit` nodes. Raises `CommandFailed` for an unknown partition."""
        partition = self._output(
            "scontrol", "--oneliner", "show", "partition", self.partition
        ).decode(errors="replace")
        text = self._output("scontrol", "show", "config").decode(errors="replace").upper()
        names = r"SELECTTYPE\w*|ACCOUNTINGSTORAGEENFORCE"
        values = dict(re.findall(rf"^({names})\s*=\s*(.*)$", text, re.MULTILINE))
        counted = values.get("SELECTTYPEPARAMETERS", "")
        unit = next((one for one in ("socket", "core") if f"CR_{one.upper()}" in counted), "cpu")
        alone = "OverSubscribe=EXCLUSIVE" in partition or "LINEAR" in values.get("SELECTTYPE", "")
        enforced = values.get("ACCOUNTINGSTORAGEENFORCE", "").strip().split(",")
        return Rules(
            self.partition,
            "MEMORY" in counted,
            unit,
            alone,
            limit,
            limits=not {"LIMITS", "QOS", "SAFE"}.isdisjoint(enforced),
        )

    # ------------------------------------------------------------ nodes

    def resume(self, name: str) -> None:
        """Let the node take jobs."""
        # slurmctld's error for a node that is not drained, and so takes jobs already
        self._node(name, "state=resume", done="Invalid node state")

    def drain(self, name: str, reason: str) -> None:
        """Let the node take no more jobs."""
        self._node(name, "state=drain", f"reason={reason}", done=GONE)

    def down(self, name: str, reason: str) -> None:
        """Set the node down. Its jobs go back into the queue if they may run again."""
        self._node(name, "state=down", f"reason={reason}", done=GONE)

    def set_features(self, name: str, features: Collection[str]) -> None:
        """Give the node these features, and no others."""
        text = ",".join(sorted(features))
        self._node(name, f"AvailableFeatures={text}", f"ActiveFeatures={text}")

    def delete(self, name: str) -> None:
        """Delete the node's record. Raises `NotYet` while one of its jobs has not ended, and
        `StillPlanned` while the node is planned: slurmctld 22.05.8 would crash at the next backfill
        cycle. A node that is drained or down is not planned again."""
        node = self.node(name)
        if node is not None and PLANNED in node.flags:
            raise StillPlanned(f"slurmctld still plans with {name}, until its next backfill cycle")
        text = self._do("scontrol", "delete", f"nodename={name}", done=f"{GONE}|busy")
        if "busy" in text:
            raise NotYet(f"jobs on {name} have not ended")

    def _node(self, name: str, *changes: str, done: str = "^$") -> None:
        self._do("scontrol", "update", f"nodename={name}", *changes, done=done)

    # ------------------------------------------------------------ jobs

    def requeue(self, job: str) -> bool:
        """Put a job that has not ended back into the queue, even if its owner has forbidden that.
        Return False for a job that is not a batch job: it cannot run again."""
        # Incomplete: a job that has ended since it was listed would run a second time
        text = self._do(
            "scontrol", "requeue", "Incomplete", job, done=f"{NO_JOB}|presently disabled|batch jobs"
        )
        if "presently disabled" in text:
            self._do("scontrol", "update", f"jobid={job}", "requeue=1", done=NO_JOB)
            self._do("scontrol", "requeue", "Incomplete", job, done=NO_JOB)
        return "batch jobs" not in text

    def script(self, job: str) -> str:
        """Return a batch job's script; '' for a job that has none, or has ended."""
        ended = run(["scontrol", "write", "batch_script", job, "-"], self.environment, self.path)
        text = ended.stderr.decode(errors="replace").strip()
        if (ended.returncode or text) and not re.search(
            f"{NO_JOB}|{NO_SCRIPT}", text, re.IGNORECASE
        ):
            raise _failed(("scontrol", "write", "batch_script", job), ended)
        return ended.stdout.decode(errors="replace")

    def signal(self, job: str, signal: str, batch: bool) -> None:
        """Send a signal either to the shell of a batch job (`batch`), or to the job's steps."""
        self._do("scancel", f"--signal={signal}", *(["--batch"] if batch else []), job, done=NO_JOB)

    def cancel(self, job: str) -> None:
        self._do("scancel", job, done=NO_JOB)

    # ------------------------------------------------------------ reservations

    def reserve(self, reservation: Reservation, user: str) -> None:
        """Reserve nodes for jobs of one user that request this reservation."""
        self._do(
            "scontrol",
            "create",
            "reservation",
            f"reservationname={reservation.name}",
            f"nodes={','.join(reservation.nodes)}",
            f"users={user}",
            "starttime=now",
            "duration=infinite",
            # without it slurmctld refuses a node on which a job is still ending
            "flags=ignore_jobs",
        )

    def keep_free(self, reservation: Reservation, begins: float, ends: float) -> None:
        """Let no job start on the reservation's nodes that would run into the time from `begins` to
        `ends`, in seconds since the epoch. It is no error if a node has left meanwhile."""
        self._do(
            "scontrol",
            "create",
            "reservation",
            f"reservationname={reservation.name}",
            f"nodes={','.join(reservation.nodes)}",
            "users=root",
            f"starttime={_utc(begins)}",
            "duration=infinite" if ends == inf else f"endtime={_utc(ends)}",
            # running jobs may take longer: they are put back into the queue in time
            "flags=maint,ignore_jobs",
            done=GONE,
            environment={"TZ": "UTC0"},  # scontrol reads times as local ones
        )

    def bind(self, job: str, reservation: str) -> None:
        """Restrict a job to the nodes of a reservation; '' allows any node."""
        self._do(
            "scontrol", "update", f"jobid={job}", f"reservationname={reservation}", done=NO_JOB
        )

    def release(self, reservation: str) -> None:
        """End a reservation. Raises `NotYet` while a job runs in it."""
        text = self._do(
            "scontrol", "delete", f"reservation={reservation}", done=f"{NO_RESERVATION}|in use"
        )
        if "in use" in text:
            raise NotYet(f"the job of the reservation {reservation} has not ended")

    # ------------------------------------------------------------ running them

    def _do(
        self, *command: str, done: str = "^$", environment: Mapping[str, str] | None = None
    ) -> str:
        """Run a command. Return its error output, which must match `done`. Raises
        `CommandFailed`."""
        ended = run(command, {**self.environment, **(environment or {})}, self.path)
        text = ended.stderr.decode(errors="replace").strip()
        if text and re.search(done, text, re.IGNORECASE):
            return text
        if ended.returncode or text:
            raise _failed(command, ended)
        return ""

    def _output(self, *command: str) -> bytes:
        ended = run(command, {**self.environment, **WHOLE_LISTS}, self.path)
        if ended.returncode:
            raise _failed(command, ended)
        return ended.stdout


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _failed(command: Sequence[str], ended: subprocess.CompletedProcess[bytes]) -> CommandFailed:
    """Return the error that a command's failure means."""
    text = failure(ended)
    if re.search(NOBODY, text):
        return CommandFailed(f"{SILENT} ({' '.join(command)})")
    return CommandFailed(f"{' '.join(command)}: {text}")


def _in_step(nodes: Mapping[str, SlurmNode], jobs: list[SlurmJob]) -> dict[str, SlurmNode]:
    """Return the nodes, corrected by the jobs, which were listed a moment later: a node without
    jobs is free, and a node on which a first job has started since is not."""
    running: dict[str, list[SlurmJob]] = {}
    for job in jobs:
        for name in job.nodes:
            running.setdefault(name, []).append(job)
    found = {}
    for name, node in nodes.items():
        here = running.get(name, [])
        if not here:
            found[name] = replace(node, cpus_used=0, memory_used=0, gres_used={})
        elif not node.cpus_used and any(job.state != "COMPLETING" for job in here):
            found[name] = replace(node, cpus_used=node.cpus)
        else:
            found[name] = node
    return found
