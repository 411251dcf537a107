"""A real Open vSwitch of a test's own: its database and its daemon, without root (its ports are
dummies)."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.waiting import until

SCHEMA = Path("/usr/share/openvswitch/vswitch.ovsschema")
MISSING = (
    shutil.which("ovs-vswitchd") is None and shutil.which("ovs-vswitchd", path="/usr/sbin") is None
)
needs_ovs = pytest.mark.skipif(
    MISSING, reason="Open vSwitch is not installed (Debian: openvswitch-switch)"
)


class OpenVSwitch:
    """An Open vSwitch with a bridge `br0`, in a folder; `address` is its database's."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.address = folder, f"unix:{folder}/db.sock"
        self._environment = os.environ | {
            "OVS_RUNDIR": str(folder),
            "OVS_LOGDIR": str(folder),
            "OVS_DBDIR": str(folder),
            "PATH": f"{os.environ['PATH']}:/usr/sbin",
        }
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start both processes, with an empty bridge."""
        self.run("ovsdb-tool", "create", f"{self.folder}/conf.db", str(SCHEMA))
        self.start_database()
        # as ovs-ctl does
        self.vsctl("--no-wait", "init", "--", "set", "Open_vSwitch", ".", "ovs_version=3.1.0")
        self.start_daemon()
        self.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=dummy")

    def start_database(self, *remotes: str) -> None:
        """Start the database server, which also listens on `remotes`."""
        (self.folder / "db.sock").unlink(missing_ok=True)
        (self.folder / "database.ctl").unlink(missing_ok=True)
        self._begin(
            "database",
            "ovsdb-server",
            f"{self.folder}/conf.db",
            f"--remote=punix:{self.folder}/db.sock",
            *remotes,
            f"--unixctl={self.folder}/database.ctl",
        )
        until(
            (self.folder / "database.ctl").exists, "the database's control socket, which comes last"
        )

    def start_daemon(self) -> None:
        """Start the daemon that applies what is in the database."""
        self._begin(
            "daemon",
            "ovs-vswitchd",
            self.address,
            "--enable-dummy=override",
            "--disable-system",
            f"--unixctl={self.folder}/daemon.ctl",
        )

    def stop(self, *which: str) -> None:
        """End those processes; without a name, both."""
        for name in which or tuple(self._processes):
            process = self._processes.pop(name)
            process.kill()
            process.wait()

    def add_ports(self, *names: str, tag: int | None = 10) -> None:
        """Add access ports in VLAN `tag`; None: without a tag."""
        for name in names:
            tagged = [] if tag is None else [f"tag={tag}"]
            self.vsctl(
                "add-port", "br0", name, *tagged, "--", "set", "interface", name, "type=dummy"
            )

    def tag(self, port: str) -> str:
        """Return the port's tag as ovs-vsctl shows it."""
        return self.vsctl("get", "port", port, "tag")

    def vsctl(self, *words: str) -> str:
        """Run ovs-vsctl."""
        return self.run("ovs-vsctl", f"--db={self.address}", "--timeout=10", *words)

    def run(self, *argv: str) -> str:
        """Run a program of Open vSwitch's; returns what it prints."""
        done = subprocess.run(
            argv, env=self._environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def _begin(self, name: str, *argv: str) -> None:
        with open(self.folder / f"{name}.log", "ab") as log:
            self._processes[name] = subprocess.Popen(
                argv, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
