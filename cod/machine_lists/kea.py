"""Kea's DHCPv4 reservations: kea-dhcp4.conf, which is JSON with comments; reservations at any
depth."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cod.machine_lists.entry import (
    ListedMachine,
    NotTaken,
    UnreadableList,
    ignored,
    label,
    mapping,
    taken_macs,
    text_of,
    word,
)

_STRING = r'"(?:\\.|[^"\\])*"'
_COMMENT = re.compile(rf"({_STRING})|//[^\n]*|#[^\n]*|/\*.*?\*/", re.DOTALL)
# Kea forgives a comma after the last element
_COMMA = re.compile(rf"({_STRING})|,(?=\s*[\]}}])", re.DOTALL)
# with a key before it, or a comma after it
_INCLUDE = re.compile(r'(:\s*)?<\?include\s+"([^"]*)"\s*\?>(\s*,)?')
_REASONS = {
    "ip-address": "COD gives nodes addresses of its own",
    "next-server": "COD tells nodes what they boot",
    "boot-file-name": "COD tells nodes what they boot",
    "server-hostname": "COD tells nodes what they boot",
    "option-data": "COD has no use for it",
    "client-classes": "COD has no use for it",
}
_WITHIN = ("Dhcp4", "subnet4", "shared-networks")


def read(path: Path) -> Iterator[ListedMachine | NotTaken]:
    """Yield the machines of the reservations."""
    text = _COMMENT.sub(_string, text_of(path))
    for _, file, _ in _INCLUDE.findall(text):
        yield NotTaken("the file", f"include {file}", "included files are not read: name each")
    text = _INCLUDE.sub(lambda found: f"{found[1]}null{found[3] or ''}" if found[1] else " ", text)
    try:
        content = json.loads(_COMMA.sub(_string, text))
    except (ValueError, RecursionError) as error:
        raise UnreadableList(f"{path} is no configuration of Kea: {error}") from None
    # the file of a part that Kea includes may be the list alone
    part = {"reservations": content} if isinstance(content, list) else mapping(content)
    yield from _part("reservation", part)


def _string(found: re.Match[str]) -> str:
    """Return a matched string unchanged, and a space for any other match."""
    return found[1] or " "


def _part(where: str, part: Mapping[str, Any]) -> Iterator[ListedMachine | NotTaken]:
    reservations = part.get("reservations")
    for number, each in enumerate(reservations if isinstance(reservations, list) else [], 1):
        yield from _reservation(f"{where} {number}", mapping(each))
    for inner in (part[key] for key in _WITHIN if key in part):
        for each in inner if isinstance(inner, list) else [inner]:
            name = word(mapping(each).get("subnet"))
            yield from _part(f"{name}, reservation" if name else where, mapping(each))


def _reservation(where: str, entry: Mapping[str, Any]) -> Iterator[ListedMachine | NotTaken]:
    yield from ignored(where, (key for key, value in entry.items() if value), _REASONS)
    if "hw-address" not in entry:
        key = next(iter(entry), "reservation")
        yield NotTaken(where, key, "a reservation without hw-address names no card")
        return
    macs, faults = taken_macs(where, [word(entry["hw-address"])])
    yield from faults
    yield ListedMachine(where, label(word(entry.get("hostname"))), tuple(macs))
