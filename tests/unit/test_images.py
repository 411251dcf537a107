"""Images taken in: every form of one image gives the same chunks; what is hostile, damaged or half
done is refused."""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import json
import os
import random
import signal
import stat
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import zstandard
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from cod.cli.images.image import image
from cod.images import formats, seekable, store
from cod.images.ingest import IngestLimits
from cod.images.ingest import ingest as strict
from cod.images.verify import verify
from cod.model import Refused
from cod.wire import manifest
from cod.wire.manifest import CHUNK, BadManifest, Chunk, Manifest
from tests.waiting import until

MIB = 1 << 20
ingest = partial(strict, raw=True)  # most of these images are random bytes


def sparse(path: Path, size: int = 5 * MIB + 512, seed: int = 1) -> bytes:
    rng = random.Random(seed)
    content = bytearray(size)
    for at in (0, 2 * MIB + 77, 4 * MIB):
        content[at : at + 30_000] = rng.randbytes(10_000) + b"words " * 3333 + b"  "
    path.write_bytes(content)
    return bytes(content)


def unpacked(root: Path, digest: str) -> bytes:
    """By a foreign program."""
    return subprocess.run(
        ["zstd", "-dc", root / digest / "data.zst"], capture_output=True, check=True
    ).stdout


def qemu(*words: object) -> None:
    subprocess.run(["qemu-img", *map(str, words)], check=True, capture_output=True)


def refused(source: Path, root: Path, **more: object) -> str:
    with pytest.raises(Refused) as caught:
        ingest(source, root, **more)
    assert list(root.iterdir()) == []
    return caught.value.sentence


# ---------------------------------------------------------------- the same image in every form


@pytest.mark.slow
@pytest.mark.parametrize(
    "form", ["raw", "gzip", "zstd", "zstd, many frames", "qcow2", "qcow2, compressed"]
)
def test_every_form_gives_the_same_chunks(tmp_path: Path, form: str) -> None:
    content = sparse(tmp_path / "raw")
    plain = ingest(tmp_path / "raw", tmp_path / "root")
    packed = tmp_path / "packed"
    if form == "raw":
        packed.write_bytes(content)
    elif form == "gzip":
        packed.write_bytes(gzip.compress(content[:MIB]) + gzip.compress(content[MIB:]))
    elif form.startswith("qcow2"):
        qemu(
            "convert",
            *(["-c"] if "," in form else []),
            "-f",
            "raw",
            "-O",
            "qcow2",
            tmp_path / "raw",
            packed,
        )
    else:
        parts = [content[:MIB], content[MIB:]] if "," in form else [content]
        skippable = struct.pack("<II", 0x184D2A53, 5) + b"hello"
        packed.write_bytes(skippable + b"".join(zstandard.compress(part) for part in parts))
    made = ingest(packed, tmp_path / "root")
    assert (made.digest, made.size, made.used, made.stored) == (
        plain.digest,
        plain.size,
        plain.used,
        plain.stored,
    )
    assert made.format == form.split(",")[0]
    assert made.sha256 == hashlib.sha256(packed.read_bytes()).hexdigest()
    assert unpacked(tmp_path / "root", made.digest) == content
    assert verify(tmp_path / "root", made.digest).bad == ()
    assert [path.name for path in (tmp_path / "root").iterdir()] == [made.digest]


# The first byte stays 0: with others it might be a file of another format, which hypothesis finds.
PIECES = st.tuples(
    st.integers(1, 4 * MIB), st.binary(min_size=1, max_size=30), st.integers(1, 9999)
)


def is_raw(content: bytes) -> bool:
    """Return whether the bytes do not happen to begin as another format does."""
    try:
        return formats.recognise(content[:64]) == "raw"
    except Refused:
        return False


