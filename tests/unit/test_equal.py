"""Equal: which machines are of one type, and what has changed when one is of another."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from cod import data
from cod.model import Refused, TypeRules
from cod.policy.hardware.attributes import ATTRIBUTES, PARTICULAR, PARTS, SEVERAL, is_below, parts
from cod.policy.hardware.equal import (
    LARGEST,
    beside_siblings,
    canonical,
    differences,
    facts,
    sentence,
    steady,
    system,
    tells_more,
)
from cod.wire import xmldoc
from tests.nodes import REPORT

# ---------------------------------------------------------------- equal


def test_the_example_is_a_valid_report() -> None:
    xmldoc.parse(REPORT.encode(), "report")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("52:54:00:00:00:02", "52:54:00:00:00:99"),
        ('serial="B5TN222"', ""),
        ("b4c04f4e3232", "b4c04f4e9999"),
        ('link="down"', 'link="unknown"'),
        ('name="sda"', 'name="sdb"'),
        ('<partition number="1" start="1048576" size="536870912"/>', ""),
        ("6.1.0-31-amd64", "6.12.0"),
        ('version="2.12.2"', 'version="2.13.0"'),
        ('boot="yes"/>', 'boot="yes"><neighbour switch="leaf1" port="Eth7"/></nic>'),
        ('mib="3965"', 'mib="3950"'),
        ('mhz="2095"', 'mhz="2101"'),
        ("<flag>aes</flag><flag>vmx</flag>", "<flag>vmx</flag><flag>aes</flag>"),
    ],
)
def test_what_is_particular_to_one_machine_makes_no_type(old: str, new: str) -> None:
    assert old in REPORT
    assert canonical(REPORT) == canonical(REPORT.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('kind="uefi"', 'kind="bios"'),
        ('mib="3965"', 'mib="1980"'),
        ('mhz="2095"', 'mhz="2395"'),
        ('speed="10000"', 'speed="1000"'),
        ('size="500107862016"', 'size="250059350016"'),
        ("<flag>aes</flag>", ""),
        ('driver="ixgbe"', 'driver="e1000"'),
    ],
)
def test_other_hardware_is_another_type(old: str, new: str) -> None:
    assert old in REPORT
    assert canonical(REPORT) != canonical(REPORT.replace(old, new, 1))


def test_order_plays_no_part() -> None:
    root = ElementTree.fromstring(REPORT)
    turned = ElementTree.Element(root.tag, root.attrib)
    turned.extend(reversed(list(root)))
    assert canonical(ElementTree.tostring(turned, encoding="unicode")) == canonical(REPORT)


def test_the_canonical_form_in_full() -> None:
    report = (
        '<node version="1"><memory mib="486"/><nic mac="x" speed="1000"/><nic mac="y"'
        ' driver="e"/></node>'
    )
    assert (
        canonical(report)
        == '<node><memory mib="512" /><nic driver="e" /><nic speed="1000" /></node>'
    )


@pytest.mark.parametrize(
    ("measured", "sold"),
    [
        (486, 512),
        (1982, 2048),
        (3965, 4096),
        (5930, 6144),
        (7940, 8192),
        (15990, 16384),
        (24050, 24576),
        (193_000, 196_608),
        (177_000, 180_224),
        (1, 1),
        (4096, 4096),
    ],
)
def test_memory_lands_on_sizes_as_sold(measured: int, sold: int) -> None:
    assert f'mib="{sold}"' in canonical(f'<node><memory mib="{measured}"/></node>')


@pytest.mark.parametrize(
    ("parts", "measured", "rounded"),
    [
        (1, 4096, 4096),
        (1, 4097, 8192),
        (1, 3000, 4096),
        (2, 4100, 8192),
        (4, 4100, 6144),
        (1024, 4100, 4104),
        (1024, 7, 7),
    ],
)
def test_memory_is_rounded_as_the_site_says(parts: int, measured: int, rounded: int) -> None:
    assert f'mib="{rounded}"' in canonical(
        f'<node><memory mib="{measured}"/></node>', TypeRules(memory_parts=parts)
    )


def test_a_clock_measured_anew_is_the_same_clock() -> None:
    for plate in range(800, 5000, 50):
        clocks = range(plate - 10, plate + 11)
        assert len({canonical(f'<node><cpu mhz="{mhz}"/></node>') for mhz in clocks}) == 1, plate


def test_the_site_may_choose_what_makes_a_type() -> None:
    rules = TypeRules(ignore=("cpu", "disk", "nic", "system", "firmware/version"), memory_parts=2)
    assert canonical(REPORT, rules) == '<node><firmware kind="uefi" /><memory mib="4096" /></node>'


@pytest.mark.parametrize(
    ("ignored", "old", "new"),
    [
        ("disk/model", 'transport="ata"', 'transport="ata" model="X"'),
        ("nic/driver", "ixgbe", "e1000"),
        ("cpu/flag", "<flag>aes</flag>", ""),
        ("disk", 'rotational="yes"', 'rotational="no"'),
    ],
)
def test_what_the_site_ignores_makes_no_type(ignored: str, old: str, new: str) -> None:
    assert old in REPORT
    changed = REPORT.replace(old, new, 1)
    assert canonical(REPORT) != canonical(changed)
    assert canonical(REPORT, TypeRules(ignore=(ignored,))) == canonical(
        changed, TypeRules(ignore=(ignored,))
    )


def test_firmware_versions_make_types_where_the_site_wants_it() -> None:
    updated = REPORT.replace("2.12.2", "2.13.0")
    assert canonical(REPORT, TypeRules(ignore=())) != canonical(updated, TypeRules(ignore=()))


def test_numbers_that_no_machine_has_are_left_as_they_are() -> None:
    assert f'mib="{"9" * 5000}"' in canonical(f'<node><memory mib="{"9" * 5000}"/></node>')
    assert 'mib="٤"' in canonical('<node><memory mib="٤"/></node>')


def test_a_report_beyond_all_measure_is_refused() -> None:
    canonical("<node>" + '<nic speed="1"/>' * (LARGEST - 1) + "</node>")
    with pytest.raises(Refused, match="2049 elements; at most 2048"):
        canonical("<node>" + '<nic speed="1"/>' * LARGEST + "</node>")
    # what is dropped is no cost
    canonical("<node>" + '<nic speed="1"><neighbour/></nic>' * (LARGEST - 1) + "</node>")


@settings(max_examples=20)
@given(st.permutations(list(ElementTree.fromstring(canonical(REPORT)))))
def test_canonical_is_a_fixed_point(children: list[ElementTree.Element]) -> None:
    root = ElementTree.Element("node")
    root.extend(children)
    assert canonical(ElementTree.tostring(root, encoding="unicode")) == canonical(canonical(REPORT))


# what XML escapes, and letters that sort otherwise as the references which stand for them
_VALUES = st.text(st.sampled_from("ab&<>\"'\t\n\r éλ😀"), max_size=4)


@given(
    st.recursive(
        st.tuples(st.dictionaries(st.sampled_from("xyz"), _VALUES), _VALUES, st.just([])),
        lambda inner: st.tuples(
            st.dictionaries(st.sampled_from("xyz"), _VALUES), _VALUES, st.lists(inner, max_size=4)
        ),
    )
)
def test_canonical_is_the_sorted_tree_as_elementtree_writes_it(drawn: Any) -> None:
    def made(drawn: Any) -> ElementTree.Element:
        attributes, text, children = drawn
        element = ElementTree.Element("e", attributes)
        element.text = text
        element.extend(map(made, children))
        return element

    def reduced(element: ElementTree.Element) -> ElementTree.Element:
        kept = ElementTree.Element(element.tag, dict(sorted(element.attrib.items())))
        kept.text = (element.text or "").strip() or None
        kept.extend(sorted(map(reduced, element), key=ElementTree.tostring))
        return kept

    report = ElementTree.tostring(made(drawn), encoding="unicode")
    expected = reduced(ElementTree.fromstring(report))
    assert canonical(report) == ElementTree.tostring(expected, encoding="unicode")


# ---------------------------------------------------------------- what has changed


@pytest.mark.parametrize(
    ("old", "new", "phrases"),
    [
        ("3965", "1980", ["memory/mib: was 4096 MiB, is 2048 MiB"]),
        ("<flag>aes</flag>", "", ["cpu/flag: one is gone (aes)"]),
        (
            "<flag>aes</flag>",
            "<flag>avx</flag>",
            ["cpu/flag: one is gone (aes)", "cpu/flag: one is new (avx)"],
        ),
        ('speed="10000"', 'speed="1000"', ["nic/speed: was 10000 Mb/s, is 1000 Mb/s"]),
        (' speed="10000"', "", []),
        ('driver="ixgbe" link="down"', 'driver="ixgbe" link="up" speed="1000"', []),
        ('size="500107862016" ', "", ["disk/size: was 500.108 GB, is not told"]),
        (
            'size="500107862016"',
            'size="250059350016"',
            ["disk/size: was 500.108 GB, is 250.059 GB"],
        ),
        ('product="R640"', "", ["system/product: was R640, is not told"]),
        (
            (
                '<disk name="sda" size="500107862016" transport="ata" local="yes" rotational="yes"'
                ' removable="no" serial="Z1"/>'
            ),
            "",
            [
                "disk: one is gone (local yes, removable no, rotational yes, size 500.108 GB,"
                " transport ata)"
            ],
        ),
        ('uuid="4c4c4544-0042-3510-8054-b4c04f4e3232"', "", []),
    ],
)
def test_what_has_changed_is_said(old: str, new: str, phrases: list[str]) -> None:
    assert old in REPORT
    before, after = canonical(REPORT), canonical(REPORT.replace(old, new, 1))
    assert differences(before, after) == phrases


def test_the_parts_that_stayed_are_not_told() -> None:
    four = "<node>" + '<nic speed="1000"/>' * 4 + "</node>"
    assert (
        differences(canonical(four), canonical(four.replace("1000", "100", 2)))
        == ["nic/speed: was 1000 Mb/s, is 100 Mb/s"] * 2
    )
    assert differences(canonical(four), canonical(four.replace('<nic speed="1000"/>', "", 1))) == [
        "nic: one is gone (speed 1000 Mb/s)"
    ]


def test_a_long_list_is_cut_short() -> None:
    assert sentence(["a"]) == "a"
    assert sentence(list("abcdefg")) == "a; b; c; d; e; and 2 more"


@given(
    st.lists(st.tuples(st.sampled_from(["nic", "disk"]), st.integers(1, 3)), max_size=5),
    st.lists(st.tuples(st.sampled_from(["nic", "disk"]), st.integers(1, 3)), max_size=5),
)
def test_there_are_differences_exactly_between_types(
    one: list[tuple[str, int]], other: list[tuple[str, int]]
) -> None:
    before, after = (
        canonical("<node>" + "".join(f'<{tag} size="{size}"/>' for tag, size in each) + "</node>")
        for each in (one, other)
    )
    assert (differences(before, after) == []) == (before == after)


# ---------------------------------------------------------------- the table of attributes

RNG = "{http://relaxng.org/ns/structure/1.0}"


def paths(element: etree._Element, grammar: etree._Element, at: str) -> set[str]:
    """The places that a grammar's element and what is in it make; 'parts' end in a slash."""
    found: set[str] = set()
    for child in element:
        if child.tag == f"{RNG}ref":
            (definition,) = grammar.findall(f"{RNG}define[@name='{child.get('name')}']")
            found |= paths(definition, grammar, at)
        elif child.tag in (f"{RNG}element", f"{RNG}attribute"):
            path = at + child.get("name", "")
            below = paths(child, grammar, f"{path}/") if child.tag == f"{RNG}element" else set()
            found |= {path + "/" if below else path} | below
        elif isinstance(child.tag, str):
            found |= paths(child, grammar, at)
    return found


