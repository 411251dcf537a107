"""Equal and satisfies, on hardware reports and requirements."""

from __future__ import annotations

import itertools
from xml.etree import ElementTree

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cod.model import Refused
from cod.policy.match import LARGEST, TypeRules, canonical, check, satisfies
from cod.wire import xmldoc

REPORT = """<node version="1">
  <system uuid="4c4c4544-0042-3510-8054-b4c04f4e3232" vendor="Dell Inc." product="R640" serial="B5TN222"/>
  <firmware kind="uefi"/>
  <memory mib="3965"/>
  <cpu count="4" sockets="1" model="Xeon" mhz="2095" arch="x86_64"><flag>aes</flag><flag>vmx</flag></cpu>
  <nic name="eth0" mac="52:54:00:00:00:01" driver="ixgbe" link="up" speed="10000" boot="yes"/>
  <nic name="eth1" mac="52:54:00:00:00:02" driver="ixgbe" link="down" boot="no"/>
  <disk name="sda" size="500107862016" transport="ata" local="yes" rotational="yes" removable="no" serial="Z1"/>
  <disk name="nvme0n1" size="960197124096" transport="nvme" local="yes" rotational="no" removable="no">
    <partition number="1" start="1048576" size="536870912"/>
  </disk>
  <kernel release="6.1.0-31-amd64"/>
</node>"""


def wants(inner: str) -> list[str]:
    """The mismatches of a requirements document as phrases, against the example's canonical form."""
    document = f"<requires>{inner}</requires>"
    xmldoc.parse(document.encode(), "requires")
    check(document)
    return [str(mismatch) for mismatch in satisfies(document, canonical(REPORT))]


# ---------------------------------------------------------------- equal


def test_the_example_is_a_valid_report() -> None:
    xmldoc.parse(REPORT.encode(), "report")


@pytest.mark.parametrize(("old", "new"), [
    ("52:54:00:00:00:02", "52:54:00:00:00:99"),
    ('serial="B5TN222"', ""),
    ("b4c04f4e3232", "b4c04f4e9999"),
    ('link="down"', 'link="unknown"'),
    ('name="sda"', 'name="sdb"'),
    ('<partition number="1" start="1048576" size="536870912"/>', ""),
    ("6.1.0-31-amd64", "6.12.0"),
    ('mib="3965"', 'mib="3950"'),
    ('mhz="2095"', 'mhz="2101"'),
    ("<flag>aes</flag><flag>vmx</flag>", "<flag>vmx</flag><flag>aes</flag>"),
])
def test_what_is_particular_to_one_machine_makes_no_type(old: str, new: str) -> None:
    assert old in REPORT
    assert canonical(REPORT) == canonical(REPORT.replace(old, new))


@pytest.mark.parametrize(("old", "new"), [
    ('kind="uefi"', 'kind="bios"'),
    ('mib="3965"', 'mib="1980"'),
    ('mhz="2095"', 'mhz="2395"'),
    ('speed="10000"', 'speed="1000"'),
    ('size="500107862016"', 'size="250059350016"'),
    ("<flag>aes</flag>", ""),
    ('driver="ixgbe"', 'driver="e1000"'),
])
def test_other_hardware_is_another_type(old: str, new: str) -> None:
    assert old in REPORT
    assert canonical(REPORT) != canonical(REPORT.replace(old, new, 1))


def test_order_plays_no_part() -> None:
    root = ElementTree.fromstring(REPORT)
    turned = ElementTree.Element(root.tag, root.attrib)
    turned.extend(reversed(list(root)))
    assert canonical(ElementTree.tostring(turned, encoding="unicode")) == canonical(REPORT)


def test_the_canonical_form_in_full() -> None:
    report = '<node version="1"><memory mib="486"/><nic mac="x" speed="1000"/><nic mac="y" driver="e"/></node>'
    assert canonical(report) == '<node><memory mib="512" /><nic driver="e" /><nic speed="1000" /></node>'


@pytest.mark.parametrize(("measured", "sold"), [
    (486, 512), (1982, 2048), (3965, 4096), (5930, 6144), (7940, 8192), (15990, 16384), (24050, 24576),
    (193_000, 196_608), (177_000, 180_224), (1, 1), (4096, 4096),
])
def test_memory_lands_on_sizes_as_sold(measured: int, sold: int) -> None:
    assert f'mib="{sold}"' in canonical(f'<node><memory mib="{measured}"/></node>')


@pytest.mark.parametrize("plate", range(800, 5000, 50))
def test_a_clock_measured_anew_is_the_same_clock(plate: int) -> None:
    forms = {canonical(f'<node><cpu mhz="{plate + drift}"/></node>') for drift in range(-10, 11)}
    assert len(forms) == 1


def test_the_site_may_choose_what_makes_a_type() -> None:
    rules = TypeRules(drop=frozenset({"cpu", "disk", "nic", "system", "kernel", "version"}), memory_parts=2)
    assert canonical(REPORT, rules) == '<node><firmware kind="uefi" /><memory mib="4096" /></node>'


@settings(max_examples=20)
@given(st.permutations(list(ElementTree.fromstring(canonical(REPORT)))))
def test_canonical_is_a_fixed_point(children: list[ElementTree.Element]) -> None:
    root = ElementTree.Element("node")
    root.extend(children)
    assert canonical(ElementTree.tostring(root, encoding="unicode")) == canonical(canonical(REPORT))


# ---------------------------------------------------------------- satisfies