@given(st.lists(PIECES, max_size=5), st.integers(1, 4 * MIB))
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@pytest.mark.slow
def test_the_chunks_are_the_image(
    tmp_path_factory: pytest.TempPathFactory, data: list[tuple[int, bytes, int]], size: int
) -> None:
    folder = tmp_path_factory.mktemp("ingest")
    with (folder / "image").open("wb") as file:
        file.truncate(size)
        for at, pattern, times in data:
            file.seek(at)
            file.write((pattern * times)[: max(0, size - at)])
    content = (folder / "image").read_bytes()
    assume(is_raw(content))
    made = ingest(folder / "image", folder / "root")
    found = manifest.decode((folder / "root" / made.digest / "manifest.json").read_bytes())
    served = (folder / "root" / made.digest / "data.zst").read_bytes()
    rebuilt = bytearray(found.size)
    for chunk in found.chunks:
        frame = served[chunk.offset : chunk.offset + chunk.length]
        assert hashlib.blake2b(frame, digest_size=32).hexdigest() == chunk.digest
        rebuilt[chunk.raw_offset : chunk.raw_offset + chunk.raw_length] = zstandard.decompress(
            frame
        )
    assert rebuilt == content
    assert [c.raw_offset // CHUNK for c in found.chunks] == [
        n for n in range(-(-size // CHUNK)) if any(content[n * CHUNK : (n + 1) * CHUNK])
    ]
    assert unpacked(folder / "root", made.digest) == content
    assert made.used == sum(c.raw_length for c in found.chunks)


def test_a_plain_file_is_kept_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "kernel").write_bytes(gzip.compress(b"kernel" * 1000))
    made = ingest(tmp_path / "kernel", tmp_path / "root", plain=True)
    served = (tmp_path / "root" / made.digest / "file").read_bytes()
    assert served == (tmp_path / "kernel").read_bytes()
    assert (made.format, made.content, made.digest) == ("plain", "file", manifest.digest(served))
    assert verify(tmp_path / "root", made.digest).bad == ()


def test_progress_counts_the_added_file(tmp_path: Path) -> None:
    sparse(tmp_path / "raw")
    told: list[tuple[int, int]] = []
    ingest(
        tmp_path / "raw", tmp_path / "root", progress=lambda done, total: told.append((done, total))
    )
    assert told == sorted(told)
    assert told[-1] == (5 * MIB + 512,) * 2


# ---------------------------------------------------------------- recognised by content


def mbr(kind: int) -> bytes:
    return (
        bytes(446)
        + struct.pack("<B3sB3sII", 0x80, b"", kind, b"", 2048, 4096)
        + bytes(48)
        + b"\x55\xaa"
    )


def test_an_image_s_table_is_known() -> None:
    entry = struct.pack("<B3sB3sII", 0, b"", 0x83, b"", 2048, 4096)
    assert formats.table_of(mbr(0x83)) == "mbr"
    assert formats.table_of(bytes(446) + 4 * entry + b"\x55\xaa") == "full"
    assert formats.table_of(bytes(512) + b"EFI PART" + bytes(500)) == "gpt"
    assert formats.table_of(bytes(8192)) == "none"


def test_where_an_images_last_partition_ends() -> None:
    entries = b"".join(
        struct.pack("<B3xB3xII", 0, kind, first, count)
        for kind, first, count in ((0x83, 2048, 2048), (0, 0, 0), (0x82, 4096, 10), (0, 0, 0))
    )
    assert formats.end_of(bytes(446) + entries + b"\x55\xaa") == 4106 * 512
    assert formats.end_of(bytes(8192)) == 0
    header = (b"EFI PART".ljust(72, b"\0") + struct.pack("<QII", 2, 128, 128)).ljust(512, b"\0")
    guid = bytes(range(1, 17))
    table = [guid * 2 + struct.pack("<QQ", first, last) for first, last in ((34, 99), (100, 4095))]
    whole = bytes(512) + header + b"".join(one.ljust(128, b"\0") for one in table)
    assert formats.end_of(whole.ljust(1 << 17, b"\0")) == 4096 * 512
    assert formats.end_of(bytes(512) + header) == 0, "its entries lie elsewhere"
    forged = bytes(512) + header + guid * 2 + struct.pack("<QQ", 34, 2**64 - 1)
    assert formats.end_of(forged.ljust(1 << 17, b"\0")) == 0, "no column takes such a number"


def test_a_header_of_a_partition_table_may_be_cut_short() -> None:
    for at in (512, 4096):
        for length in (at + 8, at + 80, at + 87, at + 88, 8192):
            assert formats.end_of((bytes(at) + b"EFI PART").ljust(length, b"\0")) == 0


def test_disks_and_partitions_are_told_apart(tmp_path: Path) -> None:
    assert formats.content_of(mbr(0x83)) == "disk"
    assert formats.content_of(bytes(512) + b"EFI PART" + bytes(500)) == "disk"
    assert formats.content_of(mbr(0)) == "partition"
    assert formats.content_of(bytes(8192)) == "partition"
    with (tmp_path / "fat").open("wb") as file:
        file.truncate(MIB)
    subprocess.run(["/usr/sbin/mkfs.vfat", tmp_path / "fat"], check=True, capture_output=True)
    assert formats.content_of((tmp_path / "fat").read_bytes()) == "partition"
    subprocess.run(
        ["/usr/sbin/sfdisk", "--wipe=always", tmp_path / "fat"],
        input=b"label: gpt",
        check=True,
        capture_output=True,
    )
    assert formats.content_of((tmp_path / "fat").read_bytes()) == "disk"


@pytest.mark.parametrize(
    ("head", "name"),
    [
        (b"\xfd7zXZ\0", "xz"),
        (b"BZh9", "bzip2"),
        (b"\x04\x22\x4d\x18", "lz4"),
        (b"KDMV", "VMDK"),
        (b"vhdxfile", "VHDX"),
    ],
)
def test_other_formats_are_named(tmp_path: Path, head: bytes, name: str) -> None:
    (tmp_path / "image").write_bytes(head + bytes(1000))
    assert f"this is a {name} file" in refused(tmp_path / "image", tmp_path / "root")


def test_help_and_page_name_every_format() -> None:
    page = Path(formats.__file__).parents[2] / "web/templates/image-new.html"
    for text in (image.help or "", page.read_text()):
        assert [each for each in formats.FORMATS if each not in text] == []


def test_a_packed_file_inside_another_is_refused(tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(gzip.compress(b"QFI\xfb" + bytes(2000)))
    assert "a qcow2 file inside another" in refused(tmp_path / "image", tmp_path / "root")


# ---------------------------------------------------------------- not as promised


def test_the_sha256_that_was_promised(tmp_path: Path) -> None:
    content = sparse(tmp_path / "raw")
    digest = hashlib.sha256(content).hexdigest()
    assert f"the file's sha256 is {digest}, not {'0' * 64}" in refused(
        tmp_path / "raw", tmp_path / "root", sha256="0" * 64
    )
    assert ingest(tmp_path / "raw", tmp_path / "root", sha256=digest.upper()).sha256 == digest


@pytest.mark.parametrize("form", ["gzip", "zstd", "zstd with checksum"])
@pytest.mark.parametrize("harm", ["cut", "cut much", "flipped", "rubbish behind"])
def test_damaged_files(tmp_path: Path, form: str, harm: str) -> None:
    content = random.Random(1).randbytes(300_000)
    packed = bytearray(
        gzip.compress(content)
        if form == "gzip"
        else zstandard.ZstdCompressor(write_checksum="checksum" in form).compress(content)
    )
    if harm.startswith("cut"):
        del packed[len(packed) // 2 if harm == "cut much" else len(packed) - 2 :]
    elif harm == "flipped":
        packed[-5 if form == "gzip" else 8 if form == "zstd" else -1] ^= 0x10
    else:
        packed += b"rubbish"
    (tmp_path / "image").write_bytes(packed)
    assert "damaged or cut short" in refused(tmp_path / "image", tmp_path / "root")


def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "image").touch()
    assert refused(tmp_path / "image", tmp_path / "root") == "the file is empty"


# ---------------------------------------------------------------- hostile


@pytest.mark.parametrize("form", ["raw", "gzip", "zstd", "qcow2", "plain"])
@pytest.mark.slow
def test_sizes_are_limited(tmp_path: Path, form: str) -> None:
    """Bombs: a few kilobytes that unpack to 64 MiB, where 8 are allowed."""
    image = tmp_path / "image"
    if form == "qcow2":
        qemu("create", "-f", "qcow2", image, "64M")
    elif form == "gzip":
        image.write_bytes(gzip.compress(bytes(64 * MIB)))
    elif form == "zstd":
        image.write_bytes(zstandard.compress(bytes(64 * MIB)))
    else:
        with image.open("wb") as file:
            file.truncate(64 * MIB)
    assert "accepted" in refused(
        image, tmp_path / "root", limits=IngestLimits(size=8 * MIB), plain=form == "plain"
    )


def same_cluster_everywhere(path: Path, size: int) -> None:
    """Write a qcow2 file of 393 kB whose every cluster is the same compressed one."""
    cluster = 1 << 16
    packed = zlib.compressobj(wbits=-12)
    data = packed.compress(os.urandom(4096) * 16) + packed.flush()
    l1_size = -(-size // (cluster * cluster // 8))
    head = struct.pack(
        ">4sIQIIQIIQQIIQ", b"QFI\xfb", 3, 0, 0, 16, size, 0, l1_size, cluster, 3 * cluster, 1, 0, 0
    )
    head += struct.pack(">QQQII", 0, 0, 0, 4, 104)
    sectors = -(-len(data) // 512) - 1
    entry = 1 << 62 | sectors << 54 | 5 * cluster
    parts = [
        head,
        struct.pack(">Q", 2 * cluster | 1 << 63) * l1_size,
        struct.pack(">Q", entry) * (cluster // 8),
        struct.pack(">Q", 4 * cluster),
        struct.pack(">H", 1) * 6,
        data,
    ]
    path.write_bytes(b"".join(part.ljust(cluster, b"\0") for part in parts))


@pytest.mark.slow
def test_a_small_qcow2_file_that_would_fill_the_disk_is_refused_before_it_is_converted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    same_cluster_everywhere(tmp_path / "image", 1 << 36)
    assert (tmp_path / "image").stat().st_size < 400_000
    assert "bytes would take" in refused(tmp_path / "image", tmp_path / "root")
    # should it be deceived, the disk is watched
    monkeypatch.setattr(formats, "measure_qcow2", lambda source, go_on: 0)
    monkeypatch.setattr("cod.images.ingest._TEMPORARY", 64 * MIB)
    assert "bytes of the server's disk; at most" in refused(
        tmp_path / "image", tmp_path / "root", limits=IngestLimits(expansion=1)
    )


@pytest.mark.slow
def test_a_large_empty_disk_is_a_small_image(tmp_path: Path) -> None:
    qemu("create", "-f", "qcow2", tmp_path / "image", "64G")
    made = ingest(tmp_path / "image", tmp_path / "root")
    assert (made.size, made.used) == (64 << 30, 0)
    assert made.stored < 8 * MIB


@pytest.mark.parametrize("form", ["name", "members", "blocks"])
def test_a_gzip_file_that_never_comes_to_its_data(tmp_path: Path, form: str) -> None:
    head = b"\x1f\x8b\x08\x00" + bytes(6)
    hollow = {
        "name": b"\x1f\x8b\x08\x08" + bytes(6) + b"a" * MIB + b"\0",
        "members": gzip.compress(b"") * 50_000,
        "blocks": head + b"\0\0\0\xff\xff" * 200_000,
    }[form]
    packed = zlib.compressobj(wbits=-15)
    rest = {
        "name": (
            packed.compress(b"disk" * 1000)
            + packed.flush()
            + struct.pack("<II", zlib.crc32(b"disk" * 1000), 4000)
        ),
        "members": gzip.compress(b"disk" * 1000),
        "blocks": b"",
    }[form]
    (tmp_path / "image").write_bytes(hollow + rest)
    assert "without end" in refused(tmp_path / "image", tmp_path / "root")


def test_a_walk_over_the_blocks_of_one_frame_can_be_ended(tmp_path: Path) -> None:
    blocks = b"\0\0\0" * 10_000 + b"\1\0\0"
    (tmp_path / "image").write_bytes(b"\x28\xb5\x2f\xfd\x20\0" + blocks)

    def go_on() -> None:
        if next(ticks) == 100:
            raise InterruptedError

    ticks = iter(range(1000))
    with (tmp_path / "image").open("rb") as file, pytest.raises(InterruptedError):
        formats.check_frames(file, go_on)


def test_empty_members_before_a_large_one_are_counted_once(tmp_path: Path) -> None:
    content = bytes(510) + b"\x55\xaa" + random.Random(1).randbytes(200_000)
    (tmp_path / "image").write_bytes(gzip.compress(b"") * 5 + gzip.compress(content))
    made = ingest(tmp_path / "image", tmp_path / "root")
    assert unpacked(tmp_path / "root", made.digest) == content


def test_gzip_files_as_other_programs_write_them(tmp_path: Path) -> None:
    content = sparse(tmp_path / "raw")
    member = (
        b"\x1f\x8b\x08\x1c"
        + bytes(6)
        + struct.pack("<H", 60_000)
        + bytes(60_000)
        + b"name\0"
        + b"comment\0"
    )
    whole = gzip.compress(content[:MIB], mtime=0)
    (tmp_path / "image").write_bytes(
        member
        + whole[10:]
        + bytes(512)
        + gzip.compress(content[MIB:])
        +
        # bgzip's end, a tape's padding
        gzip.compress(b"")
        + bytes(100_000)
    )
    made = ingest(tmp_path / "image", tmp_path / "root")
    assert unpacked(tmp_path / "root", made.digest) == content


@pytest.mark.slow
@pytest.mark.parametrize("form", ["gzip", "zstd"])
def test_what_a_packed_file_may_stand_for_is_limited(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = gzip.compress if form == "gzip" else zstandard.compress
    (tmp_path / "image").write_bytes(pack(b"x" * (64 * MIB)))
    assert ingest(tmp_path / "image", tmp_path / "root").used == 64 * MIB
    monkeypatch.setattr("cod.images.ingest._DATA", 8 * MIB)
    assert "unpacks to more than" in refused(
        tmp_path / "image", tmp_path / "other", limits=IngestLimits(expansion=10)
    )
    (tmp_path / "empty").write_bytes(pack(bytes(64 * MIB)))  # zeros are no data
    assert (
        ingest(tmp_path / "empty", tmp_path / "root", limits=IngestLimits(expansion=10)).size
        == 64 * MIB
    )


def test_the_served_form_may_take_what_the_quota_leaves(tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(os.urandom(8 * MIB))
    assert "its group has left" in refused(
        tmp_path / "image", tmp_path / "root", limits=IngestLimits(stored=4 * MIB)
    )
    assert "its group has left" in refused(
        tmp_path / "image", tmp_path / "root", limits=IngestLimits(stored=4 * MIB), plain=True
    )


@pytest.mark.parametrize("form", ["raw", "gzip", "zstd", "qcow2", "plain"])
def test_the_time_is_limited(tmp_path: Path, form: str) -> None:
    content = sparse(tmp_path / "raw", 4 * MIB)
    image = tmp_path / "image"
    if form == "qcow2":
        qemu("convert", "-f", "raw", "-O", "qcow2", tmp_path / "raw", image)
    else:
        packed: dict[str, Callable[[bytes], bytes]]
        packed = {"gzip": gzip.compress, "zstd": zstandard.compress}
        image.write_bytes(packed.get(form, bytes)(content))
    ticks = iter(range(10_000))
    assert "was not taken in within" in refused(
        image,
        tmp_path / "root",
        limits=IngestLimits(seconds=1.5),
        clock=lambda: float(next(ticks)),
        plain=form == "plain",
    )


@pytest.mark.parametrize("form", ["gzip", "zstd", "qcow2"])
def test_empty_images(tmp_path: Path, form: str) -> None:
    image = tmp_path / "image"
    if form == "qcow2":
        qemu("create", "-f", "qcow2", image, "0")
    else:
        image.write_bytes(gzip.compress(b"") if form == "gzip" else zstandard.compress(b""))
    assert "empty" in refused(image, tmp_path / "root")


# ---------------------------------------------------------------- what an image holds


@pytest.mark.slow  # foreign programs
@pytest.mark.parametrize(
    "command",
    [
        "mke2fs -q -t ext4 {}",
        "mke2fs -q -t ext2 -b 4096 {}",
        "mkfs.vfat {}",
        "mkswap {}",
        "sfdisk -q {}",
        "sgdisk -o {}",
    ],
)
def test_what_programs_write_is_recognised(tmp_path: Path, command: str) -> None:
    image = tmp_path / "image"
    image.write_bytes(bytes(40 * MIB))
    program = command.split()
    subprocess.run(
        [word.format(image) for word in program],
        check=True,
        capture_output=True,
        input=b",,L\n" if program[0] == "sfdisk" else b"",
    )
    made = strict(image, tmp_path / "root")
    assert made.content == ("disk" if program[0] in ("sfdisk", "sgdisk") else "partition")


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (b"<!DOCTYPE html><html>404 Not Found</html>", "no file system that is known here"),
        (bytes(4096), "no file system that is known here"),
        (bytes(510) + b"\x55\xaa\xeb\x66HdrS" + bytes(4096), "a kernel or a RAM disk"),
        (b"070701000002D1", "a kernel or a RAM disk"),
    ],
)
def test_what_is_no_image_is_refused_unless_its_owner_says_raw(
    tmp_path: Path, head: bytes, words: str
) -> None:
    (tmp_path / "image").write_bytes(head)
    assert words in refused(tmp_path / "image", tmp_path / "root", raw=False)
    (tmp_path / "packed").write_bytes(gzip.compress(head))
    assert words in refused(tmp_path / "packed", tmp_path / "root", raw=False)
    assert strict(tmp_path / "image", tmp_path / "root", raw=True).content == "partition"


def test_a_qcow2_file_cannot_show_another_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"the server's own" * 100_000)
    image = tmp_path / "image"
    qemu("create", "-f", "qcow2", "-b", tmp_path / "secret", "-F", "raw", image)
    assert "needs a backing file" in refused(image, tmp_path / "root")


def test_a_conversion_that_is_killed_for_its_memory_says_nothing_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = tmp_path / "image"
    qemu("create", "-f", "qcow2", image, "1M")
    killed = tmp_path / "bin" / "qemu-img"
    killed.parent.mkdir()
    killed.write_text("#!/bin/sh\nkill -KILL $$\n")
    killed.chmod(0o755)
    monkeypatch.setenv("PATH", f"{killed.parent}:{os.environ['PATH']}")
    with pytest.raises(MemoryError):
        formats.convert_qcow2(image, tmp_path / "raw")


def test_a_qcow2_file_cannot_name_a_data_file(tmp_path: Path) -> None:
    image = tmp_path / "image"
    qemu("create", "-f", "qcow2", "-o", f"data_file={tmp_path / 'secret'}", image, "1M")
    assert "keeps its data in another file" in refused(image, tmp_path / "root")
    patched = bytearray(image.read_bytes())
    # the name is still there, the feature bit is not: then it must not be followed
    patched[72:80] = bytes(8)
    image.write_bytes(patched)
    (tmp_path / "secret").write_bytes(b"SECRET" * 200_000)
    made = ingest(image, tmp_path / "root")
    assert b"SECRET" not in unpacked(tmp_path / "root", made.digest)


@pytest.mark.parametrize(
    ("offset", "value", "words"),
    [
        (4, struct.pack(">I", 9), "version 9"),
        (8, struct.pack(">QI", 0, 5), "needs a backing file"),
        (20, struct.pack(">I", 40), "makes no sense"),
        (32, struct.pack(">I", 1), "encrypted"),
        (72, struct.pack(">Q", 2), "marked corrupt"),
        (72, struct.pack(">Q", 1 << 40), "marked corrupt, or has features"),
        (36, struct.pack(">I", 0xFFFFFFFF), "cannot be converted"),
    ],
)
def test_qcow2_headers(tmp_path: Path, offset: int, value: bytes, words: str) -> None:
    image = tmp_path / "image"
    qemu("create", "-f", "qcow2", image, "1M")
    patched = bytearray(image.read_bytes())
    patched[offset : offset + len(value)] = value
    image.write_bytes(patched)
    assert words in refused(image, tmp_path / "root")


# ---------------------------------------------------------------- never half done


@pytest.mark.slow
def test_a_killed_ingest_leaves_nothing_that_is_seen_and_is_cleaned_up(tmp_path: Path) -> None:
    (tmp_path / "raw").write_bytes(random.Random(1).randbytes(4 * MIB))
    code = (
        "import os, signal, sys; from pathlib import Path; from cod.images.ingest import ingest;"
        "ingest(Path(sys.argv[1]), Path(sys.argv[2]), raw=True, threads=1,"
        " progress=lambda done, total: done > 2 << 20 and os.kill(os.getpid(), signal.SIGKILL))"
    )
    root = tmp_path / "root"
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "raw", root], check=False)
    assert done.returncode == -signal.SIGKILL
    (left,) = root.iterdir()
    assert left.name.startswith(".new-")
    assert store.clean(root) == 1
    assert list(root.iterdir()) == []


def test_what_somebody_is_filling_is_not_cleaned_up(tmp_path: Path) -> None:
    with store.new_folder(tmp_path) as folder:
        assert store.clean(tmp_path) == 0
        assert folder.exists()
    assert not folder.exists()


def test_removing_an_image(tmp_path: Path) -> None:
    sparse(tmp_path / "raw")
    made = ingest(tmp_path / "raw", tmp_path / "root")
    store.remove(tmp_path / "root", made.digest)
    store.remove(tmp_path / "root", made.digest)
    assert list((tmp_path / "root").iterdir()) == []


@pytest.mark.slow
def test_a_full_server_disk_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "raw").write_bytes(random.Random(1).randbytes(4 * MIB))
    code = (
        "import resource, signal, sys; from pathlib import Path; from cod.images.ingest import"
        " ingest;signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        " resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20,) * 2)\ntry: ingest(Path(sys.argv[1]),"
        " Path(sys.argv[2]), raw=True)\nexcept OSError as error: print(error.strerror)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "raw", tmp_path / "root"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "File too large\n"
    assert list((tmp_path / "root").iterdir()) == []


@pytest.fixture
def endless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A qemu-img that never ends, and the file in which it says who it is."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/qemu-img").write_text(
        f"#!/bin/sh\necho $$ >{tmp_path}/pid.new\nmv {tmp_path}/pid.new "
        f"{tmp_path}/pid\nexec sleep 100\n"
    )
    (tmp_path / "bin/qemu-img").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    return tmp_path / "pid"