def test_the_table_has_every_place_of_a_report() -> None:
    grammar = etree.parse(str(data.path("schema") / "report.rng")).getroot()
    start = grammar.find(f"{RNG}start/{RNG}element")
    assert start is not None
    marked = {"disk/keep"}  # no agent says that: the server marks stored reports
    told = {path + "/" * (kind == PARTS) for path, kind in ATTRIBUTES.items() if path not in marked}
    assert paths(start, grammar, "") == told
    assert ATTRIBUTES.keys() >= PARTICULAR | SEVERAL


def test_places_below_places() -> None:
    assert parts("nic/neighbour") == ["switch", "port"]
    assert {"system", "disk"} < set(parts("")) < set(ATTRIBUTES)
    assert is_below("kernel/release", PARTICULAR)
    assert not is_below("nic", PARTICULAR)
    assert not is_below("disk/name-of-it", PARTICULAR)


def test_a_link_that_is_down_keeps_the_speed_it_had() -> None:
    was = '<node><nic mac="a" speed="10000"/><nic mac="b" speed="1000"/></node>'
    now = '<node><nic mac="b"/><nic mac="a" speed="1000"/><nic mac="c"/></node>'
    assert canonical(steady(now, was)) == (
        # what is up counts as it is now
        '<node><nic /><nic speed="1000" /><nic speed="1000" /></node>'
    )
    assert steady(now, None) == now
    assert steady(was, now) == was


