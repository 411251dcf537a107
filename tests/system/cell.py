"""A private Grid Engine cell on a stand: the master on a vcluster's first machine, execution daemons on the others.

Each machine that boots into the vcluster becomes a host of its own (namespaces for its name, its mounts and its
processes), finds the others through COD's DNS, and starts the daemon that its name calls for. Nothing of the
distribution's own cell is touched.
"""

from __future__ import annotations

import os
import subprocess
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lxml import etree

from cod.model import dotted, ipv4
from tests.system.stand import COD, Stand

if TYPE_CHECKING:
    from tests.system.annex import Annex

BINARIES = Path("/usr/lib/gridengine")
SHARED = Path("/usr/share/gridengine")
HEAD = "n1"
USER = 2001
QUEUE = {
    "hostlist": "@cod", "seq_no": "0", "load_thresholds": "NONE", "suspend_thresholds": "NONE", "nsuspend": "1",
    "suspend_interval": "00:05:00", "priority": "0", "min_cpu_interval": "00:05:00", "processors": "UNDEFINED",
    "qtype": "BATCH INTERACTIVE", "ckpt_list": "NONE", "pe_list": "NONE", "rerun": "TRUE", "slots": "1",
    "tmpdir": "/tmp", "shell": "/bin/sh", "prolog": "NONE", "epilog": "NONE", "shell_start_mode": "unix_behavior",
    "starter_method": "NONE", "suspend_method": "NONE", "resume_method": "NONE", "terminate_method": "NONE",
    "notify": "00:00:60", "owner_list": "NONE", "user_lists": "NONE", "xuser_lists": "NONE",
    "subordinate_list": "NONE", "complex_values": "NONE", "projects": "NONE", "xprojects": "NONE", "calendar": "NONE",
    "initial_state": "default",
}
SYSTEM = """\
#!/bin/bash
# What a machine of this cell's vcluster runs once it has its address: $1 is its hostname.
unshare --uts --mount --pid --fork --kill-child --mount-proc --propagation private {folder}/inside $1 \
  > {folder}/run/$1.log 2>&1 &
echo $! > {folder}/run/$1.pid
wait
"""
ANY = """\
#!/bin/bash
# What any machine runs: $2 is its domain, whose first word is the vcluster. Those without a cell here are not ours.
cell={stand}/cell-${{2%%.*}}
[ -x $cell/system ] && exec $cell/system $1
exec sleep infinity
"""
INSIDE = """\
#!/bin/bash
# The same, inside its namespaces: it is the host's first process. A daemon that its master has shut down (status 0) is
# on a host that leaves: see images/exechost/execd.
hostname $1
for file in hosts passwd group resolv.conf; do mount --bind {folder}/etc/$file /etc/$file; done
export {environment}
if [ $1 = {head} ]; then {binaries}/sge_qmaster; else
  rm -rf {spool}/$1  # what the last host of this name left would tell the master that its jobs died here
  while :; do SGE_ND=1 {binaries}/sge_execd && sleep 10; sleep 1; done & fi
sleep infinity & while :; do wait; done
"""
WAITS = """\
case $1 in
  /*) until [ -e $1 ]; do sleep 0.1; done ;;
  *) sleep $1 ;;
esac
"""