def is_gone(process: Path) -> bool:
    """Tell whether the process has ended. Its new parent may take a while to ask for its status."""
    pid = process.read_text().strip()
    try:
        stat = Path("/proc", pid, "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


def test_a_conversion_ends_when_the_server_is_stopped(tmp_path: Path, endless: Path) -> None:
    class Stopping(Exception):
        pass

    def stop() -> None:
        if endless.exists():
            raise Stopping

    with pytest.raises(Stopping):
        formats.convert_qcow2(tmp_path / "a", tmp_path / "b", stop)
    assert is_gone(endless)


@pytest.mark.slow
def test_a_conversion_does_not_outlive_the_server(tmp_path: Path, endless: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from cod.images import formats;"
        "formats.convert_qcow2(Path(sys.argv[1]), Path(sys.argv[2]))"
    )
    with subprocess.Popen([sys.executable, "-c", code, tmp_path / "a", tmp_path / "b"]) as server:
        until(endless.exists)
        server.kill()
    until(lambda: is_gone(endless), "the conversion ends with the server")


# ---------------------------------------------------------------- verify


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        ("manifest", "its manifest's digest is not its name"),
        ("chunk", "the chunk at 0: its digest is wrong"),
        ("hole", f"the chunk at {MIB}: "),
        ("cut", "no seek table"),
        ("gone", "it cannot be read"),
    ],
)
def test_verify_finds(tmp_path: Path, harm: str, words: str) -> None:
    sparse(tmp_path / "raw")
    made = ingest(tmp_path / "raw", tmp_path / "root")
    folder = tmp_path / "root" / made.digest
    data = bytearray((folder / "data.zst").read_bytes())
    chunks = json.loads((folder / "manifest.json").read_bytes())["chunks"]
    if harm == "manifest":
        (folder / "manifest.json").write_bytes((folder / "manifest.json").read_bytes() + b" ")
    if harm == "chunk":
        data[100] ^= 1
    if harm == "hole":
        data[chunks[0][3] + 12] ^= 1  # the empty chunk's frame behind the first chunk's
    if harm == "cut":
        del data[-100:]
    (folder / "data.zst").write_bytes(data)
    if harm == "gone":
        (folder / "data.zst").unlink()
    checked = verify(tmp_path / "root", made.digest)
    assert len(checked.bad) == 1
    assert words in checked.bad[0]


