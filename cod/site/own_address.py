"""This host's address among the addresses of a subnet's servers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from cod.model import Isolation, Site, Subnet
from cod.site.load import ConfigError


def lists_several(site: Site) -> bool:
    """Return whether a subnet of the site has several servers."""
    return any(subnet.others for subnet in site.subnets)


def on_host(site: Site, path: Path, here: Collection[str]) -> Site:
    """Return the site for a host with the addresses `here`: where a subnet has several servers, the
    host's own address is `Subnet.server`.

    Where a site has several servers, each of them must have an address in every subnet. Raises
    `ConfigError`, about the file `path`, where the host lacks one.
    """
    problems = [
        f"subnet.{number}.server: {lacking(subnet, here)}"
        for number, subnet in enumerate(site.subnets)
        if lists_several(site) and own(subnet, here) is None
    ]
    rules = site.isolation
    if rules is not None and rules.others and own(rules, here) is None:
        problems.append(f"isolation.server: {lacking(rules, here)}")
    if problems:
        raise ConfigError(path, problems)
    return own_first(site, here)


def own_first(site: Site, here: Collection[str]) -> Site:
    """Return the site with this host's own address as `server` of its subnets, and of the networks
    of isolated vclusters, where the host has such an address."""
    subnets = tuple(_own_first(subnet, here) for subnet in site.subnets)
    rules = site.isolation
    if rules is not None and rules.others:
        first = own(rules, here) or rules.servers[0]
        others = tuple(each for each in rules.servers if each != first)
        rules = replace(rules, server=first, others=others)
    elif rules is not None and rules.hosts:
        rules = replace(rules, place=rules.hosts.index(subnets[0].server))
    return replace(site, subnets=subnets, isolation=rules)


def own(table: Subnet | Isolation, here: Collection[str]) -> str | None:
    """Return the first server of the table whose address is among the addresses `here`; None: none
    is."""
    return next((each for each in table.servers if each in here), None)


def lacking(table: Subnet | Isolation, here: Collection[str]) -> str:
    """Return a sentence that says that this host has none of the addresses of the table's
    servers."""
    where = f" on {table.name}" if isinstance(table, Subnet) else ""
    return (
        f"none of {', '.join(table.servers)} is an address of this host, which has"
        f" {', '.join(sorted(here)) or 'none'}; list this host's address{where} too, in"
        " the site file of each server"
    )


def _own_first(subnet: Subnet, here: Collection[str]) -> Subnet:
    if not subnet.others:
        return subnet
    first = own(subnet, here) or subnet.server
    dns = subnet.dns
    if dns == subnet.servers:  # COD's own
        dns = (first, *(each for each in dns if each != first))
    others = tuple(each for each in subnet.servers if each != first)
    return replace(subnet, server=first, others=others, dns=dns)
