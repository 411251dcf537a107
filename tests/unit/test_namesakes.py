"""Names of volumes that two disks of a machine have, read from what the real tools wrote."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cod.orders import Namesake
from cod.policy.hardware.namesakes import sentence
from trampoline import namesakes
from trampoline.errors import PrimeError
from trampoline.filesystems import names
from trampoline.inventory import Disk, Partition, file_disk
from trampoline.source import Source
from trampoline.target import Target

MIB = 1 << 20
UUID = "11111111-2222-3333-4444-555555555555"
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


def blank(path: Path, size: int) -> Path:
    with path.open("wb") as file:
        file.truncate(size)
    return path


def tool(*words: object, text: str | None = None) -> None:
    subprocess.run(
        [str(word) for word in words],
        input=text,
        text=True,
        check=True,
        capture_output=True,
        env={"PATH": PATH},
    )


def found(path: Path) -> set[names.Name]:
    with Source(str(path)) as source:
        return set(names.look(source.read))


def group(name: bytes) -> bytes:
    """A physical volume of that volume group, as pvcreate and vgcreate write it: labelled in the
    second sector, the group's second metadata behind the first."""
    disk = bytearray(MIB)
    area, text = 4096, 512 + 1024
    places = struct.pack("<QQQQQQQQ", MIB, 0, 0, 0, area, MIB - area, 0, 0)
    label = struct.pack("<8sQII8s32sQ", b"LABELONE", 1, 0, 32, b"LVM2 001", b"p" * 32, MIB)
    disk[512 : 512 + len(label) + len(places)] = label + places
    head = struct.pack("<I16sIQQQQII", 0, b" LVM2 x[5A%r0N*>", 1, area, MIB - area, text, 100, 0, 0)
    disk[area : area + len(head)] = head
    disk[area + 512 : area + 530] = b'before {\nid = "x"\n'
    disk[area + text : area + text + len(name) + 3] = name + b" {\n"
    return bytes(disk)


# ---------------------------------------------------------------- names of one volume


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (2 * MIB, ("mkfs.ext4", "-q", "-F", "-L", "root", "-U", UUID)),
        (320 * MIB, ("mkfs.xfs", "-q", "-L", "root", "-m", f"uuid={UUID}")),
        (128 * MIB, ("mkfs.btrfs", "-q", "-L", "root", "-U", UUID)),
        (MIB, ("mkswap", "-q", "-L", "root", "-U", UUID)),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_file_systems_have_their_labels_and_uuids(
    tmp_path: Path, size: int, words: tuple[str, ...]
) -> None:
    tool(*words, blank(tmp_path / "disk", size))
    assert found(tmp_path / "disk") == {("label", "root"), ("UUID", UUID)}


@pytest.mark.parametrize(("bits", "size"), [(12, MIB), (16, 16 * MIB), (32, 40 * MIB)])
def test_fat_has_a_number_and_no_name_is_none(tmp_path: Path, bits: int, size: int) -> None:
    path = blank(tmp_path / "disk", size)
    tool("mkfs.fat", "-F", bits, "-i", "1a2b3c4d", "-n", "CIDATA", path)
    assert found(path) == {("label", "CIDATA"), ("UUID", "1A2B-3C4D")}
    tool("mkfs.fat", "-F", bits, "-i", "1a2b3c4d", path)
    assert found(path) == {("UUID", "1A2B-3C4D")}


def test_an_encrypted_volume_has_its_uuid(tmp_path: Path) -> None:
    head = bytearray(b"LUKS\xba\xbe\0\2".ljust(4096, b"\0"))
    head[24:28] = b"safe"
    head[168 : 168 + 36] = UUID.encode()
    (tmp_path / "disk").write_bytes(head)
    assert found(tmp_path / "disk") == {("label", "safe"), ("UUID", UUID)}


def test_a_physical_volume_has_the_newest_name_of_its_group(tmp_path: Path) -> None:
    (tmp_path / "disk").write_bytes(group(b"rl_web-1"))
    assert found(tmp_path / "disk") == {("volume group", "rl_web-1")}


@pytest.mark.parametrize("header", [41, 100, 511, 512, (1 << 32) - 1])
def test_a_physical_volume_whose_header_lies_anywhere_is_read(header: int, tmp_path: Path) -> None:
    """The former holder of a kept disk cannot fail installations beside it."""
    disk = bytearray(group(b"vg0"))
    disk[512 + 20 : 512 + 24] = header.to_bytes(4, "little")
    (tmp_path / "disk").write_bytes(disk)
    assert found(tmp_path / "disk") == set()


