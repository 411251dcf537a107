"""A lab's networks: a namespace with a bridge for each, one tap for each NIC, and routers that relay DHCP.

The first bridge has the server's address. `port0`/`port1` is a pair whose one end is always plugged into it: without
a live port a bridge has no carrier, and without carrier the kernel gives it no IPv6 link-local address, which the
router advertisement needs before the first machine is switched on.

A further network with an address is reached over a router, a namespace of its own with one foot in either network,
that runs ISC's `dhcrelay`. The server's namespace has the bridge of that network too (the machines' taps are there) but
no address on it, so DHCP reaches the server by the relay alone.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface
from pathlib import Path

from cod.lab.processes import NAMESPACES
from cod.lab.spec import LabSpec
from cod.model import Refused

BRIDGE = "br0"
RELAY = "dhcrelay"
_BRIDGE_OPTIONS = "type bridge forward_delay 0 stp_state 0 mcast_snooping 0"


def tap(position: int, nic: int) -> str:
    """Return the name of the tap of NIC `nic` of the spec's node at `position`."""
    return f"tap{position}n{nic}"


def exists(namespace: str) -> bool:
    """Return whether the network namespace exists."""
    return (NAMESPACES / namespace).exists()


def make(namespace: str, spec: LabSpec) -> None:
    """Make the namespace and everything in it, and the routers."""
    _ip("netns", "add", namespace)
    _sysctl(namespace, "net.ipv6.conf.default.accept_dad=0", "net.ipv6.conf.default.accept_ra=0")
    bridges = {"": BRIDGE, **{network.name: f"br{n}" for n, network in enumerate(spec.networks, start=1)}}
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
            commands += [f"tuntap add dev {name} mode tap", f"link set {name} master {bridges[nic.network]} up"]
    _batch(namespace, commands)
    silent = ["port0", "port1", *(bridge for bridge in bridges.values() if bridge != BRIDGE)]
    _sysctl(namespace, *(f"net.ipv6.conf.{name}.disable_ipv6=1" for name in silent))
    _batch(namespace, ["link set port0 up", "link set port1 up", *(f"link set {b} up" for b in bridges.values())])
    for router in routers(namespace, spec):
        bridge = bridges[router.network]
        _ip("netns", "add", router.namespace)
        for side, on in (("near", BRIDGE), ("far", bridge)):
            outer = f"{side}{bridge[2:]}"
            _ip("-n", router.namespace, "link", "add", side, "type", "veth", "peer", "name", outer, "netns", namespace)
            _batch(namespace, [f"link set {outer} master {on} up"])
            _sysctl(namespace, f"net.ipv6.conf.{outer}.disable_ipv6=1")
        _sysctl(router.namespace, "net.ipv4.ip_forward=1", "net.ipv6.conf.all.disable_ipv6=1")
        server = IPv4Interface(spec.address).ip
        _batch(router.namespace, [
            "link set lo up", f"addr add {router.near} brd + dev near", f"addr add {router.far} brd + dev far",
            "link set near up", "link set far up", f"route add default via {server}"])
        _batch(namespace, [f"route add {router.far.network} via {router.near.ip}"])


@dataclass(frozen=True, slots=True)
class Router:
    """A router between the server's network and `network`: `near` is its address in the former, `far` in the latter."""

    namespace: str
    network: str
    near: IPv4Interface
    far: IPv4Interface


def routers(namespace: str, spec: LabSpec) -> list[Router]:
    """Return the routers of the spec's networks. A router's near address follows the server's."""
    server = IPv4Interface(spec.address)
    return [Router(f"{namespace}.{network.name}", network.name,
                   IPv4Interface(f"{IPv4Address(int(server.ip) + n)}/{server.network.prefixlen}"),
                   IPv4Interface(network.address))
            for n, network in enumerate(spec.networks, start=1) if network.address]


def start_relay(router: Router, server: str, log: Path) -> subprocess.Popen[bytes]:
    """Start the router's DHCP relay to `server`, an address; `Refused` when it is not installed."""
    if shutil.which(RELAY) is None:
        raise Refused("conflict", f"network {router.network} needs {RELAY} (Debian: apt install isc-dhcp-relay)")
    argv = inside(router.namespace, [RELAY, "-4", "-d", "--no-pid", "-iu", "near", "-id", "far", server])
    with open(log, "ab") as file:
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True)


def all_of(namespace: str) -> list[str]:
    """Return the lab's namespaces that exist: its routers' and its own. No name of a lab has a dot."""
    return [path.name for path in sorted(NAMESPACES.glob(f"{namespace}.*"))] + [namespace] * exists(namespace)


def remove(namespace: str) -> None:
    """Remove the lab's namespaces; their interfaces go with them. Nothing happens when there is none."""
    for each in all_of(namespace):
        try:
            _ip("netns", "del", each)
        except Refused:
            if exists(each):  # else another command took the same lab down at this moment
                raise


def plug(namespace: str, new: str, port: str, mac: str) -> None:
    """Make the namespace `new` with an interface eth0 of that MAC, plugged into the lab's bridge as `port`."""
    _ip("netns", "add", new)
    _ip("-n", namespace, "link", "add", port, "type", "veth", "peer", "name", "eth0", "address", mac, "netns", new)
    _batch(namespace, [f"link set {port} master {BRIDGE} up"])
    _sysctl(namespace, f"net.ipv6.conf.{port}.disable_ipv6=1")
    _batch(new, ["link set lo up", "link set eth0 up"])


def unplug(namespace: str) -> None:
    """Remove a namespace that `plug` made; its interfaces go with it."""
    _ip("netns", "del", namespace)


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
    done = subprocess.run(argv, input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Refused("conflict", f"{' '.join(argv)}: {done.stderr.strip() or done.returncode}")
