"""Names of PCI devices, from the list of the distribution (Debian's package pci.ids), if it is
installed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

PLACES = (Path("/usr/share/misc/pci.ids"), Path("/usr/share/hwdata/pci.ids"))


@dataclass(frozen=True, slots=True)
class PciNames:
    """The list of names. Keys are lower-case hex digits: four of a vendor, eight of vendor and
    device, four of class and subclass, two of a class alone."""

    vendors: Mapping[str, str] = field(default_factory=dict)
    devices: Mapping[str, str] = field(default_factory=dict)
    classes: Mapping[str, str] = field(default_factory=dict)

    def of_class(self, class_: str) -> str:
        """Return the name of a class with its subclass; '' if the list lacks it."""
        return self.classes.get(class_) or self.classes.get(class_[:2], "")

    def of_device(self, vendor: str, device: str) -> str:
        """Return the names of vendor and device, as far as the list has them."""
        return " ".join(filter(None, (self.vendors.get(vendor), self.devices.get(vendor + device))))

    def short(self, vendor: str, device: str) -> str:
        """Return the device's name without its vendor's; '' if the list lacks it."""
        return self.devices.get(vendor + device, "")


def installed() -> PciNames:
    """Return the installed list; an empty one if none is installed. A list that was replaced is
    read again."""
    for path in PLACES:
        try:
            return read(path, path.stat().st_mtime_ns)
        except OSError:
            continue
    return PciNames()


@lru_cache(maxsize=1)
def read(path: Path, _changed: int) -> PciNames:
    """Return the list in a file. Raises OSError."""
    vendors: dict[str, str] = {}
    devices: dict[str, str] = {}
    classes: dict[str, str] = {}
    above, in_classes = "", False
    for line in path.read_text("utf-8", "replace").splitlines():
        # boards and programming interfaces are not looked up
        if not line.strip() or line.startswith(("#", "\t\t")):
            continue
        below = line.startswith("\t")
        if not below:
            in_classes = line.startswith("C ")
        number, _, name = line.removeprefix("C ").strip().partition("  ")
        if not below:
            above = number.lower()
        key = above + number.lower() if below else above
        (classes if in_classes else devices if below else vendors)[key] = name
    return PciNames(vendors, devices, classes)
