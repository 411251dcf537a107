"""GRUB for both firmwares, made by grub-mkimage out of the unpacked packages and put in place by
hand.

grub-install wants a mounted file system and a disk; what it does to the first sectors is little,
and is done here.
"""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

SYSTEM = 2  # number of the partition that holds kernel and ramdisk
PREFIX = f"(,gpt{SYSTEM})/"
MODULES = ("part_gpt", "part_msdos", "fat", "linux", "boot")
CONFIGURATION = """set gfxpayload=text
linux /vmlinuz console=tty0 console=ttyS0,115200 quiet panic=10
initrd /ramdisk
boot
"""


def efi(
    packages: Path,
    scratch: Path,
    *,
    configuration: str = CONFIGURATION,
    modules: Sequence[str] = MODULES,
) -> bytes:
    """BOOTX64.EFI. It finds its files on the partition that it was loaded from, unless its
    `configuration` says otherwise."""
    return _make(packages, scratch, "x86_64-efi", modules, "/", configuration)


def bios(
    packages: Path,
    scratch: Path,
    first_sector: int,
    *,
    prefix: str = PREFIX,
    configuration: str = CONFIGURATION,
    modules: Sequence[str] = MODULES,
) -> tuple[bytes, bytes]:
    """(boot code of the MBR, 440 bytes; core image), for a core image that starts at sector
    `first_sector`."""
    core = bytearray(
        _make(packages, scratch, "i386-pc", ("biosdisk", *modules), prefix, configuration)
    )
    boot = bytearray((packages / "usr/lib/grub/i386-pc/boot.img").read_bytes()[:440])
    struct.pack_into("<Q", boot, 0x5C, first_sector)  # kernel_sector: where the core image starts
    # boot_drive_check: on a hard disk DL is right (nop, nop)
    struct.pack_into("<H", boot, 0x66, 0x9090)
    # The core image's own first sector ends in a list of blocks: (sector, count, segment) of the
    # rest of it.
    start, count = struct.unpack_from("<QH", core, 512 - 12)
    rest = -(-len(core) // 512) - 1
    if count != rest:
        raise RuntimeError(
            f"grub-mkimage made a block list that is not understood: {count} at {start}, not {rest}"
        )
    struct.pack_into("<Q", core, 512 - 12, first_sector + 1)
    return bytes(boot), bytes(core)


def _make(
    packages: Path, scratch: Path, target: str, modules: Sequence[str], prefix: str, text: str
) -> bytes:
    configuration, out = scratch / "grub.cfg", scratch / f"grub-{target}"
    configuration.write_text(text)
    argv = [
        str(packages / "usr/bin/grub-mkimage"),
        "-O",
        target,
        "-d",
        str(packages / "usr/lib/grub" / target),
        "-p",
        prefix,
        "-c",
        str(configuration),
        "-o",
        str(out),
        *modules,
    ]
    libraries = ":".join(
        str(packages / folder) for folder in ("lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu")
    )
    done = subprocess.run(
        argv,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"LD_LIBRARY_PATH": libraries},
    )
    if done.returncode:
        raise RuntimeError(f"grub-mkimage: {done.stderr.strip()}")
    return out.read_bytes()
