"""Contradictions inside a table of the site file: for each table with such rules, a function that
yields a sentence for each contradiction."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterator
from ipaddress import IPv4Address, IPv4Network, ip_address, ip_network
from typing import Any

from pydantic import AfterValidator

from cod.model import (
    SWITCH_PLATFORMS,
    Energy,
    FileServer,
    Isolation,
    KerberosRules,
    Ldap,
    LdapGroup,
    Mail,
    Oidc,
    PosixRules,
    Subnet,
    Switch,
)

_CURVE_URL = re.compile(r"https?://[A-Za-z0-9.:\[\]-]+(/[!-~]*)?", re.ASCII)


def together(problems: Callable[[Any], Iterator[str]]) -> AfterValidator:
    """Return a validator that refuses a table for which `problems` yields anything; its error has
    all the sentences."""

    def check(table: Any) -> Any:
        if found := list(problems(table)):
            raise ValueError("; ".join(found))
        return table

    return AfterValidator(check)


def energy(table: Energy) -> Iterator[str]:
    """Yield a sentence for each contradiction in the table."""
    if table.warm_low > table.warm_high:
        yield f"warm_low {table.warm_low} should not be above warm_high {table.warm_high}"
    if table.curve_file and table.curve_url:
        yield "curve_file and curve_url should not both be there"
    if (table.curve_file or table.curve_url) and table.curve_stale <= table.curve_poll:
        yield (
            f"curve_stale {table.curve_stale:g} should be above curve_poll {table.curve_poll:g}:"
            " else each curve is too old before the next look"
        )
    if table.hold_above is not None and not (table.curve_file or table.curve_url):
        yield "hold_above should have a curve_file or a curve_url"
    if table.curve_url and not _CURVE_URL.fullmatch(table.curve_url):
        yield "curve_url should begin with https:// or http://, be plain ASCII, and have no user"
    watts = [table.watts_off, table.watts_idle, table.watts_busy]
    if watts != sorted(watts):
        yield (
            "watts_off, watts_idle and watts_busy should not fall: "
            + ", ".join(f"{each:g}" for each in watts)
        )


def mail(table: Mail) -> Iterator[str]:
    """Yield a sentence for each contradiction in the table."""
    if table.host and not table.sender:
        yield "sender should be set: the address that mail comes from"
    if bool(table.user) != (table.password_file is not None):
        yield "user and password_file should be set both, or neither"
    if table.user and table.tls == "none":
        yield (
            'tls should be "starttls" or "tls" where there is a user: its password would travel'
            " readable"
        )
    if "" in table.admins:
        yield "admins should not hold an empty address"


def ldap(table: Ldap) -> Iterator[str]:
    """Yield a sentence for each contradiction in the table."""
    fields = [name for _, name, _, _ in string.Formatter().parse(table.filter) if name is not None]
    if not fields or set(fields) != {"name"}:
        yield "filter should hold {name}, and nothing else in braces"
    if table.url and not table.base:
        yield "base should be set: where people are looked for"
    if bool(table.user) != (table.password_file is not None):
        yield "user and password_file should be set both, or neither"
    if table.url and (table.tls == "tls") != table.url.startswith("ldaps://"):
        yield 'tls should be "tls" for ldaps://, and "starttls" or "none" for ldap://'


def ldap_group(table: LdapGroup) -> Iterator[str]:
    """Yield a sentence for each contradiction in the table."""
    if bool(table.group) == (table.role == "administrator"):
        yield "group should be set for owner, member and viewer, and left out for administrator"


def oidc(table: Oidc) -> Iterator[str]:
    """Yield a sentence for each contradiction in the table."""
    if table.issuer and not (table.client_id and table.secret_file):
        yield "client_id and secret_file should be set"


def switch(table: Switch) -> Iterator[str]:
    """Yield a sentence for each contradiction in the table."""
    if (table.driver == "netmiko") != bool(table.platform):
        yield "platform should be set for the driver netmiko, and for it alone"
    if table.platform and table.platform not in SWITCH_PLATFORMS:
        yield f"platform should be one of {', '.join(SWITCH_PLATFORMS)}, not {table.platform!r}"
    if table.driver != "ovs" and table.account is None:
        yield f"account should be set: the driver {table.driver} signs in"
    if table.address.startswith("ssl:") and not (table.ca_file and table.certificate and table.key):
        yield "ca_file, certificate and key should be set for an address that begins with ssl:"


def fileserver(table: FileServer) -> Iterator[str]:
    """Yield a sentence for each contradiction in the table."""
    if table.ssh and (table.ssh_key is None or table.known_hosts is None):
        yield "ssh_key and known_hosts should be set where ssh is"


def kerberos(table: KerberosRules) -> Iterator[str]:
    """Yield a sentence for each contradiction in the table."""
    others = ("kdcs", "admin_server", "keytab_command", "idmap_domain")
    if not table.realm and (given := [each for each in others if getattr(table, each)]):
        yield f"realm should be set where {given[0]} is"


def accounts(table: PosixRules) -> Iterator[str]:
    """Yield a sentence for each contradiction in the table."""
    for kind in ("uid", "gid"):
        if getattr(table, f"first_{kind}") > getattr(table, f"last_{kind}"):
            yield f"first_{kind} should not be above last_{kind}"
    if table.first_uid <= table.last_gid and table.first_gid <= table.last_uid:
        yield (
            "the ranges of uids and gids should not overlap: users' own primary groups have the"
            " uids' numbers"
        )
    if table.port and table.port == table.tls_port:
        yield "port and tls_port should differ"


def isolation(table: Isolation) -> Iterator[str]:
    """Yield a sentence for each contradiction in the table."""
    first, last = table.vlans
    if last < first:
        yield f"vlans should name the first VLAN before the last, not {first} before {last}"
    networks = ip_network(table.networks)
    if networks.prefixlen > table.largest_size:
        yield (
            f"networks {table.networks} should hold a /{table.largest_size}, or largest_size be a"
            " smaller subnet"
        )
    if table.largest_size > table.default_size:
        yield (
            f"default_size /{table.default_size} should not be larger than largest_size"
            f" /{table.largest_size}"
        )
    if (table.interface is None) == (table.server is None):
        yield "either interface or server should be set: how does the server reach the VLANs?"
    if table.server is not None and table.router == "none":
        yield "router should be first or last: behind a relay, the server is reached through it"
    if table.server is not None and ip_address(table.server) in networks:
        yield (
            f"server {table.server} should not be in networks {table.networks}, which vclusters get"
        )


def subnet(table: Subnet) -> Iterator[str]:
    """Yield a sentence for each contradiction in a subnet's table."""
    net, servers = IPv4Network(table.network), [IPv4Address(each) for each in table.servers]
    router = IPv4Address(table.router) if table.router else None
    boot_pool, block_pool = _pool(table.boot_pool), _pool(table.block_pool)
    on_it = [("router", router), *(("server", each) for each in servers if table.interface)]
    for key, address in on_it:
        if address is not None and address not in net:
            yield f"{key} {address} should be inside the network {net}"
    if len({*servers}) < len(servers):
        yield "server should name each address once"
    for key, (first, last) in (("boot_pool", boot_pool), ("block_pool", block_pool)):
        if last < first:
            yield f"{key} should name its first address before its last"
        elif first not in net or last not in net:
            yield f"{key} {first} - {last} should be inside the network {net}"
        elif any(own is not None and first <= own <= last for own in (*servers, router)):
            yield (
                f"{key} {first} - {last} should hold neither the server's nor the router's address"
            )
    if boot_pool[0] == net.network_address or boot_pool[1] == net.broadcast_address:
        yield "boot_pool should leave out the network's first and last address"
    if boot_pool[0] <= block_pool[1] and block_pool[0] <= boot_pool[1]:
        yield "boot_pool and block_pool should not overlap"
    if table.block_size & (table.block_size - 1):
        yield f"block_size should be a power of two, not {table.block_size}"
    elif int(block_pool[1]) - int(block_pool[0]) + 1 < table.block_size:
        yield "block_pool should hold at least one block of block_size addresses"
    if table.interface is None and table.relay is None:
        yield "interface or relay should be set: how do its packets reach this server?"
    for server in servers if table.interface is None else ():
        if server.is_unspecified or server.is_loopback or server.is_multicast or server.is_reserved:
            yield (
                f"server {server} should be an address of this server that the relay sends to:"
                " nothing listens for DHCP otherwise"
            )


def _pool(pool: tuple[str, str]) -> tuple[IPv4Address, IPv4Address]:
    return IPv4Address(pool[0]), IPv4Address(pool[1])
