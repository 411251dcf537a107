"""Partition tables and seeds that cprime writes, judged by foreign programs."""

from __future__ import annotations

import os
import random
import re
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cod.orders import Order, Partition
from trampoline import cprime, partitions, seed
from trampoline.disks import choose, erasable
from trampoline.errors import PrimeError
from trampoline.inventory import Disk
from trampoline.partitions import Gpt, Span
from trampoline.target import Target

pytestmark = pytest.mark.slow  # together with its like more than the quick run has time for

MIB = 1 << 20


def tool(*words: object) -> str:
    """A foreign program's output; it must succeed."""
    return subprocess.run([*map(str, words)], check=True, capture_output=True, text=True).stdout


def blank(path: Path, size: int) -> Path:
    with path.open("wb") as file:
        file.truncate(size)
    return path


def foreign_gpt(path: Path, size: int, *entries: str) -> Path:
    """A disk with a table that sfdisk made."""
    subprocess.run(
        ["/usr/sbin/sfdisk", "--quiet", blank(path, size)],
        input="\n".join(["label: gpt", *entries]),
        check=True,
        text=True,
    )
    return path


ENTRY = "start=2048, size=6144"


def sgdisk_finds_no_fault(path: Path) -> bool:
    return "No problems found" in tool("/usr/sbin/sgdisk", "-v", path)


def dumped(path: Path) -> list[tuple[int, int, str]]:
    """Start and size in sectors, and name, of each partition by sfdisk."""
    tool("/usr/sbin/sfdisk", "--verify", path)
    dump = tool("/usr/sbin/sfdisk", "--dump", path)
    found = re.findall(r"start=\s*(\d+), size=\s*(\d+), type=([^,\n]+)(?:.*name=\"(.*)\")?", dump)
    return [(int(start), int(size), name or kind) for start, size, kind, name in found]


def make_gpt(target: Target, spans: list[Span]) -> None:
    table = Gpt(partitions.new_guid())
    for span in spans:
        table = table.add(span, target)
    table.write(target)


# ---------------------------------------------------------------- GPT