# ---------------------------------------------------------------- PCI devices

NIC = '<pci slot="0000:5e:00.0" class="0200" vendor="8086" device="1572" driver="i40e"/>'
GPU = (
    '<pci slot="0000:3b:00.0" class="0302" vendor="10de" device="20b0" subvendor="10de"'
    ' subdevice="144e"/>'
)


def with_pci(*devices: str) -> str:
    gpus = sum("10de" in device for device in devices)
    count = f'<gpu count="{gpus}"/>' if gpus else ""
    return REPORT.replace("<kernel", f"{''.join(devices)}{count}<kernel")


def test_a_report_without_pci_devices_keeps_its_type() -> None:
    assert "pci" not in canonical(REPORT)
    assert "gpu" not in canonical(REPORT)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("0000:3b:00.0", "0000:af:00.0"),
        ('driver="i40e"', ""),
        ('subdevice="144e"', 'subdevice="1450"'),
    ],
)
def test_slots_drivers_and_boards_of_pci_devices_make_no_type(old: str, new: str) -> None:
    report = with_pci(GPU, NIC)
    assert old in report
    assert canonical(report) == canonical(report.replace(old, new))


def test_other_pci_devices_make_another_type() -> None:
    assert (
        len({canonical(with_pci(*devices)) for devices in ((NIC,), (GPU, NIC), (GPU, GPU, NIC))})
        == 3
    )