class Cell:
    """See the module. `domain` is the site's; `spool`: where execution daemons keep their files, in the cell's folder
    if it is ''."""

    def __init__(self, stand: Stand | Annex, vcluster: str, *, domain: str = "cod.test", spool: str = "") -> None:
        self.stand, self.vcluster, self.domain = stand, vcluster, domain
        self.folder = stand.socket_folder / f"cell-{vcluster}"  # its parents may be entered by everybody
        self.root = self.folder / "root"
        self.jobs = self.folder / "jobs"
        self.spool = spool or f"{self.root}/spool/execd"
        self.environment = {
            "SGE_ROOT": str(self.root), "SGE_CELL": "default", "SGE_QMASTER_PORT": "6444", "SGE_EXECD_PORT": "6445"}
        self.vcm: subprocess.Popen[bytes] | None = None

    # ------------------------------------------------------------ making it

    def make(self) -> None:
        """Everything on disk, and what each machine shall start."""
        stand_folder = self.stand.socket_folder
        os.chmod(stand_folder, 0o711)
        for name in ("etc", "run", "jobs", "root/bin", "root/lib", "root/utilbin", "root/default/common",
                     "root/spool/qmaster/job_scripts", "root/spool/execd"):
            (self.folder / name).mkdir(parents=True)
        self.jobs.chmod(0o1777)
        etc = self.folder / "etc"
        (etc / "hosts").write_text("127.0.0.1 localhost\n")
        (etc / "resolv.conf").write_text(f"search {self.vcluster}.{self.domain}\nnameserver 10.77.0.1\n")
        (etc / "passwd").write_text(Path("/etc/passwd").read_text() + f"alice:x:{USER}:{USER}::/tmp:/bin/sh\n")
        (etc / "group").write_text(Path("/etc/group").read_text() + f"alice:x:{USER}:\n")
        (self.root / "util").symlink_to(SHARED / "util")
        for name in ("bin", "lib", "utilbin"):
            (self.root / name / "lx-amd64").symlink_to(BINARIES)
        self._spool()
        (self.root / "default/common/act_qmaster").write_text(HEAD + "\n")
        words = " ".join(f"{key}={value}" for key, value in self.environment.items())
        filled = {"folder": self.folder, "environment": words, "head": HEAD, "binaries": BINARIES,
                  "stand": stand_folder, "spool": self.spool}
        for file, text in [(self.folder / "inside", INSIDE), (self.folder / "system", SYSTEM),
                           *((host.folder / "system", ANY) for host in self.stand.hosts.values())]:
            file.write_text(text.format(**filled))
            file.chmod(0o755)

    def _spool(self) -> None:
        common = self.root / "default/common"
        spool = f"{common};{self.root}/spool/qmaster"
        (common / "bootstrap").write_text(textwrap.dedent(f"""\
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
            """))
        settings = {
            "execd_spool_dir": self.spool, "min_uid": "0", "min_gid": "0",
            "load_report_time": "00:00:01", "max_unheard": "00:00:10", "mailer": "/bin/true",
            "administrator_mail": "none",
            "reporting_params": "accounting=true reporting=false flush_time=00:00:01 accounting_flush_time=00:00:00 "
                                "joblog=false sharelog=00:00:00"}
        lines = [f"{line.split()[0]} {settings[line.split()[0]]}" if line.split()[:1] and line.split()[0] in settings
                 else line for line in (SHARED / "default-configuration").read_text().splitlines()]
        (self.folder / "conf").write_text("\n".join(lines) + "\n")
        for words in (("spoolinit", "classic", "libspoolc", spool, "init"),
                      ("spooldefaults", "configuration", self.folder / "conf"),
                      ("spooldefaults", "complexes", SHARED / "util/resources/centry"),
                      ("spooldefaults", "usersets", SHARED / "util/resources/usersets"),
                      ("spooldefaults", "managers", "root")):
            # They insist on finding the machine that they run on by name, which not every machine can do.
            subprocess.run(["unshare", "--uts", "sh", "-c", 'hostname localhost; exec "$@"', "-",
                            str(BINARIES / words[0]), *map(str, words[1:])], env={**os.environ, **self.environment},
                           check=True, capture_output=True)

    def know_hosts(self, count: int) -> None:
        """Put names and addresses into the hosts file as COD gives them out: the lowest free name, the lowest free
        address. Of a name that was not there the master thinks so for a minute, and stand-ins boot in a second."""
        [block] = self.stand.cod("vcluster", "show", self.vcluster)["addresses"]
        addresses = [address for address in range(ipv4(block["first"]), ipv4(block["last"]) + 1)
                     if address & 0xFF not in (0, 0xFF)]
        with open(self.folder / "etc/hosts", "a") as file:
            for number, address in enumerate(addresses[:count], 1):
                file.write(f"{dotted(address)} n{number}.{self.vcluster}.{self.domain} n{number}\n")

    def configure(self) -> None:
        """Once the master answers: quick schedules, the queue, a placeholder for an empty pool."""
        self.stand.wait(lambda: self.run("qconf", "-sh", check=False).returncode == 0, 180, "the master answers")
        schedule = self.run("qconf", "-ssconf").stdout.splitlines()
        quick = {"schedule_interval": "0:0:1", "flush_submit_sec": "1", "flush_finish_sec": "1",
                 "job_load_adjustments": "none"}
        self._file("sconf", [f"{line.split()[0]} {quick.get(line.split()[0], ' '.join(line.split()[1:]))}"
                             for line in schedule if line.split()], "-Msconf")
        self.run("qconf", "-as", HEAD)
        self._file("hostgroup", ["group_name @cod", "hostlist NONE"], "-Ahgrp")
        self._file("smp", ["pe_name smp", "slots 999", "user_lists NONE", "xuser_lists NONE", "start_proc_args NONE",
                           "stop_proc_args NONE", "allocation_rule $pe_slots", "control_slaves FALSE",
                           "job_is_first_task TRUE", "urgency_slots min", "accounting_summary FALSE",
                           "qsort_args NONE"], "-Ap")
        limits = [f"{kind}_{name} INFINITY" for kind in "sh"
                  for name in ("rt", "cpu", "fsize", "data", "stack", "core", "rss", "vmem")]
        queue = {**QUEUE, "pe_list": "smp"}
        self._file("all.q", ["qname all.q", *(f"{key} {value}" for key, value in queue.items()), *limits], "-Aq")
        self.run("qconf", "-aattr", "hostgroup", "hostlist", HEAD, "@cod")
        self.run("qmod", "-d", f"all.q@{HEAD}")

    def _file(self, name: str, lines: list[str], option: str) -> None:
        (self.folder / name).write_text("\n".join(lines) + "\n")
        self.run("qconf", option, str(self.folder / name))

    # ------------------------------------------------------------ using it

    def host(self, name: str) -> int:
        """Process id of a host's first process; 0 while it is not up."""
        file = self.folder / f"run/{name}.pid"
        outer = file.read_text().strip() if file.exists() else ""
        children = Path(f"/proc/{outer}/task/{outer}/children")
        try:
            return int((children.read_text().split() or ["0"])[0]) if outer else 0
        except (FileNotFoundError, ProcessLookupError):
            return 0

    def run(self, *command: str, host: str = HEAD, check: bool = True, user: int | None = None
            ) -> subprocess.CompletedProcess[str]:
        """A command of Grid Engine's, on a host."""
        words = [str(BINARIES / command[0]) if (BINARIES / command[0]).exists() else command[0], *command[1:]]
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--"] if user else []
        pid = self.host(host)
        assert pid, f"{host} is not up"
        return subprocess.run(["nsenter", "-t", str(pid), "-a", "--", *become, "env", "HOME=/tmp", *(
            f"{key}={value}" for key, value in self.environment.items()), *words], capture_output=True, text=True,
            timeout=180, check=check)

    def submit(self, seconds: float | Path = 1.0, *options: str) -> int:
        """A job that sleeps, or waits for a file; its number. It writes a line into its file whenever it starts and
        when it ends."""
        script = self.jobs / "job.sh"
        if not script.exists():
            note = f"$(hostname) $(date +%s.%N) >> {self.jobs}/$JOB_ID.${{SGE_TASK_ID:-0}}\n"
            script.write_text(f"#!/bin/sh\necho start {note}{WAITS}echo end {note}")
            script.chmod(0o755)
        said = self.run("qsub", "-terse", "-r", "y", "-wd", "/tmp", "-o", "/dev/null", "-e", "/dev/null", *options,
                        str(script), str(seconds), user=USER, check=False)
        number = said.stdout.strip().split(".")[0]
        assert number.isdigit(), said
        return int(number)

    def ran(self, job: int, task: str = "undefined") -> list[str]:
        """What the job (or its task) has written: lines "start HOST SECONDS" and "end HOST SECONDS"."""
        file = self.jobs / f"{job}.{task}"
        return file.read_text().splitlines() if file.exists() else []

    def ended(self, job: int, task: str = "undefined") -> bool:
        """Return whether the job has run to its end."""
        return any(line.startswith("end") for line in self.ran(job, task))

    def hosts(self) -> set[str]:
        """Execution hosts in the queue that are enabled and heard of."""
        said = etree.fromstring(self.run("qstat", "-f", "-u", "*", "-xml").stdout.encode())
        return {str(one.findtext("name")).partition("@")[2].split(".")[0]
                for one in said.iterfind("queue_info/Queue-List") if not one.findtext("state")}

    # ------------------------------------------------------------ its VCM

    def enrol(self, *, template: str = "", **knobs: Any) -> None:
        """A certificate and a configuration for the VCM. `template`: of the nodes it asks for, not the vcluster's."""
        where = self.folder / "vcm"
        subprocess.run([str(COD), "--site", str(self.stand.site_file), "vcm", "enroll", self.vcluster, "--into",
                        str(where)], check=True, capture_output=True)
        table = {"path": str(BINARIES), "keep": [HEAD], "idle_limit": 4.0, "calm": 1.0, "join_time": 60.0, **knobs}
        lines = [f"{key} = {_toml(value)}" for key, value in table.items()]
        with open(where / "vcm.toml", "a") as file:
            file.write(f'interval = 1.0\ntemplate = "{template}"\n[gridengine]\n' + "\n".join(lines) + "\n")

    def start_vcm(self) -> None:
        """Run `cod vcm sge` on the head."""
        pid = self.host(HEAD)
        with open(self.folder / "vcm.log", "ab") as log:
            self.vcm = subprocess.Popen(
                ["nsenter", "-t", str(pid), "--net", "--uts", "--", "unshare", "--mount", "bash", "-c",
                 f"mount --bind {self.folder}/etc/resolv.conf /etc/resolv.conf; "
                 f"mount --bind {self.folder}/etc/hosts /etc/hosts; exec \"$@\"", "-",
                 str(COD), "vcm", "sge", str(self.folder / "vcm/vcm.toml")],
                env={**os.environ, **self.environment}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True)

    def kill_vcm(self) -> None:
        """kill -9."""
        if self.vcm is not None:
            self.vcm.kill()
            self.vcm.wait()
            self.vcm = None

    def log(self) -> str:
        """What the VCM said."""
        return (self.folder / "vcm.log").read_text()

    def up(self, template: str, size: int = 1, *options: str) -> None:
        """Create the vcluster, wait for its head, and set the cell up."""
        self.make()
        self.stand.cod("vcluster", "create", self.vcluster, "--size", str(size), "--template", template, *options)
        self.stand.wait(lambda: self.host(HEAD), 180, "the head is up")
        self.configure()


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + "}"
    return f'"{value}"' if isinstance(value, str) else str(value)
