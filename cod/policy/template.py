"""Configuration templates: reading one, and choosing what of it fits a node. Pure.

The text has been checked against `schema/template.rng` (which documents it, with an example) when it was stored; what a
grammar cannot say is checked by `parse`. `resolve` is asked when a node is to be primed: it chooses among the images by
the node's hardware and turns names into places to fetch from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from cod.model import Image, Refused, TypeRules
from cod.orders import ImageSource, Partition
from cod.policy.match import canonical, check, satisfies

_UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
          "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


@dataclass(frozen=True, slots=True)
class Choice:
    """An image that a template may put on `target`, if the requirements document `when` ('' for always) holds.

    name   of an image that was added; or '' and `url`, `size`, `sha256`, `compression` of one elsewhere
    installer, installer_digest   as in `orders.ImageSource`
    """

    target: str
    name: str
    url: str
    size: int
    sha256: str
    compression: str
    installer: str
    installer_digest: str
    when: str


@dataclass(frozen=True, slots=True)
class File:
    """A kernel or ramdisk: the `name` of an image that was added plain, or a `url`."""

    name: str
    url: str


@dataclass(frozen=True, slots=True)
class Diskless:
    """How a diskless node boots."""

    kernel: File
    ramdisks: tuple[File, ...]
    cmdline: str


@dataclass(frozen=True, slots=True)
class Ready:
    """A node is ready when TCP `port` accepts and, unless `path` is '', answers GET `path` with 2xx or 3xx."""

    port: int
    path: str


@dataclass(frozen=True, slots=True)
class Configuration:
    """A template, read.

    name       '' in a document that was not checked against the schema
    requires   requirements document of the hardware, '' for none
    disk, table, partitions, verify   as in `orders.Order`
    images     in order of preference for each target
    diskless   None: the node boots from its disk
    cache      the disk may be kept at release and used again by the same group
    seed       write a NoCloud seed with `user_data`
    """

    name: str
    description: str
    requires: str
    disk: str
    table: str
    partitions: tuple[Partition, ...]
    images: tuple[Choice, ...]
    diskless: Diskless | None
    ready: Ready | None
    cache: bool
    verify: bool
    seed: bool
    user_data: str


@dataclass(frozen=True, slots=True)
class Parts:
    """What a template says about one node's `orders.Order`: attributes as there."""

    disk: str
    verify: bool
    table: str
    partitions: tuple[Partition, ...]
    images: tuple[ImageSource, ...]


# ---------------------------------------------------------------- reading


def parse(document: str) -> Configuration:
    """The template that a checked document describes. Raises Refused where it contradicts itself."""
    root = ElementTree.fromstring(document)
    personalise = root.find("personalise")
    configuration = Configuration(
        name=root.get("name", ""),
        description=(root.findtext("description") or "").strip(),
        requires=_tree(root.find("requires")),
        disk=_get(root.find("disk"), "select", "first"),
        table=_get(root.find("layout"), "table", "keep"),
        partitions=tuple(_partition(element) for element in root.iterfind("layout/partition")),
        images=tuple(_choice(element) for element in root.iterfind("image")),
        diskless=_diskless(root.find("boot")),
        ready=_ready(root.find("ready")),
        cache=root.get("cache") == "yes",
        verify=root.get("verify") == "yes",
        seed=_get(personalise, "seed", "none") == "nocloud",
        user_data=root.findtext("personalise/user-data") or "",
    )
    _check_layout(configuration.partitions, configuration.table)
    _check_images(configuration)
    return configuration


def size_in_bytes(text: str) -> int:
    """'512MiB', '20GB' or '1048576' in bytes."""
    match = re.fullmatch(r"(\d+)(\w*)", text)
    if match is None or match[2] not in _UNITS:
        raise Refused("invalid", f"{text!r} is not a size", "size")
    return int(match[1]) * _UNITS[match[2]]


