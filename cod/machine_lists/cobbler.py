"""Cobbler's systems: a JSON file, or the folder of them (collections/systems)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cod.machine_lists.entry import (
    ListedMachine,
    NotTaken,
    ignored,
    json_of,
    label,
    mapping,
    taken_macs,
    word,
)

_DRIVERS = {"ipmilan": "ipmi", "ipmilanplus": "ipmi", "ipmitool": "ipmi", "redfish": "redfish"}
_REASONS = {
    "profile": "COD's templates say what nodes run",
    "kernel_options": "COD's templates say what nodes run",
    "mgmt_classes": "they are names for configuration management, not words about the machine",
    "power_user": "accounts are in the site file: name one with --account",
    "power_pass": "accounts are in the site file: name one with --account",
}


def read(path: Path) -> Iterator[ListedMachine | NotTaken]:
    """Yield the machines of the systems."""
    for file in sorted(path.glob("*.json")) if path.is_dir() else [path]:
        content = json_of(file)
        for system in content if isinstance(content, list) else [content]:
            yield from _system(file.name, mapping(system))


def _system(file: str, system: Mapping[str, Any]) -> Iterator[ListedMachine | NotTaken]:
    name = word(system.get("name"))
    where = f"{file}, {name}"
    cards = [mapping(each) for each in mapping(system.get("interfaces")).values()]
    texts = [
        word(card.get("mac_address"))
        for card in cards
        if word(card.get("interface_type")) not in ("bond", "bridge", "bonded_bridge_slave")
    ]
    macs, faults = taken_macs(where, (text for text in texts if text not in ("", "random")))
    yield from faults
    yield from ignored(where, (key for key, value in system.items() if value), _REASONS)
    kind, address = word(system.get("power_type")), word(system.get("power_address"))
    driver = _DRIVERS.get(kind, "") if address else ""
    if address and not driver:
        yield NotTaken(where, f"power_type {kind}", "COD has no driver for it: set one by hand")
    yield ListedMachine(
        where, label(name), tuple(macs), driver=driver, address=address if driver else ""
    )
