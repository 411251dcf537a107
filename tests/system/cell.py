"""A private Grid Engine cell on a stand: see installation.py for its hosts."""

from __future__ import annotations

import os
import subprocess
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from lxml import etree

from cod.model import dotted, ipv4
from cod.vcm.gridengine.view import read
from tests.system.installation import HEAD, Installation, folder
from tests.system.stand import Stand

if TYPE_CHECKING:
    from tests.system.annex import Annex

BINARIES = Path("/usr/lib/gridengine")
SHARED = Path("/usr/share/gridengine")
QUEUE = {
    "hostlist": "@cod",
    "seq_no": "0",
    "load_thresholds": "NONE",
    "suspend_thresholds": "NONE",
    "nsuspend": "1",
    "suspend_interval": "00:05:00",
    "priority": "0",
    "min_cpu_interval": "00:05:00",
    "processors": "UNDEFINED",
    "qtype": "BATCH INTERACTIVE",
    "ckpt_list": "NONE",
    "pe_list": "NONE",
    "rerun": "TRUE",
    "slots": "1",
    "tmpdir": "/tmp",
    "shell": "/bin/sh",
    "prolog": "NONE",
    "epilog": "NONE",
    "shell_start_mode": "unix_behavior",
    "starter_method": "NONE",
    "suspend_method": "NONE",
    "resume_method": "NONE",
    "terminate_method": "NONE",
    "notify": "00:00:60",
    "owner_list": "NONE",
    "user_lists": "NONE",
    "xuser_lists": "NONE",
    "subordinate_list": "NONE",
    "complex_values": "NONE",
    "projects": "NONE",
    "xprojects": "NONE",
    "calendar": "NONE",
    "initial_state": "default",
}
# A daemon that its master has shut down (status 0) is on a host that leaves: see
# images/exechost/execd.
DAEMON = """\
rm -rf {spool}/$1  # what the last host of this name left would tell the master that its jobs died here
while :; do SGE_ND=1 {binaries}/sge_execd && sleep 10; sleep 1; done &"""


