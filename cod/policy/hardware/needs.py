"""A template's needs besides its `<requires>`: an image for each target, and a disk for the images.
Pure.

Allocation, explanation, preview and priming all use this module. So a node that could not be primed
is not chosen, and the explanation of a request says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from xml.etree import ElementTree

from cod.model import Image
from cod.policy.hardware.match import AttributeMismatch, satisfies
from cod.policy.nodes.template import Configuration, ImageChoice

MIB = 1 << 20
MBR_REACH = 0xFFFFFFFF  # sectors that an MBR addresses


def lacking(configuration: Configuration, attributes: str) -> tuple[AttributeMismatch, ...]:
    """Return the requirements and needs of the template that nodes with these canonical attributes
    do not satisfy; empty if they can be primed with it."""
    found, without = chosen(configuration, attributes)
    return (
        *satisfies(configuration.requires, attributes),
        *without,
        *satisfies(disk(configuration, found, attributes), attributes),
    )


def chosen(
    configuration: Configuration, attributes: str
) -> tuple[list[ImageChoice], list[AttributeMismatch]]:
    """Return the first matching image for each target, and a mismatch for each target that no image
    matches."""
    found, without = [], []
    for target in dict.fromkeys(choice.target for choice in configuration.images):
        fits = (
            one
            for one in configuration.images
            if one.target == target and not satisfies(one.when, attributes)
        )
        if choice := next(fits, None):
            found.append(choice)
        else:
            without.append(
                AttributeMismatch(
                    "image", f"one for target {target} that fits the hardware", "none"
                )
            )
    return found, without


def disk(configuration: Configuration, images: Sequence[ImageChoice], attributes: str) -> str:
    """Return a requirements document for the disk that `images` are written to; '' if their sizes
    are unknown, or the node boots without a disk.

    If the site leaves disk sizes out of its types (`attributes` has none), the document has no size
    either.
    """
    size = least_size(configuration, images)
    if not size or configuration.diskless is not None:
        return ""
    wanted = {"local": ("equal", "yes"), "bootable": ("equal", "yes")}
    disks = ElementTree.fromstring(attributes).findall("disk")
    if not disks or any(one.get("size") is not None for one in disks):
        wanted["size"] = ("min", f"{size}")
    if each := sector(images) or beyond_mbr(configuration, size):
        wanted["sector"] = ("equal", f"{each}")
    inner = "".join(f'<{name} {operator}="{value}"/>' for name, (operator, value) in wanted.items())
    return f"<requires><disk>{inner}</disk></requires>"


def least_size(configuration: Configuration, images: Sequence[ImageChoice]) -> int:
    """Return the size in bytes that the disk must have at least; 0 if unknown. For a layout it is
    the sum of its partitions, rounded up to mebibytes, and one mebibyte before and behind them, as
    cprime places them. The seed's partition is behind the others, at the disk's end."""
    # the rest of the seed nearly always fits into half a mebibyte
    seed = _up(len(configuration.user_data.encode()) + MIB // 2) if configuration.seed else 0
    if configuration.partitions:
        on_it = {one.target: one.size for one in images}
        sizes = (one.size or on_it.get(str(one.number), 0) or 1 for one in configuration.partitions)
        return 2 * MIB + sum(map(_up, sizes)) + seed
    copied = (one.ends_at for one in images if one.ends_at and one.installer == "copy")
    behind = (_up(end) + seed + MIB for end in copied if seed)
    return max([*(one.size for one in images), *behind], default=0)


def _up(size: int) -> int:
    return -(-size // MIB) * MIB


def beyond_mbr(configuration: Configuration, size: int) -> int:
    """Return the sector size, in bytes, that an MBR needs to address a layout of `size` bytes; 0:
    any sector size will do."""
    return 4096 if configuration.table == "mbr" and size > MBR_REACH * 512 else 0


def sector(images: Sequence[ImageChoice]) -> int:
    """Return the sector size, in bytes, that the images need on the disk; 0: any will do."""
    return max((one.sector for one in images), default=0)


def with_facts(configuration: Configuration, images: Mapping[str, Image]) -> Configuration:
    """Return the template with size, sector and end of each added image filled in from its row, if
    the image has one.

    images  rows by name
    """
    return replace(
        configuration,
        images=tuple(
            (
                replace(
                    one,
                    size=images[one.name].size,
                    sector=one.sector or images[one.name].sector,
                    ends_at=images[one.name].ends_at,
                )
                if one.name in images
                else one
            )
            for one in configuration.images
        ),
    )
