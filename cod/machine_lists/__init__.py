"""Lists of machines in other tools' formats, each read into the same entries. No I/O but files.

A reader is a generator. It yields a `ListedMachine` for each machine, and a `NotTaken` for each
fact of the list that COD has no use for or cannot read. It raises `entry.UnreadableList`. A tool's
keys are those in its documentation; docs/importing has the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from cod.machine_lists import (
    cobbler,
    csv_file,
    dhcpd,
    dnsmasq,
    ethers,
    foreman,
    kea,
    maas,
    netbox,
    warewulf,
    xcat,
)
from cod.machine_lists.entry import ListedMachine, NotTaken

READERS: dict[str, Callable[[Path], Iterator[ListedMachine | NotTaken]]] = {
    "csv": csv_file.read,
    "dhcpd": dhcpd.read,
    "kea": kea.read,
    "dnsmasq": dnsmasq.read,
    "ethers": ethers.read,
    "warewulf": warewulf.read,
    "xcat": xcat.read,
    "cobbler": cobbler.read,
    "maas": maas.read,
    "foreman": foreman.read,
    "netbox": netbox.read,
}
