"""The attributes of a node: every path of the hardware report (schema/report.rng), and the kind of
its value.

A path names elements from the report's root down, and last an XML attribute: memory/mib,
disk/partition/size. The kind of an element that contains others is PARTS. An element whose text is
its value (cpu/flag) has a kind like an attribute. The kind of a number is its unit, or NUMBER if it
has none.
"""

from __future__ import annotations

from collections.abc import Mapping

PARTS = "parts"
TEXT = "text"
VERSION = "version"
NUMBER = "number"
MIB = "MiB"
MHZ = "MHz"
RATE = "Mb/s"
BYTES = "B"

ATTRIBUTES: Mapping[str, str] = {
    "version": NUMBER,
    "system": PARTS,
    "system/uuid": TEXT,
    "system/vendor": TEXT,
    "system/product": TEXT,
    "system/serial": TEXT,
    "system/board": TEXT,
    "firmware": PARTS,
    "firmware/kind": TEXT,
    "firmware/version": VERSION,
    "memory": PARTS,
    "memory/mib": MIB,
    "cpu": PARTS,
    "cpu/count": NUMBER,
    "cpu/sockets": NUMBER,
    "cpu/arch": TEXT,
    "cpu/model": TEXT,
    "cpu/mhz": MHZ,
    "cpu/flag": TEXT,
    "nic": PARTS,
    "nic/name": TEXT,
    "nic/mac": TEXT,
    "nic/link": TEXT,
    "nic/boot": TEXT,
    "nic/driver": TEXT,
    "nic/speed": RATE,
    "nic/neighbour": PARTS,
    "nic/neighbour/switch": TEXT,
    "nic/neighbour/port": TEXT,
    "disk": PARTS,
    "disk/name": TEXT,
    "disk/size": BYTES,
    "disk/transport": TEXT,
    "disk/local": TEXT,
    "disk/keep": TEXT,
    "disk/rotational": TEXT,
    "disk/removable": TEXT,
    "disk/model": TEXT,
    "disk/serial": TEXT,
    "disk/wwid": TEXT,
    "disk/sector": BYTES,
    "disk/bootable": TEXT,
    "disk/paths": NUMBER,
    "disk/partition": PARTS,
    "disk/partition/number": NUMBER,
    "disk/partition/start": BYTES,
    "disk/partition/size": BYTES,
    "disk/partition/name": TEXT,
    "pci": PARTS,
    "pci/slot": TEXT,
    "pci/class": TEXT,
    "pci/vendor": TEXT,
    "pci/device": TEXT,
    "pci/subvendor": TEXT,
    "pci/subdevice": TEXT,
    "pci/driver": TEXT,
    "gpu": PARTS,
    "gpu/count": NUMBER,
    "bmc": PARTS,
    "bmc/by": TEXT,
    "bmc/address": TEXT,
    "bmc/mac": TEXT,
    "kernel": PARTS,
    "kernel/release": VERSION,
}

# a report may have more than one of these
SEVERAL = frozenset({"cpu/flag", "nic", "disk", "disk/partition", "pci", "bmc"})

# Values that reports leave out because nearly every machine has them: requirements are compared as
# if the reports had them.
LEFT_OUT: Mapping[str, Mapping[str, str]] = {
    "disk": {"sector": "512", "bootable": "yes", "paths": "1"}
}

# Attributes that differ between machines of one type, or from boot to boot: types never depend on
# them, whatever the site configures.
PARTICULAR = frozenset(
    {
        "version",
        "kernel",
        "system/uuid",
        "system/serial",
        "system/board",
        "nic/name",
        "nic/mac",
        "nic/link",
        "nic/boot",
        "nic/neighbour",
        "disk/name",
        "disk/serial",
        "disk/wwid",
        "disk/partition",
        "pci/slot",
        "pci/driver",
        "bmc",
    }
)


# Elements that older trampolines did not report: their first appearance in a report is no change of
# the machine.
REPORTED_LATER = ("pci", "gpu")


def kind(path: str) -> str | None:
    """Return the kind of the value at `path`; None if reports have no such path."""
    return ATTRIBUTES.get(path)


def parts(path: str) -> list[str]:
    """Return the names that a report can have right below `path` ('' for its root)."""
    prefix = f"{path}/" if path else ""
    return [
        each[len(prefix) :]
        for each in ATTRIBUTES
        if each.startswith(prefix) and "/" not in each[len(prefix) :]
    ]


def is_below(path: str, paths: frozenset[str]) -> bool:
    """Return whether `path` is one of `paths`, or below one."""
    return any(path == each or path.startswith(each + "/") for each in paths)
