"""Lists of machines as other tools keep them, each read into the same entries; no I/O but files.

A reader is a generator of `ListedMachine`, what is known of a machine, and of `NotTaken`, what the
list says and COD has no use for or cannot read. It raises `entry.UnreadableList`. Which keys a tool
has is from its documentation; docs/importing has the table.
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
