"""Two small Linux images for BIOS and UEFI: the distribution's kernel, busybox, a web page that says who is speaking.

hello-a  runs from its ramdisk; user data on a FAT partition
hello-b  runs from an ext4 root partition; user data there

Both ask DHCP as any operating system does, read a NoCloud seed if there is one, answer HTTP on port 80 (`/` for people,
`/identity.json` for programs), and print one line beginning with ``hello:`` on the serial console. The digest that they
show is computed on the running machine over the whole system partition, and is the build's if every bit of it is.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import zstandard

from images import disk, grub
from images.disk import MIB, Part
from trampoline.recipe import cpio, modules

PACKAGES = ("busybox-static", "grub-common", "grub-efi-amd64-bin", "grub-pc-bin", "libdevmapper1.02.1")
EXTRA_MODULES = ("vfat", "nls_cp437", "nls_ascii", "nls_utf8", "ext4", "crc32c_generic")
SYSTEM_MIB = 24
ROOTFS = Path(__file__).resolve().parent / "rootfs"


@dataclass(frozen=True, slots=True)
class Hello:
    """What makes one of the images: `size` in MiB; `root` is 'ram' or 'disk'."""

    name: str
    version: str
    colour: str
    size: int
    root: str


HELLOS = {hello.name: hello for hello in (
    Hello("hello-a", "1", "teal", 512, "ram"),
    Hello("hello-b", "1", "darkorange", 768, "disk"),
)}


def make(hello: Hello, packages: Path, scratch: Path, path: Path) -> dict[str, object]:
    """Write the image to `path`; returns facts beyond its size: `digest` of the system partition."""
    last = Part(f"{hello.name}-data", 64, "data") if hello.root == "ram" else Part(f"{hello.name}-root", 256, "linux")
    parts = [Part(f"{hello.name}-boot", 1, "bios"), Part(f"{hello.name}-system", SYSTEM_MIB, "esp"), last]
    disk.create(path, hello.size, "gpt", parts)
    boot_at, system_at, last_at = disk.starts(parts)
    boot, core = grub.bios(packages, scratch, boot_at * MIB // 512)
    if len(core) > MIB:
        raise RuntimeError("GRUB's core image does not fit its partition")
    system = disk.fat(scratch, "system", SYSTEM_MIB, {
        "EFI/BOOT/BOOTX64.EFI": grub.efi(packages, scratch),
        "vmlinuz": next((packages / "boot").glob("vmlinuz-*")).read_bytes(),
        "ramdisk": _ramdisk(hello, packages),
    })
    _put_boot_code(path, boot)
    disk.put(path, core, boot_at * MIB)
    disk.put(path, system, system_at * MIB)
    disk.put(path, _last(hello, packages, scratch, last), last_at * MIB)
    return {"version": hello.version, "digest": hashlib.sha256(system).hexdigest()}


def _put_boot_code(path: Path, boot: bytes) -> None:
    """The first 440 bytes; what follows in the sector is the partition table."""
    with open(path, "r+b") as file:
        file.write(boot)


def _last(hello: Hello, packages: Path, scratch: Path, part: Part) -> bytes:
    if hello.root == "ram":
        return disk.fat(scratch / "data", "data", part.size, {"README": b"user data goes here\n"})
    mountpoints = {f"{folder}/.keep": (b"", 0o644) for folder in ("proc", "sys", "dev", "run", "tmp", "data", "sbin",
                                                                  "usr/bin", "usr/sbin")}
    return disk.ext4(scratch, part.name, part.size, _files(hello, packages) | mountpoints)


def _ramdisk(hello: Hello, packages: Path) -> bytes:
    entries = {path: cpio.file(content, mode) for path, (content, mode) in _files(hello, packages).items()}
    entries |= modules.tree(packages, "lab", EXTRA_MODULES)
    entries |= {"mnt": cpio.folder(), "data": cpio.folder()}
    return zstandard.ZstdCompressor(level=19).compress(cpio.archive(entries))


def _files(hello: Hello, packages: Path) -> dict[str, tuple[bytes, int]]:
    """The root file system's files: the same in the ramdisk and on hello-b's disk."""
    words = f"name={hello.name}\nversion={hello.version}\ncolour={hello.colour}\nroot={hello.root}\n"
    files = {"bin/busybox": ((packages / "bin/busybox").read_bytes(), 0o755), "etc/image": (words.encode(), 0o644)}
    for source in sorted(ROOTFS.iterdir()):
        place = "init" if source.name == "init" else f"etc/{source.name}"
        files[place] = (source.read_bytes(), 0o644 if source.name == "inittab" else 0o755)
    return files
