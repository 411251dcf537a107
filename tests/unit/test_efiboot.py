"""UEFI's boot order after priming: the network, the disk that was written, the rest."""

from __future__ import annotations

import struct
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trampoline import efiboot, partitions
from trampoline.errors import PrimeError
from trampoline.filesystems import fatnames
from trampoline.target import Target

pytestmark = pytest.mark.slow  # together with its like more than the quick run has time for

MIB = 1 << 20
GUID = "8be4df61-93ca-11d2-aa0d-00e098032b8c"
OPTIONS = [
    ("debian", [(2, 1), (4, 1)]),
    ("UEFI PXEv4", [(2, 1), (3, 11), (3, 12)]),
    ("UEFI HTTP", [(3, 11), (3, 24)]),
    ("Shell", [(4, 6)]),
]


def option(description: str, *nodes: tuple[int, int]) -> bytes:
    path = (
        b"".join(struct.pack("<BBH", kind, sub, 8) + bytes(4) for kind, sub in nodes)
        + b"\x7f\xff\x04\0"
    )
    return (
        b"\x07\0\0\0"
        + struct.pack("<IH", 1, len(path))
        + description.encode("utf-16-le")
        + b"\0\0"
        + path
    )


@pytest.fixture
def efivars(tmp_path: Path) -> Path:
    """A firmware's variables with four boot options, none in the order yet."""
    folder = tmp_path / "efivars"
    folder.mkdir()
    for number, (name, nodes) in enumerate(OPTIONS):
        (folder / f"Boot{number:04X}-{GUID}").write_bytes(option(name, *nodes))
    return folder


def set_order(efivars: Path, *numbers: int) -> None:
    (efivars / f"BootOrder-{GUID}").write_bytes(
        b"\x07\0\0\0" + struct.pack(f"<{len(numbers)}H", *numbers)
    )


def order(efivars: Path) -> list[int]:
    return [
        number
        for (number,) in struct.iter_unpack("<H", (efivars / f"BootOrder-{GUID}").read_bytes()[4:])
    ]


def disk(folder: Path, table: str = "", *files: str) -> Target:
    """A disk with an EFI system partition as its second partition, if it has a table."""
    path = folder / "disk"
    with path.open("wb") as file:
        file.truncate(16 * MIB)
    if table:
        kind = "C12A7328-F81F-11D2-BA4B-00A0C93EC93B" if table == "gpt" else "ef"
        text = f"label: {table}\nstart=2048, size=2048\nstart=4096, size=20480, type={kind}\n"
        subprocess.run(["/usr/sbin/sfdisk", "--quiet", path], input=text, check=True, text=True)
        subprocess.run(
            ["mkfs.fat", "--offset", "4096", "-F", "16", path, "10240"],
            check=True,
            capture_output=True,
        )
        for place in files:
            folders = place.split("/")[:-1]
            for depth in range(len(folders)):
                subprocess.run(
                    ["mmd", "-D", "s", "-i", f"{path}@@2M", "::" + "/".join(folders[: depth + 1])],
                    check=False,
                    capture_output=True,
                )
            subprocess.run(
                ["mcopy", "-i", f"{path}@@2M", "-", f"::{place}"], input=b"MZ", check=True
            )
    return Target(str(path))


@pytest.mark.parametrize(
    ("before", "wanted"),
    [
        ([0, 3, 1, 2], [1, 2, 0, 3]),
        ([2, 0], [2, 0]),
        ([0, 3], [1, 2, 0, 3]),
        ([0, 9, 1], [1, 0]),
        ([], [1, 2]),
    ],
)
def test_the_network_boots_first(
    tmp_path: Path, efivars: Path, before: list[int], wanted: list[int]
) -> None:
    set_order(efivars, *before)
    efiboot.arrange(disk(tmp_path), efivars)
    assert order(efivars) == wanted, "an option that is not there is no option"