def image_names(configuration: Configuration) -> frozenset[str]:
    """The names of all added images that the template refers to."""
    names = [choice.name for choice in configuration.images] + [file.name for file in _files(configuration.diskless)]
    return frozenset(names) - {""}


def _files(diskless: Diskless | None) -> tuple[File, ...]:
    return (diskless.kernel, *diskless.ramdisks) if diskless else ()


def _get(element: Element | None, name: str, default: str) -> str:
    return default if element is None else element.get(name, default)


def _tree(element: Element | None) -> str:
    if element is None:
        return ""
    element.tail = None
    return ElementTree.tostring(element, encoding="unicode")


def _partition(element: Element) -> Partition:
    size = element.get("size")
    return Partition(int(element.attrib["number"]), size_in_bytes(size) if size else 0, element.attrib["type"],
                     element.get("name", ""))


def _choice(element: Element) -> Choice:
    installer = element.find("installer")
    kind = _get(installer, "kind", "copy")
    return Choice(
        target=element.attrib["target"],
        name=element.get("name", ""),
        url=element.get("url", ""),
        size=size_in_bytes(element.get("size", "0")),
        sha256=element.get("sha256", ""),
        compression=element.get("compression", "chunks"),
        installer=_get(installer, "url", "") if kind == "program" else kind,
        installer_digest=_get(installer, "sha256", ""),
        when=_tree(element.find("when")),
    )


def _diskless(boot: Element | None) -> Diskless | None:
    if boot is None or boot.get("mode") != "diskless":
        return None
    kernel, *ramdisks = (File(e.get("image", ""), e.get("url", "")) for e in boot if e.tag in ("kernel", "ramdisk"))
    return Diskless(kernel, tuple(ramdisks), (boot.findtext("cmdline") or "").strip())


def _ready(element: Element | None) -> Ready | None:
    return None if element is None else Ready(int(element.attrib["port"]), element.get("path", ""))


# ---------------------------------------------------------------- what a grammar cannot say


def check_hardware(configuration: Configuration) -> None:
    """See that what is said of hardware can mean something. Raises Refused; lines are counted inside the element."""
    documents = [("requires", configuration.requires), *(("when", choice.when) for choice in configuration.images)]
    for element, document in documents:
        try:
            check(document, root=element)
        except Refused as refused:
            raise Refused("invalid", f"in <{element}>, {refused.sentence}", element) from None


def _check_layout(partitions: tuple[Partition, ...], table: str) -> None:
    numbers = [partition.number for partition in partitions]
    if len(set(numbers)) < len(numbers):
        raise Refused("invalid", "two partitions have the same number", "layout")
    if any(partition.size == 0 for partition in partitions[:-1]):
        raise Refused("invalid", "only the last partition may take the rest of the disk", "layout")
    if table == "mbr" and max(numbers) > 4:
        raise Refused("invalid", "an MBR table has four partitions; use table=\"gpt\"", "layout")
    if table == "mbr" and any(p.type == "bios" or "-" in p.type for p in partitions):
        raise Refused("invalid", "an MBR has no partition type bios, and no GUIDs", "layout")


def _check_images(configuration: Configuration) -> None:
    if not configuration.images and configuration.diskless is None:
        raise Refused("invalid", "a template that boots from the disk needs an image", "image")
    sizes = {str(partition.number): partition.size for partition in configuration.partitions} or {"disk": 0}
    settled: set[str] = set()
    for choice in configuration.images:
        if choice.target not in sizes:
            raise Refused("invalid", f"an image has target {choice.target!r}, which the layout does not have", "image")
        if choice.target in settled:
            raise Refused("invalid", f"an image for target {choice.target} comes after one that always fits", "image")
        if choice.size > sizes[choice.target] > 0:
            raise Refused("invalid", f"the image {choice.url} is larger than its partition {choice.target}", "image")
        if choice.installer == "qcow2" and (choice.name or choice.compression != "raw"):
            raise Refused("invalid", "the installer qcow2 is for a URL with compression=\"raw\"; an image that is "
                          "added to COD is converted then", "installer")
        if not choice.when:
            settled.add(choice.target)


