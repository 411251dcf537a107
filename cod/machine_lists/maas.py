"""MAAS's machines, as `maas PROFILE machines read` prints them. That list has no BMCs. They are
read if a machine has `power_parameters`, which `maas PROFILE machines power-parameters` prints by
system id."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cod.machine_lists.entry import (
    ListedMachine,
    NotTaken,
    ignored,
    json_of,
    label,
    mapping,
    tags_of,
    taken_macs,
    word,
    words,
)

_REASONS = {
    "distro_series": "COD's templates say what nodes run",
    "pool": "COD's nodes have no pools: requests match them by type and block",
}
_DRIVERS = {"ipmi": "ipmi", "redfish": "redfish"}


def read(path: Path) -> Iterator[ListedMachine | NotTaken]:
    """Yield the machines of the list."""
    content = json_of(path)
    for machine in map(mapping, content if isinstance(content, list) else [content]):
        name = word(machine.get("hostname"))
        where = f"machine {name or word(machine.get('system_id'))}"
        cards = machine.get("interface_set")
        first = word(mapping(machine.get("boot_interface")).get("mac_address"))
        texts = [first] + [
            word(mapping(card).get("mac_address"))
            for card in (cards if isinstance(cards, list) else [])
            if word(mapping(card).get("type")) in ("", "physical")
        ]
        macs, faults = taken_macs(where, filter(None, texts))
        yield from faults
        yield from ignored(where, (key for key, value in machine.items() if value), _REASONS)
        kind = word(machine.get("power_type"))
        address = word(mapping(machine.get("power_parameters")).get("power_address"))
        driver = _DRIVERS.get(kind, "") if address else ""
        if kind and not driver:
            reason = "the list has no address of its BMC" if kind in _DRIVERS else "unknown to COD"
            yield NotTaken(where, f"power_type {kind}", reason)
        zone = word(mapping(machine.get("zone")).get("name"))
        yield ListedMachine(
            where,
            label(name),
            tuple(macs),
            word(machine.get("hardware_uuid")),
            word(mapping(machine.get("hardware_info")).get("system_serial")),
            "" if zone == "default" else label(zone),
            driver,
            address if driver else "",
            tags=tags_of(words(machine.get("tag_names"))),
        )