@pytest.mark.parametrize("table", ["gpt", "dos"])
def test_the_disk_that_was_written_comes_after_the_network_and_before_all_others(
    tmp_path: Path, efivars: Path, table: str
) -> None:
    set_order(efivars, 0, 3, 1, 2)
    target = disk(tmp_path, table, "EFI/BOOT/BOOTX64.EFI")
    said = efiboot.arrange(target, efivars)
    assert order(efivars) == [1, 2, 4, 0, 3]
    assert said == "boot order: 2 of the network, then COD disk"
    content = (efivars / f"Boot0004-{GUID}").read_bytes()
    assert content[:4] == b"\x07\0\0\0"
    assert efiboot.description(content[4:]) == "COD disk"
    path = content[4 + 6 + len("COD disk\0") * 2 :]
    number, first, count, identity, kind, same = struct.unpack_from("<4xIQQ16sBB", path)
    assert (number, first, count) == (2, 4096, 20480)
    wanted = (
        (2, partitions.read_gpt(target).entries[2].guid)
        if table == "gpt"
        else (
            1,
            target.read(444, 0)[440:].ljust(16, b"\0"),
        )
    )
    assert (kind, same, identity) == (wanted[0], *wanted)
    assert path[42:].endswith("\\EFI\\BOOT\\BOOTX64.EFI\0".encode("utf-16-le") + b"\x7f\xff\x04\0")


def test_the_entry_of_an_earlier_priming_is_replaced(tmp_path: Path, efivars: Path) -> None:
    set_order(efivars, 0, 1)
    for _ in range(3):
        efiboot.arrange(disk(tmp_path, "gpt", "EFI/BOOT/BOOTX64.EFI"), efivars)
    assert order(efivars) == [1, 4, 0]
    assert sorted(path.name[:8] for path in efivars.glob("Boot0*")) == [
        f"Boot000{n}" for n in range(5)
    ]
    efiboot.arrange(disk(tmp_path), efivars)
    assert order(efivars) == [1, 0], "a disk without a system partition has no entry"


@pytest.mark.parametrize(
    ("files", "loader"),
    [
        (
            ("EFI/debian/grubx64.efi", "EFI/debian/shimx64.efi", "EFI/other/readme.txt"),
            "EFI/debian/shimx64.efi",
        ),
        (("EFI/Microsoft/Boot/bootmgfw.efi",), "EFI/Microsoft/Boot/bootmgfw.efi"),
        (("EFI/debian/shimx64.efi", "EFI/Boot/bootx64.efi"), "EFI/BOOT/BOOTX64.EFI"),
        (("EFI/somebody/long name of a loader.efi",), "EFI/BOOT/BOOTX64.EFI"),
        (
            ("EFI/BOOT/BOOTX64.EFI", "EFI/BOOT/fbx64.efi", "EFI/ubuntu/shimx64.efi"),
            "EFI/ubuntu/shimx64.efi",
        ),
        (
            (
                "EFI/BOOT/BOOTX64.EFI",
                "EFI/BOOT/FBX64.EFI",
                "EFI/old/shimx64.efi",
                "EFI/rocky/shimx64.efi",
                "EFI/rocky/BOOTX64.CSV",
            ),
            "EFI/rocky/shimx64.efi",
        ),
        (("EFI/BOOT/BOOTX64.EFI", "EFI/debian/shimx64.efi"), "EFI/BOOT/BOOTX64.EFI"),
        (
            ("EFI/BOOT/BOOTX64.EFI", "EFI/BOOT/fbx64.efi", "EFI/BOOT/shimx64.efi"),
            "EFI/BOOT/BOOTX64.EFI",
        ),
        (
            ("EFI/BOOT/BOOTX64.EFI", "EFI/ubuntu/fbx64.efi", "EFI/ubuntu/shimx64.efi"),
            "EFI/BOOT/BOOTX64.EFI",
        ),
        ((), "EFI/BOOT/BOOTX64.EFI"),
    ],
)
def test_the_systems_own_loader_where_there_is_no_other(
    tmp_path: Path, files: tuple[str, ...], loader: str
) -> None:
    target = disk(tmp_path, "gpt", *files)
    place = partitions.esp(target)
    assert place is not None
    assert efiboot.loader(target, place).lower() == loader.lower(), "FAT knows no case"
    names = fatnames.below(lambda length, at: target.read(length, 2 * MIB + at), "efi", 3)
    assert sorted(name.lower() for name in names) == sorted(name.lower() for name in files)


