"""Arranges a UEFI machine's boot order: the network, then the primed disk, then everything else.
Best effort.

COD decides at every boot, and a boot that it sends on to the disk must reach the disk that COD has
written, whatever other disks the machine has. An operating system or its installer may have put
itself first. An entry for the primed disk is made at each priming, in place of the one before. An
order that a system has changed later is restored before the machine leaves the trampoline again.

A shim that is started as EFI/BOOT/BOOTX64.EFI runs fbx64.efi in the same folder, if there is one,
which makes an entry for the system and puts it first. In that case COD's entry names the system's
own shim, which starts no such program.

Formats: UEFI 2.10, 3.1.3 (load options), 3.3 (BootOrder), 10.3 (device paths); the files: Linux's
efivarfs, whose first four bytes are the variable's attributes.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from trampoline import partitions
from trampoline.errors import PrimeError
from trampoline.filesystems import fatnames
from trampoline.partitions import Disk, EspPlace

EFIVARS = Path("/sys/firmware/efi/efivars")
NAME = "COD disk"  # the description of the entry that is COD's own
FALLBACK = "EFI/BOOT/BOOTX64.EFI"  # what firmware starts from a disk without an entry
_RUN_BY_SHIM = "EFI/BOOT/fbx64.efi"
_GLOBAL = "8be4df61-93ca-11d2-aa0d-00e098032b8c"
_ATTRIBUTES = b"\x07\0\0\0"  # non-volatile, for boot services and at run time
_ACTIVE = 1
_NETWORK = {(3, 11), (3, 12), (3, 13), (3, 24)}  # messaging device paths: MAC, IPv4, IPv6, URI
_END = b"\x7f\xff\x04\0"
# Loaders that systems install under their own names; a shim comes before the loader that it starts.
_SHIM = "shimx64.efi"
_LOADERS = (_SHIM, "grubx64.efi", "systemd-bootx64.efi", "bootmgfw.efi")


def arrange(disk: Disk, efivars: Path = EFIVARS) -> str:
    """Make the entry for `disk`, and set the boot order; return what was done, or why nothing
    was."""
    try:
        options = dict(_options(efivars))
        for number in [number for number, option in options.items() if description(option) == NAME]:
            _file(efivars, number).unlink()
            del options[number]
        own = []
        if place := partitions.esp(disk):
            own = [next(n for n in range(0x10000) if n not in options)]
            content = _ATTRIBUTES + option(NAME, place, loader(disk, place))
            _file(efivars, own[0]).write_bytes(content)
        network, _ = _put(efivars, options, own)
        return f"boot order: {network} of the network, then {NAME if own else 'as it was'}"
    except (OSError, struct.error, ValueError, OverflowError, PrimeError) as error:
        # the disk's contents may be malformed in any way
        return f"boot order: not changed ({error})"


def restore(efivars: Path = EFIVARS) -> str:
    """Restore the order if a system has changed it since priming; return what was done, or why it
    could not be; '' if the order is right."""
    try:
        options = dict(_options(efivars))
        own = [number for number, option in options.items() if description(option) == NAME]
        network, changed = _put(efivars, options, own)
        return f"boot order: {network} of the network first again" if changed else ""
    except (OSError, struct.error) as error:
        return f"boot order: not changed ({error})"


def _put(efivars: Path, options: Mapping[int, bytes], own: Sequence[int]) -> tuple[int, bool]:
    """Put the network's entries first, then `own`, then the rest; return how many belong to the
    network, and whether the order has changed."""
    path = efivars / f"BootOrder-{_GLOBAL}"
    content = path.read_bytes()[4:] if path.exists() else b""
    before = [number for (number,) in struct.iter_unpack("<H", content)]
    network = _network(efivars, options, before)
    first = [*network, *own]
    wanted = [*first, *(number for number in before if number in options and number not in first)]
    if wanted != before:
        # whole, in one write: efivarfs sets the variable anew with each write(2)
        path.write_bytes(_ATTRIBUTES + struct.pack(f"<{len(wanted)}H", *wanted))
    return len(network), wanted != before


def _network(efivars: Path, options: Mapping[int, bytes], order: Sequence[int]) -> list[int]:
    """Return the network's entries of the order, preceded by the entry that the machine was started
    by if the order lacks it. If a system has removed all of them from the order, return all that
    exist."""
    every = [number for number, option in options.items() if is_network(option)]
    current = efivars / f"BootCurrent-{_GLOBAL}"
    started = int.from_bytes(current.read_bytes()[4:6], "little") if current.exists() else -1
    kept = [number for number in order if number in every]
    return [started, *kept] if started in every and started not in kept else kept or every


def _options(efivars: Path) -> Iterator[tuple[int, bytes]]:
    for path in sorted(efivars.glob(f"Boot*-{_GLOBAL}")):
        if found := re.fullmatch(r"Boot([0-9A-F]{4})-.*", path.name):
            yield int(found[1], 16), path.read_bytes()[4:]


def _file(efivars: Path, number: int) -> Path:
    return efivars / f"Boot{number:04X}-{_GLOBAL}"


def loader(disk: Disk, place: EspPlace) -> str:
    """Return the path of the system's loader on its EFI system partition, with slashes."""
    start, size = place.first * disk.sector, place.count * disk.sector
    names = fatnames.below(
        lambda length, at: disk.read(length, start + at) if at < size else b"", "EFI", depth=3
    )
    folded = {name.lower(): name for name in names}
    if FALLBACK.lower() in folded:
        own = _own_shims(folded) if _RUN_BY_SHIM.lower() in folded else []
        return own[0] if own else FALLBACK
    found = (
        folded[name]
        for wanted in _LOADERS
        for name in sorted(folded)
        if name.endswith("/" + wanted)
    )
    return next(found, FALLBACK)


