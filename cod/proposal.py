"""Proposes a new site's [[subnet]] table: what the options of `cod init` leave open is taken from
this host's network.

What the options say is checked against the host, so that a misspelt interface is refused before
anything is written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, ip_address
from typing import Any

from cod.host import Interface, listed
from cod.site.tables import address_and_port

EXAMPLE = {
    "name": "lab",
    "network": "10.77.0.0/16",
    "server": "10.77.0.1",
    "interface": "eth1",
    "boot_pool": ["10.77.1.0", "10.77.4.255"],
    "block_pool": ["10.77.128.0", "10.77.255.255"],
}


class Unfit(Exception):
    """This host does not have what the options name; the sentence says what it has and what to
    do."""


def subnet(said: Mapping[str, Any], there: Mapping[str, Interface]) -> dict[str, Any]:
    """Return the keys of the subnet that the options `said` (keys of [[subnet]]) describe, on the
    interfaces `there`.

    A network behind a relay has no interface: `said` then holds `relay` and `network`. Raises
    `Unfit`.
    """
    if not any(said.get(key) for key in ("interface", "server", "relay", "network")):
        return named(said)
    if said.get("relay"):
        return named(_relayed(said, list(there.values())))
    interface = _interface(said, there)
    own = _own_address(said, interface, list(there.values()))
    network = said.get("network") or str(own.network)
    if IPv4Network(own.network) != _network(network):
        raise Unfit(
            f"{interface} is on the network {own.network}, not {network}: nodes of another network"
            " could not reach it. Change --network, or the interface's prefix length"
        )
    return named({**said, "interface": interface.name, "server": str(own.ip), "network": network})


def named(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return `said` with a name for the subnet, where it has none: the interface's as a DNS label,
    else the network's.
    """
    words = str(said.get("interface") or "") or (
        f"net-{said['network']}".split("/")[0] if said.get("network") else ""
    )
    proposed = re.sub("[^a-z0-9]+", "-", words.lower()).strip("-")
    return {**({"name": proposed} if proposed else {}), **said}


def check_listen(pairs: Sequence[str], there: Mapping[str, Interface]) -> None:
    """Raise `Unfit` unless every address of the ADDRESS:PORT `pairs` is this host's."""
    own = {each.ip for interface in there.values() for each in interface.addresses}
    for pair in pairs:
        try:
            address = ip_address(address_and_port(pair)[0])
        except ValueError:
            continue  # the site file's own rules refuse the pair
        if isinstance(address, IPv4Address) and not (
            address.is_unspecified or address.is_loopback or address in own
        ):
            raise Unfit(
                f"--listen {pair}: no interface of this host has that address; it has "
                f"{listed(list(there.values()))}. 0.0.0.0 stands for all of them"
            )


def pools(network: str) -> dict[str, list[str]]:
    """Pools for a network: its upper half for vclusters, a part of the lower one for firmware and
    trampoline. Nothing where it is no network, or so small that somebody has to say."""
    try:
        whole = IPv4Network(network)
    except ValueError:
        return {}
    size, half = whole.num_addresses, whole.num_addresses // 2
    first, last = (size // 256, size * 5 // 256) if size >= 4096 else (size // 8, half)
    return (
        {
            "boot_pool": [str(whole[first]), str(whole[last - 1])],
            "block_pool": [str(whole[half]), str(whole[-1])],
        }
        if size >= 128
        else {}
    )


def _network(text: str) -> IPv4Network:
    try:
        return IPv4Network(text)
    except ValueError as error:
        raise Unfit(
            f"--network {text}: should be a network such as 10.77.0.0/16 ({error})"
        ) from None


def _interface(said: Mapping[str, Any], there: Mapping[str, Interface]) -> Interface:
    """Return the interface that is named, else the one that has the server's address or is on the
    network."""
    if name := said.get("interface"):
        if name not in there:
            raise Unfit(
                f"this host has no interface {name!r}; it has {listed(list(there.values()))}"
            )
        return there[name]
    for interface in there.values():
        if any(_is_meant(said, each) for each in interface.addresses):
            return interface
    raise Unfit(
        "no interface of this host has an address that fits; it has"
        f" {listed(list(there.values()))}. Give the interface its address first (ip addr add"
        " ADDRESS/BITS dev INTERFACE, and in the host's network configuration, so that it stays),"
        " or say --relay for a network behind a DHCP relay"
    )


def _own_address(
    said: Mapping[str, Any], interface: Interface, there: Sequence[Interface]
) -> IPv4Interface:
    """Return the server's address on the interface: the one that is named, or the first on the
    network."""
    for each in interface.addresses:
        if _is_meant(said, each):
            return each
    if not interface.addresses:
        wanted = said.get("server") or "ADDRESS"
        raise Unfit(
            f"{interface.name} has no IPv4 address: ip addr add {wanted}/BITS dev {interface.name}"
            " gives it one until the next boot, the host's network configuration for good. This"
            f" host has {listed(there)}"
        )
    if server := said.get("server"):
        raise Unfit(
            f"{interface.name} does not have the address {server}; this host has {listed(there)}"
        )
    raise Unfit(f"{interface} has no address on the network {said.get('network')}")


def _is_meant(said: Mapping[str, Any], address: IPv4Interface) -> bool:
    if server := said.get("server"):
        return bool(str(address.ip) == server)
    return not said.get("network") or address.ip in _network(said["network"])


def _relayed(said: Mapping[str, Any], there: Sequence[Interface]) -> dict[str, Any]:
    if not said.get("network"):
        raise Unfit(
            "--network is missing: a network behind a relay cannot be told from this host's"
            " interfaces"
        )
    if said.get("interface"):
        raise Unfit(
            "--interface and --relay exclude each other: a network behind a relay has no interface"
            " here"
        )
    own = [str(each.ip) for interface in there for each in interface.addresses]
    server = said.get("server") or (own[0] if len(own) == 1 else "")
    if not server:
        raise Unfit(
            "--address is missing: which of this host's addresses do nodes reach? It has"
            f" {listed(there)}"
        )
    if server not in own:
        raise Unfit(f"no interface of this host has the address {server}; it has {listed(there)}")
    router = (
        {"router": said["relay"]} if IPv4Address(said["relay"]) in _network(said["network"]) else {}
    )
    return {**router, **said, "server": server, "interface": None}
