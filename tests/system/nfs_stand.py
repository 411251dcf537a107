"""A file server in a network namespace, with mounts of its own: NFS-Ganesha, a D-Bus, a real sshd
and a Btrfs or XFS file system; beside it two hosts, one of which is a vcluster's."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cod.model import FileServer
from tests.upkeep import open_stands
from tests.waiting import until

ADDRESS = "10.77.0.5"
# in the first block of tests.conftest.SUBNET, and in no block
NODE, STRANGER = "10.77.128.5", "10.77.200.5"
ROOT = "/srv/cod"
PREPARE = """set -e
mount -t overlay over -o lowerdir=/etc,upperdir=$W/etc,workdir=$W/etc.work /etc
mount -t overlay over -o lowerdir=/var,upperdir=$W/var,workdir=$W/var.work /var
mount -t tmpfs run /run
mkdir -p /run/dbus /run/sshd /run/ganesha /etc/ganesha/cod.d
mount -t tmpfs srv /srv
mkdir /srv/cod
mount -o loop $W/disk.img /srv/cod
: > /etc/ganesha/cod.d/cod.conf
cp $W/ganesha.conf /etc/ganesha/ganesha.conf
cp $W/host.key /etc/ssh/cod_host_key; chmod 600 /etc/ssh/cod_host_key
dbus-daemon --system --nofork --nopidfile &
exec sleep infinity
"""
CONFIGURATION = """NFS_CORE_PARAM { Protocols = 4; Enable_RQUOTA = false; allow_set_io_flusher_fail = true;
  Plugins_Dir = "/usr/lib/x86_64-linux-gnu/ganesha"; }