@given(
    st.lists(st.integers(1, 5 * MIB), min_size=1, max_size=6),
    st.booleans(),
    st.integers(0, 4096),
    st.sampled_from(sorted(partitions.TYPES)),
)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_layouts_are_good_tables(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], rest: bool, odd: int, kind: str
) -> None:
    layout = [Partition(n + 1, size, kind, f"part {n}") for n, size in enumerate(sizes)]
    if rest:
        layout[-1] = Partition(len(layout), 0, kind, layout[-1].name)
    size = partitions.least_size(layout, 2 * MIB) + odd
    path = blank(tmp_path_factory.mktemp("gpt") / "disk", size)
    spans = partitions.place(layout, size, 2 * MIB)
    with Target(str(path)) as target:
        make_gpt(target, spans)
    assert sgdisk_finds_no_fault(path)
    assert f"last usable sector is {size // 512 - 34}\n" in tool("/usr/sbin/sgdisk", "-p", path)
    assert dumped(path) == [(span.start // 512, span.size // 512, span.name) for span in spans]
    assert all(
        span.start % MIB == 0 and span.size >= max(wanted.size, MIB)
        for span, wanted in zip(spans, layout, strict=True)
    )
    assert spans[-1].start + spans[-1].size <= partitions.tail(size, 2 * MIB)
    with pytest.raises(PrimeError, match="too small for the layout"):
        partitions.place(layout, size - MIB - odd, 2 * MIB)


@pytest.mark.parametrize("more", [512, 4096, 9 * MIB + 1024])
def test_an_image_s_table_is_fitted_to_a_larger_disk(tmp_path: Path, more: int) -> None:
    path = foreign_gpt(
        tmp_path / "disk",
        8 * MIB,
        f'{ENTRY}, name="first", attrs="LegacyBIOSBootable"',
        "5: size=+",
    )
    before, id_before = (
        dumped(path),
        tool("/usr/sbin/sgdisk", "-p", path).split("GUID): ")[1].splitlines()[0],
    )
    os.truncate(path, 8 * MIB + more)
    assert not sgdisk_finds_no_fault(path)
    with Target(str(path)) as target:
        table = partitions.read_gpt(target)
        assert table
        table.write(target)
    assert sgdisk_finds_no_fault(path)
    assert dumped(path) == before
    assert f"GUID): {id_before}" in tool("/usr/sbin/sgdisk", "-p", path)
    # the attribute that was set
    assert "0000000000000004" in tool("/usr/sbin/sgdisk", "-i", "1", path)
    assert path.read_bytes().count(b"EFI PART") == 2  # the old backup is gone


@pytest.mark.parametrize(
    ("place", "sector"), [("inside", b"EFI PART of a disk's image"), ("outside", b"somebody's")]
)
def test_data_where_an_old_backup_was_stays(tmp_path: Path, place: str, sector: bytes) -> None:
    """Only a backup header outside all partitions is the old table's own."""
    path = foreign_gpt(tmp_path / "disk", 8 * MIB, ENTRY)
    at = 8 * MIB - 512
    os.truncate(path, 16 * MIB)
    with Target(str(path)) as target:
        table = partitions.read_gpt(target)
        assert table
        if place == "inside":
            table = table.add(Span(2, 4 * MIB, 8 * MIB, "linux", ""), target)
        target.write(memoryview(sector.ljust(512, b".")), at)
        table.write(target)
    assert path.read_bytes()[at : at + 512] == sector.ljust(512, b".")


def test_a_table_that_fits_is_written_as_it_was(tmp_path: Path) -> None:
    path = foreign_gpt(tmp_path / "disk", 8 * MIB, ENTRY)
    before = path.read_bytes()
    with Target(str(path)) as target:
        table = partitions.read_gpt(target)
        assert table
        table.write(target)
    after = path.read_bytes()
    assert after[512:] == before[512:]
    assert after[:446] == before[:446]


@pytest.mark.slow
def test_boot_code_and_hybrid_entries_stay(tmp_path: Path) -> None:
    path = blank(tmp_path / "disk", 8 * MIB)
    tool("/usr/sbin/sgdisk", "-n", "1:2048:+3M", "-h", "1:EE", path)
    content = bytearray(path.read_bytes())
    content[:440] = random.Random(1).randbytes(440)
    path.write_bytes(bytes(content) + bytes(MIB))
    with Target(str(path)) as target:
        table = partitions.read_gpt(target)
        assert table
        table.write(target)
    after = path.read_bytes()
    assert after[:440] == content[:440]
    kinds = [after[446 + 16 * n + 4] for n in range(4)]
    assert kinds.count(0xEE) == 1
    assert 0x83 in kinds


@pytest.mark.parametrize("harm", [512 + 56, 1024 + 3, 512])
def test_a_damaged_table_is_left_alone(tmp_path: Path, harm: int) -> None:
    path = foreign_gpt(tmp_path / "disk", 8 * MIB, ENTRY)
    content = bytearray(path.read_bytes())
    content[harm] ^= 1
    path.write_bytes(content)
    with Target(str(path)) as target:
        assert partitions.read_gpt(target) is None


@given(st.integers(0, 91), st.integers(1, 255))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_byte_of_a_header_can_be_wrong(tmp_path: Path, at: int, change: int) -> None:
    path = blank(tmp_path / "disk", 8 * MIB)
    with Target(str(path)) as target:
        make_gpt(target, [Span(1, MIB, MIB, "linux", "one")])
        assert partitions.read_gpt(target)
        wrong = bytearray(target.read(512, 512))
        wrong[at] ^= change
        target.write(memoryview(wrong), 512)
        assert partitions.read_gpt(target) is None


def test_a_partition_that_would_lie_on_another(tmp_path: Path) -> None:
    path = foreign_gpt(tmp_path / "disk", 8 * MIB, "size=+")
    with Target(str(path)) as target:
        table = partitions.read_gpt(target)
        assert table
        with pytest.raises(PrimeError, match="no room for partition 'cidata'"):
            table.add(Span(2, 6 * MIB, MIB, "data", "cidata"), target)


# ---------------------------------------------------------------- MBR


def test_mbr_layouts_and_seed_entries(tmp_path: Path) -> None:
    path = blank(tmp_path / "disk", 16 * MIB)
    with Target(str(path)) as target:
        assert not partitions.has_mbr(target)
        partitions.new_mbr(target)
        for span in partitions.place(
            [Partition(1, 3 * MIB, "linux"), Partition(3, 0, "swap")], target.size, 2 * MIB
        ):
            partitions.add_to_mbr(target, span)
        at = partitions.tail(target.size, 2 * MIB)
        assert partitions.add_to_mbr(target, Span(0, at, 2 * MIB, "data", "seed")) == 2
        assert partitions.has_mbr(target)
    assert dumped(path) == [(2048, 6144, "83"), (26624, 4096, "c"), (8192, 18432, "82")]
    with Target(str(path)) as target, pytest.raises(PrimeError, match="no room"):
        partitions.add_to_mbr(target, Span(0, 2 * MIB, MIB, "data", "seed"))


def test_a_seed_in_an_mbr_lies_where_the_mbr_can_address_it(tmp_path: Path) -> None:
    path = blank(tmp_path / "disk", 3 << 40)
    with Target(str(path)) as target:
        partitions.new_mbr(target)
        partitions.add_to_mbr(target, Span(1, MIB, MIB, "linux", ""))
        span = Span(0, partitions.tail(target.size, MIB), MIB, "data", "seed")
        order = Order("1.1", "prime", seed={"meta-data": "{}"})
        cprime._add_seed(target, span, order)
    seed_at, sectors, kind = dumped(path)[1]
    assert (sectors * 512, kind) == (MIB, "c")
    assert (2 << 40) - 4 * MIB < seed_at * 512 < (2 << 40) - MIB


def test_an_mbr_layout_ends_where_the_mbr_does(tmp_path: Path) -> None:
    order = Order(
        "1.1", "prime", table="mbr", partitions=(Partition(1, 0, "linux"),), seed={"meta-data": ""}
    )
    planned = cprime.plan(order, [disk("sda", 3 << 40)])
    assert planned.seed is not None
    assert planned.seed.start + planned.seed.size <= 0xFFFFFFFF * 512
    assert planned.spans[0].start + planned.spans[0].size <= planned.seed.start


def test_an_mbr_without_a_free_slot(tmp_path: Path) -> None:
    path = blank(tmp_path / "disk", 16 * MIB)
    with Target(str(path)) as target:
        partitions.new_mbr(target)
        for n in range(4):
            partitions.add_to_mbr(target, Span(0, (n + 1) * MIB, MIB, "linux", ""))
        with pytest.raises(PrimeError, match="no free slot"):
            partitions.add_to_mbr(target, Span(0, 12 * MIB, MIB, "data", "seed"))


def test_a_file_system_s_boot_sector_is_no_mbr(tmp_path: Path) -> None:
    path = blank(tmp_path / "disk", MIB)
    tool("/usr/sbin/mkfs.vfat", path)
    with Target(str(path)) as target:
        assert not partitions.has_mbr(target)


# ---------------------------------------------------------------- the seed


FILES = {
    "meta-data": "instance-id: 1.2\n",
    "user-data": "#cloud-config\n" + "x" * 70_000 + "\n",
    "network-config": "",
    "a-name-of-26-letters-in-all": "ä\n",
}


@pytest.mark.parametrize(
    ("size", "kind"), [(MIB, "FAT12"), (2 * MIB, "FAT12"), (8 * MIB, "FAT16"), (80 * MIB, "FAT16")]
)
def test_a_seed_is_read_by_foreign_programs(tmp_path: Path, size: int, kind: str) -> None:
    path = tmp_path / "seed"
    path.write_bytes(seed.build(FILES, size))
    assert path.stat().st_size == size
    for name, text in FILES.items():
        assert tool("mtype", "-i", path, f"::{name}") == text
    assert "Volume in drive : is CIDATA" in tool("mdir", "-i", path, "::")
    assert tool("/usr/sbin/blkid", "-p", "-o", "value", "-s", "LABEL", path) == "CIDATA\n"
    assert path.read_bytes()[54:59].decode() == kind
    tool("/usr/sbin/fsck.vfat", "-n", path)


@given(
    st.dictionaries(
        st.text("abcdefghijklmnop-.", min_size=1, max_size=40).filter(lambda n: n.strip(". ") == n),
        st.text(max_size=3000),
        max_size=5,
    )
)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_files_fit_into_the_size_that_is_asked_for(
    tmp_path: Path, files: dict[str, str]
) -> None:
    path = tmp_path / "seed"
    path.write_bytes(seed.build(files, seed.least_size(files)))
    tool("/usr/sbin/fsck.vfat", "-n", path)
    for name, text in files.items():
        found = subprocess.run(
            ["mtype", "-i", path, f"::{name}"], check=True, capture_output=True
        ).stdout
        assert found == text.encode()


def test_a_seed_for_large_sectors() -> None:
    image = seed.build(FILES, MIB, 4096)
    assert struct.unpack_from("<H", image, 11) == (4096,)
    assert len(image) == MIB


def test_files_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        seed.build({"user-data": "x" * MIB}, MIB)


# ---------------------------------------------------------------- which disk


def disk(name: str, size: int, **more: object) -> Disk:
    return Disk(name, f"/dev/{name}", size, "ata", serial=name.upper(), **more)


DISKS = [
    disk("sda", 50),
    disk("sdb", 20),
    disk("sdc", 90),
    disk("sdd", 10),
    disk("sde", 99, local=False),
]


@pytest.mark.parametrize(
    ("rule", "need", "chosen"),
    [
        ("first", 10, "sda"),
        ("first", 60, "sdc"),
        ("smallest", 5, "sdd"),
        ("smallest", 15, "sdb"),
        ("largest", 15, "sdc"),
        ("serial:SDB", 15, "sdb"),
        ("path:/dev/sdd", 1, "sdd"),
    ],
)
def test_disk_rules(rule: str, need: int, chosen: str) -> None:
    assert choose(rule, erasable(DISKS, ()), need).name == chosen


@pytest.mark.parametrize(
    ("rule", "keep", "need", "words"),
    [
        ("first", (), 91, "too small: 91 bytes are needed, /dev/sdc has 90"),
        ("serial:SDD", (), 11, "too small: 11 bytes are needed, /dev/sdd has 10"),
        ("serial:SDE", (), 1, "none is serial:SDE"),
        ("serial:SDB", ("serial:SDB",), 1, "none is serial:SDB"),
        ("path:/dev/sdb", ("path:/dev/sdb",), 1, "none is path:/dev/sdb"),
    ],
)
def test_disks_that_are_not_there(rule: str, keep: tuple[str, ...], need: int, words: str) -> None:
    with pytest.raises(PrimeError, match=words):
        choose(rule, erasable(DISKS, keep), need)


@pytest.mark.parametrize(
    ("rule", "path"),
    [
        ("first", "/dev/sdb"),
        ("largest", "/dev/sdb"),
        ("smallest", "/dev/sdb"),
        ("serial:S2", "/dev/sdb"),
    ],
)
def test_a_disk_that_the_bios_does_not_offer_is_passed_over(rule: str, path: str) -> None:
    disks = [
        Disk("sda", "/dev/sda", 90, "sas", serial="S1", bootable=False),
        Disk("sdb", "/dev/sdb", 50, "ata", serial="S2"),
    ]
    assert choose(rule, disks, 10).path == path
    for named in ("serial:S1", "path:/dev/sda"):
        with pytest.raises(
            PrimeError,
            match="BIOS does not offer /dev/sda to start a system from; enable the contr",
        ):
            choose(named, disks, 10)


def test_a_disk_of_other_sectors_is_passed_over() -> None:
    disks = [
        Disk("nvme0n1", "/dev/nvme0n1", 90, "nvme", sector=4096),
        Disk("sda", "/dev/sda", 50, "ata"),
    ]
    assert choose("first", disks, 10, 512).name == "sda"
    assert choose("first", disks, 10, 4096).name == choose("first", disks, 10).name == "nvme0n1"
    with pytest.raises(
        PrimeError, match="for sectors of 512 bytes, /dev/nvme0n1 has sectors of 4096"
    ):
        choose("path:/dev/nvme0n1", disks, 10, 512)


# ---------------------------------------------------------------- disk signatures


def test_a_gpt_disk_gets_a_signature_that_no_other_disk_has(tmp_path: Path) -> None:
    path = foreign_gpt(tmp_path / "disk", 8 * MIB, ENTRY)
    with Target(str(path)) as target:
        first = partitions.sign(target, {})
        assert first == partitions.signature(target.read(512, 0)) > 0
        assert partitions.sign(target, {7: "/dev/sdb"}) == first, "it is known by that now"
        second = partitions.sign(target, {first: "/dev/sdb"})
        assert second not in (first, 0)
    assert sgdisk_finds_no_fault(path)


def test_an_mbrs_own_signature_is_kept_or_refused(tmp_path: Path) -> None:
    path = blank(tmp_path / "disk", 8 * MIB)
    subprocess.run(
        ["/usr/sbin/sfdisk", "--quiet", path],
        input="label: dos\nlabel-id: 0x12345678\n" + ENTRY,
        check=True,
        text=True,
    )
    with Target(str(path)) as target:
        assert partitions.sign(target, {7: "/dev/sdb"}) == 0x12345678
        with pytest.raises(PrimeError, match="12345678 is that of /dev/sdb too"):
            partitions.sign(target, {0x12345678: "/dev/sdb"})


def test_what_a_bios_would_not_start_has_no_signature(tmp_path: Path) -> None:
    with Target(str(blank(tmp_path / "disk", MIB))) as target:
        assert partitions.sign(target, {}) == 0
        assert target.read(512, 0) == bytes(512)