@pytest.mark.parametrize(
    ("before", "wanted"),
    [
        ([0, 4, 1, 2], [1, 2, 4, 0]),
        ([5, 0, 3, 1, 4, 2], [1, 2, 4, 5, 0, 3]),
        ([1, 2, 4, 0], [1, 2, 4, 0]),
        ([0, 1, 3], [1, 4, 0, 3]),
    ],
)
def test_an_order_that_a_system_has_changed_is_put_right(
    efivars: Path, before: list[int], wanted: list[int]
) -> None:
    """Keep every entry, of COD's own and of systems: only the order is put right."""
    for number, name in ((4, "COD disk"), (5, "ubuntu")):
        (efivars / f"Boot{number:04X}-{GUID}").write_bytes(option(name, (4, 1), (4, 4)))
    set_order(efivars, *before)
    entries = {path.name: path.read_bytes() for path in efivars.glob("Boot0*")}
    written = (efivars / f"BootOrder-{GUID}").stat().st_mtime_ns
    said = efiboot.restore(efivars)
    assert order(efivars) == wanted
    assert {path.name: path.read_bytes() for path in efivars.glob("Boot0*")} == entries
    changed = (efivars / f"BootOrder-{GUID}").stat().st_mtime_ns != written
    assert changed == (before != wanted), "what is right is not written: flash wears"
    assert bool(said) == changed


@pytest.mark.parametrize(
    ("started", "before", "after"),
    [
        (None, [0, 3], [1, 2, 0, 3]),  # all that are there: nobody knows which one is COD's
        (2, [0, 3], [2, 0, 3]),
        (2, [0, 1, 3], [2, 1, 0, 3]),  # the other one leads to no COD
        (2, [1, 2, 0, 3], [1, 2, 0, 3]),
        (3, [1, 0, 3], [1, 0, 3]),  # it was not started by the network
        (9, [1, 0, 3], [1, 0, 3]),
    ],
)
def test_the_networks_entries_that_a_system_took_out_of_the_order_come_back(
    efivars: Path, started: int | None, before: list[int], after: list[int]
) -> None:
    set_order(efivars, *before)
    if started is not None:
        (efivars / f"BootCurrent-{GUID}").write_bytes(b"\x06\0\0\0" + started.to_bytes(2, "little"))
    said = efiboot.restore(efivars)
    assert order(efivars) == after
    assert ("first again" in said) == (before != after)


def test_a_machine_without_variables_has_no_order_to_put_right(tmp_path: Path) -> None:
    assert efiboot.restore(tmp_path / "none") == ""


@pytest.mark.parametrize(
    ("first", "last"),
    [
        (4096, 1 << 63),
        (1 << 60, (1 << 60) + 99),
        (1 << 63, (1 << 64) - 1),
        (4096, 100),
        (0, 20),
        (4096, 32768),
    ],
)
def test_a_system_partition_that_is_not_on_the_disk_is_none(
    tmp_path: Path, efivars: Path, first: int, last: int
) -> None:
    set_order(efivars, 0, 1)
    target = disk(tmp_path, "gpt")
    table = partitions.read_gpt(target)
    assert table is not None
    hostile = replace(table, entries={2: replace(table.entries[2], first=first, last=last)})
    array = hostile._array()
    target.write(memoryview(array), 2 * 512)
    target.write(memoryview(hostile._header(1, 32767, 2, 34, 32734, array, 512)), 512)
    read = partitions.read_gpt(target)
    assert read is not None
    assert read.entries[2].last == last, "its sums are right"
    assert partitions.esp(target) is None
    assert efiboot.arrange(target, efivars) == "boot order: 1 of the network, then as it was"


