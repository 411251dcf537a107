"""Grid Engine's commands, and the meaning of their errors.

Several of them report an error with exit status 0, and others report with status 1 that a state is
reached already (both seen with Son of Grid Engine 8.1.9), so status and text are read together.
Each function sets a state, so a repeated call does no harm.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cod.vcm.batch.commands import CommandFailed, failure, run
from cod.vcm.gridengine.view import View, offered, read


@dataclass(frozen=True, slots=True)
class GridEngine:
    """A cell. `environment`: SGE_ROOT, SGE_CELL and ports, if they differ from the process's own;
    `path`: the folder of the commands."""

    queue: str
    hostgroup: str
    environment: Mapping[str, str] = field(default_factory=dict)
    path: str = ""

    # ------------------------------------------------------------ looking

    def view(self) -> View:
        """Return the pool now. Raises `NotUnderstood`, or `CommandFailed` when the master does not
        answer."""
        return read(self._output("qstat", "-f", "-r", "-u", "*", "-xml"), self.queue)

    def execution_hosts(self) -> set[str]:
        """Return the short names of all hosts that the master knows as execution hosts."""
        return self._hosts("-sel")

    def administrative_hosts(self) -> set[str]:
        """Return the short names of all administrative hosts."""
        return self._hosts("-sh")

    def members(self) -> set[str]:
        """Return the short names of the hosts in the host group."""
        listed = self._text("qconf", "-shgrp_resolved", self.hostgroup)
        return {name.split(".")[0] for name in listed.split()}

    def offered(self, members: Collection[str]) -> dict[str, str]:
        """Return the resources of those hosts, and of the queue, that -l can request. Raises as
        `view` does."""
        return offered(self._output("qstat", "-F", "-xml"), self.queue, members)

    def relops(self) -> dict[str, str]:
        """Return the operator by which each complex value is compared with a request."""
        listed = self._text("qconf", "-sc")
        rows = [line.split() for line in listed.splitlines() if line and not line.startswith("#")]
        return {row[0]: row[3] for row in rows if len(row) > 3}

    def master(self) -> str:
        """Return the short name of the host on which the master runs."""
        return self._text("qconf", "-sss").strip().split(".")[0]

    def whole_environments(self) -> frozenset[str]:
        """Return the parallel environments whose jobs have to fit on one host."""
        names = self._text("qconf", "-spl", nothing_is_fine=True).split()
        rules = {name: self._text("qconf", "-sp", name) for name in names}
        return frozenset(
            name
            for name, text in rules.items()
            if re.search(r"^allocation_rule\s+\$pe_slots", text, re.MULTILINE)
        )

    def _hosts(self, option: str) -> set[str]:
        listed = self._text("qconf", option, nothing_is_fine=True)
        return {line.split(".")[0] for line in listed.split()}

    # ------------------------------------------------------------ joining

    def admit(self, host: str) -> None:
        """Make the host an administrative host: the master rejects execution daemons of other
        hosts."""
        if host not in self.administrative_hosts():
            self._do("qconf", "-ah", host, meaning=r"added|already exists")

    def join(self, host: str, slots: int) -> None:
        """Put the host into the host group with its slots. The host stays disabled until it has
        reported."""
        if host not in self.members():
            self._set("-aattr", "hostgroup", "hostlist", host, self.hostgroup, "exists")
        self._set("-rattr", "queue", "slots", str(slots), self._instance(host), "unchanged")

    def enable(self, host: str) -> None:
        self._do(
            "qmod", "-e", self._instance(host), meaning="enabled|already in the specified state"
        )

    # ------------------------------------------------------------ leaving

    def disable(self, host: str) -> None:
        self._do(
            "qmod", "-d", self._instance(host), meaning="disabled|already in the specified state"
        )

    def reschedule(self, job: int, task: int) -> None:
        """Put a running job back into the queue because its host leaves, even if the job's owner
        has forbidden it to run again."""
        name = f"{job}.{task}" if task else str(job)
        # -f: also a job whose execution daemon does not answer
        self._do(
            "qmod", "-f", "-rj", name, meaning="rescheduling|not running|does not exist|not allow"
        )

    def delete(self, job: int, task: int) -> None:
        """Delete a job that its owner has deleted already, without waiting for its host."""
        words = [str(job), "-t", str(task)] if task else [str(job)]
        self._do("qdel", "-f", *words, meaning="delet|not exist|forced")

    def stop_daemon(self, host: str) -> None:
        """Shut down the host's execution daemon, with the jobs that still run under it."""
        self._do("qconf", "-kej", host, meaning="sent|unknown|not.*known|denied", any_status=True)

    def expel(self, host: str) -> None:
        """Delete all records of the host, in the order that Grid Engine requires."""
        if host in self.members():
            self._set("-dattr", "hostgroup", "hostlist", host, self.hostgroup, "not exist")
        # the queue's own values for this host, such as slots: -de refuses a host that a queue names
        purged = "modified|not.*exist|No"
        self._do(
            "qconf", "-purge", "queue", "*", self._instance(host), meaning=purged, any_status=True
        )
        if host in self.execution_hosts():
            self._do("qconf", "-de", host, meaning="removed|does not exist")
        if host in self.administrative_hosts():
            self._do("qconf", "-dh", host, meaning="removed|does not exist")
        if host in self._hosts("-sconfl"):
            self._do("qconf", "-dconf", host, meaning="removed|not defined|does not exist")

    # ------------------------------------------------------------ setting up

    def prepare(self, placeholder: str) -> None:
        """Make the host group if it is missing, put it into the queue, and put `placeholder` into
        the group, disabled: qsub rejects jobs while a queue has no host. If the host is in the
        queue already, it is left alone."""
        listed = self._text("qconf", "-shgrpl", nothing_is_fine=True).split()
        if self.hostgroup not in listed:
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "hostgroup"
                file.write_text(f"group_name {self.hostgroup}\nhostlist NONE\n")
                self._do("qconf", "-Ahgrp", str(file), meaning="added|already exists")
        self._set("-aattr", "queue", "hostlist", self.hostgroup, self.queue, "already exists")
        host = self.view().hosts.get(placeholder)
        if host is None:
            self._set("-aattr", "hostgroup", "hostlist", placeholder, self.hostgroup, "exists")
        if host is None or not (host.heard or "d" in host.states):
            self.disable(placeholder)

    # ------------------------------------------------------------ running them

    def _instance(self, host: str) -> str:
        return f"{self.queue}@{host}"

    def _set(self, option: str, kind: str, key: str, value: str, of: str, already: str) -> None:
        self._do("qconf", option, kind, key, value, of, meaning=f"modified|{already}")

    def _do(self, *command: str, meaning: str, any_status: bool = False) -> None:
        done = self._run(command)
        text = (done.stdout + done.stderr).decode(errors="replace")
        if not re.search(meaning, text, re.IGNORECASE) and not (any_status and done.returncode):
            raise CommandFailed(f"{' '.join(command)}: {failure(done)}")

    def _text(self, *command: str, nothing_is_fine: bool = False) -> str:
        return self._output(*command, nothing_is_fine=nothing_is_fine).decode(errors="replace")

    def _output(self, *command: str, nothing_is_fine: bool = False) -> bytes:
        done = self._run(command)
        if done.returncode and not nothing_is_fine:
            raise CommandFailed(f"{' '.join(command)}: {failure(done)}")
        return done.stdout if not done.returncode else b""

    def _run(self, command: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
        return run(command, self.environment, self.path)