@pytest.mark.parametrize("inner", [
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
    '<disk><size min="900GB"/><rotational equal="no"/></disk><disk><transport equal="ata"/></disk>',
    '<disk><size min="400GB"/></disk><disk><size min="900GB"/></disk>',
    '<gpu present="no"/>',
    '<disk present="no"><size min="2TB"/></disk>',
    '<memory present="yes"><mib present="yes"/></memory>',
    '<system><vendor equal="Dell Inc."/></system>',
])
def test_what_the_example_satisfies(inner: str) -> None:
    assert wants(inner) == []


@pytest.mark.parametrize(("inner", "why"), [
    ('<memory><mib min="8GiB"/></memory>', "memory/mib: at least 8GiB wanted, 4096 found"),
    ('<memory><mib max="2048"/></memory>', "memory/mib: at most 2048 wanted, 4096 found"),
    ('<cpu><arch equal="aarch64"/></cpu>', "cpu/arch: aarch64 wanted, x86_64 found"),
    ('<cpu><arch min="5"/></cpu>', "cpu/arch: at least 5 wanted, x86_64 found"),
    ('<cpu><mhz min="1GiB"/></cpu>', "cpu/mhz: at least 1GiB wanted, 2100 found"),
    ('<firmware><kind one-of="bios coreboot"/></firmware>', "firmware/kind: one of bios coreboot wanted, uefi found"),
    ("<gpu/>", "gpu: one wanted, none found"),
    ("<nic/><nic/><nic/>", "nic: another wanted, 2 like that among 2 found"),
    ('<nic><speed min="10000"/></nic><nic><speed min="1000"/></nic>',
     "nic: another with speed at least 1000 wanted, 1 like that among 2 found"),
    ('<nic><speed min="40000"/></nic>', "nic: one with speed at least 40000 wanted, none like that among 2 found"),
    ('<cpu><flag equal="avx512f"/></cpu>', "cpu/flag: one with avx512f wanted, none like that among 2 found"),
    ('<firmware present="no"/>', "firmware: none wanted, one found"),
    ('<disk present="no"><rotational equal="yes"/></disk>', "disk: none with rotational yes wanted, one found"),
    ('<memory equal="much"/>', "memory: much wanted, nothing found"),
])
def test_what_it_does_not_satisfy_and_why(inner: str, why: str) -> None:
    assert wants(inner) == [why]


def test_every_mismatch_is_named() -> None:
    assert len(wants('<memory><mib min="8GiB"/></memory><cpu><count min="64"/><sockets min="2"/></cpu><gpu/>')) == 4


def test_no_requirements_want_nothing() -> None:
    assert satisfies("", "<node/>") == []


@example([1, 5], [5, 1])
@given(st.lists(st.integers(1, 6), max_size=5), st.lists(st.integers(1, 6), max_size=5))
def test_elements_are_matched_one_to_one(wanted: list[int], found: list[int]) -> None:
    """Against every assignment: `wanted` lowest speeds, `found` speeds."""
    document = "<requires>" + "".join(f'<nic><speed min="{speed}"/></nic>' for speed in wanted) + "</requires>"
    report = "<node>" + "".join(f'<nic speed="{speed}"/>' for speed in found) + "</node>"
    possible = any(all(w <= f for w, f in zip(wanted, chosen, strict=True))
                   for chosen in itertools.permutations(found, len(wanted)))
    assert (satisfies(document, report) == []) == possible


@example([{1, 2}, {2, 3}, {1, 2}], [1, 2, 3])
@given(st.lists(st.sets(st.integers(1, 4), min_size=1), max_size=4), st.lists(st.integers(1, 4), max_size=4))
def test_one_to_one_moves_others_aside(wanted: list[set[int]], found: list[int]) -> None:
    """Wishes that overlap in any way (`one-of`), against every assignment."""
    document = "<requires>" + "".join(
        f'<nic><driver one-of="{" ".join(map(str, sorted(one)))}"/></nic>' for one in wanted) + "</requires>"
    report = "<node>" + "".join(f'<nic driver="{driver}"/>' for driver in found) + "</node>"
    possible = any(all(f in w for w, f in zip(wanted, chosen, strict=True))
                   for chosen in itertools.permutations(found, len(wanted)))
    assert (satisfies(document, report) == []) == possible


def test_large_documents_are_matched_quickly() -> None:
    """The most that `check` lets through against a large report: a count of comparisons, not of seconds."""
    document = "<requires>" + '<nic><speed min="1"/></nic>' * (LARGEST // 2 - 1) + "</requires>"
    check(document)
    assert satisfies(document, "<node>" + '<nic speed="5"/>' * 500 + "</node>") == []
    assert len(satisfies(document, "<node>" + '<nic speed="5"/>' * 100 + "</node>")) == LARGEST // 2 - 1 - 100


# ---------------------------------------------------------------- check


@pytest.mark.parametrize(("document", "sentence"), [
    ("<requires><memory></requires>", "no XML"),
    ("<wants/>", "in an element requires, not wants"),
    ('<requires><memory mib="4"/></requires>', "no operator 'mib'"),
    ("<requires>" + "<a/>" * LARGEST + "</requires>", "at most 256 elements"),
    ("<requires>" + "<a>" * 20 + "</a>" * 20 + "</requires>", "at most 256 elements, 16 in each other"),
])
def test_what_is_no_requirements_document(document: str, sentence: str) -> None:
    with pytest.raises(Refused, match=sentence):
        check(document)


@pytest.mark.parametrize("inner", [
    '<memory><mib min="much"/></memory>', '<memory><mib atleast="4"/></memory>', '<memory present="maybe"/>', "text",
])
def test_the_grammar_refuses_what_means_nothing(inner: str) -> None:
    with pytest.raises(xmldoc.Refused):
        xmldoc.parse(f"<requires>{inner}</requires>".encode(), "requires")
