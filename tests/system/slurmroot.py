"""Slurm of another Debian release, on hosts whose whole file system is that release's: its packages
are unpacked, and not installed."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from images import releases
from tests.system.installation import HEAD
from tests.system.slurmcell import SlurmCell
from tests.system.stand import Stand

if TYPE_CHECKING:
    from tests.system.annex import Annex

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge", "mount", "iproute2", "procps")
PROGRAMS = ("slurmctld", "slurmd", "slurmstepd")  # Debian's alternatives, which are not installed
COMMANDS = ("squeue", "sinfo", "scontrol", "scancel")
ENTER = """\
mount --rbind {root} {root}
for place in dev proc; do mount --rbind /$place {root}/$place; done
for place in run tmp; do mount -t tmpfs -o mode=1777 tmpfs {root}/$place; done
mkdir -p {root}{folder}
mount --rbind {folder} {root}{folder}
cd {root}
pivot_root . .
umount -l .
cd /
hash -r"""
COMMAND = """\
#!/bin/sh
outer=$(cat {folder}/run/{head}.pid)
exec nsenter -t $(cat /proc/$outer/task/$outer/children) -a -- {name} "$@"
"""


def unpack(suite: str, root: Path, *more: str) -> None:
    """Unpack a release's Slurm, and the little that it needs, into a folder that is not there yet.
    `more`: packages beside."""
    subprocess.run(
        [
            "mmdebstrap",
            "--quiet",
            "--variant=extract",
            # a mirror may be weeks behind
            '--aptopt=Acquire::Check-Valid-Until "false"',
            "--include=?essential",
            f"--include={','.join((*PACKAGES, *more))}",
            suite,
            root,
            "-",
        ],
        input=releases.sources(suite),
        text=True,
        check=True,
    )
    for name in PROGRAMS:
        (root / "usr/sbin" / name).symlink_to(f"{name}-wlm")
    for name in ("hosts", "passwd", "group", "resolv.conf"):
        (root / "etc" / name).touch()  # each host has its own there


def entering(root: Path, folder: Path) -> str:
    """Return commands for a shell in a mount namespace of its own: it has the release's files then,
    and of this system's `folder` alone, at the same place."""
    return ENTER.format(root=root, folder=folder)


class SlurmOfRelease(SlurmCell):
    """See the module. `root`: the release's files."""

    def __init__(self, stand: Stand | Annex, root: Path) -> None:
        super().__init__(stand, "pool")
        self.root = root

    def settings(self) -> dict[str, Any]:
        """Let the VCM, which runs on this system, use the release's commands."""
        return {**super().settings(), "path": str(self.own / "commands")}

    def found(self) -> None:
        """Write the VCM's commands, too."""
        super().found()
        (self.own / "commands").mkdir()
        for name in COMMANDS:
            path = self.own / "commands" / name
            path.write_text(COMMAND.format(folder=self.folder, head=HEAD, name=name))
            path.chmod(0o755)

    def enter(self) -> str:
        """Let the host have the release's files."""
        return entering(self.root, self.folder)

    def queue(self) -> dict[int, dict[str, Any]]:
        """Return state and reason of jobs that have not ended, by number."""
        said = self.run("squeue", "--noheader", "--format=%A|%T|%r").stdout.splitlines()
        return {
            int(job): {"job_state": state, "state_reason": reason}
            for job, state, reason in (line.split("|") for line in said)
        }

    def nodes(self) -> Mapping[str, dict[str, Any]]:
        """Return the states of nodes that have registered, by name."""
        said = self.run("sinfo", "--noheader", "--Node", "--format=%N %T").stdout.splitlines()
        return {name: {"state": state} for name, state in map(str.split, said)}
