"""The shapes that `make test` boots cover what all shapes together have."""

from __future__ import annotations

from collections.abc import Iterable

from cod.lab.spec import LabNode
from tests.system.shapes import BY_NIGHT, COVERING, SHAPES, named
from tests.system.test_firmware import BIOS
from tests.system.test_pxelinux import MACHINE


def parts(nodes: Iterable[LabNode]) -> set[tuple[str, object]]:
    """Return the ways to boot, NIC models, disk buses and sector sizes of the machines."""
    return {
        part
        for node in nodes
        for part in [
            ("boot", (node.firmware, node.netboot)),
            *[("nic", nic.model) for nic in node.nics],
            *[("disk", (disk.bus, disk.sector)) for disk in node.disks],
        ]
    }


def test_each_firmware_nic_and_disk_is_booted_once() -> None:
    """In two days of `make test`: see the mark `in_turn`."""
    booted = [BIOS, MACHINE, *(named(name).node for names in COVERING.values() for name in names)]
    expected = parts(shape.node for shape in SHAPES if not shape.refused)
    assert expected == parts(booted)


def test_each_refusal_is_met_by_night() -> None:
    met = {named(name).refused for names in BY_NIGHT.values() for name in names} | {""}
    assert met == {shape.refused for shape in SHAPES}
