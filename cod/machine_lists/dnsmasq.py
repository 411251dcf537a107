"""dnsmasq's `dhcp-host` lines, in its configuration or in a file for `dhcp-hostsfile`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from cod.machine_lists.entry import ListedMachine, NotTaken, label, text_of
from cod.model import mac_of

_ADDRESS = re.compile(r"\d+(\.\d+){3}|\[.*\]")
_LEASE = re.compile(r"\d+[smhdw]?|infinite")
_OPTION = re.compile(r"\s*([a-z0-9-]+)\s*=\s*(.*)")


def read(path: Path) -> Iterator[ListedMachine | NotTaken]:
    """Yield the machines of the lines."""
    for number, line in enumerate(text_of(path).splitlines(), 1):
        where, line = f"line {number}", line.split("#")[0].strip()
        option = _OPTION.fullmatch(line)
        if option is not None and option[1] != "dhcp-host":
            yield NotTaken(where, option[1], "it is no line of a host")
        elif line:
            yield from _host(where, option[2] if option else line)


def _host(where: str, text: str) -> Iterator[ListedMachine | NotTaken]:
    macs: list[str] = []
    name = ""
    for part in map(str.strip, text.split(",")):
        if mac := mac_of(part):
            macs.append(mac)
        elif _ADDRESS.fullmatch(part):
            yield NotTaken(where, "address", "COD gives nodes addresses of its own")
        elif _LEASE.fullmatch(part):
            yield NotTaken(where, "lease time", "COD's are in the site file")
        elif ":" in part or part == "ignore" or not part:
            yield NotTaken(where, part, "COD has no use for it")
        else:
            name = part
    yield ListedMachine(where, label(name), tuple(macs))
