"""Saving a node's disk as an image: whether that is allowed, which disk is saved, and the template
for the image. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from cod.model import CapturedPartition, Image, Node, Refused
from cod.policy.hardware import needs, quantity
from cod.policy.hardware.attributes import BYTES
from cod.policy.nodes.template import Configuration
from cod.states import Disk, NodeEvent, NodeState, Step

MIB = 1 << 20
_DESCRIPTION = 2000  # characters, as in schema/template.rng


@dataclass(frozen=True, slots=True)
class Where:
    """The disk to read: `rule` as `orders.Order.disk`, among disks with at least `least` bytes and
    sectors of `sector` bytes (0: any)."""

    rule: str
    least: int
    sector: int = 0


def check(node: Node, configuration: Configuration | None) -> None:
    """Raise `Refused` unless the node may be captured now. `configuration`: the template of the
    vcluster that holds the node; None: no vcluster holds it."""
    if node.state == NodeState.ACTIVE:
        if configuration is not None and configuration.diskless is not None:
            raise Refused(
                "conflict",
                f"node {node.name} boots from the network: there is nothing of its vcluster's on "
                "its disks",
                "name",
            )
        return
    if node.state not in (NodeState.INACTIVE, NodeState.OFF):
        raise Refused(
            "conflict",
            f"node {node.name} is {node.state}: only active nodes and those of the reserve can "
            "be captured",
            "name",
        )
    if node.disk in (Disk.CLEAN, Disk.TABLES):
        raise Refused(
            "conflict",
            f"the disks of node {node.name} were wiped: there is nothing to capture",
            "name",
        )
    if node.state == NodeState.OFF and node.power_driver == "none":
        raise Refused(
            "conflict",
            f"node {node.name} is off, and no power driver can wake it: switch it on first",
            "name",
        )


def leave(cause: str, power: str | None = None) -> Step:
    """Return the step of an active node that leaves its vcluster's system to be captured, and
    comes back to it later."""
    return Step(
        NodeEvent.CAPTURE_WANTED, cause, {"disk": Disk.SYSTEM, "attempts": 0, "reason": ""}, power
    )


def where(source: Configuration | None, images: Mapping[str, Image]) -> Where:
    """Return the disk of a node's system: the disk that its template `source` was written to. None:
    the template is unknown, and the system is on the first disk.

    images  rows by name, of those images of the template that still exist
    """
    if source is None:
        return Where("first", 0)
    known = needs.with_facts(source, images).images
    sizes = [choice.size for choice in known]
    return Where(
        source.disk,
        max([*sizes, sum(partition.size for partition in source.partitions)], default=0),
        needs.sector(known),
    )


def largest_disk(report: str | None) -> int:
    """Return the size in bytes of the largest disk in a hardware report; 0 if it has no disk."""
    disks = ElementTree.fromstring(report).iter("disk") if report else ()
    return max((int(disk.get("size", 0)) for disk in disks), default=0)


# ---------------------------------------------------------------- the template


def document(
    name: str,
    image: str,
    size: int,
    partitions: Sequence[CapturedPartition],
    node: Node,
    source: str | None,
) -> str:
    """Return the document of a template that puts the image onto other nodes.

    size    bytes of the image
    source  document of the template that the captured disk was written with. Its requirements,
            kept disks, seed and readiness stay. None: unknown; the new template then requires the
            same kind of firmware
    """
    root = ElementTree.fromstring(source) if source else _unknown(node)
    root.set("name", name)
    for old in [
        child for child in root if child.tag in ("description", "layout", "image", "boot", "disk")
    ]:
        root.remove(old)
    about = Element("description")
    lines = [
        f"{p.number or 'disk'}: {p.content or p.type}, {_size(p.size)} {p.name}".rstrip()
        for p in partitions
    ]
    about.text = f"Captured from node {node.name}. Partitions: {'; '.join(lines) or 'none'}"[
        :_DESCRIPTION
    ]
    root.insert(0, about)
    # Require a disk that is large enough, unless the template has more complex requirements on
    # disks.
    requires = root.find("requires")
    if requires is None:
        requires = Element("requires")
        root.insert(1, requires)
    disks = requires.findall("disk")
    if not disks:
        SubElement(SubElement(requires, "disk"), "size", {"min": f"{-(-size // MIB)}MiB"})
    elif (
        len(disks) == 1
        and [e.tag for e in disks[0]] == ["size"]
        and list(disks[0][0].attrib) == ["min"]
    ):
        element = disks[0][0]
        least = quantity.value(element.attrib["min"], BYTES)
        if least is not None and least < size:
            element.set("min", f"{-(-size // MIB)}MiB")
    SubElement(root, "image", {"target": "disk", "name": image})
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def _unknown(node: Node) -> Element:
    root = Element("template")
    if node.firmware:
        firmware = SubElement(SubElement(root, "requires"), "firmware")
        SubElement(firmware, "kind", {"equal": node.firmware})
    return root


def _size(size: int) -> str:
    return f"{size // MIB} MiB" if size >= MIB else f"{size} bytes"