def _own_shims(folded: Mapping[str, str]) -> list[str]:
    """Return the systems' own shims. Those that fbx64.efi would make entries for come first: a file
    with these entries is in the same folder. `folded`: files below EFI by their lower-case
    names."""
    shims = [name for name in sorted(folded) if PurePosixPath(name).name == _SHIM]
    own = [name for name in shims if not name.startswith("efi/boot/")]
    own.sort(key=lambda name: str(PurePosixPath(name).with_name("bootx64.csv")) not in folded)
    return [folded[name] for name in own]


def option(name: str, place: EspPlace, file: str) -> bytes:
    """Return a load option (EFI_LOAD_OPTION) for `file` on a partition."""
    kind = 2 if place.guid else 1  # GPT with a GUID, MBR with a 32-bit signature: for both fields
    drive = struct.pack(
        "<BBHIQQ16sBB",
        4,
        1,
        42,
        place.number,
        place.first,
        place.count,
        place.guid or place.signature,
        kind,
        kind,
    )
    text = ("\\" + file.replace("/", "\\") + "\0").encode("utf-16-le")
    path = drive + struct.pack("<BBH", 4, 4, 4 + len(text)) + text + _END
    return struct.pack("<IH", _ACTIVE, len(path)) + (name + "\0").encode("utf-16-le") + path


def _split(option: bytes) -> tuple[str, bytes]:
    """Return a load option's description and device path."""
    if len(option) < 8:
        return "", b""
    length = int.from_bytes(option[4:6], "little")
    at = 6
    while at + 2 <= len(option) and option[at : at + 2] != b"\0\0":
        at += 2
    return option[6:at].decode("utf-16-le", "replace"), option[at + 2 : at + 2 + length]


def description(option: bytes) -> str:
    return _split(option)[0]


def is_network(option: bytes) -> bool:
    """Return whether a load option (EFI_LOAD_OPTION) boots from the network."""
    active = bool(option[:1] and option[0] & _ACTIVE)
    return active and any(node in _NETWORK for node in _nodes(_split(option)[1]))


def _nodes(path: bytes) -> Iterator[tuple[int, int]]:
    at = 0
    while at + 4 <= len(path):
        kind, sub, length = struct.unpack_from("<BBH", path, at)
        if length < 4:
            return
        yield kind, sub
        at += length
