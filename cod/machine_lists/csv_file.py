"""A spreadsheet's table: a line of headings, then a line for each machine, with commas, semicolons
or tabs between cells."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

from cod.machine_lists.entry import (
    ListedMachine,
    NotTaken,
    label,
    position_of,
    rows_in,
    rows_of,
    tags_of,
    taken_macs,
)

COLUMNS = {
    "name": ("name", "host", "hostname", "node"),
    "macs": ("mac", "macs", "mac address", "mac_address"),
    "uuid": ("uuid",),
    "serial": ("serial", "serial number", "serial_number", "asset"),
    "block": ("block",),
    "rack": ("rack",),
    "address": ("bmc", "bmc address", "bmc_address", "power_address", "ipmi"),
    "driver": ("driver", "power_driver"),
    "account": ("account", "power_account"),
    "position": ("position", "unit", "u"),
    "tags": ("tags", "tag"),
}
"""What a column is, by its headings in lower case."""

NOT_TAKEN = {
    "bmc user": "accounts are in the site file: name one with --account",
}


_DELIMITERS = "\t;,"
_WRITTEN = (
    *("name", "mac", "uuid", "serial", "block", "position", "tags"),
    *("driver", "bmc", "account"),
)
_PLAIN = "'"
"""Spreadsheets take what follows as text, and `read` takes one of it away."""
_MARKED = ("=", "+", "-", "@", "\t", "\r", _PLAIN)
"""With these a cell begins that spreadsheets would compute, or that would not be read as it was."""


def read(path: Path) -> Iterator[ListedMachine | NotTaken]:
    """Yield the machines of a file with a table. Raises `UnreadableList`."""
    return _machines(rows_of(path, _DELIMITERS))


def read_text(text: str) -> Iterator[ListedMachine | NotTaken]:
    """Yield the machines of a table. Raises `UnreadableList`."""
    return _machines(rows_in(text, _DELIMITERS))


def written(machines: Iterable[Any]) -> str:
    """Return a table that `read` reads. The `machines` have the attributes of a `KnownMachine`."""
    out = StringIO()
    lines = csv.writer(out, lineterminator="\r\n")  # RFC 4180
    lines.writerow(_WRITTEN)
    for one in machines:
        cells = (
            *(one.name, " ".join(one.macs), one.uuid, one.serial, one.block, one.position),
            *(" ".join(one.tags or ()), one.power_driver, one.power_address, one.power_account),
        )
        lines.writerow(
            f"{_PLAIN}{cell}" if cell and cell.startswith(_MARKED) else cell for cell in cells
        )
    return out.getvalue()


def _machines(table: list[tuple[str, list[str]]]) -> Iterator[ListedMachine | NotTaken]:
    rows = iter(table)
    headings = [cell.strip().lower() for cell in next(rows, ("", []))[1]]
    known = {each: column for column, every in COLUMNS.items() for each in every}
    for each in headings:
        if each and each not in known:
            reason = NOT_TAKEN.get(each.replace("_", " "), "no column of this name is known")
            yield NotTaken("line 1", each, reason)
    if "name" not in [known.get(each) for each in headings]:
        yield NotTaken("line 1", "headings", "one column has to be 'name'")
        return
    for where, row in rows:
        fields = {
            known[each]: cell.strip().removeprefix(_PLAIN)
            for each, cell in zip(headings, row, strict=False)
            if each in known and cell.strip()
        }
        if not fields:
            continue
        if not label(fields.get("name", "")):
            cells = ", ".join(cell.strip() for cell in row if cell.strip())
            yield NotTaken(where, cells, "the machine has no name that can be a host name")
            continue
        if len(row) > len(headings):
            yield NotTaken(where, ", ".join(row[len(headings) :]), "the line has more cells")
        macs, faults = taken_macs(
            where, re.split(r"[\s,;|]+", fields["macs"]) if "macs" in fields else []
        )
        yield from faults
        yield ListedMachine(
            where,
            label(fields.get("name", "")),
            tuple(macs),
            fields.get("uuid", ""),
            fields.get("serial", ""),
            label(fields.get("block", fields.get("rack", ""))),
            fields.get("driver", "ipmi" if "address" in fields else ""),
            fields.get("address", ""),
            fields.get("account", ""),
            position_of(fields.get("position", "")),
            tags_of(re.split(r"[\s,;|]+", fields.get("tags", ""))),
        )