def check_images(configuration: Configuration, images: Mapping[str, Image]) -> None:
    """Do all images that the template names exist, and can they be used as it wants to? Raises Refused.

    images  rows by name
    """
    sizes = {str(partition.number): partition.size for partition in configuration.partitions}
    for choice in configuration.images:
        if choice.name:
            _check_image(images.get(choice.name), choice.name, ("disk", "partition"))
            _check_fits(images[choice.name].size, choice.name, sizes.get(choice.target, 0))
    for file in _files(configuration.diskless):
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


# ---------------------------------------------------------------- for one node


def resolve(
    configuration: Configuration, attributes: str, images: Mapping[str, Image], base_url: str,
    rules: TypeRules | None = None,
) -> Parts:
    """What the template means for the node whose hardware report is `attributes` (XML).

    images    rows by name, at least those of `image_names`
    base_url  where the images' folders are served, without a slash at the end, e.g. http://10.0.0.1:8069/images
    rules     what makes the site's node types
    Raises Refused when the hardware is not what the template requires, or no image fits it. Like the manager, it
    compares the canonical form, so that all nodes of a type are treated alike.
    """
    kind = canonical(attributes, rules)
    if missing := satisfies(configuration.requires, kind):
        raise Refused("conflict", "the node lacks what the template requires: " + "; ".join(map(str, missing)))
    check_images(configuration, images)
    targets = dict.fromkeys(choice.target for choice in configuration.images)
    chosen = [_first_fit(configuration.images, target, kind) for target in targets]
    return Parts(
        disk=configuration.disk,
        verify=configuration.verify,
        table=configuration.table,
        partitions=configuration.partitions,
        images=tuple(_source(choice, images, base_url) for choice in chosen),
    )


def _first_fit(choices: Iterable[Choice], target: str, attributes: str) -> Choice:
    for choice in choices:
        if choice.target == target and not satisfies(choice.when, attributes):
            return choice
    raise Refused("conflict", f"no image of the template for target {target} fits the node's hardware")


def _source(choice: Choice, images: Mapping[str, Image], base_url: str) -> ImageSource:
    if not choice.name:
        return ImageSource(choice.target, choice.url, choice.compression, choice.sha256, choice.size,
                           choice.installer, choice.installer_digest)
    image = images[choice.name]
    return ImageSource(choice.target, f"{base_url}/{image.digest}", "chunks", image.digest, image.size,
                       choice.installer, choice.installer_digest)


def boot_files(diskless: Diskless, images: Mapping[str, Image], base_url: str) -> tuple[str, tuple[str, ...]]:
    """The URLs of a diskless node's kernel and ramdisks; `images` and `base_url` as for `resolve`. Raises Refused."""
    kernel, *ramdisks = (_file_url(file, images, base_url) for file in _files(diskless))
    return kernel, tuple(ramdisks)


def _file_url(file: File, images: Mapping[str, Image], base_url: str) -> str:
    if not file.name:
        return file.url
    _check_image(images.get(file.name), file.name, ("file",))
    return f"{base_url}/{images[file.name].digest}/file"


def seed_files(
    configuration: Configuration, *, instance: str, hostname: str, keys: Iterable[str] = ()
) -> dict[str, str]:
    """Files of the NoCloud seed (cloud-init's data source), by name; empty when the template wants none.

    instance  changes whenever the node is primed anew, so that cloud-init runs again (an order's id will do)
    keys      public ssh keys of the default user
    """
    if not configuration.seed:
        return {}
    meta = {"instance-id": instance, "local-hostname": hostname}
    return {  # JSON is YAML, and quotes by itself
        "meta-data": json.dumps(meta | ({"public-keys": list(keys)} if keys else {})) + "\n",
        "user-data": configuration.user_data or "#cloud-config\n{}\n",
    }
