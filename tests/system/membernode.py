"""A node for members without a machine: Debian with SSSD, OpenSSH and sudo in a folder, in
namespaces of its own.

The folder is made once by mmdebstrap from Debian's packages; each node has its changes in memory.
The node is set up by the very script that its vcluster's seed has.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from images import debian
from tests.waiting import until

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "sssd-ldap",
    "sssd-krb5",
    "krb5-user",
    "libnss-sss",
    "libpam-sss",
    "libsss-sudo",
    "sudo",
    "openssh-server",
    "openssh-client",
    "iproute2",
    "procps",
    "nslcd",
    "libnss-ldapd",
)
FOLDERS = ("doc", "info", "locale", "man")


def system() -> Path:
    """The folder with the system; made if it is not there yet, or the packages are others."""
    listed = debian.sources()
    digest = hashlib.blake2b((listed + " ".join(PACKAGES)).encode(), digest_size=6).hexdigest()
    made = ROOT / "build/cache" / f"member-{digest}"
    made.parent.mkdir(parents=True, exist_ok=True)
    with open(made.parent / "member.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            for old in made.parent.glob("member-*"):  # of packages that are no longer current
                shutil.rmtree(old) if old.is_dir() else old.unlink()
            _make(made, listed)
    return made


def _make(made: Path, listed: str) -> None:
    partial = made.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    sources = made.with_suffix(".list")
    sources.write_text(listed)
    done = subprocess.run(
        [
            "mmdebstrap",
            "--quiet",
            "--mode=root",
            "--variant=minbase",
            f"--include={','.join(PACKAGES)}",
            "--aptopt=APT::Install-Recommends false",
            *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in FOLDERS),
            debian.SUITE,
            str(partial),
            str(sources),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    partial.rename(made)


INSIDE = """\
set -e
mount -t tmpfs tmpfs {folder}
mkdir {folder}/upper {folder}/work {folder}/root
mount -t overlay overlay -o lowerdir={system},upperdir={folder}/upper,workdir={folder}/work {folder}/root
cd {folder}/root
mount -t proc proc proc
mount --rbind /dev dev
mount -t tmpfs tmpfs run
mkdir run/sshd
hostname {name}
cp /dev/stdin setup
chroot . /bin/sh /setup
chroot . ssh-keygen -A
touch /ready ready
chroot . /usr/sbin/sshd -o UseDNS=no
exec chroot . /usr/sbin/sssd -i
"""


class MemberNode:
    """A node that runs: `run` does something on it."""

    def __init__(self, name: str, namespace: str, folder: Path, setup: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        script = INSIDE.format(name=name, folder=folder, system=system()).replace(
            "touch /ready ready", "touch ready"
        )
        self._root = folder / "root"
        (folder.parent / f"{name}.setup").write_text(setup)
        with (
            open(folder.parent / f"{name}.setup") as given,
            open(folder.parent / f"{name}.log", "w") as log,
        ):
            self._process = subprocess.Popen(
                [
                    "ip",
                    "netns",
                    "exec",
                    namespace,
                    "unshare",
                    "--mount",
                    "--pid",
                    "--uts",
                    "--fork",
                    "--kill-child",
                    "--propagation",
                    "private",
                    "sh",
                    "-c",
                    script,
                ],
                stdin=given,
                stdout=log,
                stderr=log,
            )
        self.log = folder.parent / f"{name}.log"
        until(self._child, "the node's first process")
        until(
            lambda: self.run("test", "-e", "/ready").returncode == 0,
            self.log.read_text,
            seconds=120,
        )

    def _child(self) -> str:
        pid = self._process.pid
        assert self._process.poll() is None, "the node has ended"
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().strip()

    def run(self, *command: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command on the node as root."""
        return subprocess.run(
            [
                "nsenter",
                "-t",
                self._child(),
                "-m",
                "-p",
                "-u",
                "-n",
                "chroot",
                str(self._root),
                *command,
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            **options,
        )

    def says(self, *command: str) -> str:
        """Return what a command on the node prints; '' where it fails."""
        done = self.run(*command)
        return done.stdout.strip() if done.returncode == 0 else ""

    def end(self) -> None:
        """Switch the node off."""
        self._process.kill()  # and, by --kill-child, all that runs in it
        self._process.wait(30)


@contextmanager
def network(server: str, nodes: Iterable[str], mark: str) -> Iterator[tuple[str, list[str]]]:
    """Namespaces of a server with the address `server`/16 and of nodes, on one bridge; their
    names."""
    own = f"cod-{mark}-server"
    others = [f"cod-{mark}-{number}" for number, _ in enumerate(nodes)]
    commands = [
        f"netns add {own}",
        f"-n {own} link set lo up",
        f"-n {own} link add name br0 type bridge",
        f"-n {own} addr add {server}/16 dev br0",
        f"-n {own} link set br0 up",
    ]
    for number, (name, address) in enumerate(zip(others, nodes, strict=True)):
        commands += [
            f"netns add {name}",
            f"-n {name} link set lo up",
            f"-n {own} link add p{number} type veth peer name eth0 netns {name}",
            f"-n {own} link set p{number} master br0 up",
            f"-n {name} addr add {address}/16 dev eth0",
            f"-n {name} link set eth0 up",
        ]
    try:
        for command in commands:
            subprocess.run(
                ["ip", *command.split()], check=True, capture_output=True, env=os.environ
            )
        yield own, others
    finally:
        for name in (own, *others):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
