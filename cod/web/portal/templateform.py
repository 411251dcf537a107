"""Conversion of a template's document to the fields of a form and back. The form has fields for
what most templates need; other templates are written as XML."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from cod.web.portal import requirements_form
from cod.web.portal.forms import Fields
from cod.wire import xmldoc

PARTITIONS = 6  # rows of the form
TYPES = ("linux", "esp", "bios", "swap", "lvm", "raid", "data")
DISKS = (
    ("", "The first"),
    ("smallest", "The smallest that is large enough"),
    ("largest", "The largest"),
)
_PLACE = "<requires />"


def begun(image: str, content: str) -> Fields:
    """Return the initial fields of a new template. The template writes or boots `image` ('': none
    is chosen), as the image's `content` requires. If the image is a whole disk, the node is told
    its name and keys."""
    if content == "file":
        return Fields({"mode": ["diskless"], "kernel": [image]})
    if content == "partition":
        return Fields({"p0.image": [image], "p0.type": ["linux"]})
    return Fields({"image": [image], "seed": ["true"]})


def offered(names: Iterable[str], value: str) -> list[str]:
    """Return the images that a field offers. They include `value`, the field's present image,
    because a document may use the bare name of a group's image, while `names` has full names."""
    found = list(names)
    return found if value in ("", *found) else [*found, value]


def missing(fields: Fields) -> dict[str, str]:
    """Return sentences, by field, about empty fields that every template needs. The check of the
    document would name lines of XML, which the form's user has not seen."""
    wrong = {} if fields.one("name").strip() else {"name": "should be a name, such as my-template"}
    diskless = fields.one("mode") == "diskless"
    if diskless and not fields.one("kernel"):
        wrong["kernel"] = "choose one of the images that are kernels"
    if (
        not diskless
        and not fields.one("image")
        and not any(_is_filled(fields, f"p{n}.") for n in range(PARTITIONS))
    ):
        wrong["image"] = "choose an image, or say below which partitions there are"
    needed = {"time": "seconds", "port": "port"}.get(fields.one("by"))
    if needed and not fields.one(needed).strip():
        wrong[needed] = "should be a number"
    return wrong


def document(fields: Fields) -> str:
    """Return the document for the fields. It may be wrong, which the check of templates finds."""
    root = Element("template", name=fields.one("name").strip())
    for flag in ("cache", "verify"):
        if fields.one(flag):
            root.set(flag, "yes")
    if fields.one("description").strip():
        SubElement(root, "description").text = fields.one("description").strip()
    wanted = requirements_form.document(fields)
    if wanted:
        SubElement(root, "requires")
    (_diskless if fields.one("mode") == "diskless" else _disk)(root, fields)
    _afterwards(root, fields)
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    return text.replace(_PLACE, wanted, 1) + "\n"


def _disk(root: Element, fields: Fields) -> None:
    if fields.one("which"):
        SubElement(root, "disk", select=fields.one("which"))
    rows = [row for row in range(PARTITIONS) if _is_filled(fields, f"p{row}.")]
    if not rows:
        SubElement(root, "image", target="disk", name=fields.one("image"))
        return
    layout = SubElement(root, "layout", table=fields.one("table", "gpt"))
    for number, row in enumerate(rows, 1):
        made = SubElement(
            layout, "partition", number=str(number), type=fields.one(f"p{row}.type", "linux")
        )
        for name in ("size", "name"):
            if value := fields.one(f"p{row}.{name}").strip():
                made.set(name, value)
    for number, row in enumerate(rows, 1):
        if fields.one(f"p{row}.image"):
            SubElement(root, "image", target=str(number), name=fields.one(f"p{row}.image"))


def _is_filled(fields: Fields, prefix: str) -> bool:
    kept = any(fields.one(prefix + name) for name in ("size", "image", "name"))
    return kept or fields.one(prefix + "type", TYPES[0]) != TYPES[0]


def _diskless(root: Element, fields: Fields) -> None:
    boot = SubElement(root, "boot", mode="diskless")
    SubElement(boot, "kernel", image=fields.one("kernel"))
    if fields.one("ramdisk"):
        SubElement(boot, "ramdisk", image=fields.one("ramdisk"))
    if fields.one("cmdline").strip():
        SubElement(boot, "cmdline").text = fields.one("cmdline").strip()


