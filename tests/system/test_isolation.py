"""Two isolated virtual clusters on whole machines at the ports of an Open vSwitch: both boot,
neither reaches the other, and a machine moves from one to another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cod import data
from cod.demo.stage import Stage
from cod.lab import control, network, record
from cod.lab.spec import LabDisk, LabNode
from tests.ovs import needs_ovs
from tests.system.qemu import SNAPSHOTS
from tests.waiting import until

pytestmark = [pytest.mark.system, needs_ovs, pytest.mark.xdist_group("isolation")]
LAB = f"isolation{os.getpid()}"
TRIES = 10_000
# Sends frames that ask for an address, and that bring a packet to it: to everybody, to its machine,
# and to the server, which might pass them on. Prints how many frames came back from that address.
SEND = """
import socket, struct, sys, time
from cod.model import ipv4
own_ip, other_ip, other_mac, server_mac, count = sys.argv[1:]
packet = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
packet.bind(("eth0", 0))
packet.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
packet.setblocking(False)
own = packet.getsockname()[4]
source, target = ipv4(own_ip).to_bytes(4, "big"), ipv4(other_ip).to_bytes(4, "big")
def checksum(part):
    total = sum(struct.unpack(f"!{len(part) // 2}H", part))
    total = (total >> 16) + (total & 0xFFFF)
    return ~(total + (total >> 16)) & 0xFFFF
echo = struct.pack("!BBHHH", 8, 0, 0, 7, 7)
echo = echo[:2] + struct.pack("!H", checksum(echo)) + echo[4:]
head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 28, 1, 0, 64, 1, 0, source, target)
ping = head[:10] + struct.pack("!H", checksum(head)) + head[12:] + echo
mac = lambda text: bytes.fromhex(text.replace(":", ""))
everybody = b"\\xff" * 6
frames = [
    everybody + own + b"\\x08\\x06" + struct.pack("!HHBBH6s4s6s4s", 1, 0x800, 6, 4, 1, own, source, bytes(6), target),
    mac(other_mac) + own + b"\\x08\\x00" + ping, mac(server_mac) + own + b"\\x08\\x00" + ping,
    everybody + own + b"\\x08\\x00" + ping]
back = 0
def heard():
    global back
    while True:
        try:
            frame = packet.recv(2048)
        except BlockingIOError:
            return
        back += frame[6:12] == mac(other_mac) or (frame[12:14] == b"\\x08\\x00" and frame[26:30] == target
                                                  and frame[:6] == own)
for number in range(int(count)):
    while True:
        try:
            packet.send(frames[number % len(frames)])
            break
        except (BlockingIOError, OSError):
            time.sleep(0.001)
    if number % 50 == 0:
        time.sleep(0.005)
        heard()
time.sleep(1)
heard()
print(back)
"""
# Prints how many frames with that source address came by until a second after it was told to stop.
COUNT = """
import select, socket, struct, sys, time
seen, sender, end = 0, bytes.fromhex(sys.argv[1].replace(":", "")), None
packet = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
packet.bind(("eth0", 0))
packet.setsockopt(socket.SOL_SOCKET, 33, 1 << 24)
packet.setsockopt(263, 1, struct.pack("iHH8s", socket.if_nametoindex("eth0"), 1, 0, b""))
print("listening", flush=True)
while end is None or time.monotonic() < end:
    ready, _, _ = select.select([packet, *([sys.stdin] if end is None else [])], [], [], 0.2)
    if packet in ready:
        seen += packet.recv(2048)[6:12] == sender
    elif ready:
        end = time.monotonic() + 1
print(seen)
"""


class Site:
    """A server, a switch and two machines with known ports, free and warm."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        specs = [
            LabNode(name, "bios", disks=(LabDisk(1 << 30, "virtio"),)) for name in ("m1", "m2")
        ]
        self.stage = stack.enter_context(
            Stage(
                folder,
                specs,
                LAB,
                patience=4.0,
                switch="ovs",
                vlans=(2001, 2003),
                snapshots=SNAPSHOTS,
            )
        )
        self.namespace = record.namespace(LAB)
        self.switch = network.switch_of(self.namespace)
        stack.callback(self._unplug)
        self.plugged: list[str] = []
        image = data.path("build/images/hello-a.img")
        self.stage.cod("image", "add", "hello-a", str(image), "--wait")
        self.stage.cod("template", "add", str(data.path("images/hello-a.xml")))
        for spec in specs:
            control.power(LAB, spec.name, "on")
        self.wait(lambda: [each["state"] for each in self.nodes()] == ["inactive"] * 2, 600)

    def nodes(self) -> list[Any]:
        return list(self.stage.client().every("/nodes"))

    def wait(self, truth: Callable[[], Any], seconds: float = 900) -> None:
        until(truth, lambda: json.dumps(self.nodes(), indent=1)[:6000], seconds, every=0.5)

    def create(self, name: str) -> Any:
        """An isolated vcluster of one node that runs; that node."""
        self.stage.cod(
            "vcluster",
            "create",
            name,
            "--size",
            "1",
            "--template",
            "hello-a",
            "--isolated",
            "--network-size",
            "29",
        )
        self.wait(lambda: [each["state"] for each in self.members(name)] == ["active"])
        return self.members(name)[0]

    def members(self, name: str) -> list[Any]:
        return list(self.stage.client().get(f"/vclusters/{name}")["nodes"])

    def page(self, node: Any) -> Any:
        """Return what the node's own system says, asked from the server."""
        said = ""

        def answers() -> bool:
            nonlocal said
            said = self.stage.inside(
                ["busybox", "wget", "-q", "-O", "-", f"http://{node['address']}/identity.json"], 10
            )
            return bool(said)

        self.wait(answers, 120)
        return json.loads(said)

    def vlan_of(self, node: Any) -> int:
        """The VLAN that the switch has the machine's port in."""
        [place] = [
            n
            for n, each in enumerate(("m1", "m2"))
            if self.stage.machines[node["boot_mac"]]["name"] == each
        ]
        return int(self.switch.vsctl("get", "port", f"tap{place}n0", "tag"))

    def plug(self, name: str, vlan: int, number: int, address: str = "") -> str:
        """A namespace at a port in that VLAN; its name."""
        made = f"{self.namespace}.{name}"
        network.plug(self.namespace, made, name, f"52:54:00:99:00:{number:02x}")
        self.plugged.append(made)
        self.switch.vsctl("set", "port", name, f"tag={vlan}")
        if address:
            subprocess.run(["ip", "-n", made, "address", "add", address, "dev", "eth0"], check=True)
        return made

    def _unplug(self) -> None:
        for name in self.plugged:
            network.unplug(name)

    def mac_of(self, interface: str) -> str:
        """The hardware address of one of the server's interfaces."""
        return self.stage.inside(["cat", f"/sys/class/net/{interface}/address"], 10).strip()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(stack, tmp_path_factory.mktemp("isolation") / "site")


