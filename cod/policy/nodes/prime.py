"""What a configuration template means for one node: its part of the order, boot files, the seed. Pure.

Asked when a node is to be primed or booted: chooses among the template's images by the node's hardware and turns names
into places to fetch from.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cod.model import Image, Refused, TypeRules
from cod.orders import ImageSource, Partition
from cod.policy.hardware import needs
from cod.policy.hardware.match import canonical
from cod.policy.nodes.template import Choice, Configuration, Diskless, File


@dataclass(frozen=True, slots=True)
class Parts:
    """What a template says about one node's `orders.Order`: attributes as there."""

    disk: str
    verify: bool
    table: str
    partitions: tuple[Partition, ...]
    images: tuple[ImageSource, ...]
    sector: int


def resolve(
    configuration: Configuration, attributes: str, images: Mapping[str, Image], base_url: str,
    rules: TypeRules | None = None,
) -> Parts:
    """Return what the template means for the node whose hardware report is `attributes` (XML).

    images    rows by name, at least those of `image_names`
    base_url  where the images' folders are served, without a slash at the end, e.g. http://10.0.0.1:8069/images
    rules     what makes the site's node types
    Raises Refused when the hardware is not what the template requires, or no image fits it. Like the manager, it
    compares the canonical form, so that all nodes of a type are treated alike.
    """
    kind = canonical(attributes, rules)
    configuration = needs.with_facts(configuration, images)
    if missing := needs.lacking(configuration, kind):
        raise Refused("conflict", "the node lacks what the template requires: " + "; ".join(map(str, missing)))
    check_images(configuration, images)
    chosen, _ = needs.chosen(configuration, kind)
    return Parts(
        disk=configuration.disk,
        verify=configuration.verify,
        table=configuration.table,
        partitions=configuration.partitions,
        images=tuple(_source(choice, images, base_url) for choice in chosen),
        sector=needs.sector(chosen),
    )


def _source(choice: Choice, images: Mapping[str, Image], base_url: str) -> ImageSource:
    if not choice.name:
        return ImageSource(choice.target, choice.url, choice.compression, choice.sha256, choice.size,
                           choice.installer, choice.installer_digest)
    image = images[choice.name]
    return ImageSource(choice.target, f"{base_url}/{image.digest}", "chunks", image.digest, image.size,
                       choice.installer, choice.installer_digest)


def boot_files(diskless: Diskless, images: Mapping[str, Image], base_url: str) -> tuple[str, tuple[str, ...]]:
    """Return the URLs of a diskless node's kernel and ramdisks; `images` and `base_url` as for `resolve`. Raises
    Refused."""
    kernel, *ramdisks = (_file_url(file, images, base_url) for file in diskless.files)
    return kernel, tuple(ramdisks)


def _file_url(file: File, images: Mapping[str, Image], base_url: str) -> str:
    if not file.name:
        return file.url
    _check_image(images.get(file.name), file.name, ("file",))
    return f"{base_url}/{images[file.name].digest}/file"


def seed_files(
    configuration: Configuration, *, instance: str, fqdn: str, mac: str, keys: Sequence[str] = ()
) -> dict[str, str]:
    """Return files of the NoCloud seed (cloud-init's data source), by name; empty when the template wants none.

    instance  changes whenever the node is primed anew, so that cloud-init runs again (an order's id will do)
    fqdn      the node's name with its domain; cloud-init makes its first word the host name
    mac       the NIC that asks DHCP. Left to itself, cloud-init takes the first one with a cable
    keys      lines of root's authorized_keys. cloud-init takes them from the meta data, for its default user and,
              since the vendor data allows it, for root; images that read their seed themselves find them in a file
    """
    if not configuration.seed:
        return {}
    meta = {"instance-id": instance, "local-hostname": fqdn}
    network = {"version": 2, "ethernets": {"boot": {"match": {"macaddress": mac}, "dhcp4": True}}}
    files = {  # JSON is YAML, and quotes by itself
        "meta-data": json.dumps(meta | ({"public-keys": list(keys)} if keys else {})) + "\n",
        "user-data": configuration.user_data or "#cloud-config\n{}\n",
        "network-config": json.dumps(network) + "\n",
    }
    if keys:
        files |= {"authorized_keys": "".join(f"{key}\n" for key in keys), "vendor-data": _ROOT_LETS_IN}
    return files


_ROOT_LETS_IN = '#cloud-config\n{"disable_root": false}\n'


def with_more(seed: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """Return a seed with more files; where both have vendor data, cloud-init gets both, as parts of one (MIME)."""
    both = [files["vendor-data"] for files in (seed, more) if "vendor-data" in files]
    joined = {"vendor-data": _multipart(both)} if len(both) > 1 else {}
    return {**seed, **more, **joined}


def _multipart(parts: Iterable[str]) -> str:
    kinds = {"#!": "text/x-shellscript", "#c": "text/cloud-config"}
    shown = "".join(f"--==COD==\nContent-Type: {kinds[part[:2]]}\n\n{part}\n" for part in parts)
    return f'Content-Type: multipart/mixed; boundary="==COD=="\nMIME-Version: 1.0\n\n{shown}--==COD==--\n'


# ---------------------------------------------------------------- are the images there?


def check_images(configuration: Configuration, images: Mapping[str, Image]) -> None:
    """Check that all images that the template names exist, and can be used as it wants to. Raises Refused.

    images  rows by name
    """
    sizes = {str(partition.number): partition.size for partition in configuration.partitions}
    for choice in configuration.images:
        if choice.name:
            _check_image(images.get(choice.name), choice.name, ("disk", "partition"))
            _check_fits(images[choice.name].size, choice.name, sizes.get(choice.target, 0))
    for file in configuration.diskless.files if configuration.diskless else ():
        if file.name:
            _check_image(images.get(file.name), file.name, ("file",))


def _check_image(image: Image | None, name: str, contents: Iterable[str]) -> None:
    if image is None:
        raise Refused("not_found", f"there is no image {name!r}", "image")
    if image.state != "ready":
        raise Refused("conflict", f"the image {name!r} is {image.state}", "image")
    if image.content not in contents:
        raise Refused("invalid", f"the image {name!r} holds a {image.content}, which does not go there", "image")


def _check_fits(size: int, name: str, room: int) -> None:
    if size > room > 0:
        raise Refused("invalid", f"the image {name!r} ({size} bytes) is larger than its partition ({room} bytes)",
                      "image")
