"""Configuration templates, read into records. Pure.

A document was checked against `schema/template.rng` (which describes it, with an example) when it
was stored. `parse` checks rules that a grammar cannot express. `policy.nodes.prime` applies a
template to a node.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from textwrap import dedent
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from cod.model import Refused
from cod.orders import Partition
from cod.policy.hardware.match import check
from cod.quantity import read_size


@dataclass(frozen=True, slots=True)
class ImageChoice:
    """An image that a template may put on `target`, if the node satisfies the requirements document
    `when` ('': always).

    name   of an image that was added to COD; '': the image is on another server, with `url`,
           `size`, `sha256` and `compression`
    installer, installer_digest   as in `orders.ImageSource`
    sector   size in bytes of the logical sectors that the disk must have; 0: any, or unknown
    ends_at  byte behind the image's last partition; 0: unknown

    For an added image, `size`, `sector` and `ends_at` are known if the document has them in <known>
    (`store.images.templates`).
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
    sector: int = 0
    ends_at: int = 0


@dataclass(frozen=True, slots=True)
class File:
    """A kernel or ramdisk: the `name` of an image that was added as a plain file, or a `url`."""

    name: str
    url: str


@dataclass(frozen=True, slots=True)
class Diskless:
    """Kernel, ramdisks and command line of a diskless node."""

    kernel: File
    ramdisks: tuple[File, ...]
    cmdline: str

    @property
    def files(self) -> tuple[File, ...]:
        """The kernel, then the ramdisks."""
        return (self.kernel, *self.ramdisks)


@dataclass(frozen=True, slots=True)
class Ready:
    """The sign by which a booting node counts as active.

    by       'dhcp': its system asks for an address, and then answers on `port` unless that is 0;
             'port': its reserved address answers on `port`, even if it did not ask for the address;
             'time': `seconds` have passed since its boot was served; 'none': its boot was served
    port, path   TCP `port` accepts connections and, unless `path` is '', answers GET `path` with
                 2xx or 3xx
    """

    port: int = 0
    path: str = ""
    by: str = "dhcp"
    seconds: int = 0


@dataclass(frozen=True, slots=True)
class Configuration:
    """The content of a template's document.

    name       '' in a document that was not checked against the schema
    requires   requirements document of the hardware, '' for none
    disk, table, partitions, verify   as in `orders.Order`
    images     in order of preference for each target
    diskless   None: the node boots from its disk
    cache      the disk may be kept at release and used again by the same group
    seed       write a NoCloud seed with `user_data`
    own_host_keys   the system makes its SSH host keys itself: the seed brings none
    kerberos   the node is a client of the site's Kerberos
    secret     the user data are written to the disk's seed alone: the metadata service does not
               tell them
    wipe       the least strict way of erasing the disks afterwards: 'zero' or 'purge'; '': as the
               site and the group say
    seedfrom   the seed has only the URL of the metadata service, from which cloud-init fetches
               everything except secrets
    """

    name: str
    description: str
    requires: str
    disk: str
    table: str
    partitions: tuple[Partition, ...]
    images: tuple[ImageChoice, ...]
    diskless: Diskless | None
    ready: Ready
    cache: bool
    verify: bool
    seed: bool
    user_data: str
    own_host_keys: bool = False
    seedfrom: bool = False
    secret: bool = False
    wipe: str = ""
    kerberos: bool = False


# ---------------------------------------------------------------- reading


@lru_cache(maxsize=256)
def parse(document: str) -> Configuration:
    """Return the content of a checked document. Raises `Refused` if the document contradicts
    itself."""
    root = ElementTree.fromstring(document)
    personalise = root.find("personalise")
    seedfrom = _get(personalise, "seedfrom", "disk") == "metadata"
    known = {element.attrib["name"]: element for element in root.iterfind("known")}
    # If no partition is marked, the system starts from one of type bios, which has no other use.
    partitions = tuple(_partition(element) for element in root.iterfind("layout/partition"))
    marked = any(partition.boot for partition in partitions)
    configuration = Configuration(
        name=root.get("name", ""),
        description=(root.findtext("description") or "").strip(),
        requires=_tree(root.find("requires")),
        disk=_get(root.find("disk"), "select", "first"),
        table=_get(root.find("layout"), "table", "keep"),
        partitions=tuple(
            replace(one, boot=True) if one.type == "bios" and not marked else one
            for one in partitions
        ),
        images=tuple(
            _choice(element, known.get(element.get("name", "")))
            for element in root.iterfind("image")
        ),
        diskless=_diskless(root.find("boot")),
        ready=_ready(root.find("ready")),
        cache=root.get("cache") == "yes",
        verify=root.get("verify") == "yes",
        wipe=root.get("wipe", ""),
        seed=_get(personalise, "seed", "none") == "nocloud",
        # The first line of user data names its type. In an indented document a line break and
        # spaces precede it.
        user_data=dedent((root.findtext("personalise/user-data") or "").lstrip("\n")),
        own_host_keys=_get(personalise, "hostkeys", "site") == "own" or seedfrom,
        seedfrom=seedfrom,
        secret=_get(root.find("personalise/user-data"), "secret", "no") == "yes",
        kerberos=_get(personalise, "kerberos", "no") == "yes",
    )
    _check_layout(configuration.partitions, configuration.table)
    _check_images(configuration)
    if configuration.secret and (seedfrom or not configuration.seed or configuration.diskless):
        raise Refused(
            "invalid",
            "secret user data are told by no metadata service, and need a seed on the node's disk:"
            ' <personalise seed="nocloud"/> without seedfrom, and a template that boots from the'
            " disk",
            "user-data",
        )
    if configuration.kerberos and (seedfrom or not configuration.seed or configuration.diskless):
        raise Refused(
            "invalid",
            "a keytab is told by no metadata service, and needs a seed on the node's disk:"
            ' <personalise seed="nocloud" kerberos="yes"/> without seedfrom, and a template that'
            " boots from the disk",
            "personalise",
        )
    return configuration


