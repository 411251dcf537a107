"""Disks marked keep: COD neither writes nor erases nor captures them. Pure.

A mark is 'serial:SERIAL', 'path:/dev/NAME' or 'model:PATTERN'. Marks are set for a node, or are
rules of the site file. In a stored report, a kept disk has keep="yes" and local="no", as if it were
on a USB bus: so all code that counts or chooses local disks leaves it alone, and a node with a kept
disk is of another type.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from cod.model import KeepRule, Node, Refused
from cod.states import OWN_SYSTEM, WORKING, Disk

KEPT = 'keep="yes"'  # in reports
MOST = 1000  # characters of a node's own marks
_MARK = re.compile(
    r"serial:[^\s].{0,99}|path:/dev/[A-Za-z0-9_!-]{1,64}(?:/[A-Za-z0-9_!-]{1,64})?|model:[^\s].{0,99}"
)


def check(mark: str) -> str:
    """Return `mark` if it is a valid mark. Raises `Refused` if not."""
    if not _MARK.fullmatch(mark):
        raise Refused(
            "invalid", f"{mark!r} should be serial:SERIAL, path:/dev/NAME or model:PATTERN", "keep"
        )
    return mark


def marks(node: Node, rules: Iterable[KeepRule]) -> tuple[str, ...]:
    """Return all marks for the disks of a node: those set for the node, and those by the site's
    rules."""
    ruled = (
        rule.disk
        for rule in rules
        if fnmatchcase(node.name, rule.match) or fnmatchcase(node.boot_mac, rule.match.lower())
    )
    return tuple(dict.fromkeys([*node.keep.split("\n"), *ruled] if node.keep else ruled))


def stored(report_xml: str, node: Node, rules: Iterable[KeepRule]) -> str:
    """Return a node's report as it is stored, with its kept disks marked. While an order works on
    the node's disks, disks that the previous report marks stay marked: the order may have spared
    them, and they must not count as erased when it ends."""
    holding = marks(node, rules)
    if node.state in WORKING and node.attributes and KEPT in node.attributes:
        disks = ElementTree.fromstring(node.attributes).iter("disk")
        holding += tuple(_named(disk) for disk in disks if disk.get("keep") == "yes")
    return marked(report_xml, holding)


def together(owns: Iterable[str]) -> str:
    """Return the joined marks, up to `MOST` characters, of nodes that are one machine."""
    found = ""
    for mark in dict.fromkeys(mark for own in owns for mark in own.split("\n") if mark):
        longer = f"{found}\n{mark}" if found else mark
        found = longer if len(longer) <= MOST else found
    return found


def marked(report_xml: str, marks: Iterable[str]) -> str:
    """Return the report with exactly those disks marked as kept that `marks` match."""
    marks = tuple(marks)
    if not marks and KEPT not in report_xml:
        return report_xml
    root = ElementTree.fromstring(report_xml)
    # a mark may name any path to a disk that has several: then all its paths are kept
    paths = {
        disk.get("wwid")
        for disk in root.iter("disk")
        if _is_other_path(disk) and any(_fits(mark, disk) for mark in marks)
    }
    for disk in root.iter("disk"):
        was = disk.get("keep") == "yes"
        is_ = (was or disk.get("local") == "yes") and (
            disk.get("wwid") in paths or any(_fits(mark, disk) for mark in marks)
        )
        if is_ and not was:
            disk.set("keep", "yes")
            disk.set("local", "no")
        elif was and not is_:
            del disk.attrib["keep"]
            disk.set("local", "yes")
    return ElementTree.tostring(root, encoding="unicode")


def _is_other_path(disk: Element) -> bool:
    """Return whether an element is a further path to a disk that has several: by `[policy]
    same_wwn` only the first path is local."""
    return "paths" in disk.attrib and (disk.get("local"), disk.get("keep")) == ("no", None)


def kept(report_xml: str | None) -> tuple[str, ...]:
    """Return the kept disks of a marked report, for people: 'sdb (serial X)'."""
    if not report_xml or KEPT not in report_xml:
        return ()
    return tuple(
        _called(disk)
        for disk in ElementTree.fromstring(report_xml).iter("disk")
        if disk.get("keep") == "yes"
    )


def unkept(before_xml: str | None, after_xml: str) -> tuple[str, ...]:
    """Return the disks that were kept in the first report and may be written by the second, for
    people."""
    local = {
        _called(disk)
        for disk in ElementTree.fromstring(after_xml).iter("disk")
        if disk.get("local") == "yes"
    }
    return tuple(disk for disk in kept(before_xml) if disk in local)


def changed(node: Node, report_xml: str) -> dict[str, object]:
    """Return the node's columns that change if its new marked report has other kept disks; empty if
    it has not.

    A disk that is kept no longer may have data that no next holder may read, and a cached template
    may be on a disk that is kept now. So the disks of a free node are wiped before it is granted.
    Under a running system the disks count as foreign, so that they are wiped and not cached when
    the node is released. A node that comes back from a capture keeps its system.
    """
    if kept(node.attributes) == kept(report_xml):
        return {}
    columns: dict[str, object] = {"cached_template_id": None, "cached_group_id": None}
    if node.state in OWN_SYSTEM and node.disk != Disk.SYSTEM:
        return columns | {"disk": Disk.FOREIGN}
    exposed = node.disk == Disk.CLEAN and bool(unkept(node.attributes, report_xml))
    left = node.disk in (Disk.CACHED, Disk.TABLES, Disk.DIRTY)
    return columns | {"disk": Disk.DIRTY} if exposed or left else {}


def for_order(report_xml: str | None, marks: Iterable[str]) -> tuple[str, ...]:
    """Return the marks for the agent. They also hold for disks that appear later. Disks of the
    report that match a pattern of models are named one by one, too, in case the agent reads another
    model from them now."""
    paths = [_as_path(mark) if mark.startswith("path:") else mark for mark in marks]
    patterns = [mark for mark in paths if mark.startswith("model:")]
    if report_xml and patterns:
        paths += [
            _named(disk)
            for disk in ElementTree.fromstring(report_xml).iter("disk")
            if any(_fits(mark, disk) for mark in patterns)
        ]
    return tuple(dict.fromkeys(paths))


def in_the_way(select: str, report_xml: str) -> str:
    """Say why kept disks keep a template that writes the disk `select` from the node with this
    marked report; '' if they do not."""
    disks = list(ElementTree.fromstring(report_xml).iter("disk"))
    spared = [disk for disk in disks if disk.get("keep") == "yes"]
    if any(_fits(select, disk) for disk in spared):
        return f"the template writes the disk {select}, which is marked keep on the node"
    if spared and not any(disk.get("local") == "yes" for disk in disks):
        return "every local disk of the node is marked keep: " + ", ".join(map(_called, spared))
    return ""


def _fits(mark: str, disk: Element) -> bool:
    kind, _, value = mark.partition(":")
    if kind == "serial":
        return disk.get("serial") == value
    if kind == "path":
        return _as_path(f"/dev/{disk.get('name')}") == _as_path(value)
    return kind == "model" and fnmatchcase(disk.get("model", ""), value)


def _as_path(name: str) -> str:
    """Return a disk's kernel name as it is in paths: cciss!c0d0 becomes cciss/c0d0."""
    return name.replace("!", "/")


def _named(disk: Element) -> str:
    serial = disk.get("serial")
    return f"serial:{serial}" if serial else _as_path(f"path:/dev/{disk.get('name')}")


def _called(disk: Element) -> str:
    serial = disk.get("serial")
    return f"{disk.get('name')} (serial {serial})" if serial else disk.get("name", "")
