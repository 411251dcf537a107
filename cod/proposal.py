"""Proposes a new site's [[subnet]] table: values that the options of `cod init` leave open are
taken from this host's network.

The values of the options are checked against the host, so that a misspelt interface is refused
before anything is written.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
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
    """This host lacks something that the options name; the sentence says what the host has and what
    to do."""


def subnet(options: Mapping[str, Any], interfaces: Mapping[str, Interface]) -> dict[str, Any]:
    """Return the keys of the subnet that `options` (keys of [[subnet]]) describe, on one of
    `interfaces`.

    A network behind a relay has no interface here: then `options` must hold `relay` and `network`.
    Raises `Unfit`.
    """
    if not any(options.get(key) for key in ("interface", "server", "relay", "network")):
        return named(options)
    if options.get("relay"):
        return named(_relayed(options, list(interfaces.values())))
    interface = _interface(options, interfaces)
    own = _own_address(options, interface, list(interfaces.values()))
    network = options.get("network") or str(own.network)
    if IPv4Network(own.network) != _network(network):
        raise Unfit(
            f"{interface} is on the network {own.network}, not {network}: nodes of another network"
            " could not reach it. Change --network, or the interface's prefix length"
        )
    return named(
        {**options, "interface": interface.name, "server": str(own.ip), "network": network}
    )


def named(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return `options` with a name for the subnet, if they have none: made of the interface's name,
    as a DNS label, or else of the network."""
    words = str(options.get("interface") or "") or (
        f"net-{options['network']}".split("/")[0] if options.get("network") else ""
    )
    proposed = re.sub("[^a-z0-9]+", "-", words.lower()).strip("-")
    return {**({"name": proposed} if proposed else {}), **options}


def check_listen(pairs: Sequence[str], interfaces: Mapping[str, Interface]) -> None:
    """Raise `Unfit` unless every address of the ADDRESS:PORT `pairs` is this host's."""
    own = {each.ip for interface in interfaces.values() for each in interface.addresses}
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
                f"{listed(list(interfaces.values()))}. 0.0.0.0 stands for all of them"
            )


def pools(
    network: str, *own: str, of: Collection[str] = ("boot_pool", "block_pool")
) -> dict[str, list[str]]:
    """Return pools for a network that hold none of the addresses `own` of server and router: half
    of it for vclusters, a part of the other half for firmware and trampoline; {} where `network` is
    no network. `of`: the keys of the pools to return. Raises `Unfit` where a person has to choose.
    """
    try:
        whole = IPv4Network(network)
    except ValueError:
        return {}
    size, half = whole.num_addresses, whole.num_addresses // 2
    first, last = (size // 256, size * 5 // 256) if size >= 4096 else (size // 8, half)
    upper = {"boot_pool": (first, last - 1), "block_pool": (half, size - 1)}
    lower = {"boot_pool": (size - last, size - 1 - first), "block_pool": (0, half - 1)}
    if size < 128:
        raise Unfit(
            f"{network} has {size} addresses, fewer than pools with blocks of 64 need: take a"
            " larger network; or run `cod init` without options and edit the example that it writes,"
            " block_size too"
        )
    for proposed in (upper, lower):
        spans = {key: [str(whole[at]) for at in proposed[key]] for key in of}
        if not any(_between(address, span) for address in own for span in spans.values()):
            return spans
    raise Unfit(
        f"server and router ({' and '.join(own)}) are where COD would put its pools in {network}:"
        " choose --boot-pool FIRST LAST and --block-pool FIRST LAST"
    )


def _between(address: str, span: Sequence[str]) -> bool:
    try:
        return IPv4Address(span[0]) <= IPv4Address(address) <= IPv4Address(span[1])
    except ValueError:  # the site file's own rules refuse the address
        return False


def _network(text: str) -> IPv4Network:
    try:
        return IPv4Network(text)
    except ValueError as error:
        raise Unfit(
            f"--network {text}: should be a network such as 10.77.0.0/16 ({error})"
        ) from None


def _interface(options: Mapping[str, Any], interfaces: Mapping[str, Interface]) -> Interface:
    """Return the interface that the options name, else the interface that has the server's address
    or is on the network."""
    if name := options.get("interface"):
        if name not in interfaces:
            raise Unfit(
                f"this host has no interface {name!r}; it has {listed(list(interfaces.values()))}"
            )
        return interfaces[name]
    for interface in interfaces.values():
        if any(_is_meant(options, each) for each in interface.addresses):
            return interface
    raise Unfit(
        "no interface of this host has an address that fits; it has"
        f" {listed(list(interfaces.values()))}. Give the interface its address first (ip addr add"
        " ADDRESS/BITS dev INTERFACE, and in the host's network configuration, so that it stays),"
        " or say --relay for a network behind a DHCP relay"
    )


def _own_address(
    options: Mapping[str, Any], interface: Interface, interfaces: Sequence[Interface]
) -> IPv4Interface:
    """Return the server's address on the interface: the address that the options name, or the first
    on the network."""
    for each in interface.addresses:
        if _is_meant(options, each):
            return each
    if not interface.addresses:
        wanted = options.get("server") or "ADDRESS"
        raise Unfit(
            f"{interface.name} has no IPv4 address: ip addr add {wanted}/BITS dev {interface.name}"
            " gives it one until the next boot, the host's network configuration for good. This"
            f" host has {listed(interfaces)}"
        )
    if server := options.get("server"):
        raise Unfit(
            f"{interface.name} does not have the address {server}; this host has"
            f" {listed(interfaces)}"
        )
    raise Unfit(f"{interface} has no address on the network {options.get('network')}")


def _is_meant(options: Mapping[str, Any], address: IPv4Interface) -> bool:
    if server := options.get("server"):
        return bool(str(address.ip) == server)
    return not options.get("network") or address.ip in _network(options["network"])


def _relayed(options: Mapping[str, Any], interfaces: Sequence[Interface]) -> dict[str, Any]:
    if not options.get("network"):
        raise Unfit(
            "--network is missing: a network behind a relay cannot be told from this host's"
            " interfaces"
        )
    if options.get("interface"):
        raise Unfit(
            "--interface and --relay exclude each other: a network behind a relay has no interface"
            " here"
        )
    own = [str(each.ip) for interface in interfaces for each in interface.addresses]
    server = options.get("server") or (own[0] if len(own) == 1 else "")
    if not server:
        raise Unfit(
            "--address is missing: which of this host's addresses do nodes reach? It has"
            f" {listed(interfaces)}"
        )
    if server not in own:
        raise Unfit(
            f"no interface of this host has the address {server}; it has {listed(interfaces)}"
        )
    try:
        relay = IPv4Address(options["relay"])
    except ValueError:
        raise Unfit(f"--relay {options['relay']}: should be an address such as 10.80.0.1") from None
    router = {"router": options["relay"]} if relay in _network(options["network"]) else {}
    return {**router, **options, "server": server, "interface": None}