NFSv4 { Graceless = true; }
%include "/etc/ganesha/cod.d/cod.conf"
"""


def ran(
    *words: str, check: bool = True, text: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        words, check=check, capture_output=True, text=True, input=text, timeout=60
    )


@dataclass
class NfsStand:
    """The stand. `folder` is short and the stand's own; `system`: btrfs or xfs; `whole`: each test
    begins with all its programs."""

    folder: Path
    system: str = "btrfs"
    whole: bool = True

    def __enter__(self) -> NfsStand:
        self.name = f"nfs{os.getpid() % 100_000}"
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        open_stands.append(self)
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        folder = self.folder
        for name in ("etc", "etc.work", "var", "var.work"):
            (folder / name).mkdir()
        (folder / "ganesha.conf").write_text(CONFIGURATION)
        for key in ("host.key", "cod.key", "other.key"):
            ran("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key))
        shutil.copy(folder / "cod.key.pub", folder / "authorized_keys")
        host_key = " ".join((folder / "host.key.pub").read_text().split()[:2])
        (folder / "known_hosts").write_text(f"127.0.0.1 {host_key}\n")
        (folder / "ssh").write_text(f'#!/bin/sh\nexec ip netns exec {self.name}s ssh "$@"\n')
        (folder / "ssh").chmod(0o755)
        with open(folder / "disk.img", "wb") as disk:
            disk.truncate(400 << 20)
        ran(
            f"mkfs.{self.system}",
            *([] if self.system == "btrfs" else ["-q"]),
            str(folder / "disk.img"),
        )
        self._wire()
        self.child(
            "system", "unshare", "-m", "--propagation", "private", "sh", "-c", PREPARE, inside=False
        )
        until(
            lambda: self.runs("test", "-S", "/run/dbus/system_bus_socket").returncode == 0,
            "no D-Bus",
        )
        self.start_sshd()
        self.start_ganesha()

    def __exit__(self, *_: Any) -> None:
        open_stands.remove(self)
        for name in reversed(list(self._children)):
            self.stop(name)
        for end in "sab":
            ran("ip", "netns", "del", f"{self.name}{end}", check=False)

    def tend(self) -> None:
        """See `tests.upkeep`. Start what a failed test has stopped, or what has ended."""
        for name, start in (("sshd", self.start_sshd), ("ganesha", self.start_ganesha)):
            child = self._children.get(name)
            if self.whole and (child is None or child.poll() is not None):
                start()

    def _wire(self) -> None:
        for end in "sab":
            ran("ip", "netns", "add", f"{self.name}{end}")
            ran("ip", "-n", f"{self.name}{end}", "link", "set", "lo", "up")
        server = ("ip", "-n", f"{self.name}s")
        ran(*server, "link", "add", "br0", "type", "bridge")
        ran(*server, "addr", "add", f"{ADDRESS}/16", "dev", "br0")
        ran(*server, "link", "set", "br0", "up")
        for end, address in (("a", NODE), ("b", STRANGER)):
            host = f"{self.name}{end}"
            ran(
                *server,
                "link",
                "add",
                f"v{end}",
                "type",
                "veth",
                "peer",
                "name",
                "e0",
                "netns",
                host,
            )
            ran(*server, "link", "set", f"v{end}", "master", "br0", "up")
            ran("ip", "-n", host, "addr", "add", f"{address}/16", "dev", "e0")
            ran("ip", "-n", host, "link", "set", "e0", "up")

    def child(self, name: str, *words: str, inside: bool = True) -> None:
        """Start a program in the server's network; `inside`: with its mounts, too."""
        where = self._inside if inside else ("ip", "netns", "exec", f"{self.name}s")
        environment = os.environ | {"W": str(self.folder)}
        with open(self.folder / f"{name}.log", "ab") as log:
            self._children[name] = subprocess.Popen(
                [*where, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )

    def stop(self, name: str) -> None:
        """Kill a program that was started, and what it has started."""
        child = self._children.pop(name)
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()

    @property
    def _inside(self) -> tuple[str, ...]:
        """The words before a command that runs on the file server. The first process keeps its
        mounts."""
        return ("nsenter", f"--target={self._children['system'].pid}", "--mount", "--net")

    def runs(self, *words: str, check: bool = False) -> subprocess.CompletedProcess[str]:
        """Run a command on the file server, as its administrator."""
        return ran(*self._inside, *words, check=check)

    def start_sshd(self) -> None:
        """Start the real sshd, which knows COD's key."""
        options = {
            "HostKey": "/etc/ssh/cod_host_key",
            "AuthorizedKeysFile": str(self.folder / "authorized_keys"),
            "StrictModes": "no",
            "UsePAM": "no",
            "PermitRootLogin": "yes",
            "PidFile": "none",
        }
        self.child(
            "sshd",
            "/usr/sbin/sshd",
            "-D",
            "-e",
            "-f",
            "/dev/null",
            "-p",
            "22",
            *(word for key, value in options.items() for word in ("-o", f"{key}={value}")),
        )
        until(lambda: self.runs("bash", "-c", "</dev/tcp/127.0.0.1/22").returncode == 0, "no sshd")

    def start_ganesha(self) -> None:
        """Start NFS-Ganesha."""
        self.child(
            "ganesha",
            "ganesha.nfsd",
            "-F",
            "-f",
            "/etc/ganesha/ganesha.conf",
            "-L",
            "/dev/stderr",
            "-p",
            "/run/ganesha/pid",
            "-N",
            "NIV_EVENT",
        )
        until(
            lambda: (
                self.runs(
                    "dbus-send",
                    "--system",
                    "--print-reply",
                    "--dest=org.ganesha.nfsd",
                    "/org/ganesha/nfsd/ExportMgr",
                    "org.ganesha.nfsd.exportmgr.ShowExports",
                ).returncode
                == 0
            ),
            "no NFS-Ganesha",
        )

    def settings(self, **changes: Any) -> FileServer:
        """Return the site file's table of this server."""
        own = {
            "name": "nas",
            "driver": "ganesha",
            "address": ADDRESS,
            "root": ROOT,
            "ssh": "root@127.0.0.1:22",
            "ssh_key": str(self.folder / "cod.key"),
            "known_hosts": str(self.folder / "known_hosts"),
        }
        return FileServer(**own | changes)

    def nfs(self, host: str, program: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run one of libnfs's programs as a host: 'a', of a vcluster, or 'b', a stranger."""
        return ran("ip", "netns", "exec", f"{self.name}{host}", program, *words, check=False)

    def sees(self, host: str, path: str, gid: int = 20001) -> bool:
        """Return whether the host can list the directory by NFSv4, as some user with that gid."""
        return self.nfs(host, "nfs-ls", f"{url(path)}&uid=20001&gid={gid}").returncode == 0


def url(path: str) -> str:
    """Return libnfs's name of a path on the file server."""
    return f"nfs://{ADDRESS}{path}?version=4"


if __name__ == "__main__":  # a stand to look at by hand
    with NfsStand(Path(sys.argv[1])) as stand:
        print(stand.settings(), stand._inside)
        input()