def test_what_a_former_trampoline_did_not_report_is_no_difference() -> None:
    before, after = canonical(REPORT), canonical(with_pci(GPU, NIC))
    assert differences(before, after) == []
    assert tells_more(before, after)
    assert not tells_more(before, canonical(with_pci(NIC).replace('mib="3965"', 'mib="1980"')))
    assert not tells_more(after, after)


def test_that_the_paths_to_a_disk_are_counted_is_no_difference() -> None:
    disk = '<disk size="9" local="no"/>'
    before = canonical(f"<node>{disk * 2}</node>")
    counted = disk.replace("/>", ' paths="2"/>')
    after = canonical(f"<node>{counted * 2}</node>")
    assert before != after
    assert differences(before, after) == []
    assert tells_more(before, after)
    assert not tells_more(after, after)
    used = canonical(f"<node>{counted}{counted.replace('no', 'yes')}</node>")
    assert differences(before, used) == ["disk/local: was no, is yes"]
    assert differences(after, canonical(f"<node>{counted}{disk}</node>")) == [
        "disk/paths: was 2, is not told"
    ]


def test_a_gpu_that_died_is_a_difference() -> None:
    assert differences(canonical(with_pci(GPU, GPU, NIC)), canonical(with_pci(GPU, NIC))) == [
        "gpu/count: was 2, is 1",
        "pci: one is gone (class 0302, device 20b0, vendor 10de)",
    ]


def test_a_pci_device_is_one_line_of_facts() -> None:
    assert (
        dict(facts(with_pci(GPU, NIC)))["pci 2"]
        == "class 0200, vendor 8086, device 1572, driver i40e, slot 0000:5e:00.0"
    )


# ---------------------------------------------------------------- siblings


@pytest.mark.parametrize(
    ("old", "new", "phrases"),
    [
        ('mib="3965"', 'mib="1980"', ["memory/mib: 2048 MiB; siblings have 4096 MiB"]),
        (
            'speed="10000"',
            'speed="1000"',
            ["nic/speed: 1000 Mb/s; siblings have 10000 Mb/s"],
        ),
        ("<flag>aes</flag>", "", ["cpu/flag: one is missing (aes)"]),
        ("<flag>aes</flag>", "<flag>aes</flag><flag>avx</flag>", ["cpu/flag: one that siblings"]),
        ("B5TN222", "another", []),
    ],
)
def test_what_differs_from_siblings_is_told(old: str, new: str, phrases: list[str]) -> None:
    assert old in REPORT
    told = beside_siblings(canonical(REPORT), canonical(REPORT.replace(old, new)))
    assert [each[: len(phrase)] for each, phrase in zip(told, phrases, strict=True)] == phrases


def test_an_old_report_is_not_compared_in_what_it_does_not_have() -> None:
    card = '<pci slot="0000:3b:00.0" class="0302" vendor="10de" device="20b0"/></node>'
    old, new = canonical(REPORT), canonical(REPORT.replace("</node>", card))
    assert beside_siblings(old, new) == beside_siblings(new, old) == []


def test_a_product_is_one_element_in_all_its_canonical_forms() -> None:
    ours = system(canonical(REPORT))
    assert ours == '<system product="R640" vendor="Dell Inc." />'
    assert ours in canonical(REPORT.replace("3965", "1980"))
    assert ours not in canonical(REPORT.replace("R640", "R6400"))
    assert system(canonical(REPORT.replace('product="R640"', ""))) == ""