@pytest.mark.parametrize(
    "error", [OverflowError("x"), ValueError("x"), PrimeError("x"), struct.error("x")]
)
def test_what_cannot_be_read_fails_no_priming(
    tmp_path: Path, efivars: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def raises(*_args: object) -> str:
        raise error

    monkeypatch.setattr(efiboot, "loader", raises)
    assert efiboot.arrange(disk(tmp_path, "gpt"), efivars) == "boot order: not changed (x)"


def test_a_folder_that_holds_itself_is_not_walked_without_end() -> None:
    """Three levels of 127 folders that are all the same one have 16 thousand files."""
    boot = bytearray(512)
    struct.pack_into("<HBHBHHxH", boot, 11, 512, 8, 1, 1, 16, 2000, 8)
    boot[0], boot[510:] = 0xEB, b"\x55\xaa"
    entry = struct.pack("<11sB8xHxxxxHI", b"EFI        ", 0x10, 0, 2, 0)
    content = bytes(boot) + bytes(8 * 512) + entry.ljust(512, b"\0") + entry * 127
    content += struct.pack("<11sB8xHxxxxHI", b"A       EFI", 0, 0, 2, 0)
    reads: list[int] = []

    def read(length: int, at: int) -> bytes:
        reads.append(at)
        return content[at : at + length]

    assert 0 < len(fatnames.below(read, "EFI", 3)) < 4096
    assert len(reads) < 20_000


@pytest.mark.parametrize(("sectors", "folders"), [(1, 16), (64, 1024)])
def test_folders_with_long_chains_of_clusters_are_not_read_without_end(
    sectors: int, folders: int
) -> None:
    """Each of the folders takes a thousand clusters or a million bytes; an image with such ones
    held up a priming."""
    boot = bytearray(512)
    struct.pack_into("<HBHBHHxH", boot, 11, 512, sectors, 1, 1, 16, 0, 128)
    struct.pack_into("<I", boot, 32, 130 + 30_000 * sectors)
    boot[0], boot[510:] = 0xEB, b"\x55\xaa"
    table, data = 512, 512 * 130
    inner = b"".join(
        struct.pack("<11sB8xHxxxxHI", b"A%07d   " % number, 0x10, 0, 3 + number % 9, 0)
        for number in range(folders)
    )
    root = struct.pack("<11sB8xHxxxxHI", b"EFI        ", 0x10, 0, 2, 0)
    reads: list[int] = []

    def read(length: int, at: int) -> bytes:
        reads.append(length)
        assert len(reads) <= 40_000, "each is a wait for the disk"
        assert sum(reads[-1000:]) < 1 << 26
        if at >= data:  # behind the first cluster all entries are deleted ones
            return inner.ljust(length, b"\xe5") if at == data else b"\xe5" * length
        if at >= data - 512:
            return root.ljust(length, b"\0")
        if at >= table:  # each cluster goes on in the next one
            return struct.pack("<HH", (at - table) // 2 + 1, 0)
        return bytes(boot[at : at + length])

    assert fatnames.below(read, "EFI", 3) == []
    assert sum(reads) < 1 << 25, "bytes"


def test_no_uefi_no_boot_order(tmp_path: Path) -> None:
    assert efiboot.arrange(disk(tmp_path, "gpt"), tmp_path / "none").startswith(
        "boot order: not changed"
    )


def test_a_device_path_without_an_end_does_not_run_for_ever() -> None:
    assert not efiboot.is_network(struct.pack("<IH", 1, 8) + b"\0\0" + bytes(8))


@given(st.binary(max_size=100))
def test_rubbish_is_no_network_option(data: bytes) -> None:
    efiboot.is_network(data)


@given(st.binary(max_size=2000), st.integers(0, 500))
def test_rubbish_is_no_file_system(data: bytes, at: int) -> None:
    boot = bytearray(data.ljust(512, b"\0"))
    boot[510:512], boot[0] = b"\x55\xaa", 0xEB
    fatnames.below(lambda length, place: bytes(boot)[place : place + length], "EFI", 3)
