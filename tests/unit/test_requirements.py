"""Requirements documents: what can mean nothing is refused, with its line and its attribute."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cod.model import Refused, TypeRules
from cod.policy.hardware.attributes import ATTRIBUTES
from cod.policy.hardware.operators import PHRASES
from cod.policy.hardware.requirements import DEEPEST, ELEMENTS, LONGEST, check, read
from cod.wire import xmldoc


def complaint(document: str, rules: TypeRules | None = None) -> str:
    with pytest.raises(Refused) as caught:
        check(document, rules)
    assert (caught.value.code, caught.value.field) == ("invalid", "attributes")
    return caught.value.sentence


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ("<requires>\n<memory></requires>", "line 2: this is no XML: mismatched tag"),
        ("nonsense", "line 1: this is no XML: syntax error"),
        ("<requires/><requires/>", "junk after document element"),
        ("<requires>\ud800</requires>", "line 1: this is no XML"),
        ("<requires>&undeclared;</requires>", "undefined entity"),
        (
            '<!DOCTYPE r [<!ENTITY a "b">]><requires/>',
            "line 1: a document type declaration is not allowed",
        ),
        (
            '\n<!DOCTYPE r SYSTEM "file:///etc/passwd"><requires/>',
            "line 2: a document type declaration",
        ),
        ("<wants/>", "line 1: requirements are in an element requires, not wants"),
        ('<requires present="yes"/>', "requires itself takes no operators"),
        ("<requires>\n <memory>\n  4096</memory></requires>", "line 3: there is text in memory"),
        (
            '<requires>\n<memory mib="4"/></requires>',
            "line 2: memory: there is no operator 'mib'; there are equal, min",
        ),
        (
            '<requires><memory><mib min="1" min="2"/></memory></requires>',
            "line 1: this is no XML: duplicate attribute",
        ),
        (
            "<requires>\n" + "<nic/>\n" * ELEMENTS + "</requires>",
            f"line {ELEMENTS + 1}: requirements have at most 256",
        ),
        (
            "<requires>\n" + "<a>\n" * 20 + "</a>" * 20 + "</requires>",
            f"line {DEEPEST + 1}: requirements have at most",
        ),
        (
            "<requires>" + " " * LONGEST + "</requires>",
            "65557 characters of requirements; at most 65536 are read",
        ),
    ],
)
def test_what_is_no_requirements_document(document: str, sentence: str) -> None:
    assert sentence in complaint(document)


@pytest.mark.parametrize(
    ("inner", "sentence"),
    [
        # what stands where
        ("<memmory/>", "memmory: no node has such an attribute; did you mean memory?"),
        (
            "<fpga/>",
            (
                "fpga: no node has such an attribute; there is system, firmware, memory, cpu, nic,"
                " disk, pci, gpu"
            ),
        ),
        (
            "<cpu><cores/></cpu>",
            (
                "cpu/cores: no node has such an attribute; there is count, sockets, arch, model,"
                " mhz, f"
            ),
        ),
        ("<disk><siz/></disk>", "disk/siz: no node has such an attribute; did you mean size?"),
        ("<memory><mib><mib/></mib></memory>", "memory/mib: it has no parts"),
        (
            '<memory min="4GiB"/>',
            "memory: it has parts and no value of its own: put the operators on a part",
        ),
        (
            "<memory/><memory/>",
            "memory is wanted twice, and a node has one: put the operators on one element",
        ),
        ('<memory><mib min="1"/><mib max="2"/></memory>', "memory/mib is wanted twice"),
        (
            '<nic><mac equal="52:54:00:00:00:01"/></nic>',
            "nic/mac: it is particular to one machine, and requests match",
        ),
        (
            '<disk><partition present="no"/></disk>',
            "disk/partition: it is particular to one machine",
        ),
        ('<kernel><release newer="6"/></kernel>', "kernel: it is particular to one machine"),
        # numbers and units
        (
            '<memory><mib min="much"/></memory>',
            "memory/mib: 'much' is no number such as 4096 or 4GiB",
        ),
        ('<memory><mib min="-4"/></memory>', "memory/mib: '-4' is no number"),
        ('<memory><mib min="1e9"/></memory>', "memory/mib: '1e9' is no number"),
        ('<memory><mib min=""/></memory>', "memory/mib: min has 0 characters; it takes 1 to 200"),
        (
            '<memory><mib min="4GHz"/></memory>',
            "memory/mib: 'GHz' is no unit for it: it counts in B, KiB, MiB",
        ),
        ('<memory><mib equal="4 gib"/></memory>', "memory/mib: 'gib' is no unit for it"),
        (
            '<cpu><mhz min="1GiB"/></cpu>',
            "cpu/mhz: 'GiB' is no unit for it: it counts in Hz, kHz, MHz, GHz",
        ),
        (
            '<cpu><count min="4GiB"/></cpu>',
            "cpu/count: 'GiB' is no unit for it: it counts pieces, without a unit",
        ),
        (
            '<nic><speed min="10GB"/></nic>',
            "nic/speed: 'GB' is no unit for it: it counts in b/s, kb/s, Mb/s, Gb/s, Tb/s",
        ),
        (
            '<memory><mib min="99999999999999999999"/></memory>',
            "'99999999999999999999' is too large: a number has at most",
        ),
        (
            '<disk><size min="999999PB"/></disk>',
            "disk/size: '999999PB' is more than any machine has",
        ),
        ('<cpu><count one-of="2 four"/></cpu>', "cpu/count: 'four' is no number"),
        # the wrong operator
        (
            '<cpu><arch min="5"/></cpu>',
            "cpu/arch: min compares numbers, and it is text; use equal, one-of or like",
        ),
        (
            '<firmware><version min="2"/></firmware>',
            "min compares numbers, and it is text; version-min and version-max",
        ),
        (
            '<memory><mib newer="2"/></memory>',
            "memory/mib: newer compares text, and it is a number; use min and max",
        ),
        ('<memory><mib like="4*"/></memory>', "memory/mib: like compares text, and it is a number"),
        (
            '<firmware><version newer="latest"/></firmware>',
            "'latest' is no version: it has no number in it",
        ),
        ('<cpu><model like="[a-"/></cpu>', "cpu/model: '[a-' is no pattern: a [ has no ] after it"),
        (
            '<cpu><model like="[z-a]"/></cpu>',
            "is no pattern: 'z-a' is no range of plain characters",
        ),
        ('<cpu><model like="a||b"/></cpu>', "is no pattern: an alternative is empty"),
        (
            f'<cpu><model like="{"a" * 201}"/></cpu>',
            "cpu/model: like has 201 characters; it takes 1 to 200",
        ),
        ('<cpu><model one-of="a||b"/></cpu>', "cpu/model: one-of has an empty value"),
        ('<memory present="maybe"/>', "memory: present is yes or no, not 'maybe'"),
        ('<fpga present="no"><x atleast="4"/></fpga>', "fpga/x: there is no operator 'atleast'"),
        # contradictions
        ('<memory><mib min="8GiB" max="4GiB"/></memory>', "memory/mib: min 8GiB is above max 4GiB"),
        (
            '<memory><mib min="4096" max="4000MiB"/></memory>',
            "memory/mib: min 4096 is above max 4000MiB",
        ),
        (
            '<memory><mib equal="4GiB" min="8GiB"/></memory>',
            "memory/mib: equal 4GiB contradicts min 8GiB",
        ),
        (
            '<cpu><arch equal="x86_64" one-of="arm64 riscv64"/></cpu>',
            "equal x86_64 contradicts one-of arm64 riscv64",
        ),
        (
            '<firmware><version version-min="2.10" version-max="2.9"/></firmware>',
            "version-min 2.10 is above version-max 2.9",
        ),
        (
            '<firmware><version newer="2.1" older="2.1"/></firmware>',
            "nothing is newer than version 2.1 and older than version 2.1",
        ),
        (
            '<firmware><version version-min="2.1" older="2.1"/></firmware>',
            "nothing is version 2.1 or newer and older than",
        ),
        (
            '<firmware><version newer="2.1" version-max="2.1"/></firmware>',
            "nothing is newer than version 2.1 and version",
        ),
    ],
)
def test_what_could_mean_nothing_is_refused_at_its_line(inner: str, sentence: str) -> None:
    said = complaint(f"<requires>\n\n{inner}</requires>")
    assert said.startswith("line 3: ")
    assert sentence in said


def test_the_line_is_that_of_the_trouble() -> None:
    disk = '<disk>\n <size min="1TB"/>\n <rotational\n  equal="no"\n  min="1"/></disk>'
    document = f"<requires>\n<nic/>\n{disk}</requires>"
    assert complaint(document).startswith("line 5: disk/rotational: ")


def test_attributes_that_the_site_ignores_cannot_be_asked_for() -> None:
    document = '<requires><firmware><version newer="2"/></firmware></requires>'
    check(document)
    check(document, TypeRules(ignore=()))
    assert (
        complaint(document, TypeRules())
        == "line 1: firmware/version: it takes no part in this site's node types (types.ignore of"
        " the site file)"
    )
    assert "cpu: it takes no part" in complaint(
        "<requires><cpu/></requires>", TypeRules(ignore=("cpu",))
    )


@pytest.mark.parametrize(
    "inner",
    [
        '<memory><mib min="4 GiB" max="1TiB"/></memory>',
        '<memory><mib min="4096" equal="4GiB" one-of="4GiB 8GiB"/></memory>',
        '<nic><speed min="2.5Gb/s"/></nic><nic/><nic present="no"><speed max="100"/></nic>',
        '<cpu><flag equal="aes"/><flag equal="vmx"/><flag equal="svm" present="no"/></cpu>',
        '<memory present="no"/><memory/>',
        '<fpga present="no"><memory><mib min="4GiB"/></memory></fpga>',
        '<disk><size min="9PB"/></disk>',
        '<firmware><version version-min="2.1" version-max="2.1.0"/></firmware>',
        '<!-- a comment --><?pi?><cpu><model like="*[0-9]v[34] *|EPYC*"/></cpu>',
    ],
)
def test_what_means_something_is_let_in(inner: str) -> None:
    document = f"<requires>{inner}</requires>"
    check(document)
    xmldoc.parse(document.encode(), "requires")


def test_another_root_and_field_may_be_named() -> None:
    check("<when><memory/></when>", root="when")
    with pytest.raises(Refused) as caught:
        check("<requires/>", root="when", field="document")
    assert caught.value.field == "document"


@given(st.text(max_size=80) | st.text(alphabet='<>/="ab \n&', max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(Refused):
        assert read(text).name


NAMES = [*{part for path in ATTRIBUTES for part in path.split("/")}, "fpga"]
WORDS = [
    "4096",
    "4GiB",
    "2.4GHz",
    "10Gb/s",
    "much",
    "x86_64",
    "2.1a",
    "*a?[b-c]|d",
    "[",
    "yes",
    "no",
    "a b",
    "",
]


@st.composite
def trees(draw: st.DrawFn, depth: int = 0) -> str:
    name = draw(st.sampled_from(NAMES))
    said = draw(st.dictionaries(st.sampled_from([*PHRASES]), st.sampled_from(WORDS), max_size=2))
    inner = draw(st.lists(trees(depth + 1), max_size=2)) if depth < 2 else []
    own = "".join(f' {key}="{value}"' for key, value in said.items())
    return f"<{name}{own}>{''.join(inner)}</{name}>"


@given(st.lists(trees(), max_size=3))
def test_what_is_let_in_is_within_the_grammar(inner: list[str]) -> None:
    """The API asks `check` alone; other doors ask the grammar."""
    document = f"<requires>{''.join(inner)}</requires>"
    try:
        check(document)
    except Refused:
        return
    xmldoc.parse(document.encode(), "requires")
