"""IPv4 addresses as text and as numbers."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID


def ipv4(text: str) -> int:
    """Return a dotted IPv4 address as an integer. Raises `OSError` if `text` is no address."""
    return int.from_bytes(socket.inet_aton(text), "big")


def dotted(address: int) -> str:
    """Return an IPv4 address, given as an integer, as a dotted string."""
    return socket.inet_ntoa(address.to_bytes(4, "big"))


_MAC = re.compile(
    r"[0-9a-f]{2}(:[0-9a-f]{2}){5}|[0-9a-f]{2}(-[0-9a-f]{2}){5}|[0-9a-f]{4}(\.[0-9a-f]{4}){2}"
    r"|[0-9a-f]{12}"
)


def mac_of(text: str) -> str | None:
    """Return the MAC in `text` as COD writes it, '52:54:00:00:00:01'; None if it is no MAC. The
    text may be in either case, with colons, dashes or dots, or without separators."""
    mac = text.strip().lower()
    if not _MAC.fullmatch(mac):
        return None
    digits = re.sub("[^0-9a-f]", "", mac)
    return ":".join(digits[place : place + 2] for place in range(0, 12, 2))


def uuids_of(text: str) -> tuple[str, ...]:
    """Return the UUID in `text` in lower case, and the same UUID with the bytes of its first three
    fields in reverse order: firmware, BMCs and tools differ in this order. () if it is no UUID."""
    try:
        found = UUID(text.strip())
    except ValueError:
        return ()
    return tuple(dict.fromkeys((str(found), str(UUID(bytes=found.bytes_le)))))


@dataclass(frozen=True, slots=True, order=True)
class AddressRange:
    """The IPv4 addresses from `first` to `last`, both included."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{dotted(self.first)} - {dotted(self.last)}"

    @property
    def addresses(self) -> range:
        """Return the addresses as integers."""
        return range(self.first, self.last + 1)

    @property
    def room(self) -> int:
        """Return how many nodes the range has addresses for. Addresses that end in .0 or .255 are
        not assigned, because many systems take them for network or broadcast addresses. The number
        is computed without iteration, because ranges may have 2**20 addresses."""
        in_zero = (self.last >> 8) - ((self.first - 1) >> 8)
        in_255 = ((self.last + 1) >> 8) - (self.first >> 8)
        return max(self.last - self.first + 1, 0) - in_zero - in_255


@dataclass(frozen=True, slots=True, order=True)
class AddressBlock(AddressRange):
    """A row of `vcluster_blocks`: addresses in `subnet` that belong to one vcluster."""

    subnet: str


def room_of_blocks(pool: tuple[str, str], size: int) -> int:
    """Return how many nodes a pool, (first, last), has addresses for if it is divided into blocks
    of `size` addresses."""
    first, last = map(ipv4, pool)
    return AddressRange(first, last - (last + 1 - first) % size).room


def joined(ranges: Iterable[AddressRange]) -> tuple[AddressRange, ...]:
    """Return the ranges in order, with adjacent and overlapping ranges joined."""
    found: list[AddressRange] = []
    for one in sorted(ranges, key=lambda each: each.first):
        if found and one.first <= found[-1].last + 1:
            found[-1] = AddressRange(found[-1].first, max(one.last, found[-1].last))
        else:
            found.append(AddressRange(one.first, one.last))
    return tuple(found)