def image_names(configuration: Configuration) -> frozenset[str]:
    """Return the names of all added images that the template refers to."""
    files = configuration.diskless.files if configuration.diskless else ()
    return frozenset(
        {choice.name for choice in configuration.images} | {file.name for file in files}
    ) - {""}


def _get(element: Element | None, name: str, default: str) -> str:
    return default if element is None else element.get(name, default)


def _tree(element: Element | None) -> str:
    if element is None:
        return ""
    element.tail = None
    return ElementTree.tostring(element, encoding="unicode")


def _partition(element: Element) -> Partition:
    size = element.get("size")
    return Partition(
        int(element.attrib["number"]),
        read_size(size) if size else 0,
        element.attrib["type"],
        element.get("name", ""),
        element.get("boot") == "yes",
    )


def _choice(element: Element, known: Element | None) -> ImageChoice:
    installer = element.find("installer")
    kind = _get(installer, "kind", "copy")
    return ImageChoice(
        target=element.attrib["target"],
        name=element.get("name", ""),
        url=element.get("url", ""),
        size=read_size(element.get("size") or _get(known, "size", "0")),
        sha256=element.get("sha256", ""),
        compression=element.get("compression", "chunks"),
        installer=_get(installer, "url", "") if kind == "program" else kind,
        installer_digest=_get(installer, "sha256", ""),
        when=_tree(element.find("when")),
        sector=int(element.get("sector") or _get(known, "sector", "0")),
        ends_at=int(_get(known, "ends_at", "0")),
    )


def _diskless(boot: Element | None) -> Diskless | None:
    if boot is None or boot.get("mode") != "diskless":
        return None
    kernel, *ramdisks = (
        File(e.get("image", ""), e.get("url", "")) for e in boot if e.tag in ("kernel", "ramdisk")
    )
    return Diskless(kernel, tuple(ramdisks), (boot.findtext("cmdline") or "").strip())


def _ready(element: Element | None) -> Ready:
    if element is None:
        return Ready()
    return Ready(
        int(element.get("port", "0")),
        element.get("path", ""),
        element.get("by", "dhcp"),
        int(element.get("seconds", "0")),
    )


# ---------------------------------------------------------------- what a grammar cannot say


def check_hardware(configuration: Configuration) -> None:
    """Raise `Refused` for requirements that no node could ever satisfy. Line numbers in the error
    are counted from the beginning of the element."""
    documents = [
        ("requires", configuration.requires),
        *(("when", choice.when) for choice in configuration.images),
    ]
    for element, document in documents:
        try:
            check(document, root=element)
        except Refused as refused:
            raise Refused("invalid", f"in <{element}>, {refused.sentence}", element) from None


def _check_layout(partitions: tuple[Partition, ...], table: str) -> None:
    numbers = [partition.number for partition in partitions]
    if len(set(numbers)) < len(numbers):
        raise Refused("invalid", "two partitions have the same number", "layout")
    if sum(partition.boot for partition in partitions) > 1:
        raise Refused(
            "invalid",
            'the system can start from one partition only: mark one with boot="yes"',
            "layout",
        )
    if any(partition.size == 0 for partition in partitions[:-1]):
        raise Refused("invalid", "only the last partition may take the rest of the disk", "layout")
    if table == "mbr" and max(numbers) > 4:
        raise Refused("invalid", 'an MBR table has four partitions; use table="gpt"', "layout")
    if table == "mbr" and any(p.type == "bios" or "-" in p.type for p in partitions):
        raise Refused("invalid", "an MBR has no partition type bios, and no GUIDs", "layout")


def _check_images(configuration: Configuration) -> None:
    if not configuration.images and configuration.diskless is None:
        raise Refused("invalid", "a template that boots from the disk needs an image", "image")
    sizes = {str(partition.number): partition.size for partition in configuration.partitions} or {
        "disk": 0
    }
    targets = {choice.target for choice in configuration.images}
    # An image for the whole disk brings a map, and others go into the partitions of that.
    brings_map = not configuration.partitions and "disk" in targets
    for partition in configuration.partitions:
        if partition.boot and str(partition.number) not in targets:
            raise Refused(
                "invalid",
                f"the system is to start from partition {partition.number}, which gets no image",
                "layout",
            )
    settled: set[str] = set()
    for choice in configuration.images:
        if choice.target not in sizes and not brings_map:
            raise Refused(
                "invalid",
                f"an image has target {choice.target!r}, which the layout does not have",
                "image",
            )
        if choice.target in settled:
            raise Refused(
                "invalid",
                f"an image for target {choice.target} comes after one that always fits",
                "image",
            )
        if choice.size > sizes.get(choice.target, 0) > 0:
            raise Refused(
                "invalid",
                f"the image {choice.url} is larger than its partition {choice.target}",
                "image",
            )
        if choice.installer == "qcow2" and (choice.name or choice.compression != "raw"):
            raise Refused(
                "invalid",
                'the installer qcow2 is for a URL with compression="raw"; an image that is '
                "added to COD is converted then",
                "installer",
            )
        if not choice.when:
            settled.add(choice.target)
