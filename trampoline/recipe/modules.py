"""The kernel's modules in the ramdisk, and the lists that modprobe reads.

depmod is not used: each module's `.modinfo` section has the facts, and reading them here needs no
root and gives the same bytes everywhere.
"""

from __future__ import annotations

import lzma
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trampoline.recipe import cpio

# What QEMU machines of the lab are made of, and EFI variables (cprime sets the boot order).
LAB = (
    "8139cp",
    "8139too",
    "ahci",
    "ata_piix",
    "e1000",
    "e1000e",
    "efivarfs",
    "ehci_pci",
    "megaraid_sas",
    "nvme",
    "sd_mod",
    "uas",
    "uhci_hcd",
    "usb_storage",
    "virtio_blk",
    "virtio_net",
    "virtio_pci",
    "virtio_scsi",
    "vmxnet3",
    "xhci_pci",
)
FIRMWARE_DISKS = "edd"  # what a BIOS says of its disks, which no device asks for by an alias
# Folders of modules for any server: wired networks and their PHYs, disks, the buses that they are
# attached to, and counters of memory errors.
GENERIC = (
    "drivers/ata",
    "drivers/block",
    "drivers/edac",
    "drivers/hv",
    "drivers/message/fusion",
    "drivers/mmc",
    "drivers/net/ethernet",
    "drivers/net/hyperv",
    "drivers/net/mdio",
    "drivers/net/phy",
    "drivers/net/usb",
    "drivers/net/vmxnet3",
    "drivers/nvme/host",
    "drivers/pci/controller",
    "drivers/scsi",
    "drivers/usb/host",
    "drivers/usb/storage",
    "drivers/virtio",
)
GENERIC_EXTRA = (*LAB, "xen-netfront", "xen-blkfront", "mptsas", "usbcore", "vmd")


@dataclass(frozen=True, slots=True)
class Module:
    """A kernel module.

    path      path below the kernel's folder
    needs     modules that must be loaded before
    aliases   names of the devices and features that it serves
    firmware  files that it may load into its hardware
    """

    path: str
    needs: tuple[str, ...]
    aliases: tuple[str, ...]
    firmware: tuple[str, ...]


def tree(root: Path, flavour: str, extra: Sequence[str] = ()) -> dict[str, cpio.Entry]:
    """Return the ramdisk's `lib/modules` with the modules of a flavour and the modules `extra`,
    from the unpacked kernel package in `root`."""
    folder = _folder(root)
    chosen = _modules(folder, flavour, extra)
    place = f"lib/modules/{folder.name}"
    entries = dict[str, cpio.Entry]()
    for module in chosen.values():
        # as busybox reads xz: no check but CRC32, a dictionary that fits the largest module
        content = (folder / module.path).read_bytes()
        packed = lzma.compress(content, check=lzma.CHECK_CRC32, preset=6)
        entries[f"{place}/{module.path}.xz"] = cpio.file(packed)
    entries[f"{place}/modules.dep"] = cpio.file("".join(_dep_lines(chosen)).encode())
    aliases = (
        f"alias {alias} {name}\n" for name, module in chosen.items() for alias in module.aliases
    )
    entries[f"{place}/modules.alias"] = cpio.file("".join(aliases).encode())
    return entries


def firmware(root: Path, flavour: str) -> dict[str, tuple[str, ...]]:
    """Return the firmware files that a flavour's modules name, by module; modules without any are
    left out."""
    chosen = _modules(_folder(root), flavour, ())
    return {name: module.firmware for name, module in chosen.items() if module.firmware}


def _folder(root: Path) -> Path:
    return next((root / "lib/modules").iterdir())


def _modules(folder: Path, flavour: str, extra: Sequence[str]) -> dict[str, Module]:
    """Return a flavour's modules and those that they need, by name, sorted."""
    known = {_name(path.name): path for path in (folder / "kernel").rglob("*.ko")}
    names = [*_chosen(known, folder, flavour), *extra]
    chosen: dict[str, Module] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in chosen:
            chosen[name] = _read(known[name], folder)
            waiting += chosen[name].needs
    return dict(sorted(chosen.items()))


def _name(file: str) -> str:
    """Return the kernel's name of a module from its file's."""
    return file.removesuffix(".ko").replace("-", "_")


def _chosen(known: dict[str, Path], folder: Path, flavour: str) -> list[str]:
    if flavour == "lab":
        return list(LAB)
    roots = [f"{folder}/kernel/{part}/" for part in GENERIC]
    found = [
        name for name, path in known.items() if any(str(path).startswith(root) for root in roots)
    ]
    return [*found, *(extra for extra in map(_name, GENERIC_EXTRA) if extra in known)]


def _read(path: Path, folder: Path) -> Module:
    facts = [fact.partition("=") for fact in _modinfo(path.read_bytes())]
    needs = [
        name for key, _, value in facts if key == "depends" for name in value.split(",") if name
    ]
    aliases, files = (
        [value for key, _, value in facts if key == wanted] for wanted in ("alias", "firmware")
    )
    return Module(
        str(path.relative_to(folder)),
        tuple(map(_name, needs)),
        tuple(sorted(aliases)),
        tuple(sorted(set(files))),
    )


def _modinfo(elf: bytes) -> list[str]:
    """Return the 'key=value' texts of a module's .modinfo section (ELF64, little-endian)."""
    offset, size, count, names = struct.unpack_from("<Q10xHHH", elf, 0x28)
    headers = [
        struct.unpack_from("<II8x8xQQ", elf, offset + size * number) for number in range(count)
    ]
    strings = headers[names][2]
    for name, _, start, length in headers:
        if elf.startswith(b".modinfo\0", strings + name):
            return elf[start : start + length].decode("utf-8", "replace").split("\0")
    return []


def _dep_lines(chosen: dict[str, Module]) -> Iterator[str]:
    """Yield the lines of modules.dep: a module and all modules that it needs, nearest first, in the
    format of depmod."""
    for module in chosen.values():
        needs: list[str] = []
        waiting = list(module.needs)
        while waiting:
            name = waiting.pop(0)
            if name in needs:
                needs.remove(name)  # needed by a later one too: it must come behind that
            needs.append(name)
            waiting += chosen[name].needs
        yield (
            f"{module.path}.xz: {' '.join(f'{chosen[name].path}.xz' for name in needs)}".rstrip()
            + "\n"
        )
