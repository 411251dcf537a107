"""PCI devices for the hardware report: /sys/bus/pci in, records out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# Classes (PCI Code and ID Assignment, two or four digits) of the many devices on boards that no
# request is about: memory controllers, communication controllers of the chipset (management
# engines), bridges, timers and interrupt controllers, SMBus, performance counters. Firmware
# settings show and hide them.
LEFT_OUT = ("0500", "0580", "0780", "06", "08", "0c05", "11")
MOST = 512  # devices of a report
# Vendors whose display controllers can compute. Those of BMCs (Matrox, ASPEED) and of virtual
# machines only display text.
_NVIDIA, _AMD, _INTEL = "10de", "1002", "8086"


@dataclass(frozen=True, slots=True)
class PciFunction:
    """A function of a PCI device. All ids are lower-case hex digits, four of each; '' where the
    device has none.

    slot    domain:bus:device.function
    class_  class and subclass
    driver  the kernel's driver in use, '' for none
    """

    slot: str
    class_: str
    vendor: str
    device: str
    subvendor: str = ""
    subdevice: str = ""
    driver: str = ""


def devices(root: Path) -> list[PciFunction]:
    """Return the PCI devices below `root`/sys by slot, without those of classes `LEFT_OUT` and
    virtual functions."""
    folder = root / "sys/bus/pci/devices"
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    known = (_device(path) for path in paths if not (path / "physfn").exists())
    found = [each for each in known if each is not None and not each.class_.startswith(LEFT_OUT)]
    return found[:MOST]


def gpus(found: Sequence[PciFunction]) -> int:
    """Return how many of the devices are graphics processors that can compute.

    These are display controllers (class 03) and processing accelerators (class 12) of NVIDIA and
    AMD, and Intel's display controllers on cards: the one built into Intel's processors is on the
    root bus.
    """
    return sum(
        (each.vendor in (_NVIDIA, _AMD) and each.class_[:2] in ("03", "12"))
        or (each.vendor == _INTEL and each.class_[:2] == "03" and each.slot.split(":")[1] != "00")
        for each in found
    )


def _device(path: Path) -> PciFunction | None:
    class_, vendor, device = (_hex(path / name) for name in ("class", "vendor", "device"))
    if not (class_ and vendor and device):
        return None
    subvendor, subdevice = (_hex(path / name) for name in ("subsystem_vendor", "subsystem_device"))
    if subvendor in ("0000", "ffff"):  # the device does not say whose board it is on
        subvendor = subdevice = ""
    driver = path / "driver"
    return PciFunction(
        path.name,
        class_,
        vendor,
        device,
        subvendor,
        subdevice,
        driver.resolve().name if driver.exists() else "",
    )


def _hex(path: Path) -> str:
    """Return the four most significant digits of an id: '0302' of 0x030200, '10de' of 0x10de."""
    try:
        found = re.fullmatch(r"0x([0-9a-f]{4})(?:[0-9a-f]{2})?", path.read_text().strip().lower())
    except (OSError, UnicodeDecodeError):
        return ""
    return found[1] if found else ""
