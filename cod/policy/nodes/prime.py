"""A configuration template applied to one node: its part of the priming order, or its boot files.
Pure.

When a node is to be primed or booted, its hardware decides which of the template's images it gets,
and the names of images become URLs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cod.model import Image, ImageMirror, Refused, TypeRules
from cod.orders import ImageSource, Partition
from cod.policy.hardware import needs
from cod.policy.hardware.match import canonical
from cod.policy.nodes.template import Configuration, Diskless, File, ImageChoice


@dataclass(frozen=True, slots=True)
class Parts:
    """The part of a node's `orders.Order` that its template decides, with the order's fields."""

    disk: str
    verify: bool
    table: str
    partitions: tuple[Partition, ...]
    images: tuple[ImageSource, ...]
    sector: int


def resolve(
    configuration: Configuration,
    attributes: str,
    images: Mapping[str, Image],
    base_url: str,
    rules: TypeRules | None = None,
    mirror: str = "",
) -> Parts:
    """Return the template's part of the order for a node with the hardware report `attributes`
    (XML).

    images    rows by name, at least those of the images that the template names
    base_url  URL below which the images' folders are served, without a slash at the end, e.g.
              http://10.0.0.1:8069/images
    rules     the site's rules of node types
    mirror    like `base_url`, on a cache near the node; '': there is none

    Raises `Refused` if the hardware does not satisfy the template's requirements, or no image
    matches it. The canonical form of the report is compared, as the resource manager does, so that
    all nodes of a type are treated alike.
    """
    kind = canonical(attributes, rules)
    configuration = needs.with_facts(configuration, images)
    if missing := needs.lacking(configuration, kind):
        raise Refused(
            "conflict", "the node lacks what the template requires: " + "; ".join(map(str, missing))
        )
    check_images(configuration, images)
    chosen, _ = needs.chosen(configuration, kind)
    return Parts(
        disk=configuration.disk,
        verify=configuration.verify,
        table=configuration.table,
        partitions=configuration.partitions,
        images=tuple(_source(choice, images, base_url, mirror) for choice in chosen),
        sector=needs.sector(chosen),
    )


def mirror_for(mirrors: Iterable[ImageMirror], subnet: str, block: str) -> ImageMirror | None:
    """Return the image cache for nodes in a subnet and block ('': in no block); None: none."""
    return next(
        (
            each
            for each in mirrors
            if (not each.subnets or subnet in each.subnets)
            and (not each.blocks or block in each.blocks)
        ),
        None,
    )


def _source(
    choice: ImageChoice, images: Mapping[str, Image], base_url: str, mirror: str
) -> ImageSource:
    if not choice.name:
        return ImageSource(
            choice.target,
            choice.url,
            choice.compression,
            choice.sha256,
            choice.size,
            choice.installer,
            choice.installer_digest,
        )
    image = images[choice.name]
    return ImageSource(
        choice.target,
        f"{base_url}/{image.digest}",
        "chunks",
        image.digest,
        image.size,
        choice.installer,
        choice.installer_digest,
        mirror=f"{mirror}/{image.digest}" if mirror else "",
    )


def boot_files(
    diskless: Diskless, images: Mapping[str, Image], base_url: str
) -> tuple[str, tuple[str, ...]]:
    """Return the URLs of a diskless node's kernel and ramdisks; `images` and `base_url` as for
    `resolve`. Raises Refused."""
    kernel, *ramdisks = (_file_url(file, images, base_url) for file in diskless.files)
    return kernel, tuple(ramdisks)


def _file_url(file: File, images: Mapping[str, Image], base_url: str) -> str:
    if not file.name:
        return file.url
    _check_image(images.get(file.name), file.name, ("file",))
    return f"{base_url}/{images[file.name].digest}/file"


# ---------------------------------------------------------------- are the images there?


def check_images(configuration: Configuration, images: Mapping[str, Image]) -> None:
    """Raise `Refused` unless the images that the template names exist, are ready and of the right
    kind for their use, and fit into their partitions.

    images  rows by name
    """
    sizes = {str(partition.number): partition.size for partition in configuration.partitions}
    for choice in configuration.images:
        if choice.name:
            _check_image(images.get(choice.name), choice.name, ("disk", "partition"))
            room = sizes.get(choice.target, 0)
            if (size := images[choice.name].size) > room > 0:
                raise Refused(
                    "invalid",
                    f"the image {choice.name!r} ({size} bytes) is larger than its partition"
                    f" ({room} bytes)",
                    "image",
                )
    _check_seed(configuration, images)
    _check_mbr(needs.with_facts(configuration, images))
    for file in configuration.diskless.files if configuration.diskless else ():
        if file.name:
            _check_image(images.get(file.name), file.name, ("file",))


def _check_seed(configuration: Configuration, images: Mapping[str, Image]) -> None:
    """Raise `Refused` if there is no free slot for the seed's partition. Images that an installer
    writes, and images on other servers, are not checked: their partitions are unknown."""
    if not configuration.seed or configuration.diskless is not None:
        return
    if configuration.table == "mbr" and len(configuration.partitions) == 4:
        raise Refused(
            "invalid",
            "the seed needs a partition, and an MBR has four, which the layout takes; use"
            ' table="gpt"',
            "layout",
        )
    for choice in configuration.images:
        image = images.get(choice.name) if choice.target == "disk" else None
        if image is None or choice.installer != "copy":
            continue
        if image.content == "partition" or image.table == "none":
            raise Refused(
                "invalid",
                f"the seed needs a partition, and the image {choice.name!r} has no partition table;"
                " give the template a layout",
                "image",
            )
        if image.table == "full":
            raise Refused(
                "invalid",
                f"the seed needs a partition, and the image {choice.name!r} has an MBR whose four"
                " primary partitions are taken",
                "image",
            )


def _check_mbr(configuration: Configuration) -> None:
    """Raise `Refused` if an MBR cannot address the whole layout on any disk."""
    size = needs.least_size(configuration, configuration.images)
    reach = needs.MBR_REACH * (needs.sector(configuration.images) or 4096)
    if configuration.table == "mbr" and size > reach:
        raise Refused(
            "invalid",
            f"an MBR addresses {reach} bytes of such disks, and the layout needs {size}; use"
            ' table="gpt"',
            "layout",
        )


def _check_image(image: Image | None, name: str, contents: Iterable[str]) -> None:
    if image is None:
        raise Refused("not_found", f"there is no image {name!r}", "image")
    if image.state != "ready":
        raise Refused("conflict", f"the image {name!r} is {image.state}", "image")
    if image.content not in contents:
        raise Refused(
            "invalid",
            f"the image {name!r} holds a {image.content}, which does not go there",
            "image",
        )
