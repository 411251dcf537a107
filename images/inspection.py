"""Contents of a disk image, before a node boots it: `python -m images.inspection FILE`, as JSON.

Partitions and what is in them are read here. Files inside file systems and logical volumes are read
by grub-fstest (Debian's package grub-common): GRUB reads what a BIOS boots from, ext4, XFS, Btrfs
and LVM among it, without root and without a mount.
"""

from __future__ import annotations

import argparse
import bz2
import json
import lzma
import re
import shutil
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import zstandard

from cod.images import formats
from cod.model import Refused
from trampoline import partitions
from trampoline.filesystems import detect, names

SECONDS = 600  # that unpacking may take; and grub-fstest, for all files
SPARE = 256 << 20  # bytes that stay free where an image is unpacked
TEXT, PACKED = 16 << 20, 1 << 29  # bytes of a text, and of an initramfs
LIMIT = 1 << 30  # bytes of an unpacked initramfs
KERNELS = 16  # kernels that are looked into
LARGEST = 1 << 44  # bytes of a disk in a qcow2 file
# Drivers of servers' disk controllers: an initramfs without one starts no node that has it.
DISKS = ("ahci", "megaraid_sas", "mpt3sas", "nvme", "sd_mod", "virtio_blk")
# Drivers of servers' network cards, which the system needs.
CARDS = ("bnxt_en", "i40e", "igb", "ixgbe", "mlx5_core", "tg3")
# Where a Btrfs file system keeps the system: a folder at its top, or openSUSE's first snapshot.
SUBVOLUMES = ("/@", "/@/.snapshots/1/snapshot", "/root")
# What a FAT file system's own first sector says, which mkfs.fat and Windows write to any disk.
_NO_LOADER = b"not a bootable disk"
_SECTORS = 1 << 50  # of 512 bytes: more than any disk has
_KERNEL = re.compile(r"vmlinuz-(\d[\w.+~-]*)")
_INITRAMFS = ("initramfs-{}.img", "initrd.img-{}", "initrd-{}")
# of an entry in an archive: the sizes of its content and of its name (cpio, "newc")
_HEADER = re.compile(rb"0707.{50}([0-9A-Fa-f]{8}).{32}([0-9A-Fa-f]{8})", re.DOTALL)
_MODULE = re.compile(r"([^/]+)\.ko(\.(xz|zst|gz))?")