@pytest.fixture(scope="module")
def pair(site: Site) -> tuple[Any, Any]:
    """The nodes of two isolated vclusters, one and two."""
    return site.create("one"), site.create("two")


def sent(namespace: str, *words: str) -> int:
    done = subprocess.run(
        network.inside(namespace, [sys.executable, "-c", SEND, *words]),
        capture_output=True,
        text=True,
        check=True,
        cwd=data.path("pyproject.toml").parent,
    )
    return int(done.stdout)


def counting(namespace: str, sender: int) -> subprocess.Popen[str]:
    """Begins to count the frames of a sender that come by there."""
    process = subprocess.Popen(
        network.inside(namespace, [sys.executable, "-c", COUNT, f"52:54:00:99:00:{sender:02x}"]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "listening\n"
    return process


def counted(process: subprocess.Popen[str]) -> int:
    """Ends a count; what it came to."""
    return int(process.communicate("stop\n", timeout=120)[0])


@pytest.mark.in_turn(2, first=1)
def test_two_isolated_vclusters_boot_and_neither_reaches_the_other(
    site: Site, pair: tuple[Any, Any]
) -> None:
    one, two = pair
    assert (one["address"], two["address"]) == ("10.80.0.2", "10.80.0.10")
    assert (site.vlan_of(one), site.vlan_of(two)) == (2001, 2002)
    for node, name in ((one, "one"), (two, "two")):
        said = site.page(node)
        assert (said["hostname"], said["domain"], said["address"]) == (
            "n1",
            f"{name}.cod.demo",
            node["address"],
        )
    site.stage.inside(["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"], 10)
    near = {2001: site.plug("in1", 2001, 1), 2002: site.plug("in2", 2002, 2)}
    far = {2001: site.plug("out1", 2001, 3), 2002: site.plug("out2", 2002, 4)}
    for vlan, other, victim, own, sender in (
        (2001, 2002, two, "10.80.0.4", 1),
        (2002, 2001, one, "10.80.0.12", 2),
    ):
        beside, across = counting(far[vlan], sender), counting(far[other], sender)
        server = site.mac_of(f"trunk.{vlan}")
        assert sent(near[vlan], own, victim["address"], victim["boot_mac"], server, str(TRIES)) == 0
        assert counted(beside) > TRIES * 0.49, "the frames to everybody reach its own VLAN"
        assert counted(across) == 0, "and the other never"
    at_home = {2001: (one, "10.80.0.4", 1), 2002: (two, "10.80.0.12", 2)}
    for vlan, (peer, own, _) in at_home.items():
        assert (
            sent(
                near[vlan],
                own,
                peer["address"],
                peer["boot_mac"],
                site.mac_of(f"trunk.{vlan}"),
                "100",
            )
            > 20
        ), "the same frames are answered by a machine of the same vcluster"


@pytest.mark.nightly  # two more boots; tests/store/test_isolation_flow.py shows each step
def test_a_machine_moves_from_one_isolated_vcluster_to_another(
    site: Site, pair: tuple[Any, Any]
) -> None:
    before, _ = pair
    site.stage.cod("vcluster", "delete", "one")
    site.wait(
        lambda: (
            [each["state"] for each in site.nodes() if each["name"] == before["name"]]
            == ["inactive"]
        )
    )
    assert site.vlan_of(before) == 1
    after = site.create("three")
    assert after["name"] == before["name"]
    vlan = site.stage.client().get("/vclusters/three")["network"]["vlan"]
    assert site.vlan_of(after) == vlan
    assert site.page(after)["domain"] == "three.cod.demo"
    names = site.stage.client().get("/vclusters/three")
    assert names["network"]["subnet"] in ("10.80.0.0/29", "10.80.0.16/29")
