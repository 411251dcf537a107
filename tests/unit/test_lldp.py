"""What switches say of themselves by LLDP, and that no frame harms the agent."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from tests.hardware import machine, nic, put
from trampoline import inventory
from trampoline.lldp import Neighbour, deaf, parse

HEAD = bytes.fromhex("0180c200000e001b54aabbcc88cc")
# chassis MAC, port by interface name, TTL 120, port description, name, capabilities
CISCO = (
    HEAD
    + bytes.fromhex(
        "020704001b54aabb80040805"
        + b"Gi1/0/7".hex()
        + "060200780816"
        + b"GigabitEthernet1/0/7 x".hex()
        + "0a0b"
        + b"leaf-3.rack".hex()
        + "0e04001400040000"
    )
    + bytes(8)
)
# no system name; port by interface name; an organisation's own TLV (802.1: port VLAN)
ARISTA = HEAD + bytes.fromhex(
    "020704444ca8000001040b05" + b"Ethernet17".hex() + "06020078fe060080c20100640000"
)
MIKROTIK = HEAD + bytes.fromhex(  # chassis by address, port by alias
    "020605010a4d00fe040701" + b"ether2".hex() + "060200140000"
)


def with_tlvs(*tlvs: tuple[int, bytes]) -> bytes:
    return HEAD + b"".join(
        (kind << 9 | len(value)).to_bytes(2, "big") + value for kind, value in (*tlvs, (0, b""))
    )


@pytest.mark.parametrize(
    ("frame", "neighbour"),
    [
        (CISCO, ("leaf-3.rack", "Gi1/0/7")),
        (ARISTA, ("44:4c:a8:00:00:01", "Ethernet17")),
        (MIKROTIK, ("10.77.0.254", "ether2")),
        (
            with_tlvs((1, b"\7sw1"), (2, b"\3\x44\x38\x39\0\0\1"), (3, b"\0x")),
            ("sw1", "44:38:39:00:00:01"),
        ),
        (with_tlvs((1, b"\7sw1"), (2, b"\7" + b"1" * 255), (3, b"\0x")), ("sw1", "1" * 200)),
        (
            with_tlvs((1, b"\7sw1"), (2, b"\5a\x01\x1bb \xff"), (3, b"\0x"), (5, b" \0 ")),
            ("sw1", "a b"),
        ),
    ],
)
def test_switches_are_understood(frame: bytes, neighbour: tuple[str, str]) -> None:
    assert parse(frame) == Neighbour(*neighbour)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        HEAD,
        HEAD[:12],
        CISCO.replace(b"\x88\xcc", b"\x08\x00"),
        CISCO[:40],
        ARISTA[:20],
        with_tlvs((1, b"\7sw1"), (2, b"\7p"), (3, b"\0\0")),  # it bids farewell
        with_tlvs((1, b"\7sw1"), (2, b"\7p")),
        with_tlvs((1, b"\7sw1"), (3, b"\0x")),
        with_tlvs((2, b"\7p"), (3, b"\0x")),
        with_tlvs((1, b"\7"), (2, b"\7p"), (3, b"\0x")),
        with_tlvs((1, b""), (2, b"\7p"), (3, b"\0x")),
    ],
)
def test_what_says_nothing(frame: bytes) -> None:
    assert parse(frame) is None


@given(
    st.binary(max_size=120)
    | st.binary(max_size=120).map(lambda tail: HEAD + tail)
    | st.integers(14, len(CISCO)).map(lambda cut: CISCO[:cut])
)
def test_no_frame_harms(frame: bytes) -> None:
    found = parse(frame)
    assert found is None or all(0 < len(each) <= 200 and each.isprintable() for each in found)


def test_a_neighbour_is_in_the_report_and_the_report_is_valid(tmp_path: Path) -> None:
    root, mac = machine(tmp_path), "b4:96:91:0a:0b:0c"
    nic(root, "eth0", mac, driver="ixgbe")
    nic(root, "eth1", "b4:96:91:0a:0b:0d", driver="ixgbe")
    put(root / "sys/class/dmi/id/bios_version", " 2.12.2\n")
    asked = []

    def heard(names: object) -> dict[str, Neighbour]:
        asked.append(names)
        return {"eth0": Neighbour("leaf-3 & <co>", "Gi1/0/7"), "eth9": Neighbour("x", "y")}

    node = inventory.report(root, mac, (), heard)
    etree.RelaxNG(etree.parse(Path(__file__).parents[2] / "schema/report.rng")).assertValid(
        etree.fromstring(ET.tostring(node))
    )
    assert asked == [["eth0", "eth1"]]
    assert [ET.tostring(each) for each in node.iter("neighbour")] == [
        b'<neighbour switch="leaf-3 &amp; &lt;co&gt;" port="Gi1/0/7" />'
    ]
    assert node.find("nic/neighbour") is not None
    assert node.findall("firmware")[0].attrib == {"kind": "bios", "version": "2.12.2"}
    assert inventory.report(root, mac, (), deaf).find("nic/neighbour") is None
