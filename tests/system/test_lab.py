"""The lab for real: machines with their own firmware ask a foreign DHCP server for a boot, and
nothing is left over."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cod.lab import accel, control, network, processes, record
from cod.lab.machine import ACCELERATORS
from cod.lab.spec import (
    BUSES,
    NICS,
    LabDisk,
    LabNetwork,
    LabNic,
    LabNode,
    LabSpec,
    completed,
    counted,
)
from cod.model import Refused
from tests.waiting import until

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("lab")]

SMALL = LabDisk(16 << 20)
DNSMASQ = """
port=0
interface=br0
bind-interfaces
dhcp-range=10.77.1.0,10.77.1.199,1h
dhcp-leasefile={folder}/leases
dhcp-boot=loader
log-dhcp
user=root
no-ping
"""


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A private place for labs, all removed at the end; short, since a socket's path has 108 bytes
    at most."""
    with tempfile.TemporaryDirectory(prefix="cod-") as place:
        monkeypatch.setenv("COD_LAB_ROOT", place)
        yield Path(place)
        control.down_all()


def name(suffix: str = "") -> str:
    return f"test-{os.getpid()}{suffix}"


def node_of(lab: str, node: str) -> dict[str, object]:
    return next(each for each in control.status(lab)["nodes"] if each["name"] == node)


def test_both_firmwares_ask_for_a_boot_and_nothing_is_left_after_a_crash(
    root: Path, tmp_path: Path
) -> None:
    lab = name()
    nodes = (
        LabNode("b1", "bios", disks=(SMALL, LabDisk(16 << 20, "ahci"))),
        LabNode("b2", "bios", nics=(LabNic("e1000"),), disks=(LabDisk(16 << 20, "nvme"),)),
        LabNode("u1", "uefi", disks=(SMALL,)),
    )
    found = control.up(LabSpec(lab, nodes))
    assert [node["power"] for node in found["nodes"]] == ["off"] * 3

    (tmp_path / "dnsmasq.conf").write_text(DNSMASQ.format(folder=tmp_path))
    log = tmp_path / "dnsmasq.log"
    with open(log, "wb") as file:
        control.run_inside(
            lab, ["dnsmasq", "-d", "-C", str(tmp_path / "dnsmasq.conf")], stderr=file
        )
    for node in found["nodes"]:
        assert control.power(lab, node["name"], "on")["power"] == "on"
    for node in found["nodes"]:
        until(
            lambda mac=node["mac"]: f"DHCPDISCOVER(br0) {mac}" in log.read_text(),
            f"{node['name']} asks",
            300,
        )
    assert "PXEClient:Arch:00000" in log.read_text()
    assert "PXEClient:Arch:00007" in log.read_text()
    assert b"iPXE" in control.console(lab, "b1").read_bytes()

    machines = list(record.load(lab).nodes.values())
    assert len(machines) == 3
    assert all(machine.alive() for machine in machines)
    daemon = record.load(lab).daemon
    assert daemon is not None
    os.kill(daemon.pid, signal.SIGKILL)
    until(lambda: not daemon.alive(), "the daemon is killed")
    assert all(machine.alive() for machine in machines), (
        "this test is about machines without their daemon"
    )
    assert {node["power"] for node in control.status(lab)["nodes"]} == {"unknown"}

    control.down(lab)
    assert not any(machine.alive() for machine in machines)
    assert not network.exists(record.namespace(lab))
    assert (
        record.namespace(lab)
        not in subprocess.run(["ip", "netns"], capture_output=True, text=True).stdout
    )
    assert not record.folder(lab).exists()
    assert record.names() == []


def test_the_switch(root: Path) -> None:
    lab = name("s")
    control.up(counted(lab, 1, 0, disk=SMALL))
    first = control.power(lab, "n1", "on")["pid"]
    assert control.power(lab, "n1", "on")["pid"] == first, "on is on"
    second = control.power(lab, "n1", "reset")["pid"]
    assert second not in (first, None)
    assert not processes.identify(int(str(first)))
    os.kill(int(str(second)), signal.SIGKILL)
    until(lambda: node_of(lab, "n1")["power"] == "off", "a machine that ends by itself is off")
    assert record.load(lab).nodes == {}
    assert control.power(lab, "n1", "reset")["power"] == "on", (
        "reset of a machine that is off switches it on"
    )
    assert control.power(lab, "n1", "off")["power"] == "off"
    assert control.power(lab, "n1", "off")["power"] == "off"
    with pytest.raises(Refused, match="no node 'n9'"):
        control.power(lab, "n9", "on")


def test_a_node_goes_by_its_mac_too(root: Path) -> None:
    lab = name("m")
    (node,) = control.up(counted(lab, 1, 0, disk=SMALL))["nodes"]
    assert control.power(lab, node["mac"], "on")["name"] == "n1"


def test_bad_requests_are_answered_and_harm_nobody(root: Path) -> None:
    lab = name("r")
    control.up(counted(lab, 1, 0, disk=SMALL))
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(record.socket_path(lab)))
        lines = connection.makefile("rw")
        for request in (
            "rubbish",
            "[]",
            '{"op": "explode", "node": "n1"}',
            '{"op": "on"}',
            '{"op": ["on"]}',
        ):
            print(request, file=lines, flush=True)
            assert json.loads(lines.readline())["ok"] is False, request
        print('{"op": "console-path", "node": "n1"}', file=lines, flush=True)
        assert json.loads(lines.readline())["console"] == str(control.console(lab, "n1"))
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(record.socket_path(lab)))
        with suppress(BrokenPipeError):  # cut off for a line without end
            connection.sendall(b"x" * (1 << 20))
        with suppress(ConnectionResetError):
            assert connection.recv(1) == b""
    assert node_of(lab, "n1")["power"] == "off"


