"""Addresses of BMCs that machines report: proposals for administrators. Pure.

A report is only a machine's claim, and root on a node could have changed its BMC's address before.
So no address is used until an administrator accepts it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from ipaddress import IPv4Address
from xml.etree import ElementTree

from cod.model import ProposedBmc
from cod.policy.hardware import equal

_MOST = 4  # addresses of a machine: each is looked up among all nodes' power addresses


def proposed(report_xml: str | None) -> tuple[ProposedBmc, ...]:
    """Return the BMC addresses of a report that servers could reach, each once, at most `_MOST`."""
    found = equal.elements(report_xml, "bmc") if report_xml else []
    bmcs = (
        ProposedBmc(each["by"], each["address"], each.get("mac", ""))
        for each in found
        if _reachable(each["address"])
    )
    return tuple(dict.fromkeys(bmcs))[:_MOST]


def without(report_xml: str | None) -> str | None:
    """Return the report without the addresses of BMCs, for people who must not see them."""
    if report_xml is None or "<bmc" not in report_xml:
        return report_xml
    root = ElementTree.fromstring(report_xml)
    for each in root.findall("bmc"):
        root.remove(each)
    return ElementTree.tostring(root, encoding="unicode")


def _reachable(address: str) -> bool:
    """Return whether other hosts could reach an address: Redfish host interfaces have addresses
    that only their own machine reaches."""
    try:
        ip = IPv4Address(address)
    except ValueError:
        return False
    apart = ip.is_link_local or ip.is_loopback or ip.is_multicast
    return not (apart or ip.is_unspecified or ip.is_reserved)


def used(bmc: ProposedBmc, switched: Iterable[tuple[str, str | None]]) -> ProposedBmc:
    """Return `bmc` with the names of the nodes whose power address is this BMC. `switched`: (name,
    power address) of all nodes."""
    return replace(bmc, nodes=tuple(name for name, at in switched if at and is_at(at, bmc.address)))


def is_at(power_address: str, host: str) -> bool:
    """Return whether a power address is of the BMC at that host."""
    return re.search(rf"(?<![\w.]){re.escape(host)}(?![\w.])", power_address) is not None
