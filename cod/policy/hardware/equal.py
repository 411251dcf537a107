"""*Equal*, the paper's operator that makes node types: hardware reports reduced to a canonical
form. Pure.

Dropped are what is particular to one machine (`attributes.PARTICULAR`) and what the site says takes
no part (`model.TypeRules`); memory and clock are rounded; order plays no part. Equal canonical
texts, equal types. Requests are matched against the canonical form, so that all nodes of a type
match or none does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from cod.model import Refused, TypeRules
from cod.policy.hardware import quantity
from cod.policy.hardware.attributes import PARTICULAR, REPORTED_LATER, kind
from cod.quantity import first_few

LARGEST = 2048  # elements of a canonical form
MOST_DIFFERENCES = 5  # differences that are told
# besides &, < and >
_IN_ATTRIBUTES = {'"': "&quot;", "\r": "&#13;", "\n": "&#10;", "\t": "&#09;"}
_PATHS = ' paths="'  # of disks
# the order in a line
_PCI = ("class", "vendor", "device", "subvendor", "subdevice", "driver", "slot")


def canonical(report_xml: str, rules: TypeRules | None = None) -> str:
    """Return the part of a hardware report that makes the node's type, as XML.

    Raises `Refused` where that has more than `LARGEST` elements: matching costs time for each.
    """
    rules = rules or TypeRules()
    text = _reduced(ElementTree.fromstring(report_xml), "", PARTICULAR | set(rules.ignore), rules)
    count = text.count("<") - text.count("</")
    if count > LARGEST:
        raise Refused("invalid", f"the report has {count} elements; at most {LARGEST} are matched")
    return text


def steady(report_xml: str, before_xml: str | None) -> str:
    """Return the report with the speeds of links that are down now filled in from the report
    before, by MAC.

    A switch port can take seconds to come up: that must not make another type of the machine, nor
    cost it its holder.
    """
    root = ElementTree.fromstring(report_xml)
    missing = [nic for nic in root.findall("nic") if nic.get("speed") is None]
    if not missing or not before_xml:
        return report_xml
    known = {
        nic.get("mac"): nic.get("speed")
        for nic in ElementTree.fromstring(before_xml).findall("nic")
    }
    filled = [(nic, speed) for nic in missing if (speed := known.get(nic.get("mac"))) is not None]
    for nic, speed in filled:
        nic.set("speed", speed)
    return ElementTree.tostring(root, encoding="unicode") if filled else report_xml


def _reduced(
    element: ElementTree.Element, path: str, dropped: frozenset[str], rules: TypeRules
) -> str:
    """Return the element without what is dropped, sorted, as ElementTree writes it: types are known
    by a digest of this text. To have ElementTree write each element, to sort it, took five times
    as long."""
    attributes = "".join(
        f' {name}="{escape(rounded(path + name, value, rules), _IN_ATTRIBUTES)}"'
        for name, value in sorted(element.attrib.items())
        if path + name not in dropped
    )
    children = (
        _reduced(child, f"{path}{child.tag}/", dropped, rules)
        for child in element
        if path + child.tag not in dropped
    )
    inner = escape((element.text or "").strip()) + "".join(sorted(children, key=_in_ascii))
    tag = element.tag
    return f"<{tag}{attributes}>{inner}</{tag}>" if inner else f"<{tag}{attributes} />"


def _in_ascii(text: str) -> bytes:
    return text.encode("ascii", "xmlcharrefreplace")


def rounded(path: str, value: str, rules: TypeRules) -> str:
    """Return an attribute's value as types have it."""
    if not (value.isascii() and value.isdecimal() and len(value) < 16):
        return value
    if path == "memory/mib":
        # Up, because firmware and kernel keep some; a power of two as the step, so that sizes land
        # where they are sold.
        step = max(1, (1 << (int(value) - 1).bit_length()) // rules.memory_parts)
        return str(-(-int(value) // step) * step)
    if path == "cpu/mhz":
        # Plates say multiples of 50 MHz; half a plate's step off the middle, no plate sits on a
        # rounding boundary.
        return str((int(value) + 25 + rules.clock_step // 2) // rules.clock_step * rules.clock_step)
    return value


def facts(canonical_xml: str) -> list[tuple[str, str]]:
    """Return a canonical form for people: ('memory/mib', '4096 MiB'); the flags of a CPU on one
    line, like parts numbered."""
    found: list[tuple[str, str]] = []
    _tell(ElementTree.fromstring(canonical_xml), "", "", found)
    return found


def elements(report_xml: str, tag: str) -> list[Mapping[str, str]]:
    """Return the attributes of each of a report's elements of that name, in their order, with those
    of their parts: 'neighbour/port'; of several partitions the last one's."""
    return [
        element.attrib
        | {
            f"{child.tag}/{name}": value
            for child in element
            for name, value in child.attrib.items()
        }
        for element in ElementTree.fromstring(report_xml).findall(tag)
    ]


def _tell(
    element: ElementTree.Element, path: str, shown: str, found: list[tuple[str, str]]
) -> None:
    found += [(shown + name, _value(value, path + name)) for name, value in element.attrib.items()]
    for tag in dict.fromkeys(child.tag for child in element):
        same = element.findall(tag)
        if all(child.text and not child.attrib for child in same):
            found.append((shown + tag, " ".join(child.text or "" for child in same)))
            continue
        for number, child in enumerate(same, 1):
            if tag == "pci":  # there are dozens: a line each
                ids = (f"{name} {child.get(name)}" for name in _PCI if child.get(name))
                found.append((f"pci {number}", ", ".join(ids)))
                continue
            _tell(
                child,
                f"{path}{tag}/",
                f"{shown}{tag}{f' {number}' if len(same) > 1 else ''}/",
                found,
            )


# ---------------------------------------------------------------- what has changed


class _Wording(NamedTuple):
    """Sentences for a value that differs, is gone, or is new."""

    value: str
    gone: str
    come: str


_CHANGED = _Wording("was {0}, is {1}", "one is gone", "one is new")
_BESIDE = _Wording("{1}; siblings have {0}", "one is missing", "one that siblings lack")


def differences(before: str, after: str) -> list[str]:
    """Return what differs between two canonical forms, as phrases: 'memory/mib: was 8192 MiB, is
    4096 MiB'; [] if equal.

    A link that came or went is no difference: it makes another type while it lasts, as its speed is
    an attribute, but cables and switches are slow at some boots and quick at others, and the
    machine is the same. Neither is what a former trampoline did not report.
    """
    former, _ = _as_before(before, after)
    return list(_differences(ElementTree.fromstring(before), former, ""))


def beside_siblings(siblings: str, own: str) -> list[str]:
    """Return what differs between the canonical form that most machines of a product have and that
    of one of them, as phrases: 'memory/mib: 4096 MiB; siblings have 8192 MiB'. What only one of
    the two trampolines reported is left out."""
    changes, _ = _as_before(own, siblings)
    alike, _ = _as_before(siblings, own)
    return list(_differences(changes, alike, "", _BESIDE))


def system(canonical_xml: str) -> str:
    """Return the element with vendor and product, as each canonical form of that product has it; ''
    where the report names no product."""
    found = ElementTree.fromstring(canonical_xml).find("system")
    if found is None or not found.get("product"):
        return ""
    return ElementTree.tostring(found, encoding="unicode")


def tells_more(before: str, after: str) -> bool:
    """Return whether two canonical forms differ by nothing but what a former trampoline did not
    report."""
    _, more = _as_before(before, after)
    return more and not differences(before, after)


def _as_before(before: str, after: str) -> tuple[ElementTree.Element, bool]:
    """Return `after` without what the trampoline that reported `before` did not report, and whether
    it has any of that."""
    new = ElementTree.fromstring(after)
    pci = "<pci " in after and not any(f"<{tag} " in before for tag in REPORTED_LATER)
    for element in list(new) if pci else ():
        if element.tag in REPORTED_LATER:
            new.remove(element)
    # how many paths a disk has follows from the disks that are there
    several = [] if _PATHS in before else [disk for disk in new if "paths" in disk.attrib]
    for disk in several:
        del disk.attrib["paths"]
    return new, pci or bool(several)


def sentence(phrases: Sequence[str]) -> str:
    """Return the first few of them, and how many more there are."""
    return first_few(phrases, MOST_DIFFERENCES, "; ")


def _differences(
    old: ElementTree.Element, new: ElementTree.Element, path: str, wording: _Wording = _CHANGED
) -> Iterator[str]:
    for name in sorted(old.attrib.keys() | new.attrib.keys()):
        was, is_ = old.get(name), new.get(name)
        if was != is_ and not (path + name == "nic/speed" and None in (was, is_)):
            values = (_value(each, path + name) for each in (was, is_))
            yield f"{path}{name}: {wording.value.format(*values)}"
    for tag in dict.fromkeys(child.tag for child in [*old, *new]):
        yield from _among(old.findall(tag), new.findall(tag), path + tag, wording)


def _among(
    old: Sequence[ElementTree.Element],
    new: Sequence[ElementTree.Element],
    path: str,
    wording: _Wording,
) -> Iterator[str]:
    """Yield the differences among the elements at one place: unchanged ones are left out, the
    others are paired."""
    before, after = Counter(map(ElementTree.tostring, old)), Counter(map(ElementTree.tostring, new))
    gone = list((before - after).elements())
    come = list((after - before).elements())
    parts = (
        [ElementTree.fromstring(text) for text in gone],
        [ElementTree.fromstring(text) for text in come],
    )
    pairs = (
        min(len(gone), len(come))
        if not any(element.text for each in parts for element in each)
        else 0
    )
    for was, is_ in zip(parts[0][:pairs], parts[1][:pairs], strict=True):
        yield from _differences(was, is_, path + "/", wording)
    yield from (f"{path}: {wording.gone}{_about(element, path)}" for element in parts[0][pairs:])
    yield from (f"{path}: {wording.come}{_about(element, path)}" for element in parts[1][pairs:])


def _about(element: ElementTree.Element, path: str) -> str:
    if element.text:
        return f" ({element.text})"
    facts = [f"{name} {_value(value, f'{path}/{name}')}" for name, value in element.attrib.items()]
    return f" ({', '.join(facts)})" if facts else ""


def _value(text: str | None, path: str) -> str:
    return "not told" if text is None else quantity.readable(text, kind(path))
