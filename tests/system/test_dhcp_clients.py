"""Foreign clients against the DHCP server, in network namespaces: BusyBox's, ISC's relay, a router
solicitation."""

from __future__ import annotations

import json
import os
import re
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from cod.model import Binding
from cod.states import NodeState
from cod.store.database import connect
from cod.store.engine import Tx
from cod.store.nodes import bindings, nodes

pytestmark = [pytest.mark.system, pytest.mark.in_turn(2)]

PXE = ("-V", "PXEClient:Arch:00007:UNDI:003016", "-x", "0x5d:0007")
NEAR: dict[str, Any] = {
    "name": "near",
    "network": "10.77.0.0/16",
    "server": "10.77.0.1",
    "interface": "vs",
    "router": "10.77.0.1",
    "boot_pool": ["10.77.1.0", "10.77.4.255"],
    "block_pool": ["10.77.128.0", "10.77.255.255"],
}
FAR: dict[str, Any] = {
    "name": "far",
    "network": "10.88.0.0/24",
    "server": "10.77.0.1",
    "router": "10.88.0.1",
    "boot_pool": ["10.88.0.10", "10.88.0.99"],
    "block_pool": ["10.88.0.128", "10.88.0.255"],
}
SCRIPT = """#!/bin/sh
case $1 in bound|renew) echo "GOT $ip boot=$boot_file siaddr=$siaddr router=$router domain=$domain host=$hostname";;
nak) echo NAK;; esac
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


RENEW = """
import socket, sys
from cod.wire import dhcp
address, mac = sys.argv[1:]
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((address, 68))
s.settimeout(60)
options = {53: b"\\3", 60: b"PXEClient:Arch:00007:UNDI:003016", 93: b"\\0\\7"}
packet = dhcp.Packet(1, 1, 6, 0, 77, 0, 0, socket.inet_aton(address), bytes(4), bytes(4), bytes(4),
                     bytes.fromhex(mac.replace(":", "")) + bytes(10), bytes(64), bytes(128), options)
