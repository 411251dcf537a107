"""The lab's Open vSwitch: machines at its ports reach each other within their VLAN, hear LLDP, and
no one else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from cod.lab import control, network, processes, record
from cod.lab.openvswitch import OpenVSwitch
from cod.lab.spec import LabNetwork, LabSpec
from cod.model import Refused, Switch
from cod.switches.driver import SwitchTarget
from cod.switches.ovs import OvsDriver
from tests.ovs import needs_ovs
from tests.waiting import until

pytestmark = [pytest.mark.system, needs_ovs, pytest.mark.xdist_group("switch")]
LAB = f"switch{os.getpid()}"
ROOT = Path(__file__).resolve().parents[2]
ANSWER = """
import socket
server = socket.create_server(("", 9000))
while True:
    connection, _ = server.accept()
    connection.sendall(b"here" * 5000)
    connection.close()
"""
ASK = """
import socket, sys
with socket.create_connection((sys.argv[1], 9000), timeout=float(sys.argv[2])) as connection:
    data = b""
    while part := connection.recv(65536):
        data += part
    assert len(data) == 20000
"""
HEAR = """
import json, time
from trampoline.lldp import LldpListener
listener, end = LldpListener(), time.monotonic() + 60
while not (heard := listener.neighbours(["eth0"])) and time.monotonic() < end:
    time.sleep(0.05)
print(json.dumps(heard))
"""


class Wire:
    """A lab without machines, and namespaces that are plugged into its switch, each with a server
    that answers."""

    def __init__(self) -> None:
        self.namespace = record.namespace(LAB)
        control.up(LabSpec(LAB, (), networks=(LabNetwork("far"),), switch="ovs"))
        self.switch: OpenVSwitch = network.switch_of(self.namespace)
        self.servers = [self.serve(self.namespace)]
        self.plugged: list[str] = []

    def plug(self, name: str, address: str) -> str:
        there = f"{self.namespace}.{name}"
        network.plug(self.namespace, there, name, f"52:54:00:77:00:{len(self.plugged):02x}")
        self.plugged.append(there)
        subprocess.run(["ip", "-n", there, "addr", "add", address, "dev", "eth0"], check=True)
        self.servers.append(self.serve(there))
        return there

    def serve(self, namespace: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(network.inside(namespace, [sys.executable, "-c", ANSWER]))

    def reaches(self, namespace: str, address: str, patience: float = 5.0) -> bool:
        asked = network.inside(namespace, [sys.executable, "-c", ASK, address, str(patience)])
        return subprocess.run(asked, capture_output=True, check=False).returncode == 0

    def close(self) -> None:
        for server in self.servers:
            server.kill()
            server.wait()
        control.down(LAB)


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    wire = Wire()
    try:
        yield wire
    finally:
        wire.close()


def test_vlans_part_machines_from_each_other_and_from_the_server(
    wire: Wire, reactor: Any, in_reactor: Callable[..., Any]
) -> None:
    a, b = wire.plug("pa", "10.77.9.1/16"), wire.plug("pb", "10.77.9.2/16")
    until(lambda: wire.reaches(a, "10.77.9.2", 1.0), "one machine reaching the other")
    until(lambda: wire.reaches(b, "10.77.0.1"), "the server, in the provisioning VLAN")
    switch = Switch("lab", "ovs", wire.switch.address)

    async def flip() -> Any:
        session = await OvsDriver(reactor).open(SwitchTarget(switch))
        try:
            await session.change({"pa": 20})
            return await session.read(["pa", "pb"])
        finally:
            await session.close()

    assert in_reactor(lambda: Deferred.fromCoroutine(flip())) == {"pa": 20, "pb": 1}
    assert not wire.reaches(a, "10.77.9.2", 1.0)
    assert not wire.reaches(b, "10.77.9.1", 1.0)
    assert not wire.reaches(a, "10.77.0.1", 1.0)
    network.add_interface(wire.namespace, "vlan20", 20, "10.78.0.1/24")
    subprocess.run(["ip", "-n", a, "addr", "add", "10.78.0.9/24", "dev", "eth0"], check=True)
    until(lambda: wire.reaches(a, "10.78.0.1"), "the server's interface in that VLAN")
    assert not wire.reaches(b, "10.77.9.1", 1.0)


def test_machines_hear_the_switch_by_lldp(wire: Wire) -> None:
    c = wire.plug("pc", "10.77.9.3/16")
    heard = subprocess.run(
        network.inside(c, [sys.executable, "-c", HEAR]), cwd=ROOT, check=True, capture_output=True
    )
    assert json.loads(heard.stdout) == {"eth0": [f"{LAB}-switch", "pc"]}


def test_the_lab_says_where_its_switch_is_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"gone{os.getpid()}"
    status = control.up(LabSpec(name, (), switch="ovs"))
    namespace = record.namespace(name)
    switch = network.switch_of(namespace)
    assert (status["switch"], status["switch_address"]) == ("ovs", switch.address)
    running = processes.inside(switch.ports_namespace)
    assert len(running) == 2
    control.down(name)
    assert not any(process.alive() for process in running)
    assert network.all_of(namespace) == []
    assert not record.folder(name).exists()
    monkeypatch.setattr("cod.lab.openvswitch.PATH", str(tmp_path))
    with pytest.raises(Refused, match="apt install openvswitch-switch"):
        control.up(LabSpec(name, (), switch="ovs"))
    assert network.all_of(namespace) == []


def test_a_lab_with_a_bridge_has_no_vlans() -> None:
    name = f"plain{os.getpid()}"
    control.up(LabSpec(name, ()))
    try:
        with pytest.raises(Refused, match="the lab has no VLANs"):
            network.add_interface(record.namespace(name), "vlan20", 20, "10.78.0.1/24")
    finally:
        control.down(name)
