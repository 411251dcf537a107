"""ISC dhcpd's configuration: its `host` declarations, at any depth."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from cod.machine_lists.entry import ListedMachine, NotTaken, label, taken_macs, text_of

_TOKEN = re.compile(r'#[^\n]*|"(?:[^"\\]|\\.)*"|[{};]|[^\s{};"#]+|\n')
_REASONS = {
    "fixed-address": "COD gives nodes addresses of its own",
    "filename": "COD tells nodes what they boot",
    "next-server": "COD tells nodes what they boot",
    "include": "included files are not read: name each",
}


@dataclass(slots=True)
class _Host:
    """A `host` declaration that is being read. `depth` is that of the braces around its body."""

    where: str
    name: str
    depth: int
    macs: list[str] = field(default_factory=list)


def read(path: Path) -> Iterator[ListedMachine | NotTaken]:
    """Yield the machines of the `host` declarations."""
    host: _Host | None = None
    depth = 0
    for where, words, end in _statements(text_of(path)):
        if end == "{":
            depth += 1
            if words[:1] == ["host"] and host is None:
                host = _Host(where, " ".join(words[1:2]), depth)
        elif host is not None and words[:2] == ["hardware", "ethernet"]:
            found, faults = taken_macs(where, words[2:])
            host.macs += found
            yield from faults
        elif host is not None and words[:2] == ["option", "host-name"]:
            host.name = " ".join(words[2:]).strip('"') or host.name
        elif words and (host is not None or words[0] == "include"):
            key = " ".join(words[:2]) if words[0] == "option" else words[0]
            yield NotTaken(where, key, _REASONS.get(key, "COD has no use for it"))
        if end == "}":
            if host is not None and depth == host.depth:
                yield ListedMachine(host.where, label(host.name), tuple(host.macs))
                host = None
            depth -= 1
    if depth:
        yield NotTaken("the end", "braces", "they do not match: the last declarations are not read")


def _statements(text: str) -> Iterator[tuple[str, list[str], str]]:
    """Yield (place, words, end) for each statement of the configuration. The place is 'line 7', and
    the end is ';', '{' or '}'."""
    words: list[str] = []
    line = began = 1
    for found in _TOKEN.finditer(text):
        token = found[0]
        if token == "\n":
            line += 1
        elif token in ("{", "}", ";"):
            yield f"line {began if words else line}", words, token
            words = []
        elif not token.startswith("#"):
            began = began if words else line
            words.append(token)