s.sendto(dhcp.encode(packet), ("10.77.0.1", 67))
answer = dhcp.decode(s.recv(2048))
print(answer.options[53][0], socket.inet_ntoa(answer.yiaddr))
"""


class Network:
    """Server `s` - wire - client `c`; and behind client `c`'s host as a relay, `f`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.s, self.c, self.f = (f"dhcpt{os.getpid()}{name}" for name in "scf")
        self.server: subprocess.Popen[str] | None = None
        self.subnets = [NEAR, FAR]

    def open(self) -> None:
        for namespace in (self.s, self.c, self.f):
            ip("netns", "add", namespace)
            for setting in ("all", "default"):  # addresses without a second's wait for duplicates
                ip(
                    "netns",
                    "exec",
                    namespace,
                    "sysctl",
                    "-qw",
                    f"net.ipv6.conf.{setting}.accept_dad=0",
                )
            ip("-n", namespace, "link", "set", "lo", "up")
        self.wire(self.s, "vs", self.c, "vc")
        self.wire(self.c, "rel0", self.f, "far0")
        ip("-n", self.s, "address", "add", "10.77.0.1/16", "dev", "vs")
        ip("-n", self.s, "route", "add", "10.88.0.0/24", "via", "10.77.0.9")
        (self.folder / "script").write_text(SCRIPT)
        (self.folder / "script").chmod(0o755)
        self.server = self.serve()

    def wire(self, one: str, left: str, two: str, right: str) -> None:
        ip("-n", one, "link", "add", left, "type", "veth", "peer", "name", right, "netns", two)
        ip("-n", one, "link", "set", left, "up")
        ip("-n", two, "link", "set", right, "up")

    @property
    def url(self) -> str:
        return f"sqlite:///{self.folder}/cod.db"

    def serve(self) -> subprocess.Popen[str]:
        server = subprocess.Popen(
            [
                "ip",
                "netns",
                "exec",
                self.s,
                sys.executable,
                "-m",
                "tests.dhcp_service",
                "--url",
                self.url,
                *(word for subnet in self.subnets for word in ("--subnet", json.dumps(subnet))),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        return server

    def udhcpc(
        self, namespace: str, interface: str, *options: str, tries: int = 60, pause: int = 1
    ) -> str:
        """Run BusyBox's client once; what its script printed. It asks so often, each `pause`
        seconds."""
        done = subprocess.run(
            [
                "ip",
                "netns",
                "exec",
                namespace,
                "busybox",
                "udhcpc",
                "-i",
                interface,
                "-n",
                "-q",
                "-f",
                "-t",
                str(tries),
                "-T",
                str(pause),
                "-s",
                str(self.folder / "script"),
                *options,
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout

    def stop(self) -> dict[str, int]:
        """End the server; its counts."""
        assert self.server is not None
        self.server.send_signal(signal.SIGTERM)
        output, _ = self.server.communicate(timeout=120)
        counts: dict[str, int] = json.loads(output)
        return counts


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    network = Network(tmp_path)
    try:
        network.open()
        yield network
    finally:
        if network.server is not None and network.server.poll() is None:
            network.stop()
        for namespace in (network.s, network.c, network.f):
            subprocess.run(["ip", "netns", "del", namespace], check=False, capture_output=True)


def tx_of(network: Network) -> Engine:
    return connect(network.url)


def only_binding(tx: Tx, name: str) -> Binding:
    node = nodes.by_name(tx, name)
    assert node is not None
    [binding] = bindings.of_node(tx, node.id)
    return binding


def mac_of(namespace: str, interface: str) -> str:
    shown = subprocess.run(
        ["ip", "-n", namespace, "-json", "link", "show", interface], capture_output=True, check=True
    )
    return str(json.loads(shown.stdout)[0]["address"])


def test_busybox_as_uefi_firmware_gets_an_address_and_a_loader(network: Network) -> None:
    said = network.udhcpc(network.c, "vc", *PXE)
    found = re.search(
        r"GOT (10\.77\.[1-4]\.\d+) boot=snponly.efi siaddr=10.77.0.1 router=10.77.0.1", said
    )
    assert found, said
    with tx_of(network).begin() as tx:
        binding = only_binding(tx, f"node-{mac_of(network.c, 'vc').replace(':', '')}")
    assert binding.state == "bound"
    assert network.udhcpc(network.c, "vc", *PXE) == said  # the same address again
    assert network.stop()["out/ACK"] >= 2  # more, if it was in a hurry


def test_busybox_as_a_foreign_system_hears_nothing(network: Network) -> None:
    assert "GOT" not in network.udhcpc(network.c, "vc", tries=4)
    assert not any(key.startswith("out/") for key in network.stop())


@contextmanager
def relaying(network: Network) -> Iterator[None]:
    """ISC's relay between the network behind client `c`'s host and the server."""
    ip("-n", network.c, "address", "add", "10.77.0.9/16", "dev", "vc")
    ip("-n", network.c, "address", "add", "10.88.0.1/24", "dev", "rel0")
    subprocess.run(
        ["ip", "netns", "exec", network.c, "sysctl", "-qw", "net.ipv4.ip_forward=1"], check=True
    )
    relay = subprocess.Popen(
        [
            "ip",
            "netns",
            "exec",
            network.c,
            "dhcrelay",
            "-4",
            "-d",
            "-a",
            "-m",
            "append",
            "-i",
            "rel0",
            "-i",
            "vc",
            "--no-pid",
            "10.77.0.1",
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert relay.stderr is not None
        while "Sending on   Socket" not in relay.stderr.readline():
            assert relay.poll() is None
        yield
    finally:
        relay.terminate()
        relay.communicate(timeout=60)


def test_through_a_real_relay(network: Network) -> None:
    with relaying(network):
        said = network.udhcpc(network.f, "far0", *PXE)
    assert re.search(
        r"GOT 10\.88\.0\.\d+ boot=snponly.efi siaddr=10.77.0.1 router=10.88.0.1", said
    ), said


def test_a_server_whose_subnets_are_all_behind_relays(network: Network) -> None:
    """The whole exchange; then a renewal, which comes to the server's address without the relay."""
    network.stop()
    network.subnets = [FAR | {"relay": "10.88.0.1"}]
    network.server = network.serve()
    with relaying(network):
        said = network.udhcpc(network.f, "far0", *PXE)
        found = re.search(
            r"GOT (10\.88\.0\.\d+) boot=snponly.efi siaddr=10.77.0.1 router=10.88.0.1", said
        )
        assert found, said
    for address in (found[1], "10.88.0.98"):
        ip("-n", network.f, "address", "add", f"{address}/24", "dev", "far0")
    ip("-n", network.f, "route", "add", "default", "via", "10.88.0.1")
    renewed, refused = (
        subprocess.run(  # the relay, which would pass them on too, has ended
            [
                "ip",
                "netns",
                "exec",
                network.f,
                sys.executable,
                "-c",
                RENEW,
                address,
                mac_of(network.f, "far0"),
            ],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout.split()
        for address in (found[1], "10.88.0.98")
    )
    # not through a relay: on no subnet of the site
    foreign = network.udhcpc(network.c, "vc", *PXE, tries=2)
    assert renewed == ["5", found[1]]
    assert refused == ["6", "0.0.0.0"]
    assert "GOT" not in foreign
    counts = network.stop()
    assert counts["out/ACK"] >= 2
    assert counts["out/NAK"] == 1


def test_a_router_solicitation_is_answered_with_an_empty_advertisement(network: Network) -> None:
    code = """
import socket, struct, sys, time
s = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"vc")
s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVHOPLIMIT, 1)
index = socket.if_nametoindex("vc")
for turn in range(20):
    s.settimeout(1)
    try:
        s.sendto(struct.pack("!BBHI", 133, 0, 0, 0), ("ff02::2", 0, 0, index))
        while True:
            data, extra, _, source = s.recvmsg(1500, 64)
            if data[0] == 134:
                print(data.hex(), struct.unpack("i", extra[0][2])[0], source[0][:4])
                sys.exit()
    except OSError:  # no answer; or the interface has no link-local address yet
        time.sleep(0.1)
"""
    done = subprocess.run(
        ["ip", "netns", "exec", network.c, sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    advertisement, hop_limit, source = done.stdout.split()
    data = bytes.fromhex(advertisement)
    assert len(data) == 16  # no prefix, no option at all
    assert struct.unpack("!H", data[6:8]) == (0,)  # router lifetime
    assert (hop_limit, source) == ("255", "fe80")
    assert network.stop()["advertised"] >= 1


def test_fifty_machines_ask_at_once(network: Network) -> None:
    """A broadcast storm of 50 machines in one instant: each has an address of its own."""
    hosts = [f"mv{n}" for n in range(50)]
    for host in hosts:
        ip("-n", network.c, "link", "add", host, "link", "vc", "type", "macvlan", "mode", "bridge")
        ip("-n", network.c, "link", "set", host, "up")
    command = [
        "ip",
        "netns",
        "exec",
        network.c,
        "busybox",
        "udhcpc",
        "-n",
        "-q",
        "-f",
        "-t",
        "60",
        "-T",
        "2",
        "-s",
        str(network.folder / "script"),
        *PXE,
        "-i",
    ]
    clients = [
        subprocess.Popen(
            [*command, host], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        for host in hosts
    ]
    said = [client.communicate(timeout=180)[0] for client in clients]
    addresses = [found[1] for text in said if (found := re.search(r"GOT (\S+)", text))]
    assert len(addresses) == len(set(addresses)) == 50


def test_machines_boot_while_invented_ones_flood_the_wire(network: Network) -> None:
    """200 MACs a second ask and take what they get; an approved machine and ten new ones get their
    addresses."""
    with tx_of(network).begin() as tx:
        nodes.add(
            tx,
            name="known",
            boot_mac=mac_of(network.c, "vc"),
            now=0.0,
            cause="t",
            actor="t",
            state=NodeState.INACTIVE,
        )
    hosts = [f"mv{n}" for n in range(10)]
    for host in hosts:
        ip("-n", network.c, "link", "add", host, "link", "vc", "type", "macvlan", "mode", "bridge")
        ip("-n", network.c, "link", "set", host, "up")
    flood = subprocess.Popen(
        ["ip", "netns", "exec", network.c, sys.executable, "-m", "tests.attack.dhcp_flood", "vc"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert flood.stdout is not None
        assert flood.stdout.readline() == "flooded\n"
        for host in ("vc", *hosts):
            tries = len(["0", "4", "12", "28"])
            said = network.udhcpc(network.c, host, *PXE, tries=tries, pause=4)
            assert "GOT" in said, host
    finally:
        flood.kill()
        flood.communicate(timeout=60)
    counts = network.stop()
    assert counts["dropped/limited"] > counts["in/DISCOVER"] / 3