@given(
    magic=st.sampled_from([b"LABELONE", b"XFSB", b"LUKS\xba\xbe\0\2", b""]),
    junk=st.binary(max_size=600),
    at=st.sampled_from([0, 8, 24, 512, 520, 1080]),
)
def test_any_bytes_are_read_without_an_error(magic: bytes, junk: bytes, at: int) -> None:
    disk = bytearray(8192)
    disk[: len(magic)] = magic
    disk[1080:1082] = b"\x53\xef"
    disk[at : at + len(junk)] = junk
    for kind, name in names.look(lambda length, offset: bytes(disk[offset : offset + length])):
        assert kind
        assert name.isprintable()
        assert 0 < len(name) <= 200


# ---------------------------------------------------------------- two disks


@pytest.fixture
def installed(tmp_path: Path) -> Callable[[str], Disk]:
    """Disks with a GPT and the same file system in its first partition."""

    def make(name: str) -> Disk:
        path = blank(tmp_path / name, 4 * MIB)
        tool(
            "/usr/sbin/sfdisk", "-q", path, text=f"label: gpt\nstart=2048, size=2MiB, uuid={UUID}\n"
        )
        tool(
            "mkfs.ext4", "-q", "-F", "-L", "root", "-U", UUID, "-E", f"offset={MIB}", path, "2048k"
        )
        return file_disk(path)

    return make


SAME = [("UUID", UUID), ("label", "root"), ("partition UUID", UUID)]


def look(target: Disk, *disks: Disk) -> list[Namesake]:
    with Target(target.path) as opened:
        return list(namesakes.look(opened, target, (target, *disks)))


def test_a_kept_disk_with_the_same_image_is_named(
    installed: Callable[[str], Disk], tmp_path: Path
) -> None:
    target, kept = installed("new"), installed("kept")
    empty = file_disk(blank(tmp_path / "empty", MIB))
    gone = replace(empty, path=str(tmp_path / "gone"))
    assert look(target, gone, empty, kept) == [
        Namesake(kind, name, "kept (serial kept)") for kind, name in SAME
    ]
    assert look(target, gone, empty) == []


def test_a_written_disk_that_cannot_be_read_fails_nothing(
    installed: Callable[[str], Disk], monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object) -> bytes:
        raise PrimeError("the disk cannot be read")

    target, kept = installed("new"), installed("kept")
    monkeypatch.setattr(Target, "read", read)
    assert look(target, kept) == []


def test_other_paths_to_the_written_disk_are_no_other_disks(
    installed: Callable[[str], Disk],
) -> None:
    target, other = installed("new"), installed("other")
    target = replace(target, wwid="w", paths=2)
    assert look(target, replace(other, wwid="w", paths=2, local=False)) == []
    assert len(look(target, replace(other, wwid="w", paths=2))) == 3  # disks with a copied WWN


def test_groups_in_logical_partitions_and_on_whole_disks_are_found(tmp_path: Path) -> None:
    """A table's logical partitions are known from the kernel."""
    for name, at in (("new", 0), ("whole", 0), ("logical", 2 * MIB)):
        blank(tmp_path / name, 4 * MIB)
        with (tmp_path / name).open("r+b") as file:
            file.seek(at)
            file.write(group(b"vg0"))
    target, whole, logical = (file_disk(tmp_path / name) for name in ("new", "whole", "logical"))
    logical = replace(logical, partitions=(Partition(5, 2 * MIB, MIB),))
    assert [each.disk for each in look(target, whole, logical)] == [
        "whole (serial whole)",
        "logical (serial logical)",
    ]


@pytest.mark.parametrize(("signature", "same"), [("0x12345678", ["12345678-01"]), ("0x0", [])])
def test_partitions_of_an_mbr_are_named_by_its_signature(
    tmp_path: Path, signature: str, same: list[str]
) -> None:
    for name in ("new", "kept"):
        table = f"label: dos\nlabel-id: {signature}\nstart=2048, size=1MiB, type=83\n"
        tool("/usr/sbin/sfdisk", "-q", blank(tmp_path / name, 4 * MIB), text=table)
    target, kept = (file_disk(tmp_path / name) for name in ("new", "kept"))
    named = [each.name for each in look(target, kept) if each.kind == "partition UUID"]
    assert named == same


def test_the_sentence_names_four_and_counts_the_others() -> None:
    many = [Namesake("label", f"l{n}\n", "sdb") for n in range(6)]
    text = sentence(many)
    assert "label l0  of sdb, label l1  of sdb" in text
    assert "l4" not in text
    assert "and 2 more" in text
