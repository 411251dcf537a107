"""Matching of a BMC's system with a node. Pure.

A BMC may report wrong identities, by mistake or on purpose. So a system is matched with a node only
if all its serial numbers, UUIDs and MACs that nodes have belong to this node, and no other system
has any of the node's. Otherwise all machines in question are named, and an administrator decides. A
serial number, UUID or MAC that several nodes have is ignored.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from cod.model import BmcSystem, KnownMachine
from cod.policy.hardware import bmcs, identity


class BmcOutcome(StrEnum):
    """Relation of a BMC's system to the site."""

    KNOWN = "known"  # COD switches the node there already
    NEW = "new"  # nothing switches the node
    ELSEWHERE = "elsewhere"  # the node is switched by another driver or address
    UNKNOWN = "unknown"  # no node fits
    DOUBT = "doubt"


@dataclass(frozen=True, slots=True)
class BmcMatch:
    """The match of one system. `node`: name of the node, '' if none is certain; `about`: by which
    identity it matches, or why it does not."""

    system: BmcSystem
    outcome: BmcOutcome
    node: str = ""
    about: str = ""


def match(systems: Sequence[BmcSystem], nodes: Iterable[KnownMachine]) -> list[BmcMatch]:
    """Return the match of each system, in their order."""
    machines = {node.name: node for node in nodes}
    owners: defaultdict[str, set[str]] = defaultdict(set)
    for node in machines.values():
        for mark in _marks([node.serial], [node.uuid], node.macs):
            owners[mark].add(node.name)
    fits: list[dict[str, str]] = []
    claims: defaultdict[str, list[BmcSystem]] = defaultdict(list)
    for system in systems:
        found: dict[str, str] = {}
        for mark in _marks(system.serials, system.uuids, system.macs):
            if len(owners[mark]) == 1:
                [name] = owners[mark]
                found.setdefault(name, mark)
        fits.append(found)
        for name in found:
            claims[name].append(system)
    return [
        _judged(system, found, machines, claims)
        for system, found in zip(systems, fits, strict=True)
    ]


def _judged(
    system: BmcSystem,
    found: dict[str, str],
    machines: dict[str, KnownMachine],
    claims: dict[str, list[BmcSystem]],
) -> BmcMatch:
    if not found:
        marks = _marks(system.serials, system.uuids, system.macs)
        return BmcMatch(system, BmcOutcome.UNKNOWN, "", "" if marks else "it tells no identity")
    why = ", ".join(f"{name} by {mark}" for name, mark in found.items())
    if len(found) > 1:
        return BmcMatch(system, BmcOutcome.DOUBT, "", f"fits several nodes: {why}")
    [(name, mark)] = found.items()
    others = [other.address for other in claims[name] if other is not system]
    if others:
        about = f"fits {why}, and so does the system at {', '.join(others)}"
        return BmcMatch(system, BmcOutcome.DOUBT, "", about)
    node = machines[name]
    address = node.power_address or ""
    if node.power_driver in (None, "", "none") or not address:
        return BmcMatch(system, BmcOutcome.NEW, name, f"by {mark}")
    same = bmcs.is_at(address, system.host) and _path(system.address) in ("", _path(address))
    if same and node.power_driver == system.driver:
        return BmcMatch(system, BmcOutcome.KNOWN, name, f"by {mark}")
    about = f"by {mark}; its power is at {node.power_driver} {address}"
    return BmcMatch(system, BmcOutcome.ELSEWHERE, name, about)


def _path(address: str) -> str:
    """Return which of a BMC's systems a power address names; '' if it names none."""
    return address.partition("/redfish/")[2].partition("?")[0]


def _marks(
    serials: Iterable[str | None], uuids: Iterable[str | None], macs: Iterable[str]
) -> list[str]:
    """Return a machine's serial numbers, UUIDs and MACs that can identify it, as phrases such as
    'UUID …'."""
    return [
        *(f"serial number {serial}" for each in serials if (serial := identity.serial_of(each))),
        *(f"UUID {uuid}" for uuid in uuids if identity.is_unique(uuid)),
        *(f"MAC {mac}" for mac in macs),
    ]