class BadFile(Exception):
    """The file cannot be looked into; the sentence says why."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command; prints the facts as JSON."""
    parser = argparse.ArgumentParser(prog="python -m images.inspection")
    parser.add_argument("file", type=Path)
    options = parser.parse_args(arguments)
    try:
        print(json.dumps(inspect(options.file)))
    except (BadFile, Refused, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def inspect(file: Path) -> dict[str, Any]:
    """Return what a disk image holds, and `warnings` about nodes that would boot it. Raises BadFile
    and Refused."""
    if shutil.which("grub-fstest") is None:
        raise BadFile("grub-fstest is missing: install Debian's package grub-common")
    with file.open("rb") as opened:
        head = opened.read(1 << 17)
    form = formats.recognise(head)
    if form == "raw":
        return _RawImage(file).facts()
    with TemporaryDirectory(prefix="inspect-") as folder:
        raw = Path(folder) / "raw"
        if form == "qcow2":
            formats.check_qcow2(head, LARGEST)
            formats.convert_qcow2(file, raw, lambda: None)
        else:
            ends = time.monotonic() + SECONDS
            with file.open("rb") as opened, raw.open("wb") as target:
                for block in formats.unpack(opened, form):
                    if time.monotonic() > ends:
                        raise BadFile(f"unpacking it takes longer than {SECONDS} s")
                    if shutil.disk_usage(folder).free < SPARE:
                        raise BadFile(f"unpacked it does not fit into {folder}: set TMPDIR")
                    if block.strip(b"\0"):
                        target.write(block)
                    else:
                        target.seek(len(block), 1)
                target.truncate()
        return _RawImage(raw).facts()


class _RawImage:
    """A raw disk image, and the system on it. It is a `partitions.Disk` that is only read."""

    def __init__(self, file: Path) -> None:
        self.path, self._file = str(file), file.open("rb")
        self.size = self._file.seek(0, 2)
        self.sector = formats.sector_of(self.read(1 << 17, 0)) or 512
        self._end = time.monotonic() + SECONDS

    def read(self, length: int, offset: int) -> bytes:
        self._file.seek(offset)
        return self._file.read(length)

    def write(self, data: memoryview, offset: int) -> None:
        """Refuse: the file is the administrator's. `partitions` writes to no disk that it reads."""
        raise BadFile(f"{self.path} is only read")

    # ------------------------------------------------------------ what is there

    def facts(self) -> dict[str, Any]:
        """Return all facts."""
        found = list(self._partitions())
        firmware = self._firmware(found)
        disks = self._grub("ls").decode()
        if "(loop0)" not in disks:
            raise BadFile("grub-fstest does not read the image: try again, or run it by hand")
        devices = re.findall(r"\((?:loop0,\w+|lvm/[^)]+)\)", disks)
        root, release = self._root(devices)
        boot, kernels = self._kernels(devices, root) if root else ("", [])
        system = self._system(root, release, boot, kernels) if root else {}
        return {
            "size": self.size,
            "table": formats.table_of(self.read(1 << 17, 0)),
            "partitions": found,
            "firmware": firmware,
            **system,
            "warnings": [*warnings(firmware, system)],
        }

    def _partitions(self) -> Iterator[dict[str, Any]]:
        table = partitions.read_gpt(self)
        for number, (start, size) in sorted(partitions.places(self).items()):

            def read(length: int, at: int, start: int = start, size: int = size) -> bytes:
                return self.read(min(length, max(size - at, 0)), start + at)

            content = detect.look(read, size)
            yield {
                "number": number,
                "start": start,
                "size": size,
                "type": partitions.type_name(table.entries[number].type) if table else "",
                "content": content.kind,
                "names": [f"{kind} {name}" for kind, name in names.look(read)],
            }

    def _firmware(self, found: list[dict[str, Any]]) -> list[str]:
        """Return the kinds of firmware that it boots by."""
        esp = [f"(loop0,gpt{each['number']})" for each in found if each["type"] == "esp"]
        kinds = ["bios"] if starts_on_bios(self.read) else []
        if any(
            self._listed(f"{each}/EFI/BOOT") or self._listed(f"{each}/efi/boot") for each in esp
        ):
            kinds.append("uefi")
        return kinds

    def _root(self, devices: list[str]) -> tuple[str, str]:
        """Return where GRUB finds the root, and its /etc/os-release."""
        for device in devices:
            for place in ("", *SUBVOLUMES):
                text = self._text(f"{device}{place}/etc/os-release") or self._text(
                    f"{device}{place}/usr/lib/os-release"
                )
                if text:
                    return f"{device}{place}", text
        return "", ""

    def _kernels(self, devices: list[str], root: str) -> tuple[str, list[dict[str, Any]]]:
        """Return where GRUB finds the kernels, and each of them."""
        for folder in (f"{root}/boot", *devices):
            inside = self._listed(f"{folder}/")
            releases = [match[1] for name in inside if (match := _KERNEL.fullmatch(name))]
            if releases:
                found = releases[:KERNELS]
                return folder, [self._kernel(root, folder, each, inside) for each in found]
        return "", []

    def _kernel(self, root: str, folder: str, release: str, inside: list[str]) -> dict[str, Any]:
        modules = f"{root}/lib/modules/{release}"
        built_in = _modules(self._text(f"{modules}/modules.builtin").split())
        known = re.findall(r"^([^:]+):", self._text(f"{modules}/modules.dep"), re.MULTILINE)
        own = (form.format(release) for form in _INITRAMFS)
        initramfs = next((each for each in own if each in inside), "")
        packed = self._grub("cat", f"{folder}/{initramfs}", most=PACKED) if initramfs else b""
        early = drivers(packed)
        content = self._root_content(root)
        needed = {"ext4" if content == "ext" else content}
        if root.startswith("(lvm/"):
            needed.add("dm_mod")

        def lacking(wanted: set[str], there: set[str] | None) -> list[str]:
            return [] if there is None else sorted(wanted - there - built_in - {""})

        return {
            "release": release,
            "initramfs": initramfs,
            "lacks_root": lacking(needed, early),
            "lacks_disks": lacking({*DISKS}, early),
            "lacks_cards": lacking({*CARDS}, _modules(known) or None),
        }

    def _system(
        self, root: str, release: str, boot: str, kernels: list[dict[str, Any]]
    ) -> dict[str, Any]:
        named = re.search(r"^PRETTY_NAME=(.*)$", release, re.MULTILINE)
        selinux = re.search(
            r"^SELINUX=(\w+)", self._text(f"{root}/etc/selinux/config"), re.MULTILINE
        )
        entries = self._listed(f"{boot}/loader/entries/")
        return {
            "system": named[1].strip("\"'")[:200] if named else "",
            "root": root,
            "root_content": self._root_content(root),
            "boot": boot,
            "kernels": kernels,
            "loader_entries": sum(each.endswith(".conf") for each in entries),
            "selinux": selinux[1] if selinux else "",
            "cloud_init": "cloud-init" in self._listed(f"{root}/usr/bin/"),
            "ssh_server": "sshd" in self._listed(f"{root}/usr/sbin/"),
            "kerberos": self._kerberos(root),
        }

    def _root_content(self, root: str) -> str:
        device = root.partition(")")[0] + ")"
        return _content(self._grub("cat", f"{device}0+256"))

    def _kerberos(self, root: str) -> list[str]:
        """Return what the system can do with Kerberos: 'kinit'; 'nfs', volumes with sec=krb5 and
        the like; 'sssd', people's passwords."""
        libraries = ("lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "lib64", "lib")
        places = {
            "kinit": ("bin/kinit",),
            "nfs": ("sbin/rpc.gssd",),
            "sssd": tuple(f"{each}/sssd/libsss_krb5.so" for each in libraries),
        }
        return [
            name
            for name, paths in places.items()
            if any(self._is_there(f"{root}/usr/{path}") for path in paths)
        ]

    # ------------------------------------------------------------ files, by GRUB

    def _grub(self, *words: str, most: int = TEXT) -> bytes:
        """Return what grub-fstest prints; nothing where that is more than `most` bytes: a file of
        the image may say that it has any size. Raises BadFile when the time is over, or when a
        signal ended it."""
        left = self._end - time.monotonic()
        command = ("timeout", str(max(left, 0.1)), "grub-fstest", self.path, *words)
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as process:
            assert process.stdout is not None
            found = process.stdout.read(most + 1)
            if len(found) > most:
                process.terminate()
                return b""
        if process.returncode == 124:  # timeout's own
            raise BadFile(f"looking into the image took more than {SECONDS // 60} min")
        if process.returncode < 0:  # with 1 it says, too, that there is no such file
            raise BadFile(f"grub-fstest was ended by signal {-process.returncode}")
        return found

    def _text(self, path: str) -> str:
        return self._grub("cat", path).decode("utf-8", "replace")

    def _is_there(self, path: str) -> bool:
        folder, _, name = path.rpartition("/")
        return name in self._listed(f"{folder}/")

    def _listed(self, folder: str) -> list[str]:
        names = self._grub("ls", folder).decode("utf-8", "replace").split(" ")
        return [name.rstrip("/") for name in names if name.strip()]


def _content(head: bytes) -> str:
    """Return which file system begins so: 'ext', 'xfs', 'btrfs' or ''."""
    known = (("xfs", 0, b"XFSB"), ("btrfs", 0x10040, b"_BHRfS_M"), ("ext", 0x438, b"\x53\xef"))
    return next((name for name, at, magic in known if head[at : at + len(magic)] == magic), "")


def starts_on_bios(read: Callable[[int, int], bytes]) -> bool:
    """Return whether a BIOS finds boot code on the disk that `read(length, offset)` reads, and
    GRUB's first sector its second stage. Other loaders' code need only be there."""
    sector = read(512, 0)
    code = sector[:440]
    if sector[510:] != b"\x55\xaa" or not code.strip(b"\0") or _NO_LOADER in code:
        return False
    # GRUB 2's boot.S has the address of its second stage in memory before the sector of it; GRUB
    # Legacy has code there
    if b"GRUB " not in code or code[0x5A:0x5C] != b"\0\x80":
        return True
    core = int.from_bytes(code[0x5C:0x64], "little")
    return core < _SECTORS and bool(read(512, core * 512).strip(b"\0"))


def warnings(firmware: list[str], system: dict[str, Any]) -> Iterator[str]:
    """Yield what would keep a node from booting the system, or people from using it, with a
    remedy. Nothing is said of a disk that no firmware boots and that has no known system."""
    if not system:
        if firmware:
            yield (
                "No system is found on it (no /etc/os-release that GRUB reads): say in the template"
                " yourself when a node is ready, and what it is given."
            )
        return
    if not firmware:
        yield "No firmware boots it: there is no boot code in the MBR and no EFI/BOOT on an ESP."
    for each in system["kernels"]:
        release = each["release"]
        if not each["initramfs"]:
            yield f"Kernel {release} has no initramfs beside it."
        if lacking := each["lacks_root"]:
            yield (
                f"The initramfs of kernel {release} has no {', '.join(lacking)}, which the root "
                "needs: no node starts it."
            )
        if lacking := each["lacks_disks"]:
            yield (
                f"The initramfs of kernel {release} has no drivers {', '.join(lacking)}: a node "
                "whose disk needs one does not start. In the system, build it for any machine: "
                "dracut --force --no-hostonly --regenerate-all (or install "
                "dracut-config-generic); on Debian and Ubuntu MODULES=most in "
                "/etc/initramfs-tools/initramfs.conf, then update-initramfs -u -k all."
            )
        if lacking := each["lacks_cards"]:
            yield (
                f"Kernel {release} has no drivers {', '.join(lacking)}: a node with such a network "
                "card is not reached. Install the distribution's kernel for servers "
                "(Ubuntu: linux-generic; Rocky, Alma: kernel-modules; Debian: linux-image-amd64)."
            )
    if not system["kernels"]:
        yield "No kernel is in /boot."
    if not system["cloud_init"]:
        yield "It has no cloud-init: the node's name and its users' keys are not set."
    if not system["ssh_server"]:
        yield "It has no OpenSSH server: nobody logs in."


# ---------------------------------------------------------------- initramfs


def drivers(packed: bytes) -> set[str] | None:
    """Return the kernel modules in an initramfs; None where it cannot be read.

    It is archives (cpio, "newc") one behind another, the last compressed as a rule (Linux,
    Documentation/driver-api/early-userspace/buffer-format.rst).
    """
    found: set[str] = set()
    data, at, unpacked = packed, 0, 0
    while (at := _after_zeros(data, at)) < len(data):
        if data[at : at + 6] in (b"070701", b"070702"):
            names, at = _archive(data, at)
            found |= _modules(names)
        else:
            data, at = _unpacked(data[at:]), 0
            unpacked += len(data)
            if not data or unpacked >= LIMIT:
                return None
    return found if packed else None


def _after_zeros(data: bytes, at: int) -> int:
    """Return where the zeros end that begin at `at`, if any do."""
    match = re.compile(rb"\0*").match(data, at)
    assert match is not None
    return match.end()


def _archive(data: bytes, at: int) -> tuple[list[str], int]:
    """Return the names in an archive that begins at `at`, and where it ends."""
    names = list[str]()
    while match := _HEADER.match(data, at):
        size, length = int(match[1], 16), int(match[2], 16)
        name = data[at + 110 : at + 109 + length].decode("utf-8", "replace")
        at = -(-(at + 110 + length) // 4) * 4
        at = -(-(at + size) // 4) * 4
        if name == "TRAILER!!!":
            return names, at
        names.append(name)
    return names, len(data)


def _unpacked(data: bytes) -> bytes:
    """Return what compressed data unpacks to, at most LIMIT bytes; empty where that fails."""
    try:
        if data[:4] == b"\x28\xb5\x2f\xfd":
            with zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(data) as reader:
                return reader.read(LIMIT)
        if data[:2] == b"\x1f\x8b":
            return zlib.decompressobj(31).decompress(data, LIMIT)
        if data[:6] == b"\xfd7zXZ\0":
            return lzma.LZMADecompressor().decompress(data, LIMIT)
        if data[:3] == b"BZh":
            return bz2.BZ2Decompressor().decompress(data, LIMIT)
    except (zstandard.ZstdError, zlib.error, lzma.LZMAError, OSError, ValueError):
        pass
    return b""


def _modules(paths: list[str]) -> set[str]:
    """Return the names of the kernel modules among files, as the kernel writes them."""
    matches = (_MODULE.fullmatch(path.rpartition("/")[2]) for path in paths)
    return {match[1].replace("-", "_") for match in matches if match}


if __name__ == "__main__":
    sys.exit(main())
