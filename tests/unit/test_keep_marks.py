"""Disks marked keep: which disks marks mean, in a stored report and for the agent."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from cod.model import KeepRule, Refused
from cod.policy.hardware import keep_marks
from tests.unit.test_lifecycle import BLANK
from trampoline import disks as agent
from trampoline import inventory
from trampoline.inventory import Disk


def report(*disks: tuple[str, str, str, str]) -> str:
    """(name, serial, model, local) of each disk."""
    shown = "".join(
        f'<disk name="{name}" size="1000" transport="ata" local="{local}" rotational="no"'
        f' removable="no"{f" serial={serial!r}" if serial else ""} model="{model}"/>'
        for name, serial, model, local in disks
    )
    return f'<node version="1">{shown}</node>'


REPORT = report(
    ("sda", "A1", "INTEL S4500", "yes"), ("sdb", "", "TOSHIBA", "yes"), ("sdc", "U1", "Stick", "no")
)


@pytest.mark.parametrize(
    ("marks", "kept"),
    [
        ((), ()),
        (("serial:A1",), ("sda (serial A1)",)),
        (("path:/dev/sdb",), ("sdb",)),
        (("model:INTEL*",), ("sda (serial A1)",)),
        (("model:*",), ("sda (serial A1)", "sdb")),
        (("serial:a1",), ()),
        (("serial:U1",), ()),  # a USB stick is never written, marked or not
    ],
)
def test_marked_disks_are_not_local_and_go_back(
    marks: tuple[str, ...], kept: tuple[str, ...]
) -> None:
    marked = keep_marks.marked(REPORT, marks)
    assert keep_marks.kept(marked) == kept
    assert marked.count('local="yes"') == 2 - len(kept)
    assert keep_marks.marked(marked, marks) == marked
    back = keep_marks.marked(marked, ())
    assert (back.count('local="yes"'), keep_marks.kept(back)) == (2, ())
    assert keep_marks.unkept(marked, back) == kept
    assert keep_marks.unkept(marked, marked) == ()


def test_marks_are_a_nodes_own_and_the_sites() -> None:
    rules = [
        KeepRule("rack1-*", "model:INTEL*"),
        KeepRule("52:54:00:AA:*", "path:/dev/sdz"),
        KeepRule("x", "serial:9"),
    ]
    node = replace(BLANK, name="rack1-7", boot_mac="52:54:00:aa:00:01", keep="serial:A1\nserial:B2")
    assert keep_marks.marks(node, rules) == (
        "serial:A1",
        "serial:B2",
        "model:INTEL*",
        "path:/dev/sdz",
    )
    assert keep_marks.marks(replace(BLANK, name="y", boot_mac="52:54:00:bb:00:01"), rules) == ()


@pytest.mark.parametrize(
    "mark",
    [
        "",
        "A1",
        "serial:",
        "serial: x",
        "path:sdb",
        "path:/dev/../sda",
        "size:5",
        "model:",
        "serial:a\nserial:b",
    ],
)
def test_what_is_no_mark(mark: str) -> None:
    with pytest.raises(Refused, match="should be serial:SERIAL"):
        keep_marks.check(mark)


def test_the_agent_spares_what_is_meant_and_what_shows_up_late() -> None:
    told = keep_marks.for_order(REPORT, ("serial:LATE", "model:INTEL*", "model:TOSHIBA"))
    assert told == ("serial:LATE", "model:INTEL*", "model:TOSHIBA", "serial:A1", "path:/dev/sdb")
    found = [
        Disk(name, f"/dev/{name}", 1000, "ata", serial=serial)
        for name, serial in (("sda", "A1"), ("sdb", ""), ("sdd", "LATE"), ("sde", "E5"))
    ]
    assert [disk.name for disk in agent.erasable(found, told)] == ["sde"]


def test_a_mark_of_a_model_spares_a_disk_that_shows_up_after_the_report() -> None:
    told = keep_marks.for_order(REPORT, ("model:INTEL*",))
    found = [
        Disk(name, f"/dev/{name}", 1000, "ata", serial=serial, model=model)
        for name, serial, model in (
            ("sda", "A1", "INTEL S4500"),
            ("sdd", "LATE", "INTEL S4510"),
            ("sde", "E5", "Intel"),
            ("sdf", "F6", ""),
        )
    ]
    assert [disk.name for disk in agent.erasable(found, told)] == ["sde", "sdf"]
    assert [
        disk.name
        for disk in agent.erasable(found[1:], keep_marks.for_order(None, ("model:INTEL*",)))
    ] == ["sde", "sdf"]


@pytest.mark.parametrize("path", ["path:/dev/cciss!c0d0", "path:/dev/cciss/c0d0"])
def test_a_path_with_a_folder_may_be_written_as_the_kernels_name(path: str) -> None:
    there = report(("cciss!c0d0", "", "P400", "yes"), ("sda", "A1", "x", "yes"))
    assert keep_marks.kept(keep_marks.marked(there, (keep_marks.check(path),))) == ("cciss!c0d0",)
    assert keep_marks.in_the_way("path:/dev/cciss/c0d0", keep_marks.marked(there, (path,)))
    for marks in ((path,), ("model:P400",)):
        told = keep_marks.for_order(there, marks)
        assert [
            disk.name
            for disk in agent.erasable(
                [
                    Disk("cciss!c0d0", "/dev/cciss/c0d0", 1000, "scsi"),
                    Disk("sda", "/dev/sda", 1000, "ata"),
                ],
                told,
            )
        ] == ["sda"]


@pytest.mark.parametrize(
    ("marks", "select", "words"),
    [
        (
            ("serial:A1",),
            "serial:A1",
            "the template writes the disk serial:A1, which is marked keep",
        ),
        (("serial:A1",), "path:/dev/sda", "the template writes the disk path:/dev/sda"),
        (
            ("model:*",),
            "first",
            "every local disk of the node is marked keep: sda (serial A1), sdb",
        ),
        (("serial:A1",), "first", ""),
        (("serial:A1",), "path:/dev/sdb", ""),
        ((), "first", ""),
    ],
)
def test_what_is_in_the_way_of_a_template(marks: tuple[str, ...], select: str, words: str) -> None:
    said = keep_marks.in_the_way(select, keep_marks.marked(REPORT, marks))
    assert said.startswith(words)
    assert bool(said) == bool(words)


@pytest.mark.parametrize("mark", ["path:/dev/sda", "path:/dev/sdb", "serial:P1"])
def test_a_mark_of_any_path_spares_the_disk(mark: str) -> None:
    # same_wwn = "paths": the first is used
    shown = [
        Disk(name, f"/dev/{name}", 1000, "sas", serial="P1", wwid="5000c500")
        for name in ("sda", "sdb")
    ]
    first, second = (replace(disk, paths=2, local=disk is shown[0]) for disk in shown)
    third = Disk("sdc", "/dev/sdc", 1000, "ata", serial="C3")
    root = ElementTree.Element("node")
    for disk in (first, second, third):
        inventory._add_disk(root, disk)
    there = ElementTree.tostring(root, "unicode")
    marked = keep_marks.marked(there, (mark,))
    assert keep_marks.kept(marked) == ("sda (serial P1)",)
    assert keep_marks.marked(marked, (mark,)) == marked
    assert keep_marks.marked(marked, ()) == there
    told = keep_marks.for_order(marked, (mark,))
    assert agent.erasable([first, second, third], told) == [third]


def test_a_mark_of_one_of_two_disks_with_a_copied_wwn_spares_that_one() -> None:
    shown = [
        Disk(name, f"/dev/{name}", 1000, "ata", serial=name, wwid="5000c500", paths=2)
        for name in ("sda", "sdb")
    ]
    root = ElementTree.Element("node")
    for disk in shown:
        inventory._add_disk(root, disk)
    marked = keep_marks.marked(ElementTree.tostring(root, "unicode"), ("path:/dev/sda",))
    assert keep_marks.kept(marked) == ("sda (serial sda)",)
    assert keep_marks.marked(marked, ("path:/dev/sda",)) == marked
    assert agent.erasable(shown, ("path:/dev/sda",)) == [shown[1]]
