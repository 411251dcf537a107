"""What the readers of file systems call in use: against the tools of those who make them.

A partition is filled with rubbish, a file system made on it, files written; then everything that
the reader does not call in use is zeroed. What is left must be the same file system to its own
checker, with the same files.
"""

from __future__ import annotations

import os
import random
import re
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from trampoline.filesystems import content, detect, ext, jbd2
from trampoline.filesystems.content import Content

pytestmark = pytest.mark.slow  # half a minute of processor time and more, together with its like

MIB = 1 << 20
FILES = {
    "one": b"a file\n",
    "empty": b"",
    "large": random.Random(1).randbytes(3_000_000),
    "folder/deep": b"x" * 5000,
}


def run(*words: str | Path, text: str | None = None, good: tuple[int, ...] = (0,)) -> str:
    environment = os.environ | {
        "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin",
        "MTOOLS_SKIP_CHECK": "1",
    }
    done = subprocess.run(
        [str(word) for word in words],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode in good, (words, done.stdout, done.stderr)
    return done.stdout


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    path = tmp_path / "partition"
    path.write_bytes(random.Random(7).randbytes(MIB) * 24)
    return path


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, data in FILES.items():
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).write_bytes(data)
    return tmp_path / "tree"


def look(path: Path) -> Content:
    data = path.read_bytes()
    return detect.look(lambda length, at: data[at : at + length] if at >= 0 else b"", len(data))


def strip(path: Path, found: Content) -> int:
    """Zero what is not in use; returns how much is."""
    assert found.used is not None
    data = path.read_bytes()
    left = bytearray(len(data))
    at = 0
    for start, stop in found.used:
        assert at <= start < stop <= len(data)
        left[start:stop] = data[start:stop]
        at = stop
    path.write_bytes(left)
    return sum(stop - start for start, stop in found.used)


# ---------------------------------------------------------------- ext

KINDS = {
    "ext4": ("-t", "ext4"),
    "ext4, small blocks": ("-t", "ext4", "-b", "1024"),
    "ext4, small groups": ("-t", "ext4", "-b", "1024", "-g", "1024"),
    "ext4, whole groups": ("-t", "ext4", "-O", "^flex_bg,^64bit,^metadata_csum,uninit_bg"),
    "ext4, two backups": ("-t", "ext4", "-b", "1024", "-O", "sparse_super2,^resize_inode"),
    "ext4, no journal": ("-t", "ext4", "-O", "^has_journal"),
    "ext3": ("-t", "ext3"),
    "ext2": ("-t", "ext2", "-b", "1024"),
    "ext2, old": ("-t", "ext2", "-r", "0"),
    "lazy": ("-t", "ext4", "-E", "lazy_itable_init=1,lazy_journal_init=1"),
}


def make_ext(partition: Path, tree: Path, *options: str, size: int = 20) -> None:
    run(
        "mke2fs",
        "-q",
        "-F",
        "-E",
        "nodiscard",
        "-d",
        tree,
        "-L",
        "root",
        *options,
        partition,
        f"{size}M",
    )


def files_of(partition: Path, folder: Path) -> dict[str, bytes]:
    folder.mkdir()
    run("debugfs", "-R", f"rdump / {folder}", partition)
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "lost+found" not in path.parts
    }


def free_blocks(partition: Path) -> Iterator[tuple[int, int]]:
    """What dumpe2fs calls free: (first, last) block numbers."""
    for line in re.findall(r"^  Free blocks: (.+)$", run("dumpe2fs", partition), re.M):
        for first, last in re.findall(r"(\d+)(?:-(\d+))?", line):
            yield int(first), int(last or first)


@pytest.mark.parametrize("kind", KINDS)
def test_ext_without_its_free_blocks_is_the_same(
    partition: Path, tree: Path, tmp_path: Path, kind: str
) -> None:
    make_ext(partition, tree, *KINDS[kind])
    before = partition.stat().st_size
    found = look(partition)
    assert (found.kind, found.label) == ("ext", "ROOT")
    assert found.used is not None
    block = int(re.findall(r"^Block size: +(\d+)", run("dumpe2fs", "-h", partition), re.M)[0])
    free = sum(last - first + 1 for first, last in free_blocks(partition)) * block
    used = strip(partition, found)
    end = 20 * MIB
    # what a group's end is made up of counts, too
    uninitialised = used - (end - free) - (before - end and 128 << 10)
    assert 0 <= uninitialised <= 2 * block, (kind, uninitialised)
    run("e2fsck", "-fn", partition)
    assert files_of(partition, tmp_path / "copy") == FILES
    # where md would have its superblock
    assert found.used[-1] == (24 * MIB - (128 << 10), 24 * MIB)


