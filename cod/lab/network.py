"""A lab's networks: a switch for each, one tap for each NIC, and routers that relay DHCP.

A switch is a bridge of the kernel in the lab's namespace, or an Open vSwitch
(`cod.lab.openvswitch`), as the spec says.

The first bridge has the server's address. One end of the pair `port0`/`port1` is always plugged
into it: without a live port a bridge has no carrier, and without carrier the kernel gives it no
IPv6 link-local address, which the router advertisement needs before the first machine is switched
on.

A further network with an address is reached through a router: a namespace with an interface in
either network, which runs ISC's `dhcrelay`. The server's namespace has the bridge of that network
too (for the machines' taps) but no address on it, so DHCP reaches the server by the relay alone.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface
from pathlib import Path

from cod.lab import program, record
from cod.lab.openvswitch import OpenVSwitch
from cod.lab.processes import NAMESPACES
from cod.lab.spec import LabSpec
from cod.model import Refused

BRIDGE = "br0"
RELAY = "dhcrelay"
_BRIDGE_OPTIONS = "type bridge forward_delay 0 stp_state 0 mcast_snooping 0"


def tap(position: int, nic: int) -> str:
    """Return the name of the tap for NIC number `nic` of the spec's node at `position`."""
    return f"tap{position}n{nic}"


def exists(namespace: str) -> bool:
    return (NAMESPACES / namespace).exists()


def switch_of(namespace: str) -> OpenVSwitch:
    """Return the Open vSwitch of the lab with that namespace, which need not exist."""
    return OpenVSwitch(
        namespace, record.folder(namespace.removeprefix(record.namespace(""))) / "switch"
    )


def ports_namespace(namespace: str, spec: LabSpec) -> str:
    """Return the namespace of the machines' taps."""
    return switch_of(namespace).ports_namespace if spec.switch == "ovs" else namespace


def make(namespace: str, spec: LabSpec) -> None:
    """Make the namespace with its switches, interfaces and routers."""
    _ip("netns", "add", namespace)
    _sysctl(namespace, "net.ipv6.conf.default.accept_dad=0", "net.ipv6.conf.default.accept_ra=0")
    bridges = {
        "": BRIDGE,
        **{network.name: f"br{n}" for n, network in enumerate(spec.networks, start=1)},
    }
    if spec.switch == "ovs":
        _make_switches(namespace, spec, bridges)
    else:
        _make_bridges(namespace, spec, bridges)
    for router in routers(namespace, spec):
        _make_router(namespace, spec, router, bridges[router.network])


def _make_switches(namespace: str, spec: LabSpec, bridges: Mapping[str, str]) -> None:
    switch = switch_of(namespace)
    ports = switch.ports_namespace
    _ip("netns", "add", ports)
    _sysctl(ports, "net.ipv6.conf.default.disable_ipv6=1")
    switch.start()
    for network, bridge in bridges.items():
        switch.add_bridge(bridge, f"{spec.name}-switch")  # of one daemon all bridges have one name
        taps = [
            tap(position, n)
            for position, node in enumerate(spec.nodes)
            for n, nic in enumerate(node.nics)
            if nic.network == network
        ]
        _batch(
            ports,
            [f"tuntap add dev {name} mode tap" for name in taps]
            + [f"link set {name} up" for name in taps],
        )
        switch.add_ports(bridge, taps, lldp=True)
    _batch(namespace, ["link set lo up"])
    _move_in(namespace, BRIDGE, spec.address)


def add_interface(namespace: str, name: str, vlan: int, address: str) -> None:
    """Give the lab's namespace an interface on the first network's Open vSwitch, in that VLAN, with
    that address.

    Raises `Refused` for a lab with another kind of switch.
    """
    switch = switch_of(namespace)
    if not switch.exists():
        raise Refused("conflict", 'the lab has no VLANs: make it with switch = "ovs"', "switch")
    switch.add_internal(BRIDGE, name, vlan)
    _move_in(namespace, name, address)


def _move_in(namespace: str, interface: str, address: str) -> None:
    """Move an internal port from the switch's namespace to the lab's."""
    _ip("-n", switch_of(namespace).ports_namespace, "link", "set", interface, "netns", namespace)
    _batch(namespace, [f"addr add {address} brd + dev {interface}", f"link set {interface} up"])