class Cell(Installation):
    """See the module. `spool`: where execution daemons keep their files, in the cell's folder if it
    is ''."""

    table, system, job = "gridengine", "sge", "$JOB_ID.${SGE_TASK_ID:-0}"
    knobs: ClassVar[dict[str, Any]] = {
        "path": str(BINARIES),
        "keep": [HEAD],
        "idle_limit": 4.0,
        "calm": 1.0,
        "join_time": 60.0,
    }

    def __init__(
        self, stand: Stand | Annex, vcluster: str, *, domain: str = "cod.test", spool: str = ""
    ) -> None:
        self.root = folder(stand, vcluster) / "root"
        self.spool = spool or f"{self.root}/spool/execd"
        super().__init__(
            stand,
            vcluster,
            domain,
            {
                "SGE_ROOT": str(self.root),
                "SGE_CELL": "default",
                "SGE_QMASTER_PORT": "6444",
                "SGE_EXECD_PORT": "6445",
            },
        )

    def found(self) -> None:
        """Write the master's spool, with its defaults."""
        for name in (
            "bin",
            "lib",
            "utilbin",
            "default/common",
            "spool/qmaster/job_scripts",
            "spool/execd",
        ):
            (self.root / name).mkdir(parents=True)
        (self.root / "util").symlink_to(SHARED / "util")
        for name in ("bin", "lib", "utilbin"):
            (self.root / name / "lx-amd64").symlink_to(BINARIES)
        self._spool()
        (self.root / "default/common/act_qmaster").write_text(HEAD + "\n")

    def server(self) -> str:
        """Return the master."""
        return f"{BINARIES}/sge_qmaster"

    def daemon(self) -> str:
        """Return the execution daemon."""
        return DAEMON.format(spool=self.spool, binaries=BINARIES)

    def _spool(self) -> None:
        common = self.root / "default/common"
        spool = f"{common};{self.root}/spool/qmaster"
        (common / "bootstrap").write_text(
            textwrap.dedent(f"""\
            admin_user none
            default_domain none
            ignore_fqdn true
            spooling_method classic
            spooling_lib libspoolc
            spooling_params {spool}
            binary_path {self.root}/bin
            qmaster_spool_dir {self.root}/spool/qmaster
            security_mode none
            listener_threads 2
            worker_threads 2
            scheduler_threads 1
            """)
        )
        settings = {
            "execd_spool_dir": self.spool,
            "min_uid": "0",
            "min_gid": "0",
            "load_report_time": "00:00:01",
            "max_unheard": "00:00:10",
            "mailer": "/bin/true",
            "administrator_mail": "none",
            "reporting_params": (
                "accounting=true reporting=false flush_time=00:00:01 accounting_flush_time=00:00:00"
                " joblog=false sharelog=00:00:00"
            ),
        }
        lines = [
            (
                f"{line.split()[0]} {settings[line.split()[0]]}"
                if line.split()[:1] and line.split()[0] in settings
                else line
            )
            for line in (SHARED / "default-configuration").read_text().splitlines()
        ]
        (self.folder / "conf").write_text("\n".join(lines) + "\n")
        for words in (
            ("spoolinit", "classic", "libspoolc", spool, "init"),
            ("spooldefaults", "configuration", self.folder / "conf"),
            ("spooldefaults", "complexes", SHARED / "util/resources/centry"),
            ("spooldefaults", "usersets", SHARED / "util/resources/usersets"),
            ("spooldefaults", "managers", "root"),
        ):
            # They insist on finding the machine that they run on by name, which not every machine
            # can do.
            subprocess.run(
                [
                    "unshare",
                    "--uts",
                    "sh",
                    "-c",
                    'hostname localhost; exec "$@"',
                    "-",
                    str(BINARIES / words[0]),
                    *map(str, words[1:]),
                ],
                env={**os.environ, **self.environment},
                check=True,
                capture_output=True,
            )

    def know_hosts(self, count: int) -> None:
        """Put names and addresses into the hosts file as COD gives them out: the lowest free name,
        the lowest free address. Of a name that was not there the master thinks so for a minute, and
        stand-ins boot in a second."""
        [block] = self.stand.cod("vcluster", "show", self.vcluster)["addresses"]
        addresses = [
            address
            for address in range(ipv4(block["first"]), ipv4(block["last"]) + 1)
            if address & 0xFF not in (0, 0xFF)
        ]
        with open(self.folder / "etc/hosts", "a") as file:
            for number, address in enumerate(addresses[:count], 1):
                file.write(f"{dotted(address)} n{number}.{self.vcluster}.{self.domain} n{number}\n")

    def configure(self) -> None:
        """Once the master answers: quick schedules, the queue, a placeholder for an empty pool."""
        self.stand.wait(
            lambda: self.run("qconf", "-sh", check=False).returncode == 0, 180, "the master answers"
        )
        schedule = self.run("qconf", "-ssconf").stdout.splitlines()
        quick = {
            "schedule_interval": "0:0:1",
            "flush_submit_sec": "1",
            "flush_finish_sec": "1",
            "job_load_adjustments": "none",
        }
        self._file(
            "sconf",
            [
                f"{line.split()[0]} {quick.get(line.split()[0], ' '.join(line.split()[1:]))}"
                for line in schedule
                if line.split()
            ],
            "-Msconf",
        )
        self.run("qconf", "-as", HEAD)
        self._file("hostgroup", ["group_name @cod", "hostlist NONE"], "-Ahgrp")
        self._file(
            "smp",
            [
                "pe_name smp",
                "slots 999",
                "user_lists NONE",
                "xuser_lists NONE",
                "start_proc_args NONE",
                "stop_proc_args NONE",
                "allocation_rule $pe_slots",
                "control_slaves FALSE",
                "job_is_first_task TRUE",
                "urgency_slots min",
                "accounting_summary FALSE",
                "qsort_args NONE",
            ],
            "-Ap",
        )
        limits = [
            f"{kind}_{name} INFINITY"
            for kind in "sh"
            for name in ("rt", "cpu", "fsize", "data", "stack", "core", "rss", "vmem")
        ]
        queue = {**QUEUE, "pe_list": "smp"}
        self._file(
            "all.q",
            ["qname all.q", *(f"{key} {value}" for key, value in queue.items()), *limits],
            "-Aq",
        )
        self.run("qconf", "-aattr", "hostgroup", "hostlist", HEAD, "@cod")
        self.run("qmod", "-d", f"all.q@{HEAD}")

    def _file(self, name: str, lines: list[str], option: str) -> None:
        (self.folder / name).write_text("\n".join(lines) + "\n")
        self.run("qconf", option, str(self.folder / name))

    # ------------------------------------------------------------ using it

    def run(
        self, *command: str, host: str = HEAD, check: bool = True, user: int | None = None
    ) -> subprocess.CompletedProcess[str]:
        """A command of Grid Engine's, which need not be in the search path, or of the system's."""
        program = str(BINARIES / command[0]) if (BINARIES / command[0]).exists() else command[0]
        return super().run(program, *command[1:], host=host, check=check, user=user)

    def submission(self) -> list[str]:
        """Return `qsub` for a job that may run again."""
        return ["qsub", "-terse", "-r", "y", "-wd", "/tmp", "-o", "/dev/null", "-e", "/dev/null"]

    def counts(self) -> tuple[int, int]:
        """Return how many tasks `qstat` shows that wait, and how many jobs on hosts."""
        view = read(self.run("qstat", "-f", "-r", "-u", "*", "-xml").stdout.encode(), "all.q")
        return sum(job.tasks for job in view.waiting), sum(
            len(host.running) for host in view.hosts.values()
        )

    def hosts(self) -> set[str]:
        """Execution hosts in the queue that are enabled and heard of."""
        said = etree.fromstring(self.run("qstat", "-f", "-u", "*", "-xml").stdout.encode())
        return {
            str(one.findtext("name")).partition("@")[2].split(".")[0]
            for one in said.iterfind("queue_info/Queue-List")
            if not one.findtext("state")
        }
