"""The template that a capture makes: valid, of the captured image alone, and otherwise what its
source was."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any
from xml.etree import ElementTree

import pytest

from cod.model import CapturedPartition, Image, Node, Refused
from cod.policy.hardware.match import satisfies
from cod.policy.nodes import capture, template
from cod.states import NODE_TRANSITIONS, Disk, NodeEvent, NodeState
from cod.wire import xmldoc

MIB = 1 << 20
NODE = Node(
    **{field.name: None for field in fields(Node)}
    | {
        "id": 1,
        "name": "n<7>",
        "state": "active",
        "disk": Disk.DIRTY,
        "firmware": "uefi",
        "power_driver": "lab",
    }
)
PARTS = (
    CapturedPartition(1, MIB, MIB, "bios", "boot", ""),
    CapturedPartition(2, 2 * MIB, 300 * MIB, "linux", 'ro<o>t & "more"', "ext"),
)
FULL = """<template name="web" cache="yes" verify="yes">
  <description>the old one</description>
  <requires><memory><mib min="2GiB"/></memory><disk><size min="100MB"/></disk></requires>
  <disk select="smallest"/>
  <layout table="gpt"><partition number="1" size="512MiB" type="esp"/><partition number="2" type="linux"/></layout>
  <image target="1" name="esp"/><image target="2" name="root"><when><disk><size min="1"/></disk></when></image>
  <image target="2" url="http://x/y" size="1000000000" compression="zstd" sha256="{}"/>
  <boot mode="disk"/><ready port="80" path="/x"/>
  <personalise seed="nocloud"><user-data>#cloud-config
users: [a]
</user-data></personalise>
</template>""".format("ab" * 32)


def made(
    source: str | None, size: int = 301 * MIB + 5, node: Node = NODE
) -> template.Configuration:
    document = capture.document("golden", "mine", size, PARTS, node, source)
    xmldoc.parse(document.encode(), "template")
    read = template.parse(document)
    template.check_hardware(read)
    assert read.name == "golden"
    assert [(choice.target, choice.name, choice.when) for choice in read.images] == [
        ("disk", "mine", "")
    ]
    assert (read.table, read.partitions, read.diskless) == ("keep", (), None)
    return read


def least_disk(read: template.Configuration) -> str:
    return next(
        str(element.get("min"))
        for element in ElementTree.fromstring(read.requires).iterfind("disk/size")
    )


def test_what_its_source_wanted_stays() -> None:
    read, source = made(FULL), template.parse(FULL)
    for name in ("cache", "verify", "seed", "user_data", "ready"):
        assert getattr(read, name) == getattr(source, name), name
    assert "2GiB" in read.requires
    assert least_disk(read) == "302MiB"
    assert "the old one" not in read.description
    for words in ("n<7>", "1: bios, 1 MiB boot", '2: ext, 300 MiB ro<o>t & "more"'):
        assert words in read.description


def test_a_source_of_which_nothing_is_known_asks_for_the_same_firmware() -> None:
    read = made(None)
    report = (
        "<node><firmware><kind>uefi</kind></firmware><disk><size>400000000</size></disk></node>"
    )
    assert not satisfies(read.requires, report)
    assert satisfies(read.requires, report.replace("uefi", "bios"))
    assert satisfies(read.requires, report.replace("400000000", "300000000"))
    assert "firmware" not in made(None, node=replace(NODE, firmware=None)).requires
    assert not read.seed


@pytest.mark.parametrize(
    ("disks", "expected"),
    [
        ("", ["302MiB"]),
        ('<disk><size min="1TB"/></disk>', ["1TB"]),
        ('<disk><size min="1000"/></disk>', ["302MiB"]),
        ('<disk><size min="10GB" max="20GB"/></disk>', ["10GB"]),
        ('<disk><transport equal="nvme"/></disk>', []),
        ('<disk><size min="1MB"/></disk><disk/>', ["1MB"]),
    ],
)
def test_what_it_requires_of_disks(disks: str, expected: list[str]) -> None:
    read = made(
        f'<template name="x"><requires>{disks}</requires><image target="disk" name="a"/></template>'
    )
    found = [e.get("min") for e in ElementTree.fromstring(read.requires).iterfind("disk/size")]
    assert found == expected


def test_a_long_map_is_cut() -> None:
    many = tuple(replace(PARTS[1], number=number, name="x" * 60) for number in range(1, 129))
    document = capture.document("golden", "mine", MIB, many, NODE, None)
    xmldoc.parse(document.encode(), "template")


def test_where_the_system_is() -> None:
    image: Any = Image(
        **{field.name: None for field in fields(Image)}
        | {
            "name": "a",
            "size": 7 * MIB,
            "sector": 512,
        }
    )
    assert capture.where(None, {}) == capture.Where("first", 0)
    assert capture.where(template.parse(FULL), {}) == capture.Where("smallest", 10**9)
    plain = template.parse(
        '<template><disk select="largest"/><image target="disk" name="a"/></template>'
    )
    assert capture.where(plain, {"a": image}) == capture.Where("largest", 7 * MIB, 512)
    assert capture.where(plain, {}) == capture.Where("largest", 0)
    laid = template.parse(
        '<template><layout table="gpt"><partition number="1" size="9GiB" type="linux"/></layout>'
        '<image target="1" name="a"/></template>'
    )
    assert capture.where(laid, {"a": image}) == capture.Where("first", 9 << 30, 512)


@pytest.mark.parametrize("state", NodeState)
@pytest.mark.parametrize("disk", Disk)
def test_only_what_can_be_carried_out_is_accepted(state: NodeState, disk: Disk) -> None:
    node = replace(NODE, state=state, disk=disk)
    plain = template.parse('<template><image target="disk" name="a"/></template>')
    free = state in (NodeState.INACTIVE, NodeState.OFF)
    if state is not NodeState.ACTIVE and (not free or disk in (Disk.CLEAN, Disk.TABLES)):
        with pytest.raises(Refused, match=node.name) as refused:
            capture.check(node, None)
        assert refused.value.code == "conflict"
        return
    capture.check(node, None if free else plain)
    event = {
        NodeState.ACTIVE: NodeEvent.CAPTURE_WANTED,
        NodeState.OFF: NodeEvent.WOKEN,
        NodeState.INACTIVE: NodeEvent.CAPTURE_ORDERED,
    }[state]
    assert (state, event) in NODE_TRANSITIONS


def test_leaving_keeps_the_system() -> None:
    step = capture.leave("why", "cycle")
    assert (step.event, step.power, step.columns["disk"]) == (
        NodeEvent.CAPTURE_WANTED,
        "cycle",
        Disk.SYSTEM,
    )