def _make_bridges(namespace: str, spec: LabSpec, bridges: Mapping[str, str]) -> None:
    commands = [
        "link set lo up",
        *(f"link add {bridge} {_BRIDGE_OPTIONS}" for bridge in bridges.values()),
        f"addr add {spec.address} brd + dev {BRIDGE}",
        "link add port0 type veth peer name port1",
        f"link set port0 master {BRIDGE}",
    ]
    for position, node in enumerate(spec.nodes):
        for n, nic in enumerate(node.nics):
            name = tap(position, n)
            commands += [
                f"tuntap add dev {name} mode tap",
                f"link set {name} master {bridges[nic.network]} up",
            ]
    _batch(namespace, commands)
    silent = ["port0", "port1", *(bridge for bridge in bridges.values() if bridge != BRIDGE)]
    _sysctl(namespace, *(f"net.ipv6.conf.{name}.disable_ipv6=1" for name in silent))
    _batch(
        namespace,
        ["link set port0 up", "link set port1 up", *(f"link set {b} up" for b in bridges.values())],
    )


def _make_router(namespace: str, spec: LabSpec, router: Router, bridge: str) -> None:
    _ip("netns", "add", router.namespace)
    for side, on in (("near", BRIDGE), ("far", bridge)):
        outer = f"{side}{bridge[2:]}"
        ports = ports_namespace(namespace, spec)
        _batch(router.namespace, [f"link add {side} type veth peer name {outer} netns {ports}"])
        _connect(namespace, on, outer, router.namespace, side)
    _sysctl(router.namespace, "net.ipv4.ip_forward=1", "net.ipv6.conf.all.disable_ipv6=1")
    server = IPv4Interface(spec.address).ip
    _batch(
        router.namespace,
        [
            "link set lo up",
            f"addr add {router.near} brd + dev near",
            f"addr add {router.far} brd + dev far",
            "link set near up",
            "link set far up",
            f"route add default via {server}",
        ],
    )
    _batch(namespace, [f"route add {router.far.network} via {router.near.ip}"])


def _connect(namespace: str, bridge: str, outer: str, end: str, inner: str) -> None:
    """Connect the interface `outer` to the lab's switch. Its other end is `inner` in the namespace
    `end`."""
    switch = switch_of(namespace)
    if not switch.exists():
        _batch(namespace, [f"link set {outer} master {bridge} up"])
        _sysctl(namespace, f"net.ipv6.conf.{outer}.disable_ipv6=1")
        return
    _run(inside(end, [sys.executable, "-m", "cod.lab.checksums", inner]))
    _batch(switch.ports_namespace, [f"link set {outer} up"])
    switch.add_ports(bridge, [outer], lldp=True)


@dataclass(frozen=True, slots=True)
class Router:
    """A router between the server's network and `network`: `near` is its address in the server's
    network, `far` its address in `network`."""

    namespace: str
    network: str
    near: IPv4Interface
    far: IPv4Interface


def routers(namespace: str, spec: LabSpec) -> list[Router]:
    """Return the routers of the spec's networks. The routers' near addresses follow the server's
    address."""
    server = IPv4Interface(spec.address)
    return [
        Router(
            f"{namespace}.{network.name}",
            network.name,
            IPv4Interface(f"{IPv4Address(int(server.ip) + n)}/{server.network.prefixlen}"),
            IPv4Interface(network.address),
        )
        for n, network in enumerate(spec.networks, start=1)
        if network.address
    ]


def start_relay(router: Router, server: str, log: Path) -> subprocess.Popen[bytes]:
    """Start the router's DHCP relay to the address `server`. Raises `Refused` when the relay's
    program is not installed."""
    if shutil.which(RELAY) is None:
        raise Refused(
            "conflict",
            f"network {router.network} needs {RELAY} (Debian: apt install isc-dhcp-relay)",
        )
    argv = inside(
        router.namespace, [RELAY, "-4", "-d", "--no-pid", "-iu", "near", "-id", "far", server]
    )
    with open(log, "ab") as file:
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )


def all_of(namespace: str) -> list[str]:
    """Return the lab's namespaces that exist: its routers' and its own. They are found by the dot
    after the lab's name, since no name of a lab has a dot."""
    return [path.name for path in sorted(NAMESPACES.glob(f"{namespace}.*"))] + [namespace] * exists(
        namespace
    )


def remove(namespace: str) -> None:
    """Remove the lab's namespaces, and their interfaces with them; has no effect where none
    exists."""
    for each in all_of(namespace):
        try:
            _ip("netns", "del", each)
        except Refused:
            if exists(each):  # else another command has just removed the same lab
                raise


def plug(namespace: str, new: str, port: str, mac: str) -> None:
    """Make the namespace `new` with an interface eth0 of that MAC, plugged into the lab's first
    switch as `port`."""
    _ip("netns", "add", new)
    switch = switch_of(namespace)
    ports = switch.ports_namespace if switch.exists() else namespace
    _batch(ports, [f"link add {port} type veth peer name eth0 address {mac} netns {new}"])
    _connect(namespace, BRIDGE, port, new, "eth0")
    _batch(new, ["link set lo up", "link set eth0 up"])


def add_address(namespace: str, address: str) -> None:
    """Give a namespace that `plug` made an address, written with its prefix length."""
    _batch(namespace, [f"addr add {address} brd + dev eth0"])


def stand_for(namespace: str, lab: str, address: str, far: str) -> None:
    """Have a namespace that `plug` made answer for every address of the network `far`. In the lab's
    network the namespace has `address`, through which the lab's server reaches `far`."""
    server = record.load(lab).spec.address
    via = address.partition("/")[0]
    _batch(
        namespace,
        [
            f"addr add {address} brd + dev eth0",
            f"route add local {far} dev lo",
            f"route add default via {server.partition('/')[0]}",
        ],
    )
    _batch(record.namespace(lab), [f"route add {far} via {via}"])


def lose(namespace: str, interface: str, percent: float) -> None:
    """Drop that share of the packets that arrive in the namespace by the interface."""
    rule = f'iifname "{interface}" numgen random mod 10000 < {round(percent * 100)} drop'
    chain = f"chain in {{ type filter hook prerouting priority -400; {rule}; }}"
    _run(inside(namespace, ["nft", "-f", "-"]), f"table ip loss {{\n{chain}\n}}\n")


def hold(namespace: str, spec: LabSpec, tap_name: str, held: bool) -> None:
    """Cut a tap off its switch, or connect it again. The machine sees a live port in both cases."""
    _batch(ports_namespace(namespace, spec), [f"link set {tap_name} {'down' if held else 'up'}"])


def unplug(namespace: str) -> None:
    """Remove a namespace that `plug` made, and its interfaces with it."""
    _ip("netns", "del", namespace)


def forget_port(namespace: str, port: str) -> None:
    """Remove a port that `plug` made from the list of the lab's switch, if the switch has such a
    list."""
    if (switch := switch_of(namespace)).exists():
        switch.vsctl("--if-exists", "del-port", port)


def inside(namespace: str, argv: list[str]) -> list[str]:
    """Return the command that runs `argv` in the namespace."""
    return ["ip", "netns", "exec", namespace, *argv]


def _sysctl(namespace: str, *settings: str) -> None:
    pairs = (setting.split("=") for setting in settings)
    script = "; ".join(f"echo {value} > /proc/sys/{key.replace('.', '/')}" for key, value in pairs)
    _run(inside(namespace, ["sh", "-ec", script]))


def _batch(namespace: str, commands: list[str]) -> None:
    _ip("-n", namespace, "-batch", "-", text="\n".join(commands) + "\n")


def _ip(*argv: str, text: str = "") -> None:
    _run(["ip", *argv], text)


def _run(argv: list[str], text: str = "") -> None:
    environment = program.environment()
    done = subprocess.run(
        argv, input=text, capture_output=True, text=True, check=False, env=environment
    )
    if done.returncode != 0:
        raise Refused("conflict", f"{' '.join(argv)}: {done.stderr.strip() or done.returncode}")
