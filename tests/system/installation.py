"""A batch system's own installation on a stand: its server on a vcluster's first machine, its
daemons on the others.

Each machine that boots into the vcluster becomes a host of its own (namespaces for its name, its
mounts and its processes), finds the others through COD's DNS, and starts the daemon that its name
calls for. Nothing of the distribution's own installation is touched. cell.py (Grid Engine) and
slurmcell.py (Slurm) hold what differs.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tests.system.stand import COD, Stand

if TYPE_CHECKING:
    from tests.system.annex import Annex

HEAD = "n1"
USER = 2001
SYSTEM = """\
#!/bin/bash
# What a machine of this vcluster runs once it has its address: $1 is its hostname.
unshare --uts --mount --pid --fork --kill-child --mount-proc --propagation private {folder}/inside $1 \
  > {folder}/run/$1.log 2>&1 &
echo $! > {folder}/run/$1.pid
wait
"""
ANY = """\
#!/bin/bash
# What any machine runs: $2 is its domain, whose first word is the vcluster. A vcluster without a
# batch system runs nothing.
folder={stand}/batch-${{2%%.*}}
[ -x $folder/system ] && exec $folder/system $1
exec sleep infinity
"""
INSIDE = """\
#!/bin/bash
# The same, inside its namespaces: it is the host's first process.
{enter}
hostname $1
for file in hosts passwd group resolv.conf; do mount --bind {folder}/etc/$file /etc/$file; done
export {environment}
if [ $1 = {head} ]; then
{server}
else
{daemon}
fi
sleep infinity & while :; do wait; done
"""
WAITS = """\
exec 9<> <(:)  # nothing comes from there: `read` waits without a process for each look
case $1 in
  /*) until [ -e $1 ]; do read -rt 0.1 -u 9; done ;;
  *) sleep $1 ;;
esac
"""


class Installation:
    """See the module. `domain` is the site's."""

    table = ""  # of the VCM's settings; `system`: the word for it in `cod vcm`
    system = ""
    knobs: ClassVar[dict[str, Any]] = {}
    program: tuple[str, ...] = (str(COD),)  # that runs the VCM
    job = ""  # what the shell makes a job's number and its task's of

    def __init__(
        self, stand: Stand | Annex, vcluster: str, domain: str, environment: dict[str, str]
    ) -> None:
        self.stand, self.vcluster, self.domain, self.environment = (
            stand,
            vcluster,
            domain,
            environment,
        )
        self.folder = folder(stand, vcluster)
        self.jobs = self.folder / "jobs"
        self.vcm: subprocess.Popen[bytes] | None = None

    # ------------------------------------------------------------ what a batch system is

    def found(self) -> None:
        """Write the server's files."""
        raise NotImplementedError

    def enter(self) -> str:
        """Return the commands that each host begins with."""
        return ":"

    def server(self) -> str:
        """Return the commands that start the server on its host; they do not wait for its end."""
        raise NotImplementedError

    def daemon(self) -> str:
        """Return the commands that keep the daemon running on any other host, $1."""
        raise NotImplementedError

    def configure(self) -> None:
        """Wait until the server answers, and set it up."""
        raise NotImplementedError

    def counts(self) -> tuple[int, int]:
        """Return how many jobs wait, and how many run."""
        raise NotImplementedError

    # ------------------------------------------------------------ making it

    def make(self) -> None:
        """Everything on disk, and what each machine shall start."""
        os.chmod(self.stand.socket_folder, 0o711)
        for name in ("etc", "run", "jobs"):
            (self.folder / name).mkdir(parents=True)
        self.jobs.chmod(0o1777)
        etc = self.folder / "etc"
        (etc / "hosts").write_text("127.0.0.1 localhost\n")
        (etc / "resolv.conf").write_text(
            f"search {self.vcluster}.{self.domain}\nnameserver 10.77.0.1\n"
        )
        (etc / "passwd").write_text(
            Path("/etc/passwd").read_text() + f"alice:x:{USER}:{USER}::/tmp:/bin/sh\n"
        )
        (etc / "group").write_text(Path("/etc/group").read_text() + f"alice:x:{USER}:\n")
        self.found()
        words = " ".join(f"{key}={value}" for key, value in self.environment.items())
        filled = {
            "folder": self.folder,
            "environment": words,
            "head": HEAD,
            "stand": self.stand.socket_folder,
            "enter": self.enter(),
            "server": self.server(),
            "daemon": self.daemon(),
        }
        for file, text in [
            (self.folder / "inside", INSIDE),
            (self.folder / "system", SYSTEM),
            *((host.folder / "system", ANY) for host in self.stand.hosts.values()),
        ]:
            file.write_text(text.format(**filled))
            file.chmod(0o755)
        note = f"$(hostname) $(date +%s.%N) >> {self.jobs}/{self.job}\n"
        script = self.jobs / "job.sh"
        script.write_text(f"#!/bin/bash\necho start {note}{WAITS}echo end {note}")
        script.chmod(0o755)

    def up(self, template: str, size: int = 1, *options: str) -> None:
        """Create the vcluster, wait for its head, and set the batch system up."""
        self.make()
        self.stand.cod(
            "vcluster",
            "create",
            self.vcluster,
            "--size",
            str(size),
            "--template",
            template,
            *options,
        )
        self.stand.wait(lambda: self.host(HEAD), 180, "the head is up")
        self.configure()

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

    def run(
        self, *command: str, host: str = HEAD, check: bool = True, user: int | None = None
    ) -> subprocess.CompletedProcess[str]:
        """A command of the batch system's, on a host."""
        become = (
            ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--"]
            if user
            else []
        )
        pid = self.host(host)
        assert pid, f"{host} is not up"
        return subprocess.run(
            [
                "nsenter",
                "-t",
                str(pid),
                "-a",
                "--",
                *become,
                "env",
                "HOME=/tmp",
                *(f"{key}={value}" for key, value in self.environment.items()),
                *command,
            ],
            capture_output=True,
            text=True,
            timeout=180,
            check=check,
        )

    def submit(self, seconds: float | Path = 1.0, *options: str, script: Path | None = None) -> int:
        """A job that sleeps, or waits for a file; its number. It writes a line into its file
        whenever it starts and when it ends. `script`: another job, for which `seconds` is its
        argument."""
        script = script or self.jobs / "job.sh"
        said = self.run(
            *self.submission(), *options, str(script), str(seconds), user=USER, check=False
        )
        number = said.stdout.strip().split(".")[0]
        assert number.isdigit(), said
        return int(number)

    def submission(self) -> list[str]:
        """Return the command that submits a script and prints its job's number."""
        raise NotImplementedError

    def ran(self, job: int, task: str = "undefined") -> list[str]:
        """What the job (or its task) has written: lines "start HOST SECONDS" and "end HOST
        SECONDS"."""
        file = self.jobs / f"{job}.{task}"
        return file.read_text().splitlines() if file.exists() else []

    def ended(self, job: int, task: str = "undefined") -> bool:
        """Return whether the job has run to its end."""
        return any(line.startswith("end") for line in self.ran(job, task))

    # ------------------------------------------------------------ its VCM

    def settings(self) -> dict[str, Any]:
        """Return what the VCM's table says where nothing else is said."""
        return dict(self.knobs)

    def enrol(self, *, template: str = "", **knobs: Any) -> None:
        """A certificate and a configuration for the VCM. `template`: of the nodes it asks for, not
        the vcluster's."""
        where = self.folder / "vcm"
        subprocess.run(
            [
                str(COD),
                "--site",
                str(self.stand.site_file),
                "vcm",
                "enroll",
                self.vcluster,
                "--into",
                str(where),
            ],
            check=True,
            capture_output=True,
        )
        lines = [f"{key} = {toml(value)}" for key, value in {**self.settings(), **knobs}.items()]
        with open(where / "vcm.toml", "a") as file:
            file.write(
                f'interval = 1.0\ntemplate = "{template}"\n[{self.table}]\n'
                + "\n".join(lines)
                + "\n"
            )

    def start_vcm(self) -> None:
        """Run `cod vcm` on the head."""
        pid = self.host(HEAD)
        with open(self.folder / "vcm.log", "ab") as log:
            self.vcm = subprocess.Popen(
                [
                    "nsenter",
                    "-t",
                    str(pid),
                    "--net",
                    "--uts",
                    "--",
                    "unshare",
                    "--mount",
                    "bash",
                    "-c",
                    (
                        "for file in resolv.conf hosts passwd group; do mount --bind"
                        f' {self.folder}/etc/$file /etc/$file; done; exec "$@"'
                    ),
                    "-",
                    *self.program,
                    "vcm",
                    self.system,
                    str(self.folder / "vcm/vcm.toml"),
                ],
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill_vcm(self) -> None:
        """kill -9."""
        if self.vcm is not None:
            self.vcm.kill()
            self.vcm.wait()
            self.vcm = None

    def log(self) -> str:
        """What the VCM said."""
        return (self.folder / "vcm.log").read_text()


def folder(stand: Stand | Annex, vcluster: str) -> Path:
    """Return where a vcluster's installation is; its parents may be entered by everybody."""
    return stand.socket_folder / f"batch-{vcluster}"


def toml(value: Any) -> str:
    """Return a value as TOML on one line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(each)}" for key, each in value.items()) + "}"
    return f'"{value}"' if isinstance(value, str) else str(value)
