"""Entries of a list of machines, and the conversion of their texts into COD's values."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from cod.model import KnownMachine, mac_of


class UnreadableList(Exception):
    """A file that is not in the expected format; the text is for people."""


@dataclass(frozen=True, slots=True)
class ListedMachine:
    """A machine of a list. '' and (): the list does not say.

    where     the place in the list: 'line 7'
    macs      in COD's spelling; the first is that of the card that the machine boots from
    block     a DNS label made from the rack's name
    driver    the power driver: 'ipmi' or 'redfish'
    address   the address of its BMC
    account   the BMC's account in the site file
    position  the place in its rack
    tags      in lower case, made of letters, digits and . _ -
    """

    where: str
    name: str
    macs: tuple[str, ...] = ()
    uuid: str = ""
    serial: str = ""
    block: str = ""
    driver: str = ""
    address: str = ""
    account: str = ""
    position: str = ""
    tags: tuple[str, ...] = ()

    def known(self, account: str = "") -> KnownMachine:
        """Return the machine in the form that COD takes. If the list has a BMC without an account,
        `account` is used."""
        return KnownMachine(
            self.name,
            self.macs,
            self.uuid or None,
            self.serial or None,
            self.block or None,
            self.driver or None,
            self.address or None,
            self.account or (account if self.address else "") or None,
            self.position or None,
            self.tags or None,
        )


@dataclass(frozen=True, slots=True)
class NotTaken:
    """A fact of a list that is not taken over. `what` names the fact, such as by its key; `reason`
    is a sentence without its full stop."""

    where: str
    what: str
    reason: str


def label(text: str) -> str:
    """Return the host part of a name as a DNS label: 'R1_07.example.org' is 'r1-07'."""
    host = text.strip().lower().split(".")[0]
    return re.sub("[^a-z0-9]+", "-", host).strip("-")[:63]


def position_of(text: str) -> str:
    """Return a place in a rack in COD's spelling: 'U17' and NetBox's '17.0' become '17'."""
    text = text.strip()
    unit = re.fullmatch(r"[Uu]?([0-9]+)(\.0)?", text)
    return unit[1] if unit else text


def tags_of(texts: Iterable[str]) -> tuple[str, ...]:
    """Return tags made from texts: 'Rack A' becomes 'rack-a'."""
    words = (re.sub("[^a-z0-9._-]+", "-", text.lower()).strip("._-")[:32] for text in texts)
    return tuple(dict.fromkeys(word.rstrip("._-") for word in words if word))


def taken_macs(where: str, texts: Iterable[str]) -> tuple[list[str], list[NotTaken]]:
    """Return the MACs in `texts`, and the texts that are no MACs."""
    macs: list[str] = []
    faults: list[NotTaken] = []
    for text in texts:
        mac = mac_of(text)
        if mac is None:
            faults.append(NotTaken(where, text, "it is no MAC address"))
        elif mac not in macs:
            macs.append(mac)
    return macs, faults


def ignored(where: str, keys: Iterable[str], reasons: Mapping[str, str]) -> list[NotTaken]:
    """Return a `NotTaken` for each of `keys` that has one of the `reasons`."""
    return [NotTaken(where, key, reasons[key]) for key in keys if key in reasons]


def text_of(path: Path) -> str:
    """Return a file's text; '-' is standard input. Raises `UnreadableList` if it is not UTF-8, or
    cannot be read."""
    try:
        data = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
        return data.decode("utf-8-sig")
    except OSError as error:
        raise UnreadableList(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UnreadableList(f"{path}: is not UTF-8") from None


def rows_of(path: Path, delimiters: str = ",") -> list[tuple[str, list[str]]]:
    """Return the rows of a table in a file, as `rows_in`."""
    return rows_in(text_of(path), delimiters, f"{path}, ")


def rows_in(text: str, delimiters: str = ",", file: str = "") -> list[tuple[str, list[str]]]:
    """Return (place, row) for each row of a table. The place is the line where the row ends: 'line
    7'. The delimiter is the one that is most frequent in the headings. Errors begin with `file`.
    Raises `UnreadableList`."""
    heading = text.lstrip().split("\n", 1)[0]
    rows = csv.reader(StringIO(text), delimiter=max(delimiters, key=heading.count))
    try:
        return [(f"line {rows.line_num}", row) for row in rows]
    except csv.Error as error:
        raise UnreadableList(f"{file}line {rows.line_num}, is no table: {error}") from None


def json_of(path: Path) -> Any:
    """Return the value in a JSON file. Raises `UnreadableList`."""
    try:
        return json.loads(text_of(path))
    except (ValueError, RecursionError) as error:
        raise UnreadableList(f"{path} is no JSON: {error}") from None


def mapping(value: Any) -> Mapping[str, Any]:
    """Return the value if it is a mapping, else an empty mapping."""
    return value if isinstance(value, Mapping) else {}


def words(value: Any) -> list[str]:
    """Return the texts of a list; [] if the value is no list."""
    return list(filter(None, map(word, value))) if isinstance(value, list) else []


def word(value: Any) -> str:
    """Return a text or a number as a text; '' for any other value."""
    return str(value).strip() if isinstance(value, str | int | float) else ""