def test_verify_finds_a_damaged_plain_file(tmp_path: Path) -> None:
    (tmp_path / "kernel").write_bytes(b"kernel")
    made = ingest(tmp_path / "kernel", tmp_path / "root", plain=True)
    (tmp_path / "root" / made.digest / "file").write_bytes(b"kernal")
    assert verify(tmp_path / "root", made.digest).bad == ("its digest is not its name",)


# ---------------------------------------------------------------- manifests and seek tables


GOOD = Manifest(3 * CHUNK, CHUNK, CHUNK, 99, [Chunk(CHUNK, CHUNK, 20, 30, "ab" * 32)])


def test_a_manifest_survives_the_way() -> None:
    assert manifest.decode(manifest.encode(GOOD)) == GOOD


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"format": "x"},
        {"size": CHUNK},
        {"used": 0},
        {"stored": 10},
        {"chunk": 0},
        {"chunk": 1 << 40},
        {"chunks": [[0, CHUNK, 0, 0, "ab" * 32]]},
        {"chunks": [[0, CHUNK, 0, 5, "ab"]]},
        {"chunks": [[0]]},
        {"chunks": None},
        {"chunks": [[0, CHUNK, 0, 9, "ab" * 32], [0, CHUNK, 9, 9, "ab" * 32]]},
        {"size": "much"},
        {"chunks": [[-5, CHUNK, 0, 9, "ab" * 32]]},
    ],
)
def test_bad_manifests(change: dict[str, object]) -> None:
    document = json.loads(manifest.encode(GOOD)) | change
    with pytest.raises(BadManifest):
        manifest.decode(json.dumps(document).encode())


