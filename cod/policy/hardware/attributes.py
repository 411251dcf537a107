"""The attributes of a node: every path of the hardware report (schema/report.rng), and what stands
there.

A path names elements from the report's root down, and last an XML attribute: memory/mib,
disk/partition/size. An element that holds others is PARTS; an element whose text is its value
(cpu/flag) is TEXT as an attribute is. What counts something is NUMBER, or the unit in which it
counts.
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

# What a report leaves out because nearly every machine has it: requirements are compared as if it
# were there.
LEFT_OUT: Mapping[str, Mapping[str, str]] = {
    "disk": {"sector": "512", "bootable": "yes", "paths": "1"}
}

# What tells machines of one type apart, or differs from boot to boot: it never makes a type,
# whatever the site says.
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


# What trampolines of former versions did not report: that a report begins to tell it is no change
# of the machine.
REPORTED_LATER = ("pci", "gpu")


def kind(path: str) -> str | None:
    """Return what stands at `path`; None where a report has no such place."""
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
