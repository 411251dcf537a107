"""A lab's network: a namespace of its own with a bridge, and one tap for each machine.

The bridge has the server's address. `port0`/`port1` is a pair whose one end is always plugged into the bridge: without
a live port a bridge has no carrier, and without carrier the kernel gives it no IPv6 link-local address, which the
router advertisement needs before the first machine is switched on.
"""

from __future__ import annotations

import subprocess

from cod.lab.processes import NAMESPACES
from cod.lab.spec import LabSpec
from cod.model import Refused

BRIDGE = "br0"


def tap(position: int) -> str:
    """The tap of the spec's node at `position`."""
    return f"tap{position}"


def exists(namespace: str) -> bool:
    """Is there such a network namespace?"""
    return (NAMESPACES / namespace).exists()


def make(namespace: str, spec: LabSpec) -> None:
    """Make the namespace and everything in it."""
    _ip("netns", "add", namespace)
    _sysctl(namespace, "net.ipv6.conf.default.accept_dad=0", "net.ipv6.conf.default.accept_ra=0")
    commands = [
        "link set lo up",
        f"link add {BRIDGE} type bridge forward_delay 0 stp_state 0 mcast_snooping 0",
        f"addr add {spec.address} brd + dev {BRIDGE}",
        "link add port0 type veth peer name port1",
        f"link set port0 master {BRIDGE}",
    ]
    for position in range(len(spec.nodes)):
        commands += [f"tuntap add dev {tap(position)} mode tap", f"link set {tap(position)} master {BRIDGE} up"]
    _ip("-n", namespace, "-batch", "-", text="\n".join(commands) + "\n")
    _sysctl(namespace, "net.ipv6.conf.port0.disable_ipv6=1", "net.ipv6.conf.port1.disable_ipv6=1")
    _ip("-n", namespace, "-batch", "-", text=f"link set port0 up\nlink set port1 up\nlink set {BRIDGE} up\n")


def remove(namespace: str) -> None:
    """Remove the namespace; its interfaces go with it. Nothing happens when there is none."""
    if exists(namespace):
        _ip("netns", "del", namespace)


def inside(namespace: str, argv: list[str]) -> list[str]:
    """The command that runs `argv` in the namespace."""
    return ["ip", "netns", "exec", namespace, *argv]


def _sysctl(namespace: str, *settings: str) -> None:
    pairs = (setting.split("=") for setting in settings)
    script = "; ".join(f"echo {value} > /proc/sys/{key.replace('.', '/')}" for key, value in pairs)
    _run(inside(namespace, ["sh", "-ec", script]))


def _ip(*argv: str, text: str = "") -> None:
    _run(["ip", *argv], text)


def _run(argv: list[str], text: str = "") -> None:
    done = subprocess.run(argv, input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Refused("conflict", f"{' '.join(argv)}: {done.stderr.strip() or done.returncode}")
