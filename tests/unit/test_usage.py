"""What of a disk is captured: its partitions without the seed, what is in use in them, a map that
fits the copy."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from cod.wire.manifest import CHUNK
from tests import full_disk
from tests.full_disk import MIB, OLD, SECRET, SPANS
from trampoline import capture, partitions, usage
from trampoline.errors import PrimeError
from trampoline.source import Overlay, Source
from trampoline.target import Target
from trampoline.usage import DiskUsage

pytestmark = pytest.mark.slow  # together with its like more than the quick run has time for


def copy_of(found: DiskUsage) -> bytes:
    """The copy, made of the chunks that would be sent."""
    image = bytearray(found.copy.size)
    one = capture._Pass(found, None, lambda *_: None)
    for piece in capture._pieces(found, 0):
        for at, spans in piece.chunks:
            data = one._read(at, spans)
            assert at % CHUNK == 0
            image[at : at + len(data)] = data
    return bytes(image)


def captured(disk: Path) -> bytes:
    before = hashlib.sha256(disk.read_bytes()).digest()
    with Source(str(disk)) as source:
        image = copy_of(usage.look(source))
    assert hashlib.sha256(disk.read_bytes()).digest() == before
    return image


@pytest.mark.parametrize("table", ["gpt", "mbr"])
def test_a_whole_node(tmp_path: Path, table: str) -> None:
    disk = full_disk.make(tmp_path / "disk", table=table)
    image = captured(disk)
    (tmp_path / "copy").write_bytes(image)
    assert full_disk.files(tmp_path / "copy", tmp_path / "a") == full_disk.files(
        disk, tmp_path / "b"
    )
    assert image[:9] == b"boot code"
    assert image[MIB : MIB + 9] == b"stage two"
    assert SECRET in disk.read_bytes()
    assert SECRET not in image
    swap = SPANS[3].start
    assert image[swap + 4086 : swap + 4096] == b"SWAPSPACE2"
    # of the boot partition nobody knows what is in use
    kept = image.replace(image[MIB : 2 * MIB], b"")
    # in parts of the file systems' own tables that were never written
    assert kept.count(OLD) * len(OLD) < 300_000
    assert not any(image[10 * MIB : 12 * MIB])
    end = SPANS[3].start + SPANS[3].size
    assert len(image) == end + (MIB if table == "gpt" else 0)
    assert not any(image[swap + 4096 : end])


def test_the_copys_map_is_good_and_has_no_seed(tmp_path: Path) -> None:
    disk = full_disk.make(tmp_path / "disk")
    (tmp_path / "copy").write_bytes(captured(disk))
    assert "No problems found" in full_disk.tool("sgdisk", "-v", str(tmp_path / "copy"))
    with Source(str(disk)) as old, Source(str(tmp_path / "copy")) as new:
        before, after = partitions.read_gpt(old), partitions.read_gpt(new)
    assert before is not None
    assert after is not None
    assert set(before.entries) == {1, 2, 3, 4, 5}
    assert after.entries == {
        number: entry for number, entry in before.entries.items() if number != 5
    }
    assert after.guid == before.guid


def test_the_map_of_an_mbr_disk(tmp_path: Path) -> None:
    disk = full_disk.make(tmp_path / "disk", table="mbr")
    (tmp_path / "copy").write_bytes(captured(disk))
    dump = full_disk.tool("sfdisk", "--dump", str(tmp_path / "copy"))
    assert dump.count("type=") == 3
    with Source(str(disk)) as source:
        assert [
            (part.number, part.type, part.content.kind) for part in usage.look(source).parts
        ] == [(1, "esp", "fat"), (2, "linux", "ext"), (3, "swap", "swap")]


def test_the_same_disk_gives_the_same_copy_whatever_lies_in_its_free_space(tmp_path: Path) -> None:
    disk = full_disk.make(tmp_path / "disk")
    first = captured(disk)
    data = bytearray(disk.read_bytes())
    for at in range(10 * MIB, 12 * MIB):
        data[at] ^= 0x55
    disk.write_bytes(data)
    assert captured(disk) == first


def test_a_disk_without_a_map_is_one_file_system(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.write_bytes(OLD * (16 * MIB // len(OLD)))
    full_disk.tool(
        "mke2fs",
        "-q",
        "-F",
        "-t",
        "ext4",
        "-E",
        "nodiscard,lazy_itable_init=0,lazy_journal_init=0",
        str(disk),
        "12M",
    )
    image = captured(disk)
    assert len(image) == 16 * MIB
    (tmp_path / "copy").write_bytes(image)
    full_disk.tool("e2fsck", "-fn", str(tmp_path / "copy"))
    assert image.count(OLD) < 10_000


def test_a_disk_of_which_nothing_is_known_is_copied_as_it_is(tmp_path: Path) -> None:
    content = OLD * (3 * MIB // len(OLD)) + bytes(2 * MIB) + b"end".ljust(700, b"!")
    (tmp_path / "disk").write_bytes(content)
    assert captured(tmp_path / "disk") == content


def test_an_empty_disk(tmp_path: Path) -> None:
    (tmp_path / "disk").write_bytes(bytes(5 * MIB))
    assert captured(tmp_path / "disk") == bytes(5 * MIB)


def test_a_partition_that_ends_with_the_disk_leaves_the_backup_its_place(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.write_bytes(bytes(8 * MIB))
    full_disk.tool("sgdisk", "-o", "-n", "1:2048:0", str(disk))
    (tmp_path / "copy").write_bytes(captured(disk))
    assert (tmp_path / "copy").stat().st_size == 8 * MIB
    assert "No problems found" in full_disk.tool("sgdisk", "-v", str(tmp_path / "copy"))


@pytest.mark.parametrize("label", ["CIDATA", "cidata"])
def test_a_seed_is_known_by_its_label_wherever_it_lies(tmp_path: Path, label: str) -> None:
    disk = full_disk.make(tmp_path / "disk")
    part = tmp_path / "part"
    part.write_bytes(bytes(8 * MIB))
    full_disk.tool("mkfs.fat", "-n", label, str(part))
    (tmp_path / "user-data").write_bytes(b"the key of " + SECRET)
    full_disk.tool("mcopy", "-i", str(part), str(tmp_path / "user-data"), "::user-data")
    with disk.open("r+b") as file:
        file.seek(SPANS[1].start)
        file.write(part.read_bytes())
    image = captured(disk)
    assert SECRET not in image
    (tmp_path / "copy").write_bytes(image)
    with Source(str(tmp_path / "copy")) as copy:
        gpt = partitions.read_gpt(copy)
    assert gpt is not None
    assert set(gpt.entries) == {1, 3, 4}


def test_a_suspended_machine_is_captured_as_one_that_is_not(tmp_path: Path) -> None:
    disk = full_disk.make(tmp_path / "disk")
    with disk.open("r+b") as file:
        file.seek(SPANS[3].start + 4086)
        file.write(b"S1SUSPEND\0")
    image = captured(disk)
    assert image[SPANS[3].start + 4086 : SPANS[3].start + 4096] == b"SWAPSPACE2"


def test_what_lies_between_used_parts_of_a_chunk_is_zeros(tmp_path: Path) -> None:
    (tmp_path / "disk").write_bytes(b"x" * 3 * MIB)
    with Source(str(tmp_path / "disk")) as source:
        overlay = Overlay(source, 3 * MIB)
        overlay.write(memoryview(b"changed"), 2 * MIB + 5)
        image = copy_of(DiskUsage((), overlay, ((10, 20), (30, MIB + 7), (MIB + 9, MIB + 10))))
    expected = bytearray(3 * MIB)
    for start, stop in ((10, 20), (30, MIB + 7), (MIB + 9, MIB + 10)):
        expected[start:stop] = b"x" * (stop - start)
    expected[2 * MIB + 5 : 2 * MIB + 12] = b"changed"
    assert image == expected


def test_a_source_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "disk").write_bytes(b"data" * 1024)
    with Source(str(tmp_path / "disk")) as source, pytest.raises(PrimeError, match="only read"):
        source.write(memoryview(b"x"), 0)
    assert (tmp_path / "disk").read_bytes() == b"data" * 1024
    with pytest.raises(PrimeError, match="cannot be opened"):
        Source(str(tmp_path / "nothing"))


def test_an_overlay_shows_its_changes_and_ends_where_it_says(tmp_path: Path) -> None:
    (tmp_path / "disk").write_bytes(b"0123456789")
    with Target(str(tmp_path / "disk")) as target:
        overlay = Overlay(target, 8)
        overlay.write(memoryview(b"abc"), 6)
        overlay.write(memoryview(b"X"), 7)
        assert overlay.read(100, 5) == b"5aX"
        assert overlay.read(4, 0) == b"0123"
        assert overlay.read(4, 9) == b""
    assert (tmp_path / "disk").read_bytes() == b"0123456789"


def test_type_names() -> None:
    for name in partitions.TYPES:
        assert partitions.type_name(partitions.type_guid(name)) == name
    other = "4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709"
    assert partitions.type_name(partitions.type_guid(other)) == other
