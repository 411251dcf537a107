"""A lab's switch as Open vSwitch in user space: every NIC is an access port, with LLDP, in a VLAN
that can be changed.

The switch's database and daemon run in a network namespace of their own, NAMESPACE.switch, with the
machines' taps. In the lab's namespace, the kernel's own network stack would see each packet on a
tap, too, and would answer for the server's address in any VLAN. The server's interfaces are
internal ports of the switch, which are moved to the lab's namespace.

An Open vSwitch of the host itself is not touched: database, sockets and logs are in the lab's
folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cod.model import Refused

PROVISIONING_VLAN = 1
SCHEMA = Path("/usr/share/openvswitch/vswitch.ovsschema")
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
START_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class OpenVSwitch:
    """The switch of the lab with the namespace `namespace`; its files are below `folder`."""

    namespace: str
    folder: Path

    @property
    def ports_namespace(self) -> str:
        return f"{self.namespace}.switch"

    @property
    def address(self) -> str:
        """Return the address of the switch's database, in the form that the switch driver `ovs`
        takes."""
        return f"unix:{self.folder / 'db.sock'}"

    def exists(self) -> bool:
        return (self.folder / "conf.db").exists()

    def start(self) -> None:
        """Start the switch's database and daemon in their namespace, which must exist."""
        if shutil.which("ovs-vswitchd", path=PATH) is None or not SCHEMA.exists():
            raise Refused(
                "conflict",
                'a lab with switch = "ovs" needs Open vSwitch (Debian: apt install '
                "openvswitch-switch; its service need not run)",
                "switch",
            )
        self.folder.mkdir(mode=0o700)
        self._run("ovsdb-tool", "create", str(self.folder / "conf.db"), str(SCHEMA))
        # "punix:" listens where "unix:" connects
        self._begin("ovsdb-server", str(self.folder / "conf.db"), f"--remote=p{self.address}")
        version = self._run("ovs-vswitchd", "--version").splitlines()[0].rpartition(" ")[2]
        self.vsctl("--no-wait", "init", "--", "set", "Open_vSwitch", ".", f"ovs_version={version}")
        self._begin("ovs-vswitchd", self.address)

    def add_bridge(self, name: str, system_name: str) -> None:
        """Add a bridge that names itself `system_name` by LLDP. The bridge's internal port is
        called `name`."""
        bridge = f"-- add-br {name} -- set bridge {name} datapath_type=netdev auto_attach=@aa"
        port = f"-- set port {name} tag={PROVISIONING_VLAN}"
        lldp = f"system_name={system_name} system_description=cod-lab"
        self.vsctl(*f"{bridge} {port} -- --id=@aa create AutoAttach {lldp}".split())

    def add_ports(self, bridge: str, names: Iterable[str], *, lldp: bool = False) -> None:
        """Add interfaces of the switch's namespace as access ports in the provisioning VLAN; with
        `lldp`, the ports send LLDP."""
        words: list[str] = []
        for name in names:
            added = f"-- --if-exists del-port {name} -- add-port {bridge} {name}"
            words += [*added.split(), f"tag={PROVISIONING_VLAN}"]
            if lldp:
                words += ["--", "set", "interface", name, "lldp:enable=true"]
        if words:
            self.vsctl(*words)

    def add_internal(self, bridge: str, name: str, vlan: int) -> None:
        """Add an interface `name` in that VLAN. The interface appears in the switch's namespace."""
        self.vsctl(
            "add-port", bridge, name, f"tag={vlan}", "--", "set", "interface", name, "type=internal"
        )

    def vsctl(self, *words: str) -> str:
        """Run ovs-vsctl, wait until the daemon has carried it out, and return the output. Raises
        `Refused`."""
        return self._run(
            "ovs-vsctl", f"--db={self.address}", f"--timeout={START_SECONDS:.0f}", *words
        )

    def _begin(self, program: str, *argv: str) -> None:
        control = self.folder / f"{program}.ctl"
        inside = ["ip", "netns", "exec", self.ports_namespace]
        log_path = self.folder / f"{program}.log"
        with open(log_path, "ab") as log:
            process = subprocess.Popen(
                [*inside, program, *argv, f"--unixctl={control}"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=self._environment(),
            )
        until = time.monotonic() + START_SECONDS
        while not control.exists():
            if process.poll() is not None or time.monotonic() > until:
                lines = log_path.read_text(errors="replace").strip().splitlines()
                raise Refused(
                    "conflict",
                    f"{program} does not start: {lines[-1] if lines else 'it says nothing'}",
                )
            time.sleep(0.01)

    def _run(self, *argv: str) -> str:
        done = subprocess.run(
            argv, capture_output=True, text=True, check=False, env=self._environment()
        )
        if done.returncode != 0:
            raise Refused("conflict", f"{argv[0]}: {done.stderr.strip() or done.returncode}")
        return done.stdout.strip()

    def _environment(self) -> dict[str, str]:
        own = str(self.folder)
        return os.environ | {"PATH": PATH, "OVS_RUNDIR": own, "OVS_LOGDIR": own, "OVS_DBDIR": own}
