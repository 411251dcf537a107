"""xCAT's nodes: the stanzas of `lsdef -t node -z` in a file, or the tables (mac.csv, ipmi.csv,
nodelist.csv, nodepos.csv, vpd.csv) that `tabdump -d` wrote into a folder."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from cod.machine_lists.entry import (
    ListedMachine,
    NotTaken,
    ignored,
    label,
    position_of,
    rows_of,
    tags_of,
    taken_macs,
    text_of,
)

_ACCOUNTS = "accounts are in the site file: name one with --account"
_REASONS = {
    "ip": "COD gives nodes addresses of its own",
    "bmcusername": _ACCOUNTS,
    "bmcpassword": _ACCOUNTS,
    "switch": "COD learns switch ports by LLDP and the switches themselves",
    "switchport": "COD learns switch ports by LLDP and the switches themselves",
    "provmethod": "COD's templates say what nodes run",
    "os": "COD's templates say what nodes run",
    "postscripts": "COD's templates say what nodes run",
}
_TABLES = {
    "mac": ("mac",),
    "ipmi": ("bmc", "username", "password"),
    "nodelist": ("groups",),
    "nodepos": ("rack", "u"),
    "vpd": ("serial", "uuid"),
}
"""Columns by table; `username` of ipmi is the stanza's `bmcusername`."""


def read(path: Path) -> Iterator[ListedMachine | NotTaken]:
    """Yield the machines of a file of stanzas, or of a folder of tables."""
    nodes: defaultdict[str, dict[str, str]] = defaultdict(dict)
    if path.is_dir():
        yield from _read_tables(path, nodes)
    else:
        _read_stanzas(text_of(path), nodes)
    for name, attributes in nodes.items():
        yield from _machine(name, attributes)


def _read_tables(folder: Path, nodes: defaultdict[str, dict[str, str]]) -> Iterator[NotTaken]:
    for table, columns in _TABLES.items():
        file = folder / f"{table}.csv"
        for where, row in _rows(file) if file.exists() else ():
            name = row.get("node", "")
            if table != "mac" and name not in nodes:
                reason = "mac.csv has no such node: it may be a group, or an expression"
                yield NotTaken(where, name, reason)
                continue
            attributes = nodes[name]
            for key in columns:
                if row.get(key):
                    own = f"bmc{key}" if key in ("username", "password") else key
                    attributes[own] = row[key]


def _read_stanzas(text: str, nodes: dict[str, dict[str, str]]) -> None:
    name = ""
    for line in text.splitlines():
        if line and not line[0].isspace() and line.rstrip().endswith(":"):
            name = line.strip().rstrip(":")
            nodes[name] = {}
        elif name and "=" in line:
            key, _, value = line.strip().partition("=")
            nodes[name][key] = value.strip()


def _machine(name: str, attributes: dict[str, str]) -> Iterator[ListedMachine | NotTaken]:
    where = f"node {name}"
    if "mac" not in attributes and attributes.get("objtype", "node") != "node":
        return
    # 'aa:…!host|bb:…!*NOIP*': the first boots, and what follows an exclamation mark is a name
    texts = [each.split("!")[0] for each in attributes.get("mac", "").split("|")]
    macs, faults = taken_macs(where, filter(None, texts))
    yield from faults
    yield from ignored(where, (key for key, value in attributes.items() if value), _REASONS)
    address = attributes.get("bmc", "")
    managed = attributes.get("mgt", "ipmi" if address else "")
    if managed and managed != "ipmi":
        yield NotTaken(where, f"mgt={managed}", "COD has no driver for it: set one by hand")
    yield ListedMachine(
        where,
        label(name),
        tuple(macs),
        attributes.get("uuid", ""),
        attributes.get("serial", ""),
        label(attributes.get("rack", "")),
        "ipmi" if address and managed == "ipmi" else "",
        address if managed == "ipmi" else "",
        position=position_of(attributes.get("u", "")),
        tags=tags_of(group for group in attributes.get("groups", "").split(",") if group != "all"),
    )


def _rows(file: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each row of a table's dump, whose first line is '#node,…', with its place."""
    rows = iter(rows_of(file))
    headings = [cell.lstrip("#") for cell in next(rows, ("", []))[1]]
    for where, row in rows:
        if row and not row[0].startswith("#"):
            found = dict(zip(headings, row, strict=False))
            yield f"{file.name}, {where}", found
