"""docs/hardware.md is of the shapes that there are, all of them tried, and those are the shapes
that were asked for."""

from __future__ import annotations

import pytest

from tests.system import matrix
from tests.system.shapes import SHAPES

ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in matrix.PAGE.read_text().splitlines()
    if line.startswith(("| BIOS", "| UEFI"))
]


def test_each_shape_has_its_row_and_each_row_its_shape() -> None:
    assert [row[:4] for row in ROWS] == [matrix.described(shape) for shape in SHAPES], (
        "run `make matrix`"
    )


def test_every_shape_was_tried_and_fared_as_expected() -> None:
    for row in ROWS:
        assert len(row) == 7, row
        assert "not tried" not in row
        assert "**failed**" not in row[6]
    assert sum(row[6].endswith(" s") for row in ROWS) >= 16


@pytest.mark.parametrize("firmware", ["BIOS", "UEFI", "UEFI over HTTP"])
def test_each_firmware_has_every_card(firmware: str) -> None:
    cards = {
        card.removesuffix(" with ROM")
        for row in ROWS
        if row[0] == firmware
        for card in row[1].split(", ")
    }
    assert {"virtio", "e1000", "e1000e", "rtl8139"} <= cards


def test_every_kind_of_disk_and_several_of_each_are_there() -> None:
    disks = {disk for row in ROWS for disk in row[2].split(", ")}
    assert {
        "virtio",
        "AHCI",
        "NVMe",
        "NVMe with 4096-byte sectors",
        "virtio-scsi",
        "megasas",
        "USB",
    } <= disks
    for firmware in ("BIOS", "UEFI"):
        assert any(
            row[0] == firmware and row[3] == "the firmware tries the second disk first"
            for row in ROWS
        )
        assert any(row[0] == firmware and row[1].count(", ") == 2 for row in ROWS), "three cards"


def test_a_shape_has_a_name_of_its_own() -> None:
    assert len({shape.name for shape in SHAPES}) == len(SHAPES)
