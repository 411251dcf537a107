"""Lists of machines in other tools' formats, each read into the same entries. No I/O but files and
standard input.

A reader is the function `read` of a format's module, a generator. It yields a `ListedMachine` for
each machine, and a `NotTaken` for each fact of the list that COD has no use for or cannot read. It
raises `entry.UnreadableList`. A tool's keys are those in its documentation;
docs/howto/admin/importing.md has the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from pkgutil import resolve_name

from cod.machine_lists.entry import ListedMachine, NotTaken

Reader = Callable[[Path], Iterator[ListedMachine | NotTaken]]

FORMATS = {
    "csv": "csv_file",
    "dhcpd": "dhcpd",
    "kea": "kea",
    "dnsmasq": "dnsmasq",
    "ethers": "ethers",
    "warewulf": "warewulf",
    "xcat": "xcat",
    "cobbler": "cobbler",
    "maas": "maas",
    "foreman": "foreman",
    "netbox": "netbox",
}
"""The modules of the formats, which are loaded when they are needed: YAML is slow to load."""


def reader(format_: str) -> Reader:
    """Return the reader of a format."""
    read: Reader = resolve_name(f"cod.machine_lists.{FORMATS[format_]}:read")
    return read
