"""Slurm of another Debian release, on hosts whose whole file system is that release's: its packages
are unpacked, and not installed."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from images import debian
from tests.system.installation import HEAD
from tests.system.slurmcell import SlurmCell
from tests.system.stand import Stand

if TYPE_CHECKING:
    from tests.system.annex import Annex

PACKAGES = "slurmctld,slurmd,slurm-client,munge,mount,iproute2,procps"
PROGRAMS = ("slurmctld", "slurmd", "slurmstepd")  # Debian's alternatives, which are not installed
COMMANDS = ("squeue", "sinfo", "scontrol", "scancel")
# $folder stays where it is, for hosts of one installation share it
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


def unpack(suite: str, root: Path) -> None:
    """Unpack a release's Slurm, and the little that it needs, into a folder that is not there
    yet."""
    subprocess.run(
        [
            "mmdebstrap",
            "--quiet",
            "--variant=extract",
            # a mirror may be weeks behind
            '--aptopt=Acquire::Check-Valid-Until "false"',
            "--include=?essential",
            f"--include={PACKAGES}",
            suite,
            root,
            "-",
        ],
        input=debian.sources(suite),
        text=True,
        check=True,
    )
    for name in PROGRAMS:
        (root / "usr/sbin" / name).symlink_to(f"{name}-wlm")
    for name in ("hosts", "passwd", "group", "resolv.conf"):
        (root / "etc" / name).touch()  # each host has its own there


class SlurmOfRelease(SlurmCell):
    """See the module. `root`: the release's files."""

    def __init__(self, stand: Stand | Annex, vcluster: str, root: Path) -> None:
        super().__init__(stand, vcluster)
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
        """Let the host have the release's files, and of this system's the installation's folder
        alone."""
        return ENTER.format(root=self.root, folder=self.folder)

    def queue(self) -> dict[int, dict[str, Any]]:
        """Return the states of jobs that have not ended, by number."""
        said = self.run("squeue", "--noheader", "--format=%A %T").stdout.splitlines()
        return {int(job): {"job_state": state} for job, state in map(str.split, said)}

    def nodes(self) -> Mapping[str, dict[str, Any]]:
        """Return the states of nodes that have registered, by name."""
        said = self.run("sinfo", "--noheader", "--Node", "--format=%N %T").stdout.splitlines()
        return {name: {"state": state} for name, state in map(str.split, said)}
