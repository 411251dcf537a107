"""Foreman's hosts, in the form of its REST API at /api/hosts/NAME or of `hammer --output json host
info`: one host, a list of hosts, or a page of results. The list at /api/hosts has no interfaces,
and so gives only the boot MAC."""

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

_REASONS = {
    "hostgroup_name": "COD's templates say what nodes run",
    "operatingsystem_name": "COD's templates say what nodes run",
    "ptable_name": "COD's templates say what nodes run",
    "parameters": "COD's templates say what nodes run",
    "location_name": "a location is no rack: name a block in a CSV file",
    "owner_name": "COD's groups hold virtual clusters, not machines",
    "ip": "COD gives nodes addresses of its own",
}
_DRIVERS = {"ipmi": "ipmi", "redfish": "redfish"}


def read(path: Path) -> Iterator[ListedMachine | NotTaken]:
    """Yield the machines of the hosts."""
    content = json_of(path)
    found = mapping(content).get("results", content)
    for host in map(mapping, found if isinstance(found, list) else [found]):
        yield from _host(host)


def _host(host: Mapping[str, Any]) -> Iterator[ListedMachine | NotTaken]:
    name = word(host.get("name"))
    where = f"host {name or word(host.get('id'))}"
    listed = host.get("interfaces")
    cards = [mapping(each) for each in (listed if isinstance(listed, list) else [])]
    real = [card for card in cards if word(card.get("type")) in ("", "interface")]
    real = [card for card in real if card.get("virtual") is not True]
    # the card that Foreman installs by is the one that boots
    real.sort(key=lambda card: card.get("provision") is not True)
    texts = [word(card.get("mac")) for card in real] or [word(host.get("mac"))]
    macs, faults = taken_macs(where, filter(None, texts))
    yield from faults
    yield from ignored(where, (key for key, value in host.items() if value), _REASONS)
    driver = address = ""
    for card in cards:
        if word(card.get("type")) == "bmc":
            provider, address = word(card.get("provider")), word(card.get("ip"))
            driver = _DRIVERS.get(provider.lower(), "") if address else ""
            if not driver:
                yield NotTaken(where, f"BMC {provider}", "COD has no driver for it, or no address")
    yield ListedMachine(
        where,
        label(name),
        tuple(macs),
        word(host.get("uuid")),
        driver=driver,
        address=address if driver else "",
    )
