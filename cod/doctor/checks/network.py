"""Checks of the site's networks: interfaces that are up, addresses of this host, networks behind
relays."""

from __future__ import annotations

import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from cod.doctor.finding import BAD, GOOD, UNSEEN, WARNING, Context, Finding
from cod.host import Interface, addresses, listed
from cod.model import METADATA_ADDRESS, Subnet
from cod.site.own_address import lacking

FORWARDING = Path("/proc/sys/net/ipv6/conf/all/forwarding")


def findings(context: Context) -> Iterator[Finding]:
    """Yield a finding for each subnet, and one for the metadata service's address if the site uses
    it."""
    if context.interfaces is not None:
        for subnet in context.site.subnets:
            yield (_local if subnet.interface else _relayed)(context.interfaces, subnet)
        if context.site.boot.metadata_link_local:
            yield _link_local(context.interfaces, context.site.subnets)
    if context.site.isolation is not None and context.site.isolation.interface is not None:
        yield from isolation(FORWARDING)


def isolation(forwarding: Path) -> Iterator[Finding]:
    """Yield a finding if this host forwards IPv6. Linux does so for all interfaces or for none, and
    the rules that the server sets for its interfaces in isolated networks are for IPv4 only."""
    try:
        forwards = forwarding.read_text().strip() != "0"
    except OSError:  # a kernel without IPv6
        return
    if forwards:
        yield Finding(
            WARNING,
            "isolated networks: this host forwards IPv6, also what comes from the VLANs "
            "of isolated vclusters",
            "sysctl net.ipv6.conf.all.forwarding=0, and in /etc/sysctl.d; or drop "
            "forwarded packets from these interfaces in the host's firewall",
        )


def _local(interfaces: Mapping[str, Interface], subnet: Subnet) -> Finding:
    local = listed(list(interfaces.values()))
    interface = interfaces.get(subnet.interface or "")
    if interface is None:
        return _bad(
            subnet,
            f"this host has no interface {subnet.interface}; it has {local}",
            "correct `interface` in [[subnet]] of the site file",
        )
    own = addresses({interface.name: interface})
    if subnet.others and subnet.server not in own:
        return _none_of_several(subnet, own)
    if subnet.server not in own:
        return _bad(
            subnet,
            f"{interface} does not have the server's address {subnet.server}",
            f"ip addr add {subnet.server}/{subnet.network.partition('/')[2]} dev {interface.name},"
            " and in the host's network configuration, so that it stays",
        )
    if not interface.up:
        return _bad(subnet, f"{interface} is down", f"ip link set {interface.name} up")
    if not interface.carrier:
        return _bad(
            subnet, f"{interface} has no link", "look at the cable, and at the switch's port"
        )
    network = {str(each.network) for each in interface.addresses if str(each.ip) == subnet.server}
    if subnet.network not in network:
        return Finding(
            WARNING,
            f"{subnet.name}: {interface} is on {', '.join(network)}, the site file says "
            f"{subnet.network}",
            "make the interface's prefix length and `network` the same",
        )
    return Finding(GOOD, f"{subnet.name}: {interface}")


def _relayed(interfaces: Mapping[str, Interface], subnet: Subnet) -> Finding:
    own = addresses(interfaces)
    if subnet.others and subnet.server not in own:
        return _none_of_several(subnet, own)
    if subnet.server not in own:
        return _bad(
            subnet,
            f"no interface of this host has the server's address {subnet.server}; it has "
            f"{listed(list(interfaces.values()))}",
            "correct `server` in [[subnet]] of the site file",
        )
    try:
        route = subprocess.run(
            ["ip", "route", "get", str(subnet.relay)],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return Finding(
            UNSEEN, f"{subnet.name}: the route to the relay {subnet.relay} is not known: {error}"
        )
    if route.returncode:
        return _bad(
            subnet,
            f"there is no route to the relay {subnet.relay}: {route.stderr.strip()}",
            f"ip route add {subnet.network} via ROUTER, and in the host's network configuration",
        )
    return Finding(
        GOOD,
        f"{subnet.name}: behind the relay {subnet.relay}, reached by"
        f" {' '.join(route.stdout.split()[1:5])}. The relay must send to {subnet.server} (ip"
        " helper-address)",
    )


def _none_of_several(subnet: Subnet, here: Collection[str]) -> Finding:
    return _bad(
        subnet,
        lacking(subnet, here),
        "add the address to the interface, or to `server` in [[subnet]] of the site file",
    )


def _link_local(interfaces: Mapping[str, Interface], subnets: Sequence[Subnet]) -> Finding:
    holder = next(
        (
            each
            for each in interfaces.values()
            if METADATA_ADDRESS in {str(address.ip) for address in each.addresses}
        ),
        None,
    )
    if holder is not None:
        return Finding(GOOD, f"metadata: {METADATA_ADDRESS} is on {holder}")
    name = next((subnet.interface for subnet in subnets if subnet.interface), "lo")
    return Finding(
        BAD,
        f"metadata: no interface of this host has the address {METADATA_ADDRESS}, where "
        "nodes may ask for their metadata",
        f"ip addr add {METADATA_ADDRESS}/32 dev {name}, and in the "
        "host's network configuration, so that it stays; or set [boot] metadata_link_local = false",
    )


def _bad(subnet: Subnet, found: str, remedy: str) -> Finding:
    return Finding(BAD, f"{subnet.name}: {found}", remedy)
