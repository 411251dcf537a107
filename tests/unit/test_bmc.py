"""Where a machine's BMC is, from the bytes of its LAN parameters and of SMBIOS."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from tests.hardware import host_interface, machine, put
from trampoline import bmc, inventory
from trampoline.bmc import Bmc

SCHEMA = etree.RelaxNG(etree.parse(Path(__file__).parents[2] / "schema/report.rng"))
MAC = bytes.fromhex("b496910a0b0e")


class Lan:
    """A BMC that has these parameters of its channels; others end with 'parameter not supported'.
    After `answers` questions it is silent."""

    def __init__(self, parameters: dict[tuple[int, int], bytes], answers: int = 99) -> None:
        self.parameters, self.answers = parameters, answers

    def ask(self, function: int, command: int, data: bytes) -> bytes:
        channel, number, *rest = data
        assert (function, command, rest) == (0x0C, 0x02, [0, 0])
        self.answers -= 1
        if self.answers < 0:
            raise TimeoutError
        found = self.parameters.get((channel, number))
        return b"\x80" if found is None else b"\0\x11" + found


def test_each_lan_channel_with_an_address_is_told() -> None:
    lan = Lan(
        {
            (1, 3): bytes((10, 1, 0, 7)),
            (1, 5): MAC,
            (2, 3): bytes(4),  # a channel that has no address yet
            (8, 3): bytes((10, 2, 0, 7)),
        }
    )
    assert list(bmc.lan(lan.ask)) == [
        Bmc("ipmi", "10.1.0.7", "b4:96:91:0a:0b:0e"),
        Bmc("ipmi", "10.2.0.7"),
    ]


def test_a_silent_bmc_is_asked_no_more() -> None:
    lan = Lan({(1, 3): bytes((10, 1, 0, 7)), (2, 3): bytes((10, 1, 0, 8))}, answers=2)
    assert list(bmc.lan(lan.ask)) == [Bmc("ipmi", "10.1.0.7")]
    assert lan.answers == -1


@pytest.mark.parametrize(("silent", "asked"), [(0, 1), (2, 3), (9, bmc.TRIES)])
def test_a_bmc_is_not_asked_for_each_report(
    silent: int, asked: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that waits looks at itself at each heartbeat."""
    monkeypatch.setattr(bmc, "DEVICE", tmp_path / "ipmi0")
    count = 0

    def ask() -> list[Bmc]:
        nonlocal count
        count += 1
        return [Bmc("ipmi", "10.1.0.7")] if count > silent else []

    found = bmc.Remembered(ask)
    assert (found(), count) == ([], 0)
    bmc.DEVICE.touch()  # its driver comes late
    for _ in range(6):
        last = found()
    assert count == asked
    assert bool(last) == (silent < asked)


@given(answer=st.binary(max_size=12))
def test_any_answer_is_an_address_or_nothing(answer: bytes) -> None:
    checked(bmc.lan(lambda *_: answer))


# ---------------------------------------------------------------- SMBIOS


def test_a_redfish_service_is_told() -> None:
    own = host_interface(bytes((10, 1, 0, 9)))
    assert list(bmc.host_interfaces([own, own[:70]])) == [Bmc("redfish", "10.1.0.9")]


@pytest.mark.parametrize(
    "structure",
    [
        host_interface(bytes(4)),
        host_interface(bytes((10, 1, 0, 9)), kind=3),
        host_interface(bytes((10, 1, 0, 9)), protocol=2),
        host_interface(bytes((10, 1, 0, 9)), family=2),
        host_interface(bytes((224, 0, 0, 1))),
    ],
    ids=["no address", "no network", "no Redfish", "IPv6", "multicast"],
)
def test_what_is_no_redfish_service_with_an_address_is_not_told(structure: bytes) -> None:
    assert list(bmc.host_interfaces([structure])) == []


@given(junk=st.binary(max_size=200), cut=st.integers(0, 255))
def test_any_structure_is_read_without_an_error(junk: bytes, cut: int) -> None:
    checked(
        bmc.host_interfaces([b"\x2a\x10\0\0\x40" + junk, host_interface(b"\x0a\1\0\x09")[:cut]])
    )


# ---------------------------------------------------------------- the report


def checked(found: Iterable[Bmc]) -> list[dict[str, str]]:
    """What a report says of BMCs, checked against its schema."""
    bmcs = list(found)
    node = inventory.report(Path("/nowhere"), "52:54:00:00:00:01", (), bmcs=lambda: bmcs)
    document = etree.fromstring(ET.tostring(node))
    SCHEMA.assertValid(document)
    return [dict(each.attrib) for each in document.findall("bmc")]


def test_the_report_has_both_once(tmp_path: Path) -> None:
    root = machine(tmp_path / "m")
    table = (host_interface(bytes((10, 1, 0, 9))) + b"\0\0") * 2
    put(root / "sys/firmware/dmi/tables/DMI", table)
    found = [Bmc("ipmi", "10.1.0.7")]
    node = inventory.report(root, "52:54:00:00:00:01", (), bmcs=lambda: found)
    assert [each.attrib for each in node.findall("bmc")] == [
        {"by": "ipmi", "address": "10.1.0.7"},
        {"by": "redfish", "address": "10.1.0.9"},
    ]
