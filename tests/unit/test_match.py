"""Satisfies: requirements against hardware, one to one, with every mismatch named; and what it may
cost."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any
from xml.etree import ElementTree
from xml.sax.saxutils import quoteattr

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cod.model import TypeRules
from cod.policy.hardware import match, requirements
from cod.policy.hardware.match import canonical, check, satisfies
from cod.policy.hardware.requirements import ELEMENTS
from cod.wire import xmldoc
from tests.nodes import REPORT

pytestmark = pytest.mark.slow

TYPE = canonical(REPORT, TypeRules(ignore=()))


def wanted(inner: str) -> list[str]:
    """The mismatches of a requirements document as phrases, against the example's canonical
    form."""
    document = f"<requires>{inner}</requires>"
    xmldoc.parse(document.encode(), "requires")
    check(document)
    return [str(mismatch) for mismatch in satisfies(document, TYPE)]


@pytest.mark.parametrize(
    "inner",
    [
        "",
        "<memory/>",
        '<memory><mib min="4096"/></memory>',
        '<memory><mib min="4GiB" max="4 GiB"/></memory>',
        '<memory><mib equal="4GiB"/></memory>',
        '<cpu><mhz min="2GHz"/></cpu>',
        '<cpu><arch equal="x86_64"/><count min="2" max="4"/><flag equal="vmx"/></cpu>',
        '<cpu><flag equal="vmx"/><flag equal="aes"/></cpu>',
        '<firmware><kind one-of="bios uefi"/></firmware>',
        "<nic/><nic/>",
        '<nic/><nic><speed min="10Gb/s"/></nic>',
        (
            '<disk><size min="900GB"/><rotational equal="no"/></disk><disk><transport'
            ' equal="ata"/></disk>'
        ),
        '<disk><size min="400GB"/></disk><disk><size min="900GB"/></disk>',
        '<fpga present="no"/>',
        '<fpga present="no"><memory><mib min="4GiB"/></memory></fpga>',
        '<disk present="no"><size min="2TB"/></disk>',
        '<memory present="yes"><mib present="yes"/></memory>',
        '<system><vendor equal="Dell Inc."/></system>',
        '<system><product one-of="PowerEdge R740 | R640"/></system>',
        '<firmware><version version-min="2.9"/></firmware>',
        '<firmware><version newer="2.12.1" older="2.12.10"/></firmware>',
        '<cpu><model like="xe*"/></cpu>',
        '<disk><model present="no"/></disk>',
    ],
)
def test_what_the_example_satisfies(inner: str) -> None:
    assert wanted(inner) == []


def test_a_disk_with_two_paths_is_named_as_the_cause() -> None:
    report = REPORT.replace('transport="nvme" local="yes"', 'transport="nvme" local="no" paths="2"')
    wants = (
        '<requires><disk><transport equal="nvme"/><rotational equal="no"/>'
        '<local equal="yes"/></disk></requires>'
    )
    (mismatch,) = satisfies(wants, report)
    assert "local no (2 disks show its WWN; [policy] same_wwn)" in str(mismatch)
    assert not satisfies(wants, report.replace('local="no" paths', 'local="yes" paths'))


@pytest.mark.parametrize(
    ("inner", "why"),
    [
        ('<memory><mib min="8GiB"/></memory>', "memory/mib: at least 8GiB wanted, 4 GiB found"),
        (
            '<memory><mib max="2048"/></memory>',
            "memory/mib: at most 2048 MiB wanted, 4096 MiB found",
        ),
        ('<cpu><arch equal="aarch64"/></cpu>', "cpu/arch: aarch64 wanted, x86_64 found"),
        ('<cpu><mhz min="2.4GHz"/></cpu>', "cpu/mhz: at least 2.4GHz wanted, 2.1 GHz found"),
        ('<cpu><count min="8"/></cpu>', "cpu/count: at least 8 wanted, 4 found"),
        (
            '<firmware><kind one-of="bios coreboot"/></firmware>',
            "firmware/kind: one of bios, coreboot wanted, uefi found",
        ),
        (
            '<firmware><version newer="2.12.2"/></firmware>',
            "firmware/version: newer than version 2.12.2 wanted, 2.12.2 found",
        ),
        (
            '<firmware><version version-min="2.13"/></firmware>',
            "firmware/version: version 2.13 or newer wanted, 2.12.2 found",
        ),
        (
            '<cpu><model like="*EPYC*|*Gold*"/></cpu>',
            "cpu/model: like *EPYC*|*Gold* wanted, Xeon found",
        ),
        ("<nic/><nic/><nic/>", "nic: another wanted, 2 like that among 2 found"),
        (
            '<nic><speed min="10000"/></nic><nic><speed min="1000"/></nic>',
            "nic: another with speed at least 1000 Mb/s wanted, 1 like that among 2 found",
        ),
        (
            '<nic><speed min="40000"/></nic>',
            (
                "nic: one with speed at least 40000 Mb/s wanted, none like that among 2 "
                "(the nearest: speed 10000 Mb/s) found"
            ),
        ),
        (
            "<disk><model/></disk>",
            "disk: one with model wanted, none like that among 2 (the nearest: model none) found",
        ),
        (
            '<disk><size min="1TB"/><transport equal="sas"/></disk>',
            (
                "disk: one with size at least 1TB, transport sas "
                "wanted, none like that among 2 (the nearest: size 960.197 GB) found"
            ),
        ),
        (
            '<disk><rotational equal="no"/><wear present="no"/><local equal="no"/></disk>',
            (
                "disk: one with rotational no, no "
                "wear, local no wanted, none like that among 2 (the nearest: local yes) found"
            ),
        ),
        (
            '<cpu><flag equal="avx512f"/></cpu>',
            "cpu/flag: one with avx512f wanted, none like that among 2 found",
        ),
        ('<firmware present="no"/>', "firmware: none wanted, one found"),
        (
            '<disk present="no"><rotational equal="yes"/></disk>',
            "disk: none with rotational yes wanted, one found",
        ),
    ],
)
def test_what_it_does_not_satisfy_and_why(inner: str, why: str) -> None:
    assert wanted(inner) == [why]


def test_every_mismatch_is_named() -> None:
    assert (
        len(
            wanted(
                '<memory><mib min="8GiB"/></memory><cpu><count min="64"/><sockets min="2"/></cpu>'
                "<disk><model/></disk>"
            )
        )
        == 4
    )


def test_no_requirements_want_nothing() -> None:
    assert satisfies("", "<node/>") == []


@pytest.mark.parametrize(
    ("operators", "fits"),
    [
        ('min="much"', False),
        ('newer="x"', False),
        ('like="[a"', False),
        ('made-up="4096"', False),
        ('min="1GHz"', False),
        ('min="4"', True),
    ],
)
def test_what_was_stored_without_a_check_matches_nothing_where_it_means_nothing(
    operators: str, fits: bool
) -> None:
    found = satisfies(f"<requires><memory><mib {operators}/></memory></requires>", TYPE)
    assert (found == []) == fits
    assert all(str(mismatch) for mismatch in found)


# ---------------------------------------------------------------- one to one


@example([1, 5], [5, 1])
@given(st.lists(st.integers(1, 6), max_size=5), st.lists(st.integers(1, 6), max_size=5))
def test_elements_are_matched_one_to_one(wishes: list[int], found: list[int]) -> None:
    """Against every assignment: `wishes` lowest speeds, `found` speeds."""
    document = (
        "<requires>"
        + "".join(f'<nic><speed min="{speed}"/></nic>' for speed in wishes)
        + "</requires>"
    )
    report = "<node>" + "".join(f'<nic speed="{speed}"/>' for speed in found) + "</node>"
    possible = any(
        all(w <= f for w, f in zip(wishes, chosen, strict=True))
        for chosen in itertools.permutations(found, len(wishes))
    )
    assert (satisfies(document, report) == []) == possible


@example([{1, 2}, {2, 3}, {1, 2}], [1, 2, 3])
@given(
    st.lists(st.sets(st.integers(1, 4), min_size=1), max_size=4),
    st.lists(st.integers(1, 4), max_size=4),
)
def test_one_to_one_moves_others_aside(wishes: list[set[int]], found: list[int]) -> None:
    """Wishes that overlap in any way (`one-of`), against every assignment."""
    document = (
        "<requires>"
        + "".join(
            f'<nic><driver one-of="{" ".join(map(str, sorted(one)))}"/></nic>' for one in wishes
        )
        + "</requires>"
    )
    report = "<node>" + "".join(f'<nic driver="{driver}"/>' for driver in found) + "</node>"
    possible = any(
        all(f in w for w, f in zip(wishes, chosen, strict=True))
        for chosen in itertools.permutations(found, len(wishes))
    )
    mismatches = satisfies(document, report)
    assert (mismatches == []) == possible
    largest = max(
        (
            size
            for size in range(len(wishes) + 1)
            for some in itertools.combinations(wishes, size)
            if any(
                all(f in w for w, f in zip(some, chosen, strict=True))
                for chosen in itertools.permutations(found, size)
            )
        ),
        default=0,
    )
    assert len(mismatches) == len(wishes) - largest  # no more is missed than has to be


# ---------------------------------------------------------------- trees of any shape, against a
# naive reading

LEAVES = st.dictionaries(st.sampled_from(["x", "y"]), st.integers(1, 3).map(str), max_size=2)


@st.composite
def found_trees(draw: st.DrawFn, tag: str = "node", depth: int = 0) -> ElementTree.Element:
    made = ElementTree.Element(tag, draw(LEAVES))
    for name in draw(st.lists(st.sampled_from(["a", "b"]), max_size=3)) if depth < 2 else ():
        made.append(draw(found_trees(name, depth + 1)))
    return made


@st.composite
def wanted_trees(draw: st.DrawFn, tag: str = "requires", depth: int = 0) -> ElementTree.Element:
    said = {"present": "no"} if depth and draw(st.integers(0, 4)) == 0 else {}
    made = ElementTree.Element(tag, said)
    for name in draw(st.lists(st.sampled_from(["a", "b"]), max_size=3)) if depth < 2 else ():
        made.append(draw(wanted_trees(name, depth + 1)))
    for name in draw(st.sets(st.sampled_from(["x", "y"]), max_size=2)):
        operator = draw(st.sampled_from(["min", "max", "equal", "one-of", "present"]))
        value = {"one-of": "1 3", "present": draw(st.sampled_from(["yes", "no"]))}.get(operator)
        made.append(ElementTree.Element(name, {operator: value or str(draw(st.integers(1, 3)))}))
    return made


HOLDS: dict[str, Callable[[str, str], bool]] = {
    "min": lambda wanted, found: int(found) >= int(wanted),
    "max": lambda wanted, found: int(found) <= int(wanted),
    "equal": lambda wanted, found: found == wanted,
    "one-of": lambda wanted, found: found in wanted.split(),
    "present": lambda wanted, found: True,
}


def meets(wanted: ElementTree.Element, found: ElementTree.Element) -> bool:
    """Return whether one element found meets one wanted, by trying every assignment."""
    if not all(
        found.text is not None and HOLDS[operator](value, found.text)
        for operator, value in wanted.attrib.items()
        if operator != "present"
    ):
        return False
    leaves = [ElementTree.Element(name) for name in found.attrib]
    for leaf in leaves:
        leaf.text = found.attrib[leaf.tag]
    parts = [*found, *leaves]
    for name in {child.tag for child in wanted}:
        here = [part for part in parts if part.tag == name]
        asked = wanted.findall(name)
        if any(
            meets(child, part) for child in asked if child.get("present") == "no" for part in here
        ):
            return False
        needed = [child for child in asked if child.get("present") != "no"]
        if not any(
            all(meets(child, part) for child, part in zip(needed, chosen, strict=True))
            for chosen in itertools.permutations(here, len(needed))
        ):
            return False
    return True


@settings(max_examples=100)
@given(wanted_trees(), found_trees())
def test_trees_match_exactly_when_some_assignment_does(
    asked: ElementTree.Element, found: ElementTree.Element
) -> None:
    document, report = (ElementTree.tostring(each, encoding="unicode") for each in (asked, found))
    mismatches = satisfies(document, report)
    assert (mismatches == []) == meets(asked, found)
    for mismatch in mismatches:
        assert all((mismatch.attribute, mismatch.wanted, mismatch.found))


# ---------------------------------------------------------------- properties

NAMES = {
    "memory": ["mib"],
    "cpu": ["count", "mhz", "arch"],
    "nic": ["speed", "driver"],
    "disk": ["size", "transport"],
}
VALUES = {
    "arch": ["x86_64", "aarch64"],
    "driver": ["e1000", "ixgbe", "mlx5 core"],
    "transport": ["ata", "nvme"],
}


@st.composite
def reports(draw: st.DrawFn) -> str:
    """A canonical form: one memory and CPU, some NICs and disks, with small numbers, so that they
    meet."""
    made = []
    for tag in ["memory", "cpu", *draw(st.lists(st.sampled_from(["nic", "disk"]), max_size=4))]:
        names = [name for name in NAMES[tag] if draw(st.booleans())]
        values = [
            draw(st.sampled_from(VALUES[name])) if name in VALUES else str(draw(st.integers(1, 9)))
            for name in names
        ]
        own = "".join(
            f" {name}={quoteattr(value)}" for name, value in zip(names, values, strict=True)
        )
        flags = [
            f"<flag>{flag}</flag>"
            for flag in ("aes", "vmx")
            if tag == "cpu" and draw(st.booleans())
        ]
        made.append(f"<{tag}{own}>{''.join(flags)}</{tag}>")
    return canonical("<node>" + "".join(made) + "</node>", TypeRules(clock_step=1))


def own_requirements(report: str, operator: Callable[[str, str], str]) -> str:
    """Requirements made from a node's own attributes, with `operator` making one for (name,
    value)."""
    made = []
    for element in ElementTree.fromstring(report):
        inner = [operator(name, value) for name, value in element.attrib.items()]
        inner += [operator(child.tag, child.text or "") for child in element]
        made.append(f"<{element.tag}>{''.join(inner)}</{element.tag}>")
    return f"<requires>{''.join(made)}</requires>"


def exactly(name: str, value: str) -> str:
    return f"<{name} equal={quoteattr(value)}/>"


def between(name: str, value: str) -> str:
    return (
        f'<{name} min="{value}" max="{value}"/>'
        if value.isdigit()
        else f"<{name} like={quoteattr(value)}/>"
    )


@given(reports(), st.sampled_from([exactly, between]))
def test_a_node_satisfies_its_own_attributes(
    report: str, operator: Callable[[str, str], str]
) -> None:
    document = own_requirements(report, operator)
    check(document)
    assert satisfies(document, report) == []


@given(reports(), st.data())
def test_with_one_part_less_it_does_not(report: str, data: st.DataObject) -> None:
    root = ElementTree.fromstring(report)
    root.remove(data.draw(st.sampled_from(list(root))))
    less = ElementTree.tostring(root, encoding="unicode")
    assert satisfies(own_requirements(report, exactly), less) != []
    assert satisfies(own_requirements(less, exactly), report) == []


@given(
    reports(),
    st.lists(st.tuples(st.sampled_from(["nic/speed", "disk/size"]), st.integers(0, 9)), max_size=4),
    st.integers(0, 3),
    st.integers(1, 9),
)
def test_a_higher_minimum_never_adds_a_match(
    report: str, wishes: list[tuple[str, int]], which: int, more: int
) -> None:
    def mismatches(numbers: list[tuple[str, int]]) -> int:
        parts = [
            "<{0}><{1} min='{2}'/></{0}>".format(*path.split("/"), number)
            for path, number in numbers
        ]
        return len(satisfies(f"<requires>{''.join(parts)}</requires>", report))

    raised = [
        (path, number + more * (index == which)) for index, (path, number) in enumerate(wishes)
    ]
    assert mismatches(wishes[:which]) <= mismatches(wishes) <= mismatches(raised)


# ---------------------------------------------------------------- cost


def steps(call: Callable[[], Any]) -> int:
    """Python functions that `call` calls: a measure of work that does not depend on the machine."""
    count = 0

    def called(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(called)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count


MOST = ELEMENTS // 2 - 1
ADVERSARIES = {
    "wide": ('<nic><speed min="1"/></nic>' * MOST, '<nic speed="5"/>' * 300),
    "wide, none fits": ('<nic><speed min="9"/></nic>' * MOST, '<nic speed="5"/>' * 300),
    "a chain of augmenting paths": (
        "".join(f'<nic><speed min="{n}" max="{n + 1}"/></nic>' for n in range(MOST, 0, -1)),
        "".join(f'<nic speed="{n}"/>' for n in range(1, MOST)),
    ),
    "deep": ("<a>" * 14 + "</a>" * 14, "<a>" * 200 + "</a>" * 200),
    "bushy": ("<a><b/><b/><b/></a>" * 60, "<a>" + "<b/>" * 20 + "</a>" + "<a><b/><b/></a>" * 40),
    "many names": (
        "<nic>" + "".join(f"<x{n}/>" for n in range(ELEMENTS - 2)) + "</nic>",
        "<nic/>" * 60,
    ),
    "patterns": (
        f'<nic><driver like="{"*a" * 100}"/></nic>' * MOST,
        f'<nic driver="{"a" * 200}"/>' * 40,
    ),
    "absent": ('<nic present="no"><speed min="9"/></nic>' * MOST, '<nic speed="5"/>' * 300),
}


@pytest.mark.parametrize("name", ADVERSARIES)
def test_the_cost_is_bounded_by_the_product_of_the_sizes(name: str) -> None:
    inner, report = (f"<r>{text}</r>" for text in ADVERSARIES[name])
    match._tree.cache_clear()
    requirements.read.cache_clear()
    sizes = (inner.count("/") + 1) * (report.count("/") + report.count("="))
    assert steps(lambda: satisfies(inner, report)) < 25 * sizes + 5000


def test_many_wishes_for_few_parts_leave_exactly_the_rest_out() -> None:
    document = "<requires>" + '<nic><speed min="1"/></nic>' * MOST + "</requires>"
    assert satisfies(document, "<node>" + '<nic speed="5"/>' * 500 + "</node>") == []
    assert len(satisfies(document, "<node>" + '<nic speed="5"/>' * 100 + "</node>")) == MOST - 100
