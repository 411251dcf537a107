"""Puts the network first in a UEFI machine's boot order, so that COD is asked at every boot. Best effort.

An operating system or its installer may have put itself first. Formats: UEFI 2.10, 3.1.3 (load options), 3.3
(BootOrder), 10.3 (device paths); the files: Linux's efivarfs, whose first four bytes are the variable's attributes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

EFIVARS = Path("/sys/firmware/efi/efivars")
_GLOBAL = "8be4df61-93ca-11d2-aa0d-00e098032b8c"
_ATTRIBUTES = b"\x07\0\0\0"  # non-volatile, for boot services and at run time
_ACTIVE = 1
_NETWORK = {(3, 11), (3, 12), (3, 13), (3, 24)}  # messaging device paths: MAC, IPv4, IPv6, URI


def network_first(efivars: Path = EFIVARS) -> str:
    """Reorder, and say what was done or why nothing was."""
    path = efivars / f"BootOrder-{_GLOBAL}"
    try:
        order = [number for (number,) in struct.iter_unpack("<H", path.read_bytes()[4:])]
        network = [number for number in order if is_network(_option(efivars, number))]
        wanted = network + [number for number in order if number not in network]
        if not network or wanted == order:
            return "boot order: nothing to change"
        path.write_bytes(_ATTRIBUTES + struct.pack(f"<{len(wanted)}H", *wanted))  # one write: the kernel wants it whole
        return "boot order: network first"
    except (OSError, struct.error) as error:
        return f"boot order: not changed ({error})"


def _option(efivars: Path, number: int) -> bytes:
    try:
        return (efivars / f"Boot{number:04X}-{_GLOBAL}").read_bytes()[4:]
    except OSError:
        return b""


def is_network(option: bytes) -> bool:
    """Does a load option (EFI_LOAD_OPTION) boot from the network?"""
    if len(option) < 8:
        return False
    attributes, length = struct.unpack_from("<IH", option)
    at = 6
    while at + 2 <= len(option) and option[at : at + 2] != b"\0\0":
        at += 2
    path = option[at + 2 : at + 2 + length]
    return bool(attributes & _ACTIVE) and any(node in _NETWORK for node in _nodes(path))


def _nodes(path: bytes) -> Iterator[tuple[int, int]]:
    at = 0
    while at + 4 <= len(path):
        kind, sub, length = struct.unpack_from("<BBH", path, at)
        if length < 4:
            return
        yield kind, sub
        at += length
