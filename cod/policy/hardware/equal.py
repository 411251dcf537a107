"""*Equal*, the paper's operator that defines node types: hardware reports reduced to a canonical
form. Pure.

The canonical form leaves out attributes that are particular to one machine
(`attributes.PARTICULAR`) and attributes that the site ignores (`model.TypeRules`). Memory and clock
are rounded, and elements are sorted. Nodes with equal canonical texts are of one type. Requests are
matched against the canonical form, so that all nodes of a type match or none does.
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
MOST_DIFFERENCES = 5  # differences that a sentence lists
# besides &, < and >
_IN_ATTRIBUTES = {'"': "&quot;", "\r": "&#13;", "\n": "&#10;", "\t": "&#09;"}
_PATHS = ' paths="'  # of disks
# the order in a line
_PCI = ("class", "vendor", "device", "subvendor", "subdevice", "driver", "slot")


def canonical(report_xml: str, rules: TypeRules | None = None) -> str:
    """Return the canonical form of a hardware report, as XML.

    Raises `Refused` if it has more than `LARGEST` elements: matching takes time for each.
    """
    rules = rules or TypeRules()
    text = _reduced(ElementTree.fromstring(report_xml), "", PARTICULAR | set(rules.ignore), rules)
    count = text.count("<") - text.count("</")
    if count > LARGEST:
        raise Refused("invalid", f"the report has {count} elements; at most {LARGEST} are matched")
    return text


def steady(report_xml: str, before_xml: str | None) -> str:
    """Return the report with missing speeds of NICs, whose links are down now, filled in from the
    previous report by MAC.

    A switch port can take seconds to come up. That must not change the type of the machine, nor
    make it unfit for its holder.
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
    """Return the text of an element without dropped attributes and elements, sorted, exactly as
    ElementTree writes it: types are identified by a digest of this text. Letting ElementTree write
    each element took five times as long."""
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
    """Return an attribute's value as it is in canonical forms: memory and clock are rounded."""
    if not (value.isascii() and value.isdecimal() and len(value) < 16):
        return value
    if path == "memory/mib":
        # Round up, because firmware and kernel reserve some memory. The step is a power of two, as
        # the sizes that are sold are multiples of such steps.
        step = max(1, (1 << (int(value) - 1).bit_length()) // rules.memory_parts)
        return str(-(-int(value) // step) * step)
    if path == "cpu/mhz":
        # Nominal clocks are multiples of 50 MHz. The offset of 25 MHz keeps them away from the
        # boundaries of rounding.
        return str((int(value) + 25 + rules.clock_step // 2) // rules.clock_step * rules.clock_step)
    return value


def facts(canonical_xml: str) -> list[tuple[str, str]]:
    """Return a canonical form for people as (path, value): ('memory/mib', '4096 MiB'). The flags of
    a CPU are one value, and elements of the same name are numbered."""
    found: list[tuple[str, str]] = []
    _tell(ElementTree.fromstring(canonical_xml), "", "", found)
    return found


def elements(report_xml: str, tag: str) -> list[Mapping[str, str]]:
    """Return the attributes of each element of a report with the name `tag`, in order. Attributes
    of child elements are included, such as 'neighbour/port'; of several partitions only those of
    the last."""
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
            if tag == "pci":  # there are dozens: one line for each
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

    A link that came up or went down is no difference. It changes the type for that time, because
    its speed is an attribute, but the machine is the same: links come up sooner or later after a
    boot. Attributes that an older trampoline did not report are no difference either.
    """
    former, _ = _as_before(before, after)
    return list(_differences(ElementTree.fromstring(before), former, ""))


def beside_siblings(siblings: str, own: str) -> list[str]:
    """Return the differences between the canonical form `own` of a machine and the form `siblings`
    that most machines of its product have, as phrases: 'memory/mib: 4096 MiB; siblings have 8192
    MiB'. Attributes that only one of the two trampolines reported are left out."""
    changes, _ = _as_before(own, siblings)
    alike, _ = _as_before(siblings, own)
    return list(_differences(changes, alike, "", _BESIDE))


def system(canonical_xml: str) -> str:
    """Return the element with vendor and product of a canonical form, as XML; '' if it names no
    product. It is the same in all canonical forms of a product."""
    found = ElementTree.fromstring(canonical_xml).find("system")
    if found is None or not found.get("product"):
        return ""
    return ElementTree.tostring(found, encoding="unicode")


def tells_more(before: str, after: str) -> bool:
    """Return whether two canonical forms differ only in attributes that an older trampoline did not
    report."""
    _, more = _as_before(before, after)
    return more and not differences(before, after)


def _as_before(before: str, after: str) -> tuple[ElementTree.Element, bool]:
    """Return `after` without attributes that the trampoline which reported `before` could not
    report, and whether any were left out."""
    new = ElementTree.fromstring(after)
    pci = "<pci " in after and not any(f"<{tag} " in before for tag in REPORTED_LATER)
    for element in list(new) if pci else ():
        if element.tag in REPORTED_LATER:
            new.remove(element)
    # the number of a disk's paths follows from the other disks
    several = [] if _PATHS in before else [disk for disk in new if "paths" in disk.attrib]
    for disk in several:
        del disk.attrib["paths"]
    return new, pci or bool(several)


def sentence(phrases: Sequence[str]) -> str:
    """Return the first few phrases, and how many more there are."""
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
    """Yield the differences among elements of one name: unchanged elements are left out, and the
    others are paired in order."""
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
