"""A real munged and slurmctld in a network namespace, for nodes that bring nothing but the munge
key."""

from __future__ import annotations

import base64
import os
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.system.installation import USER
from tests.system.slurmcell import CGROUPS, CONFIGURATION
from tests.system.slurmroot import entering
from tests.waiting import until

NAME = "head"
# What nodes of the head read is theirs, and not in folders of the head.
CHANGES = {
    "SlurmctldParameters": "enable_configless",
    "AuthInfo": "cred_expire=5",
    "SlurmdSpoolDir": "/var/lib/slurm/slurmd",  # of Debian's sample
    "SlurmdPidFile": "/run/slurmd.pid",
    "SlurmdLogFile": "/var/log/slurm/slurmd.log",
}


class SlurmHead:
    """The master of a Slurm cluster, with a user `alice`. `key`: its munge key, as user data say
    it.

    Each command has a mount namespace of its own, where munge's socket has its usual place.

    root  the files of a Debian release whose Slurm it is (slurmroot.py); None: this system's
    """

    def __init__(
        self,
        folder: Path,
        namespace: str,
        address: str,
        proctrack: str = "proctrack/linuxproc",
        root: Path | None = None,
    ) -> None:
        self.folder, self.namespace, self.address = folder, namespace, address
        self._place = PLACE.format(enter=":" if root is None else entering(root, folder))
        (folder / "state").mkdir()
        (folder / "run").mkdir()
        secret = os.urandom(128)
        self.key = base64.b64encode(secret).decode()
        path = folder / "munge.key"
        path.write_bytes(secret)
        path.chmod(0o400)
        text = CONFIGURATION.format(head=f"{NAME}({address})", own=folder)
        said = (
            dict(line.split("=", 1) for line in text.splitlines())
            | CHANGES
            | {"ProctrackType": proctrack}
        )
        (folder / "slurm.conf").write_text(
            "".join(f"{key}={value}\n" for key, value in said.items())
        )
        (folder / "cgroup.conf").write_text(CGROUPS)
        (folder / "passwd").write_text(
            Path("/etc/passwd").read_text() + f"alice:x:{USER}:{USER}::/tmp:/bin/sh\n"
        )
        (folder / "group").write_text(Path("/etc/group").read_text() + f"alice:x:{USER}:\n")
        (folder / "hosts").write_text(f"127.0.0.1 localhost\n{address} {NAME}\n")
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start both daemons and wait until slurmctld answers."""
        with open(self.folder / "munged.out", "wb") as out:
            self._running.append(
                subprocess.Popen(
                    self._inside(
                        "munged",
                        "--foreground",
                        f"--key-file={self.folder}/munge.key",
                        "--force",
                        f"--pid-file={self.folder}/munged.pid",
                        f"--seed-file={self.folder}/munge.seed",
                        f"--log-file={self.folder}/munged.log",
                    ),
                    stdout=out,
                    stderr=out,
                )
            )
        until((self.folder / "run/munge.socket.2").exists, "munged answers", 60)
        self.start_slurmctld()

    def start_slurmctld(self, *options: str) -> None:
        """Start slurmctld; '-c': without what it knew."""
        with open(self.folder / "slurmctld.out", "ab") as out:
            self._running.append(
                subprocess.Popen(self._inside("slurmctld", "-D", *options), stdout=out, stderr=out)
            )
        until(
            lambda: "UP" in self.run("scontrol", "ping", check=False).stdout,
            "slurmctld answers",
            60,
        )

    def start_slurmd(self, name: str) -> None:
        """Start the daemon of a node that runs on the head."""
        with open(self.folder / f"slurmd-{name}.out", "wb") as out:
            self._running.append(
                subprocess.Popen(self._inside("slurmd", "-D", "-N", name), stdout=out, stderr=out)
            )

    def commands(self, folder: Path) -> None:
        """Write into a folder programs that run Slurm's commands on the head."""
        for name in ("squeue", "sinfo", "scontrol", "scancel"):
            (folder / name).write_text(f'#!/bin/sh\nexec {shlex.join(self._inside(name))} "$@"\n')
            (folder / name).chmod(0o755)

    def stop_slurmctld(self) -> None:
        """End slurmctld at once."""
        slurmctld = self._running.pop()
        slurmctld.kill()
        slurmctld.wait()

    def stop(self) -> None:
        """End both daemons."""
        while self._running:
            self.stop_slurmctld()

    def run(
        self, *command: str, check: bool = True, user: int = 0
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of Slurm's on the head, as that user."""
        become = (
            ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--"]
            if user
            else []
        )
        return subprocess.run(
            self._inside(*become, *command),
            capture_output=True,
            text=True,
            check=check,
            timeout=120,
            cwd="/tmp",
        )

    def node(self, name: str) -> dict[str, str]:
        """Return the words of slurmctld's record of a node; {} if there is none."""
        said = self.run("scontrol", "-o", "show", "node", name, check=False)
        if said.returncode:
            assert "not found" in said.stdout + said.stderr, said
            return {}
        return dict(word.split("=", 1) for word in said.stdout.split() if "=" in word)

    def is_ready(self, name: str, address: str) -> bool:
        """Return whether slurmctld knows the node under that address, ready for jobs."""
        found = self.node(name)
        return found.get("NodeAddr") == address and found["State"] == "IDLE+DYNAMIC_NORM"

    def _inside(self, *command: str) -> list[str]:
        return [
            "ip",
            "netns",
            "exec",
            self.namespace,
            "unshare",
            "--uts",
            "--mount",
            "--propagation",
            "private",
            "env",
            f"SLURM_CONF={self.folder}/slurm.conf",
            "sh",
            "-c",
            self._place,
            str(self.folder),
            *command,
        ]


PLACE = """
set -e
hostname head
{enter}
mount -t tmpfs tmpfs /run
mkdir /run/munge
mount --bind $0/run /run/munge
for file in passwd group hosts; do mount --bind $0/$file /etc/$file; done
exec "$@"
"""


@contextmanager
def slurm_head(
    namespace: str,
    address: str,
    proctrack: str = "proctrack/linuxproc",
    root: Path | None = None,
) -> Iterator[SlurmHead]:
    """A head, to be started, in a folder that every user may enter. Its logs are shown at the end,
    which pytest keeps for tests that fail."""
    with TemporaryDirectory(prefix="cod-slurm-") as place:
        Path(place).chmod(0o755)
        head = SlurmHead(Path(place), namespace, address, proctrack, root)
        try:
            yield head
        finally:
            head.stop()
            for log in sorted(head.folder.glob("*.log")) + sorted(head.folder.glob("*.out")):
                print(f"--- {log.name}\n{log.read_text()[-3000:]}")
