"""Firmware files that drivers load into their hardware, from the distribution's packages.

A driver's module names the files that it may load (`modules.firmware`). Most are not free software:
Debian has them in the component `non-free-firmware`, which a site enables or not. They are fetched
where the ramdisk is built, and are never shipped with COD.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from trampoline.recipe import cpio, packages

COMPONENT = "non-free-firmware"
PACKAGES = (
    "firmware-linux-free",
    "firmware-bnx2",
    "firmware-bnx2x",
    "firmware-cavium",
    "firmware-misc-nonfree",
    "firmware-myricom",
    "firmware-netronome",
    "firmware-netxen",
    "firmware-qlogic",
    "firmware-realtek",
)
# Drivers whose files no package of Debian 12 has, so that their hardware does not work.
UNPACKAGED = {
    "acenic": "Alteon AceNIC, gigabit cards of the 1990s",
    "aic94xx": "Adaptec SAS controllers AIC-9405 and AIC-9410",
    "cassini": "Sun Cassini cards; only those with a Saturn PHY ask for it",
    "mscc": "PHYs VSC8574 and VSC8584, on embedded boards",
    "nfp": "Netronome cards AMDA0058, and one port layout of AMDA0099; the others are here",
    "smc91c92_cs": "Ositech's PC cards for notebooks",
    "starfire": "Adaptec DuraLAN cards, 100 Mb/s",
    "wd719x": "Western Digital's SCSI controllers of the 1990s",
}


def available() -> list[str]:
    """Return those of PACKAGES that apt knows here. Reads apt's lists only."""
    known = set(packages.run("apt-cache", "pkgnames", "firmware-").split())
    return [name for name in PACKAGES if name in known]


def tree(root: Path, needs: Mapping[str, Sequence[str]]) -> dict[str, cpio.Entry]:
    """Return the ramdisk's `lib/firmware`: those of the files named in `needs` that the packages
    unpacked in `root` have."""
    files = {file: root / "lib/firmware" / file for named in needs.values() for file in named}
    return {
        f"lib/firmware/{file}": cpio.file(path.read_bytes())
        for file, path in files.items()
        if path.is_file()
    }


def lacking(
    entries: Mapping[str, cpio.Entry], needs: Mapping[str, Sequence[str]]
) -> dict[str, list[str]]:
    """Return the files that drivers name and the ramdisk does not have, by driver."""
    found = {
        driver: [file for file in files if f"lib/firmware/{file}" not in entries]
        for driver, files in needs.items()
    }
    return {driver: files for driver, files in found.items() if files}


def note(missing: Mapping[str, Sequence[str]]) -> tuple[str, str]:
    """Return a sentence for people about missing firmware, and the remedy; '' if there is none."""
    rest = sorted(set(missing) - set(UNPACKAGED))
    absent = sorted(set(PACKAGES) - set(available()))
    if rest:
        return (
            f"no firmware for the drivers {', '.join(rest)}: apt does not know {', '.join(absent)}",
            (
                f"add the component {COMPONENT} to Debian's entry in /etc/apt, run apt-get update,"
                " and build again"
            ),
        )
    return (
        (
            f"firmware for all drivers but {', '.join(sorted(missing))}, whose files Debian does"
            " not have"
        ),
        "",
    )