def test_a_machine_that_cannot_start_says_why(root: Path) -> None:
    lab = name("f")
    control.up(counted(lab, 1, 0, disk=SMALL))
    (record.folder(lab) / "disks" / "n1-0.img").unlink()
    with pytest.raises(Refused, match=r"n1 does not start: .*n1-0\.img"):
        control.power(lab, "n1", "on")
    assert node_of(lab, "n1")["power"] == "off"


def test_two_labs_with_the_same_addresses(root: Path) -> None:
    one, two = name("x"), name("y")
    control.up(counted(one, 1, 0, disk=SMALL))
    control.up(counted(two, 1, 0, disk=SMALL))
    control.power(one, "n1", "on")
    assert node_of(two, "n1")["power"] == "off"
    assert node_of(one, "n1")["mac"] != node_of(two, "n1")["mac"]
    with pytest.raises(Refused, match="already"):
        control.up(counted(one, 1, 0, disk=SMALL))
    control.down(one)
    assert control.status(two)["daemon"] == "running"


def test_the_bridge_is_ready_before_the_first_machine(root: Path) -> None:
    """The router advertisement needs a link-local address that is not tentative any more."""
    lab = name("6")
    control.up(counted(lab, 0, 1, disk=SMALL))

    def addresses() -> str:
        process = control.run_inside(
            lab, ["ip", "-6", "addr", "show", "dev", "br0"], stdout=subprocess.PIPE
        )
        return process.communicate()[0].decode()

    until(
        lambda: "inet6 fe80:" in addresses() and "tentative" not in addresses(),
        "a link-local address",
    )


def test_every_kind_of_nic_and_disk_can_be_switched_on(root: Path) -> None:
    lab = name("k")
    disks = [LabDisk(16 << 20, bus) for bus in BUSES]
    disks += [LabDisk(16 << 20, bus, 4096) for bus in BUSES if bus != "ahci"]
    control.up(
        LabSpec(
            lab,
            (
                LabNode("n1", nics=tuple(map(LabNic, NICS)), disks=tuple(disks[:10])),
                LabNode("n2", nics=tuple(LabNic(model, rom=False) for model in NICS), disks=()),
                LabNode("n3", "uefi", disks=(SMALL, SMALL), boot_kept=True, netboot="http"),
            ),
        )
    )
    for node in ("n1", "n2", "n3"):
        assert control.power(lab, node, "on")["power"] == "on"


def test_a_machine_behind_a_relay_asks_the_server_through_it(root: Path, tmp_path: Path) -> None:
    """The machine's packets carry the relay's address; the server's bridge never sees its
    broadcasts."""
    lab = name("r")
    far = LabNetwork("far", "10.78.0.1/24")
    nodes = (LabNode("n1", nics=(LabNic(network="far"),), disks=(SMALL,)),)
    found = control.up(LabSpec(lab, nodes, networks=(far, LabNetwork("dark"))))
    (tmp_path / "dnsmasq.conf").write_text(
        DNSMASQ.format(folder=tmp_path) + "dhcp-range=10.78.0.100,10.78.0.199,255.255.255.0,1h\n"
    )
    log = tmp_path / "dnsmasq.log"
    with open(log, "wb") as file:
        control.run_inside(
            lab, ["dnsmasq", "-d", "-C", str(tmp_path / "dnsmasq.conf")], stderr=file
        )
    control.power(lab, "n1", "on")
    mac = found["nodes"][0]["mac"]
    until(
        lambda: re.search(rf"DHCPACK\(br0\) 10\.78\.0\.1\d\d {mac}", log.read_text()),
        "it has an address",
        300,
    )
    control.down(lab)
    assert not network.all_of(record.namespace(lab))


def test_a_lab_made_by_half_is_removed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = name("h")
    spec = completed(counted(lab, 1, 0, disk=SMALL))
    control._claim(lab)  # as `up` does, then killed before it wrote the record …
    network.make(record.namespace(lab), spec)  # … or rather before it wrote it whole
    (record.folder(lab) / "lab.json").write_text("{")
    stray = subprocess.Popen(network.inside(record.namespace(lab), ["sleep", "1000"]))
    until(lambda: processes.inside(record.namespace(lab)), "the stray process is in the namespace")
    control.down(lab)
    assert stray.wait(60) == -signal.SIGTERM
    assert not network.exists(record.namespace(lab))
    control.down(lab)  # once more does no harm


def test_up_that_fails_leaves_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = name("z")
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(Refused, match="does not start"):
        control.up(counted(lab, 1, 0, disk=SMALL))
    assert not network.exists(record.namespace(lab))
    assert not record.folder(lab).exists()


def test_the_probe_tells_what_runs_from_what_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert accel.speaks("tcg", 60), "TCG runs everywhere: the probe must see it"
    # as a hanging KVM: alive, silent
    monkeypatch.setitem(ACCELERATORS, "broken", ["-accel", "tcg", "-S"])
    assert not accel.speaks("broken", 2)