def test_blocks_that_only_the_journal_calls_used_are_used(
    partition: Path, tree: Path, tmp_path: Path
) -> None:
    """A file was made and the machine switched off: the journal has the bitmap, the disk has the
    old one."""
    make_ext(partition, tree, "-t", "ext4", "-b", "1024", "-O", "^64bit,^metadata_csum")
    details = run("dumpe2fs", partition)
    bitmap = int(re.findall(r"Group 0: .*?Block bitmap at (\d+)", details, re.S)[0])
    first, _last = max(free_blocks(partition), key=lambda span: span[1] - span[0])
    group, index = divmod(first + 3 - 1, 8192)
    bitmap = int(re.findall(rf"Group {group}: .*?Block bitmap at (\d+)", details, re.S)[0])
    data = bytearray(partition.read_bytes()[bitmap * 1024 : (bitmap + 1) * 1024])
    data[index // 8] |= 1 << index % 8
    (tmp_path / "bitmap").write_bytes(data)
    place = ((first + 3) * 1024, (first + 4) * 1024)

    assert not covers(look(partition), place)
    run(
        "debugfs",
        "-w",
        "-f",
        "/dev/stdin",
        partition,
        text=f"jo\njw -b {bitmap} {tmp_path}/bitmap\njc\n",
    )
    assert "needs_recovery" in run("dumpe2fs", "-h", partition)
    found = look(partition)
    assert covers(found, place)
    assert not covers(found, (place[1], place[1] + 1024))
    untouched = partition.read_bytes()
    strip(partition, found)
    kept = partition.read_bytes()
    assert kept[place[0] : place[1]] == untouched[place[0] : place[1]]
    # which replays, and then finds a block that is nobody's
    run("e2fsck", "-fy", partition, good=(0, 1))
    assert files_of(partition, tmp_path / "copy") == FILES


@pytest.mark.parametrize(
    ("options", "opened"),
    [
        ("ext4 -O ^metadata_csum", "jo"),
        ("ext4 -O ^64bit,^metadata_csum", "jo"),
        ("ext4", "jo -c"),
        ("ext4 -O ^64bit", "jo -c -v 3"),
        ("ext4", "jo -c -v 2"),
        ("ext4 -O ^64bit", "jo -c -v 2"),
        ("ext3", "jo"),
    ],
)
def test_journals_of_all_formats_are_read(
    partition: Path, tree: Path, tmp_path: Path, options: str, opened: str
) -> None:
    """The journal has, bit by bit, what debugfs put there in two transactions."""
    make_ext(partition, tree, "-b", "1024", "-t", *options.split())
    places = [
        int(each) for each in re.findall(r"[Bb]lock bitmap at (\d+)", run("dumpe2fs", partition))
    ]
    rng = random.Random(5)
    written = {place: rng.randbytes(1024) for place in places}
    # it begins as the journal's own blocks do
    written[places[0]] = b"\xc0\x3b\x39\x98" + rng.randbytes(1020)
    for place, data in written.items():
        (tmp_path / f"b{place}").write_bytes(data)
    # One command of debugfs may write several blocks, one after the other, under one descriptor.
    (tmp_path / "both").write_bytes(written[places[0]] + written[places[1]])
    words = [
        opened,
        f"jw -b {places[0]},{places[1]} {tmp_path}/both",
        "jc",
        opened,
        *(f"jw -b {place} {tmp_path}/b{place}" for place in places[2:]),
        "jc",
    ]
    run("debugfs", "-w", "-f", "/dev/stdin", partition, text="\n".join([*words, ""]))
    run("debugfs", "-R", f"dump <8> {tmp_path}/journal", partition)
    journal = (tmp_path / "journal").read_bytes()
    found = jbd2.logged(
        lambda at: journal[at * 1024 : (at + 1) * 1024], len(journal) // 1024, 1024, set(places)
    )
    assert dict(found) == written
    assert not list(
        jbd2.logged(
            lambda at: journal[at * 1024 : (at + 1) * 1024], len(journal) // 1024, 1024, set()
        )
    )
    assert look(partition).used is not None


def test_a_journal_that_shows_another_size_or_cannot_be_read_means_everything(
    partition: Path, tree: Path, tmp_path: Path
) -> None:
    make_ext(partition, tree, "-t", "ext4", "-b", "4096", "-O", "^metadata_csum")
    grown = bytearray(partition.read_bytes()[:4096])
    grown[1028:1032] = (11 * 1024).to_bytes(4, "little")
    (tmp_path / "super").write_bytes(grown)
    run("debugfs", "-w", "-f", "/dev/stdin", partition, text=f"jo\njw -b 0 {tmp_path}/super\njc\n")
    assert look(partition).used is None


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (0x18, b"\x63"),
        (0x60, b"\xff\xff\xff\xff"),
        (0x60, b"\x52"),
        (0x20, b"\0\0\0\0"),
        (4, b"\xff\xff\xff\x7f"),
        (0xFE, b"\xff\xff"),
        (0x58, b"\0\0"),
    ],
)
def test_a_file_system_that_is_not_quite_known_is_in_use_as_a_whole(
    partition: Path, tree: Path, at: int, value: bytes
) -> None:
    make_ext(partition, tree, "-t", "ext4")
    data = bytearray(partition.read_bytes())
    data[1024 + at : 1024 + at + len(value)] = value
    partition.write_bytes(data)
    found = look(partition)
    assert (found.kind, found.used) == ("ext", None)