@given(st.binary(max_size=200))
def test_rubbish_is_no_manifest(data: bytes) -> None:
    with pytest.raises(BadManifest):
        manifest.decode(data)


def test_seek_tables(tmp_path: Path) -> None:
    frames = [(3, 10), (4, 20)]
    table = seekable.seek_table(frames)
    (tmp_path / "x").write_bytes(b"1234567" + table)
    with (tmp_path / "x").open("rb") as file:
        assert seekable.read_seek_table(file) == frames
    for content in (b"", b"1234567", b"123456" + table, b"1234567" + table[1:]):
        (tmp_path / "x").write_bytes(content)
        with (tmp_path / "x").open("rb") as file, pytest.raises(ValueError, match=r"seek table"):
            seekable.read_seek_table(file)


def test_the_lock_of_a_folder_is_a_real_one(tmp_path: Path) -> None:
    with store.new_folder(tmp_path) as folder:
        other = os.open(folder, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(other)


def test_a_small_file_that_becomes_a_large_disk_leaves_others_their_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compressed clusters of a qcow2 file unpack to a thousand times as much on the server's own
    disk."""
    (tmp_path / "raw").write_bytes(os.urandom(1 << 20))
    qemu("convert", "-f", "raw", "-O", "qcow2", tmp_path / "raw", tmp_path / "image")
    started: list[bool] = []

    def slow(source: Path, target: Path, go_on: Callable[[], None]) -> None:
        target.write_bytes(b"much")
        go_on()
        started.append(True)
        monkeypatch.setattr("cod.images.ingest.ROOM", 1 << 60)
        go_on()

    monkeypatch.setattr(formats, "convert_qcow2", slow)
    assert "no room" in refused(tmp_path / "image", tmp_path / "root")
    assert started, "not before the room went"
    assert list((tmp_path / "root").glob("**/raw")) == [], "what was unpacked is gone"


@pytest.mark.parametrize("plain", [False, True])
def test_a_small_file_leaves_others_their_room_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain: bool
) -> None:
    """Small files were taken in until nothing of the room was left: the first look came after 64
    MiB, or never."""
    content = sparse(tmp_path / "image")
    left = (1 << 30) + (len(content) if plain else 0)

    def free(room: int) -> None:
        monkeypatch.setattr(
            "cod.images.ingest.shutil.disk_usage", lambda path: SimpleNamespace(free=room)
        )

    free(left - 1)
    assert "no room" in refused(tmp_path / "image", tmp_path / "root", plain=plain)
    free(left)
    assert ingest(tmp_path / "image", tmp_path / "root", plain=plain).size == len(content)


def test_the_folder_of_images_is_its_owner_s_and_group_s(tmp_path: Path) -> None:
    """A digest is enough to be given an image: other users of the host cannot list them."""
    root = tmp_path / "images"
    root.mkdir(mode=0o755)
    with store.new_folder(root):
        assert stat.S_IMODE(root.stat().st_mode) == 0o750
