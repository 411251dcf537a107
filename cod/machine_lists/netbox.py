"""NetBox's devices: the CSV of its list, or JSON in the form of its REST API at
/api/dcim/devices/."""

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
    position_of,
    rows_of,
    tags_of,
    taken_macs,
    text_of,
    word,
)

_REASONS = {
    "tenant": "COD's groups hold virtual clusters, not machines",
    "primary_ip": "COD gives nodes addresses of its own",
    "primary_ip4": "COD gives nodes addresses of its own",
}


def read(path: Path) -> Iterator[ListedMachine | NotTaken]:
    """Yield the machines of the devices."""
    if text_of(path).lstrip()[:1] in ("[", "{"):
        content = json_of(path)
        found = content if isinstance(content, list) else mapping(content).get("results", [])
        devices = [mapping(each) for each in (found if isinstance(found, list) else [])]
    else:
        (_, headings), *rows = rows_of(path) or [("", [])]
        keys = [_key(each) for each in headings]
        devices = [dict(zip(keys, row, strict=False)) for _, row in rows if row]
    for number, device in enumerate(devices, 1):
        yield from _device(f"device {number}", device)


def _device(where: str, device: Mapping[str, Any]) -> Iterator[ListedMachine | NotTaken]:
    cards = device.get("interfaces")
    texts = [
        word(mapping(card).get("mac_address"))
        for card in (cards if isinstance(cards, list) else [])
        if not mapping(card).get("mgmt_only")
    ]
    macs, faults = taken_macs(where, filter(None, [word(device.get("mac_address")), *texts]))
    yield from faults
    yield from ignored(where, (key for key, value in device.items() if value), _REASONS)
    address = _named(device.get("oob_ip"), "address").split("/")[0]
    yield ListedMachine(
        where,
        label(word(device.get("name"))),
        tuple(macs),
        serial=word(device.get("serial")),
        block=label(_named(device.get("rack"), "name")),
        driver="ipmi" if address else "",
        address=address,
        position=position_of(word(device.get("position"))),
        tags=tags_of(_tags(device.get("tags"))),
    )


def _key(heading: str) -> str:
    """Return the REST API's name for a heading of the list: 'Out-of-band IP' is 'oob_ip'."""
    name = heading.strip().lower().replace(" ", "_")
    return {"out-of-band_ip": "oob_ip", "serial_number": "serial"}.get(name, name)


def _tags(value: Any) -> list[str]:
    """Return the tags of a JSON value, which are objects or texts, or of a cell with commas between
    tags."""
    if isinstance(value, list):
        return [_named(each, "name") for each in value]
    return word(value).split(",")


def _named(value: Any, key: str) -> str:
    """Return a text, or the text of an object under `key`."""
    return word(mapping(value).get(key)) or word(value)
