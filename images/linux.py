"""Whole-disk images that boot the distribution's kernel, on BIOS and UEFI alike: what they have in
common.

Three partitions: GRUB for BIOS; a FAT partition with GRUB for UEFI, kernel and ramdisk; and one for
the image's own use, its root file system as a rule. The first process in the ramdisk is
rootfs/init, which finds that one by its name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from stat import S_ISLNK

import zstandard

from images import disk, grub, ssh
from images.disk import MIB, ImagePartition
from trampoline.recipe import cpio, firmware, modules

PACKAGES = (
    "busybox-static",
    "grub-common",
    "grub-efi-amd64-bin",
    "grub-pc-bin",
    "libdevmapper1.02.1",
    *ssh.PACKAGES,
)
MODULES = ("vfat", "nls_cp437", "nls_ascii", "nls_utf8", "ext4", "crc32c_generic")
SYSTEM_MIB = 24
ROOTFS = Path(__file__).resolve().parent / "rootfs"


def write(
    path: Path,
    size: int,
    packages: Path,
    scratch: Path,
    *,
    ramdisk: bytes,
    last: ImagePartition,
    content: bytes,
    system_mib: int = SYSTEM_MIB,
) -> str:
    """Write an image of `size` MiB whose `last` partition holds `content`; the system partition's
    SHA-256."""
    name = path.stem
    parts = [
        ImagePartition(f"{name}-boot", 1, "bios"),
        ImagePartition(f"{name}-system", system_mib, "esp"),
        last,
    ]
    disk.create(path, size, "gpt", parts)
    boot_at, system_at, last_at = disk.starts(parts)
    boot, core = grub.bios(packages, scratch, boot_at * MIB // 512)
    if len(core) > MIB:
        raise RuntimeError("GRUB's core image does not fit its partition")
    system = disk.fat(
        scratch,
        "system",
        system_mib,
        {
            "EFI/BOOT/BOOTX64.EFI": grub.efi(packages, scratch),
            "vmlinuz": next((packages / "boot").glob("vmlinuz-*")).read_bytes(),
            "ramdisk": ramdisk,
        },
    )
    with open(path, "r+b") as file:
        file.write(boot)  # 440 bytes; what follows in the sector is the partition table
    disk.put(path, core, boot_at * MIB)
    disk.put(path, system, system_at * MIB)
    disk.put(path, content, last_at * MIB)
    return hashlib.sha256(system).hexdigest()


def ramdisk(
    packages: Path,
    files: Mapping[str, tuple[bytes, int]],
    flavour: str = "lab",
    blobs: Path | None = None,
    level: int = 19,
) -> bytes:
    """Return `files`, as `disk.write_tree` takes them, with the drivers of a flavour of the
    trampoline, and the firmware for them that the unpacked packages in `blobs` have;
    compressed at a `level` of zstd's."""
    entries = {
        path: cpio.link(content.decode()) if S_ISLNK(mode) else cpio.file(content, mode)
        for path, (content, mode) in files.items()
    }
    entries |= modules.tree(packages, flavour, MODULES)
    if blobs is not None:
        entries |= firmware.tree(blobs, modules.firmware(packages, flavour))
    if flavour == "generic":  # loading a driver takes until its disks are there
        entries["etc/modprobe.d/scsi.conf"] = cpio.file(b"options scsi_mod scan=sync\n")
    entries |= {"mnt": cpio.folder(), "data": cpio.folder()}
    return zstandard.ZstdCompressor(level).compress(cpio.archive(entries))
