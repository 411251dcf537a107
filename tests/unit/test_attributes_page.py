"""docs/attributes says what is: its attributes, operators, units and examples are those of the
program."""

from __future__ import annotations

import re
import tomllib
from dataclasses import asdict
from pathlib import Path

import pytest

from cod.model import Refused, TypeRules
from cod.policy.hardware import compare, quantity
from cod.policy.hardware.attributes import ATTRIBUTES, MHZ, MIB, PARTICULAR, PARTS, RATE
from cod.policy.hardware.equal import canonical
from cod.policy.hardware.match import check, satisfies
from cod.policy.hardware.operators import PHRASES
from cod.site import load
from cod.wire import xmldoc
from tests.manual import page

ROOT = Path(__file__).resolve().parents[2]
PAGE = page("attributes").read_text()
EXAMPLES = re.findall(r"```xml\n(.*?)```", PAGE, re.S)


def section(title: str) -> str:
    return re.split(r"^## ", PAGE[PAGE.index(f"## {title}") + 3 :], flags=re.M)[0]


def rows(text: str) -> list[list[str]]:
    """Cells of its tables' rows."""
    return [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in text.splitlines()
        if line.startswith("| ")
    ]


def test_every_attribute_is_there() -> None:
    named = [
        name
        for cells in rows(section("What a report holds"))
        for name in re.findall(r"`([a-z/]+)`", cells[0])
    ]
    assert sorted(named) == sorted(path for path, kind in ATTRIBUTES.items() if kind != PARTS)


def test_every_operator_is_there_and_its_example_works() -> None:
    table = [cells for cells in rows(section("Asking")) if "<" in cells[1]]
    assert sorted(
        name for cells in table for name in re.findall(r"`([a-z-]+)`", cells[0])
    ) == sorted(PHRASES)
    for cells in table:
        example = re.findall(r"`(<[^`]*>)`", cells[1])[0]
        parent = {
            "arch": "cpu",
            "mib": "memory",
            "transport": "disk",
            "model": "cpu",
            "version": "firmware",
        }
        name = parent.get(re.findall(r"<([a-z]+)", example)[0])
        check(f"<requires>{f'<{name}>{example}</{name}>' if name else example}</requires>")


def test_every_unit_is_there() -> None:
    table = {cells[0]: set(re.findall(r"`([^`]+)`", cells[1])) for cells in rows(section("Asking"))}
    for what, kind in (("sizes and memory", MIB), ("clocks", MHZ), ("links", RATE)):
        assert table[what] == set(quantity._FACTORS[kind])


def test_the_examples_are_valid_and_the_node_has_what_is_asked_for() -> None:
    report, wanted = EXAMPLES
    xmldoc.parse(report.encode(), "report")
    xmldoc.parse(wanted.encode(), "requires")
    check(wanted)
    missing = satisfies(wanted, canonical(report))
    assert [str(each) for each in missing] == [
        "cpu/flag: one with avx2 wanted, none like that among 2 found",
        "nic: another wanted, 1 like that among 1 found",
    ]


def test_the_versions_are_in_that_order() -> None:
    line = next(line for line in PAGE.splitlines() if line.strip().startswith("2.9 <"))
    for chain in re.split(r"\s{3,}", line.strip()):
        parts = re.split(r" ([<=]) ", chain)
        for low, sign, high in zip(parts[::2], parts[1::2], parts[2::2], strict=False):
            one, other = compare.version(low), compare.version(high)
            assert one < other if sign == "<" else one == other, chain


@pytest.mark.parametrize(
    "document",
    [
        '<requires>\n\n<memory><mib min="4GHz"/></memory></requires>',
        '<requires>\n\n<disk><size min="2TB" max="1TB"/></disk></requires>',
        "<requires>\n<memmory/></requires>",
        '<requires>\n\n\n<nic><mac equal="x"/></nic></requires>',
    ],
)
def test_refusals_read_as_the_page_says(document: str) -> None:
    with pytest.raises(Refused) as caught:
        check(document)
    assert f"\n    {caught.value.sentence}\n" in PAGE


def test_what_is_particular_is_what_the_page_says() -> None:
    said = section("What makes a type").partition("2. ")[0].partition("left out:")[2]
    assert set(re.findall(r"`([a-z/]+)`", said)) == PARTICULAR


def test_the_site_files_example_is_one() -> None:
    [example] = re.findall(r"```toml\n(.*?)```", PAGE, re.S)
    subnet = (
        '[[subnet]]\nname = "a"\nnetwork = "10.0.0.0/24"\nserver = "10.0.0.1"\ninterface = "x"\n'
        'boot_pool = ["10.0.0.2", "10.0.0.9"]\nblock_pool = ["10.0.0.64", "10.0.0.127"]\n'
    )
    file = load.parse(example + subnet, Path("site.toml"))
    assert asdict(file.types) == tomllib.loads(example)["types"] | {
        "ignore": tuple(file.types.ignore)
    }
    assert TypeRules().ignore == ("firmware/version", "pci/subvendor", "pci/subdevice")
