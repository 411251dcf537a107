"""IPv4 addresses as text and as numbers."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from dataclasses import dataclass


def ipv4(text: str) -> int:
    """Return a dotted IPv4 address as an integer. Raises OSError when it is none."""
    return int.from_bytes(socket.inet_aton(text), "big")


def dotted(address: int) -> str:
    """Return the reverse of `ipv4`."""
    return socket.inet_ntoa(address.to_bytes(4, "big"))


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
        given to none: too many systems take them for a network's own. Counted in closed form, as
        ranges may have 2**20 addresses."""
        in_zero = (self.last >> 8) - ((self.first - 1) >> 8)
        in_255 = ((self.last + 1) >> 8) - (self.first >> 8)
        return max(self.last - self.first + 1, 0) - in_zero - in_255


@dataclass(frozen=True, slots=True, order=True)
class AddressBlock(AddressRange):
    """A row of `vcluster_blocks`: addresses in `subnet` that belong to one vcluster."""

    subnet: str


def joined(ranges: Iterable[AddressRange]) -> tuple[AddressRange, ...]:
    """Return the ranges in order, those that touch made into one."""
    found: list[AddressRange] = []
    for one in sorted(ranges, key=lambda each: each.first):
        if found and one.first <= found[-1].last + 1:
            found[-1] = AddressRange(found[-1].first, max(one.last, found[-1].last))
        else:
            found.append(AddressRange(one.first, one.last))
    return tuple(found)