def test_rubbish_never_breaks_a_reader(partition: Path, tree: Path) -> None:
    make_ext(partition, tree, "-t", "ext4", "-b", "1024")
    data = bytearray(partition.read_bytes()[: 21 * MIB])
    rng = random.Random(3)
    for _ in range(30):
        mine = bytearray(data)
        for _ in range(8):
            mine[rng.randrange(1024, 2048)] = rng.randrange(256)
            mine[rng.randrange(2048, 300_000)] = rng.randrange(256)
        mine[0x460] |= 4  # the journal is asked, too
        detect.look(lambda length, at, mine=mine: bytes(mine[at : at + length]), len(mine))


def test_runs_of_bits() -> None:
    assert list(ext.runs([b"\x0f\x01"], 16)) == [(0, 4), (8, 9)]
    assert list(ext.runs([b"\x0f", b"\x30"], 5)) == [(0, 5)]
    assert list(ext.runs([], 16)) == list(ext.runs([b"\0"], 8)) == []


def covers(found: Content, place: tuple[int, int]) -> bool:
    assert found.used is not None
    return any(start <= place[0] and place[1] <= stop for start, stop in found.used)


# ---------------------------------------------------------------- FAT


@pytest.mark.parametrize(
    ("bits", "size", "options"),
    [
        (12, 4, ()),
        (12, 4, ("-f", "1")),
        (16, 20, ()),
        (16, 20, ("-s", "1")),
        (32, 40, ("-s", "1")),
        (12, 12, ("-S", "2048")),
    ],
)
def test_fat_without_its_free_clusters_is_the_same(
    partition: Path, tmp_path: Path, bits: int, size: int, options: tuple[str, ...]
) -> None:
    files = {"ONE.TXT": b"a file\n", "LARGE.BIN": FILES["large"], "GONE.BIN": b"deleted" * 9000}
    partition.write_bytes(partition.read_bytes()[:MIB] * max(size, 24))
    run("mkfs.fat", "-F", str(bits), "-n", "data", *options, partition, str(size * 1024))
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
        run("mcopy", "-i", partition, tmp_path / name, f"::{name}")
    run("mdel", "-i", partition, "::GONE.BIN")
    found = look(partition)
    assert (found.kind, found.label) == ("fat", "DATA")
    used = strip(partition, found)
    assert used < len(FILES["large"]) + 5 * MIB
    assert b"deleteddeleted" not in partition.read_bytes()
    run("fsck.fat", "-n", partition)
    for name in ("ONE.TXT", "LARGE.BIN"):
        run("mcopy", "-n", "-i", partition, f"::{name}", tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == files[name]
        (tmp_path / "back").unlink()


def test_a_boot_sector_of_something_else_is_not_fat(partition: Path) -> None:
    data = bytearray(partition.read_bytes())
    data[510:512], data[0] = b"\x55\xaa", 0xEB
    for sector, per_cluster, reserved, tables in (
        (0, 0, 0, 0),
        (512, 3, 1, 2),
        (512, 8, 0, 2),
        (512, 8, 1, 9),
    ):
        data[11:17] = struct.pack("<HBHB", sector, per_cluster, reserved, tables)
        partition.write_bytes(data)
        assert look(partition) == Content("")


# ---------------------------------------------------------------- the rest


def test_swap_is_its_first_page(partition: Path) -> None:
    run("mkswap", partition)
    assert look(partition) == Content("swap", ((0, 4096),))
    data = bytearray(partition.read_bytes())
    data[4086:4096] = b"S1SUSPEND\0"
    partition.write_bytes(data)
    assert look(partition) == Content("swap", ((0, 4096),), changes=((4086, b"SWAPSPACE2"),))


@pytest.mark.parametrize(
    ("kind", "at", "magic"),
    [
        ("xfs", 0, b"XFSB"),
        ("btrfs", 0x10040, b"_BHRfS_M"),
        ("lvm", 512, b"LABELONE"),
        ("luks", 0, b"LUKS\xba\xbe"),
    ],
)
def test_what_has_a_name_and_no_reader_is_in_use_as_a_whole(
    partition: Path, kind: str, at: int, magic: bytes
) -> None:
    data = bytearray(partition.read_bytes())
    data[at : at + len(magic)] = magic
    partition.write_bytes(data)
    assert look(partition) == Content(kind)


def test_a_partition_of_nothing() -> None:
    assert detect.look(lambda length, at: b"", 0) == Content("")


def test_joined_extents() -> None:
    assert content.joined([(5, 7), (0, 3), (3, 4), (6, 9), (20, 30)], 25, 25) == (
        (0, 4),
        (5, 9),
        (20, 25),
    )
    assert content.joined([(0, 3), (40, 50)], 10, 1 << 20) == (
        (0, 3),
        ((1 << 20) - (128 << 10), 1 << 20),
    )
    assert content.joined([(0, 3)], 10, 20) == ((0, 3), (10, 20))
