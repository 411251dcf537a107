"""Which nodes are near each other: what switches write into option 82, and what is proposed from
all that is known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cod.policy.hardware.topology import Proposal, Sighting, circuit_id, propose, remote_id
from cod.policy.people.names import check_label
from cod.wire import dhcp
from tests.unit.dhcp_captures import OVMF_DISCOVER

# Option 82 as switches put it in: (its bytes, circuit without port, port, remote id).
SWITCHES = {
    "cisco, binary": ("520e01060004000a010702040002abcd", "module 1", "7", "0xabcd"),
    "cisco, with its MAC": (
        "5212010600040064021802080006001b54aabbcc",
        "module 2",
        "24",
        "00:1b:54:aa:bb:cc",
    ),
    "cisco, text": (
        "521a01090107" + b"Gi1/0/7".hex() + "020d010b" + b"leaf-3.rack".hex(),
        "Gi1/0",
        "7",
        "leaf-3.rack",
    ),
    "juniper": ("52140112" + b"ge-0/0/3.0:vlan100".hex(), "ge-0/0", "3", None),
    "arista": ("520c010a" + b"Ethernet17".hex(), "Ethernet", "17", None),
    "cumulus": ("520e0104" + b"swp7".hex() + "0206443839000001", "swp", "7", "44:38:39:00:00:01"),
    "aruba": ("52070105" + b"1/1/7".hex(), "1/1", "7", None),
    "words": ("520b0109" + b"the attic".hex(), "the attic", "", None),
    "bytes": ("52050103ff0080", "0xff0080", "", None),
}


def captured(option: str, giaddr: str = "0a4d00fe") -> bytes:
    """The captured DISCOVER of a machine as a relay passes it on, with that option 82."""
    packet = bytearray(OVMF_DISCOVER.rstrip(b"\0"))
    assert packet[-1] == 255
    packet[24:28] = bytes.fromhex(giaddr)
    return bytes(packet[:-1]) + bytes.fromhex(option) + b"\xff"


@pytest.mark.parametrize("name", SWITCHES)
def test_what_switches_write_is_understood(name: str) -> None:
    option, module, port, remote = SWITCHES[name]
    query = dhcp.query(dhcp.decode(captured(option)), "lab")
    assert (query.mac, query.giaddr) == ("52:54:00:12:34:57", "10.77.0.254")
    assert query.circuit is not None
    assert circuit_id(query.circuit) == (module, port)
    assert (remote_id(query.remote) if query.remote else None) == remote


@pytest.mark.parametrize(
    "option", ["5200", "520101", "52020105", "52030105ff", "520401050001", "52020100", "52020300"]
)
def test_what_is_malformed_tells_nothing_and_stops_nothing(option: str) -> None:
    query = dhcp.query(dhcp.decode(captured(option)), "lab")
    assert (query.kind, query.circuit, query.remote) == ("DISCOVER", None, None)


def test_the_first_of_two_counts_and_long_ones_are_cut() -> None:
    option = "0102aaaa0102bbbb02ff" + "cc" * 255
    query = dhcp.query(
        dhcp.decode(
            captured(
                # RFC 3396: in two parts
                f"52ff{option[:510]}" + f"52{len(option[510:]) // 2:02x}{option[510:]}"
            )
        ),
        "lab",
    )
    assert (query.circuit, query.remote) == ("aaaa", "cc" * 80)


@given(st.binary(max_size=80))
def test_any_identifiers_are_readable(value: bytes) -> None:
    assert remote_id(value.hex()).isprintable()
    module, port = circuit_id(value.hex())
    assert module.isprintable()
    assert port.isprintable()


# ---------------------------------------------------------------- proposals

GI = {port: f"Gi1/0/{port}".encode().hex() for port in range(1, 50)}
OTHER_CARD = b"Gi2/0/1".hex()


def blocks(proposal: Proposal) -> dict[str, list[str]]:
    return {each.name: [place.node for place in each.places] for each in proposal.blocks}


def why(proposal: Proposal) -> dict[str, str]:
    return {place.node: place.why for each in proposal.blocks for place in each.places}


def test_nodes_of_a_switch_are_proposed_together_and_say_why() -> None:
    found = propose(
        [
            Sighting("n1", switch="Leaf-3.Rack A", port="Eth1"),
            Sighting("n2", switch="Leaf-3.Rack A", port="Eth2"),
            Sighting("n3", relay="10.1.0.1", circuit=GI[3], remote=b"leaf4".hex()),
            Sighting("n4", relay="10.1.0.1", circuit=GI[4]),
            Sighting("n5", relay="10.1.0.1", circuit=GI[5]),
            Sighting("n6", relay="10.1.0.1", circuit=OTHER_CARD),
            Sighting("n7", relay="10.2.0.1"),
            Sighting("n8"),
        ],
        [],
    )
    assert blocks(found) == {
        "leaf-3-rack-a": ["n1", "n2"],
        "leaf4": ["n3"],
        "10-1-0-1-gi1-0": ["n4", "n5"],
        "10-1-0-1-gi2-0": ["n6"],
        "10-2-0-1": ["n7"],
    }
    assert found.unknown == ("n8",)
    assert why(found) == {
        "n1": "sees switch Leaf-3.Rack A, port Eth1",
        "n2": "sees switch Leaf-3.Rack A, port Eth2",
        "n3": "asked through switch leaf4, relay 10.1.0.1, circuit Gi1/0, port 3",
        "n4": "asked through relay 10.1.0.1, circuit Gi1/0, port 4",
        "n5": "asked through relay 10.1.0.1, circuit Gi1/0, port 5",
        "n6": "asked through relay 10.1.0.1, circuit Gi2/0, port 1",
        "n7": "asked through relay 10.2.0.1",
    }
    assert {each.name: each.about for each in found.blocks}[
        "10-1-0-1-gi1-0"
    ] == "relay 10.1.0.1 Gi1/0"
    assert not any(each.exists for each in found.blocks)


def test_a_remote_id_stands_for_the_switch_that_its_nodes_see() -> None:
    mac = "001b54aabbcc"
    seen = [Sighting("n1", remote=mac, switch="leaf3", port="1"), Sighting("n2", remote=mac)]
    assert blocks(propose(seen, [])) == {"leaf3": ["n1", "n2"]}
    doubtful = [*seen, Sighting("n3", remote=mac, switch="leaf4", port="1")]
    assert blocks(propose(doubtful, [])) == {
        "leaf3": ["n1"],
        "leaf4": ["n3"],
        "00-1b-54-aa-bb-cc": ["n2"],
    }


def test_who_is_in_a_block_stays_and_draws_the_others() -> None:
    seen = [
        Sighting("n1", "attic", switch="leaf3", port="1"),
        Sighting("n2", "cellar", switch="leaf3", port="2"),
        Sighting("n3", "attic", switch="leaf3", port="3"),
        Sighting("n4", switch="leaf3", port="4"),
        Sighting("n5", "attic"),
    ]
    found = propose(seen, ["attic", "cellar"])
    assert blocks(found) == {"attic": ["n4"]}
    assert found.blocks[0].exists
    assert found.unknown == ()


def test_names_are_free_and_labels() -> None:
    long = "X" * 80
    seen = [
        Sighting("n1", switch="leaf3", port="1"),
        Sighting("n2", switch="leaf3.", port="1"),
        Sighting("n3", switch="...", port="1"),
        Sighting("n4", switch=long, port="1"),
        Sighting("n5", switch=long + "Y", port="1"),
    ]
    found = propose(seen, ["leaf3"])
    assert sorted(blocks(found)) == ["block", "leaf3-2", "leaf3-3", "x" * 61 + "-2", "x" * 63]


SIGHTINGS = st.builds(
    Sighting,
    st.uuids().map(str),
    st.sampled_from([None, None, "attic", "cellar"]),
    st.sampled_from([None, "10.1.0.1", "10.2.0.1"]),
    st.sampled_from([None, *list(GI.values())[:4], OTHER_CARD]),
    st.sampled_from([None, "6c65616634", "001b54aabbcc"]),
    st.sampled_from([None, "leaf3", "leaf4"]),
    st.just("1"),
)


@given(st.lists(SIGHTINGS, max_size=12, unique_by=lambda each: each.node), st.randoms())
def test_every_node_without_a_block_is_in_the_proposal_once(
    seen: list[Sighting], random: object
) -> None:
    found = propose(seen, ["attic", "cellar"])
    homeless = sorted(each.node for each in seen if each.block is None)
    assert (
        sorted([*found.unknown, *(node for nodes in blocks(found).values() for node in nodes)])
        == homeless
    )
    assert len(blocks(found)) == len(found.blocks)
    for each in found.blocks:
        check_label(each.name)
    turned = list(seen)
    random.shuffle(turned)  # type: ignore[attr-defined]
    assert propose(turned, ["cellar", "attic"]) == found


@given(st.lists(SIGHTINGS, max_size=12, unique_by=lambda each: each.node))
def test_once_it_is_carried_out_nothing_is_left_to_propose(seen: list[Sighting]) -> None:
    found = propose(seen, ["attic", "cellar"])
    home = {place.node: each.name for each in found.blocks for place in each.places}
    settled = [replace(each, block=each.block or home.get(each.node)) for each in seen]
    again = propose(settled, {"attic", "cellar", *home.values()})
    assert again == Proposal((), found.unknown)