def _afterwards(root: Element, fields: Fields) -> None:
    by, port, path = (fields.one(name).strip() for name in ("by", "port", "page"))
    if by == "time":
        SubElement(root, "ready", by=by, seconds=fields.one("seconds").strip())
    elif by in ("port", "none") or port:
        named = {"by": by} if by in ("port", "none") else {}
        asked = {"port": port, "path": path} if by != "none" else {}
        SubElement(
            root,
            "ready",
            {name: value for name, value in (named | asked).items() if value or name == "port"},
        )
    on_disk = fields.one("mode") != "diskless"  # without a disk there is no place for the seed
    if (on_disk and fields.one("seed")) or fields.one("userdata").strip():
        seed = SubElement(root, "personalise", seed="nocloud")
        if fields.one("userdata").strip():
            secret = {"secret": "yes"} if fields.one("secret") else {}
            SubElement(seed, "user-data", secret).text = fields.one("userdata")


# ---------------------------------------------------------------- document -> fields


def fields_of(text: str) -> Fields | None:
    """Return the fields for this document; None if the document is not well-formed, or has content
    that the form has no fields for."""
    try:
        xmldoc.well_formed(text.encode(), "template")
        root = ElementTree.fromstring(text)
    except (xmldoc.BadDocument, ElementTree.ParseError):
        return None
    found = Fields({name: [value] for name, value in _values(root) if value})
    return found if _shape(root) == _shape(ElementTree.fromstring(document(found))) else None


def _shape(element: Element) -> object:
    """Return an element's meaning, so that two spellings of the same meaning are equal. Defaults,
    such as a boot from disk, are left out."""
    kept = [child for child in element if (child.tag, child.attrib) not in _UNSAID]
    attributes_ = sorted(
        (name, value) for name, value in element.attrib.items() if (name, value) not in _PLAIN
    )
    return (
        element.tag,
        attributes_,
        (element.text or "").strip(),
        sorted((_shape(child) for child in kept), key=repr),
    )


READY = (
    ("", "its system has asked for its address (DHCP), and the port answers"),
    ("port", "the port answers at its address, without DHCP"),
    ("time", "some time has passed since its boot"),
    ("none", "its boot was served"),
)
_PLAIN = {("cache", "no"), ("verify", "no"), ("by", "dhcp"), ("secret", "no")}
_UNSAID = (("boot", {"mode": "disk"}), ("ready", {"by": "dhcp"}))


def _values(root: Element) -> Iterator[tuple[str, str]]:
    yield "name", root.get("name", "")
    yield "description", root.findtext("description", "").strip()
    for flag in ("cache", "verify"):
        yield flag, "true" if root.get(flag) == "yes" else ""
    requires, boot, disk = root.find("requires"), root.find("boot"), root.find("disk")
    if requires is not None:
        requires.tail = None
        yield "xml", ElementTree.tostring(requires, encoding="unicode")
    yield "mode", "disk" if boot is None else boot.get("mode", "disk")
    yield "which", "" if disk is None else disk.get("select", "")
    yield from _images(root)
    if boot is not None:
        for name in ("kernel", "ramdisk"):
            found = boot.find(name)
            yield name, "" if found is None else found.get("image", "")
        yield "cmdline", boot.findtext("cmdline", "").strip()
    ready, seed = root.find("ready"), root.find("personalise")
    if ready is not None:
        yield "by", ready.get("by", "")
        yield "port", ready.get("port", "")
        yield "seconds", ready.get("seconds", "")
        yield "page", ready.get("path", "")
    if seed is not None:
        yield "seed", "true" if seed.get("seed") == "nocloud" else ""
        yield "userdata", seed.findtext("user-data", "")
        yield "secret", "true" if seed.find("user-data[@secret='yes']") is not None else ""


def _images(root: Element) -> Iterator[tuple[str, str]]:
    targets = {each.get("target"): each.get("name", "") for each in root.findall("image")}
    yield "image", targets.get("disk", "")
    layout = root.find("layout")
    if layout is None:
        return
    yield "table", layout.get("table", "gpt")
    for row, part in enumerate(layout.findall("partition")):
        for name in ("size", "name", "type"):
            yield f"p{row}.{name}", part.get(name, "")
        yield f"p{row}.image", targets.get(part.get("number"), "")
