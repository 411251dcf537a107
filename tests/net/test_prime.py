"""cprime against a real HTTP server, with a file as the disk: bit-exact, or a clear error."""

from __future__ import annotations

import gzip
import hashlib
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cod.images.ingest import ingest
from cod.orders import ImageSource, Order, Partition
from cod.wire.confd.messages import encode
from tests.imageserver import Server, dies_after, flips, serving, stalls_after
from trampoline import bootcode, cprime
from trampoline.errors import PrimeError
from trampoline.fetch import BLOCK, Download, Patience
from trampoline.inventory import Disk, file_disk

pytestmark = pytest.mark.slow  # half a minute of processor time and more, together with its like

MIB = 1 << 20
QUICK = Patience(stall=60, tries=3, pause=0.02)  # a busy machine's server is no server that stalls
HASTY = Patience(stall=0.3, tries=3, pause=0.02)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "root").mkdir()
    with serving(tmp_path / "root") as server:
        yield server


def image_file(path: Path, size: int, seed: int = 1, used: float = 0.4) -> bytes:
    """A sparse file of noise and text in random places."""
    rng = random.Random(seed)
    content = bytearray(size)
    for at in range(0, size, 256 << 10):
        if rng.random() < used:
            piece = rng.randbytes(40_000) + b"text " * 20_000
            content[at : at + len(piece)] = piece
    path.write_bytes(content[:size])
    return bytes(content[:size])


def added(server: Server, file: Path, target: str = "disk") -> ImageSource:
    made = ingest(file, server.root, raw=True)
    return ImageSource(target, f"{server.url}/{made.digest}", "chunks", made.digest, made.size)


def dirty(path: Path, size: int) -> Disk:
    path.write_bytes(os.urandom(4096) * (size // 4096) + b"\xaa" * (size % 4096))
    return file_disk(path)


def run(order: Order, *disks: Disk, patience: Patience = QUICK) -> cprime.Written:
    return cprime.prime(order, disks, lambda *_: None, patience)


def one(source: ImageSource, **more: object) -> Order:
    return replace(Order("1.1", "prime", images=(source,)), **more)


# ---------------------------------------------------------------- bit-exact


PIECES = st.tuples(
    st.one_of(st.integers(0, 5 * MIB), st.integers(3 * MIB, 4 * MIB)),
    st.binary(min_size=1, max_size=64),
    st.integers(1, 40_000),
)


@given(
    data=st.lists(PIECES, max_size=6),
    size=st.one_of(st.integers(1, 5 * MIB), st.integers(4 * MIB, 5 * MIB)),
    wipe=st.booleans(),
    verify=st.booleans(),
    spare=st.integers(0, 2 * MIB),
)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_what_was_added_is_what_is_on_the_disk(
    tmp_path_factory: pytest.TempPathFactory,
    data: list[tuple[int, bytes, int]],
    size: int,
    wipe: bool,
    verify: bool,
    spare: int,
) -> None:
    folder = tmp_path_factory.mktemp("prime")
    content = bytearray(size)
    for at, pattern, times in data:
        piece = (pattern * times)[: max(0, size - at)]
        content[at : at + len(piece)] = piece
    (folder / "image").write_bytes(content)
    (folder / "root").mkdir()
    with serving(folder / "root") as server:
        source = added(server, folder / "image")
        unpacked = subprocess.run(
            ["zstd", "-dc", folder / "root" / source.digest / "data.zst"],
            capture_output=True,
            check=True,
        ).stdout
        assert unpacked == content
        disk = dirty(folder / "disk", size + spare)
        run(one(source, wipe=wipe, verify=verify), disk)
    found = (folder / "disk").read_bytes()
    assert found[:size] == content
    assert len(found) == size + spare
    assert not wipe or not any(found[size:])


@pytest.mark.parametrize("compression", ["raw", "gzip", "zstd"])
@pytest.mark.parametrize("wipe", [True, False])
def test_an_image_from_elsewhere_is_streamed(
    server: Server, tmp_path: Path, compression: str, wipe: bool
) -> None:
    content = image_file(tmp_path / "image", 5 * MIB + 777)
    source = elsewhere(server, content, compression)
    disk = dirty(tmp_path / "disk", 7 * MIB)
    server.on, server.faults = "image", [dies_after(150_000), None]
    done = run(one(source, wipe=wipe, verify=True), disk)
    assert (tmp_path / "disk").read_bytes()[: len(content)] == content
    assert done.bytes_fetched == len((server.root / "image").read_bytes())
    assert [asked for _, asked in server.seen] == ["", "bytes=150000-"]


def elsewhere(server: Server, content: bytes, compression: str) -> ImageSource:
    if compression == "zstd":
        content_served = subprocess.run(
            ["zstd", "-c"], input=content, capture_output=True, check=True
        ).stdout
    else:  # two gzip members and padding, as some tools write them
        halves = gzip.compress(content[:MIB]) + gzip.compress(content[MIB:]) + bytes(512)
        content_served = halves if compression == "gzip" else content
    (server.root / "image").write_bytes(content_served)
    digest = hashlib.sha256(content_served).hexdigest()
    return ImageSource("disk", f"{server.url}/image", compression, digest, len(content))


def test_only_what_is_used_is_fetched_and_written(server: Server, tmp_path: Path) -> None:
    with (tmp_path / "image").open("wb") as file:
        file.truncate(400 * MIB)
        file.seek(300 * MIB)
        file.write(b"here" * 1000)
    source = added(server, tmp_path / "image")
    with (tmp_path / "disk").open("wb") as file:
        file.truncate(400 * MIB)
    done = run(one(source), file_disk(tmp_path / "disk"))
    assert (done.bytes_written, done.bytes_fetched < 1000) == (MIB, True)
    assert (tmp_path / "disk").stat().st_blocks * 512 <= 2 * MIB
    with (tmp_path / "disk").open("rb") as file:
        file.seek(300 * MIB)
        assert file.read(8) == b"herehere"


# ---------------------------------------------------------------- servers that misbehave and
# recover


def test_a_transfer_resumes_where_it_died(server: Server, tmp_path: Path) -> None:
    content = image_file(tmp_path / "image", 9 * MIB)
    source = added(server, tmp_path / "image")
    server.faults = [dies_after(100_000), dies_after(0), stalls_after(70_000), dies_after(5)]
    run(one(source), dirty(tmp_path / "disk", 9 * MIB), patience=replace(QUICK, stall=3))
    assert (tmp_path / "disk").read_bytes() == content
    assert not server.faults
    starts = [
        int(asked.removeprefix("bytes=").split("-")[0])
        for path, asked in server.seen
        if "data" in path
    ]
    assert starts == [0, 100_000, 100_000, 170_000, 170_005]


def test_a_chunk_damaged_on_the_way_is_fetched_again(server: Server, tmp_path: Path) -> None:
    content = image_file(tmp_path / "image", 3 * MIB)
    server.faults = [flips(1000)]
    run(one(added(server, tmp_path / "image")), dirty(tmp_path / "disk", 3 * MIB))
    assert (tmp_path / "disk").read_bytes() == content


# ---------------------------------------------------------------- clear errors


def output(*words: str | Path) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def failure(order: Order, *disks: Disk, patience: Patience = QUICK) -> str:
    with pytest.raises(PrimeError) as caught:
        run(order, *disks, patience=patience)
    return str(caught.value)


def test_an_image_damaged_on_its_server(server: Server, tmp_path: Path) -> None:
    image_file(tmp_path / "image", 3 * MIB)
    source = added(server, tmp_path / "image")
    data = server.root / source.digest / "data.zst"
    data.write_bytes(bytes([data.read_bytes()[0] ^ 1]) + data.read_bytes()[1:])
    assert "bad checksum: the chunk at byte 0 " in failure(
        one(source), dirty(tmp_path / "disk", 3 * MIB)
    )


def test_an_image_cut_short_on_its_server(server: Server, tmp_path: Path) -> None:
    image_file(tmp_path / "image", 3 * MIB)
    source = added(server, tmp_path / "image")
    os.truncate(server.root / source.digest / "data.zst", 5000)
    assert "is cut short" in failure(one(source), dirty(tmp_path / "disk", 3 * MIB))


@pytest.mark.parametrize("what", ["manifest", "missing", "refusing", "larger", "wrong size"])
def test_what_is_found_out_before_the_disk_is_touched(
    server: Server, tmp_path: Path, what: str
) -> None:
    image_file(tmp_path / "image", 3 * MIB)
    source = added(server, tmp_path / "image")
    disk = dirty(tmp_path / "disk", 3 * MIB - (what == "larger"))
    before = (tmp_path / "disk").read_bytes()
    manifest = server.root / source.digest / "manifest.json"
    words = {
        "manifest": "bad checksum: the manifest",
        "missing": "404",
        "refusing": "Connection refused",
        "larger": (
            f"the disk is too small: {3 * MIB} bytes are needed, {disk.path} has {3 * MIB - 1}"
        ),
        "wrong size": "were ordered",
    }
    if what == "manifest":
        manifest.write_bytes(manifest.read_bytes().replace(b"1048576", b"1048575", 1))
    if what == "missing":
        manifest.unlink()
    if what == "refusing":
        server.server_close()
        server.shutdown()
    if what == "wrong size":
        source = replace(source, size=3 * MIB - 1)
    assert words[what] in failure(one(source), disk)
    assert (tmp_path / "disk").read_bytes() == before


def test_a_server_that_dies_for_good(server: Server, tmp_path: Path) -> None:
    image_file(tmp_path / "image", 3 * MIB)
    source = added(server, tmp_path / "image")
    server.faults = [dies_after(10), *[dies_after(0)] * 9]
    reason = failure(one(source), dirty(tmp_path / "disk", 3 * MIB))
    assert "failed at byte 10 " in reason
    assert "gave up after 3 tries" in reason


@pytest.mark.slow
def test_a_server_that_stalls_for_good(server: Server, tmp_path: Path) -> None:
    image_file(tmp_path / "image", 3 * MIB)
    source = added(server, tmp_path / "image")
    server.faults = [stalls_after(10), *[stalls_after(0)] * 9]
    reason = failure(one(source), dirty(tmp_path / "disk", 3 * MIB), patience=HASTY)
    # not that the server closed the connection
    assert "nothing came for 0.3 seconds" in reason
    assert any(asked.startswith("bytes=10-") for _, asked in server.seen), server.seen


@pytest.mark.parametrize(
    ("compression", "fault", "words"),
    [
        ("raw", "short", "short image"),
        ("raw", "long", "is longer than"),
        ("raw", "flip", "bad checksum: the sha256"),
        ("gzip", "cut", "damaged or cut short"),
        ("zstd", "cut", "damaged or cut short"),
        ("gzip", "short", "short image"),
        ("zstd", "long", "is longer than"),
        ("zstd", "flip", "damaged or cut short"),
        ("gzip", "no range", "Range"),
    ],
)
def test_bad_streams(
    server: Server, tmp_path: Path, compression: str, fault: str, words: str
) -> None:
    content = random.Random(3).randbytes(2 * MIB) + bytes(MIB)
    source = elsewhere(server, content, compression)
    file, server.on = server.root / "image", "image"
    if fault in ("short", "long"):
        source = replace(source, size=len(content) + (1 if fault == "short" else -1))
    elif fault == "cut":
        os.truncate(file, file.stat().st_size * 2 // 3)
    elif fault == "no range":
        server.ranges, server.faults = False, [dies_after(1000)]
    else:
        server.faults = [flips(MIB)]
    assert words in failure(one(source), dirty(tmp_path / "disk", 4 * MIB))


def test_a_full_disk(server: Server, tmp_path: Path) -> None:
    """A file that may not grow stands for a disk that refuses writes in the middle."""
    image_file(tmp_path / "image", 3 * MIB, used=1)
    source = added(server, tmp_path / "image")
    dirty(tmp_path / "disk", 3 * MIB)
    (tmp_path / "order.xml").write_bytes(encode(one(source, wipe=False)))
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, 2 << 20));"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "from trampoline.cprime import main; main()"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            code,
            "--order",
            tmp_path / "order.xml",
            "--disk",
            tmp_path / "disk",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "cannot be written at byte" in done.stderr
    assert "File too large" in done.stderr


@pytest.mark.parametrize(
    ("disks", "order", "words"),
    [
        ([], {}, "no suitable disk: the node has no local one"),
        ([{"local": False, "transport": "usb"}], {}, "no suitable disk: the node has no local one"),
        ([{"serial": "A"}], {"disk": "serial:B"}, "no suitable disk: none is serial:B"),
        ([{"serial": "A"}], {"keep": ("serial:A",)}, "no suitable disk: the node has no local one"),
    ],
)
def test_no_suitable_disk(
    server: Server,
    tmp_path: Path,
    disks: list[dict[str, object]],
    order: dict[str, object],
    words: str,
) -> None:
    image_file(tmp_path / "image", MIB)
    source = added(server, tmp_path / "image")
    there = [replace(dirty(tmp_path / f"disk{n}", MIB), **more) for n, more in enumerate(disks)]
    assert words in failure(one(source, **order), *there)


# ---------------------------------------------------------------- around it


def test_wiping_takes_every_local_disk_but_those_that_are_kept(tmp_path: Path) -> None:
    disks = [dirty(tmp_path / name, MIB) for name in ("a", "b", "c")]
    disks[1] = replace(disks[1], local=False)
    told: list[tuple[str, int, int, float]] = []
    erased = cprime.wipe(
        Order("1.1", "wipe", keep=("serial:c",)), disks, lambda *step: told.append(step)
    )
    assert [any((tmp_path / name).read_bytes()) for name in ("a", "b", "c")] == [False, True, True]
    assert [(each.serial, each.size, each.method) for each in erased] == [("a", MIB, "truncate")]
    assert told[-1][:3] == ("wipe", MIB, MIB)


def test_a_kept_disk_with_the_images_names_is_told(server: Server, tmp_path: Path) -> None:
    """A kept disk may hold an earlier installation; disks that the order erased have no names."""
    with (tmp_path / "image").open("wb") as image:
        image.truncate(4 * MIB)
    subprocess.run(
        ["/usr/sbin/mkfs.ext4", "-q", "-F", "-L", "root", tmp_path / "image"], check=True
    )
    source = added(server, tmp_path / "image")
    disks = [dirty(tmp_path / name, 4 * MIB) for name in ("new", "kept", "erased")]
    for name in ("kept", "erased"):
        (tmp_path / name).write_bytes((tmp_path / "image").read_bytes())
    found = run(one(source, keep=("serial:kept",)), *disks).namesakes
    assert [(each.kind, each.disk) for each in found] == [
        ("UUID", "kept (serial kept)"),
        ("label", "kept (serial kept)"),
    ]
    assert found[1].name == "root"


def test_wiping_tables_alone_takes_both_ends_and_leaves_the_rest(tmp_path: Path) -> None:
    disk = dirty(tmp_path / "a", 40 * MIB)
    before = (tmp_path / "a").read_bytes()
    told: list[tuple[str, int, int, float]] = []
    (erased,) = cprime.wipe(
        Order("1.1", "wipe", tables=True), [disk], lambda *step: told.append(step)
    )
    after = (tmp_path / "a").read_bytes()
    assert (erased.method, erased.checked) == ("tables alone", 32 * MIB)
    assert after == bytes(16 * MIB) + before[16 * MIB : 24 * MIB] + bytes(16 * MIB)
    assert told[-1][:3] == ("wipe", 32 * MIB, 32 * MIB)


def test_a_small_disk_has_no_more_than_its_ends(tmp_path: Path) -> None:
    cprime.wipe(Order("1.1", "wipe", tables=True), [dirty(tmp_path / "a", MIB)], lambda *_: None)
    assert not any((tmp_path / "a").read_bytes())


def test_zeros_for_an_images_holes_show_as_progress(server: Server, tmp_path: Path) -> None:
    """On a disk that was not wiped just now; a node that only seems to do nothing would be given
    up."""
    with (tmp_path / "image").open("wb") as image:
        image.write(os.urandom(1000))
        image.truncate(200 * MIB)
    source = added(server, tmp_path / "image")
    seen: list[tuple[str, int, int]] = []
    disk = file_disk(tmp_path / "image")
    (tmp_path / "disk").touch()
    os.truncate(tmp_path / "disk", disk.size)
    cprime.prime(
        one(source, wipe=False),
        [file_disk(tmp_path / "disk")],
        lambda phase, done, total, rate: seen.append((phase, done, total)),
    )
    assert ("zero", 199 * MIB, 199 * MIB) in seen
    assert seen[-1] == ("write", MIB, MIB)


@pytest.mark.slow
def test_progress_is_told_each_second_and_can_end_the_work(server: Server, tmp_path: Path) -> None:
    image_file(tmp_path / "image", 3 * MIB)
    source = added(server, tmp_path / "image")
    server.faults = [stalls_after(10)]
    told = 0

    class Enough(Exception):
        pass

    def progress(phase: str, done: int, total: int, rate: float) -> None:
        nonlocal told
        if phase == "write":
            told += 1
            if told == 3:
                raise Enough

    with pytest.raises(Enough):
        cprime.prime(one(source), [dirty(tmp_path / "disk", 3 * MIB)], progress, Patience(stall=20))
    assert not any(asked.startswith("bytes=10-") for _, asked in server.seen), (
        "not only when patience ends and the rest of the image is asked for"
    )


def test_a_layout_with_images_and_a_seed(server: Server, tmp_path: Path) -> None:
    boot, root = (
        image_file(tmp_path / name, size, n)
        for n, (name, size) in enumerate([("esp", 2 * MIB), ("system", 5 * MIB + 512)])
    )
    order = Order(
        "1.1",
        "prime",
        verify=True,
        table="gpt",
        partitions=(Partition(1, 3 * MIB, "esp", "EFI"), Partition(2, 0, "linux", "root")),
        images=(added(server, tmp_path / "esp", "1"), added(server, tmp_path / "system", "2")),
        seed={"meta-data": "instance-id: i\n", "user-data": "#cloud-config\n{}\n"},
    )
    run(order, dirty(tmp_path / "disk", 16 * MIB + 512))
    content = (tmp_path / "disk").read_bytes()
    assert content[MIB : 3 * MIB] == boot
    assert content[4 * MIB : 4 * MIB + len(root)] == root
    assert "No problems found" in output("/usr/sbin/sgdisk", "-v", tmp_path / "disk")
    listed = output("/usr/sbin/sfdisk", "--dump", tmp_path / "disk").splitlines()
    assert [line.split("name=")[1] for line in listed if "name=" in line] == [
        '"EFI"',
        '"root"',
        '"cidata"',
    ]
    assert (
        output("mtype", "-i", f"{tmp_path / 'disk'}@@{14 * MIB}", "::meta-data")
        == "instance-id: i\n"
    )


@pytest.mark.parametrize("table", ["gpt", "mbr"])
def test_a_layouts_boot_partition_is_started_on_bios(
    server: Server, tmp_path: Path, table: str
) -> None:
    fat = tmp_path / "fat"
    subprocess.run(["mkfs.fat", "-C", "-F", "12", fat, "5120"], check=True, capture_output=True)
    order = Order(
        "1.1",
        "prime",
        verify=True,
        table=table,
        images=(added(server, fat, "2"),),
        partitions=(Partition(1, MIB, "linux"), Partition(2, 6 * MIB, "data", boot=True)),
    )
    run(order, dirty(tmp_path / "disk", 16 * MIB))
    content = (tmp_path / "disk").read_bytes()
    assert content[:440] == bootcode.code(2 * MIB // 512, table, grub=False)
    listed = output("/usr/sbin/sfdisk", "--dump", tmp_path / "disk")
    assert ("bootable" if table == "mbr" else "LegacyBIOSBootable") in listed.splitlines()[-1]
    assert int.from_bytes(content[2 * MIB + 28 : 2 * MIB + 32], "little") == 4096, (
        "the hidden sectors"
    )
    assert content[2 * MIB + 32 : 7 * MIB] == fat.read_bytes()[32:]


def test_grubs_core_image_is_told_where_it_lies(server: Server, tmp_path: Path) -> None:
    core = (
        os.urandom(500)
        + (1).to_bytes(8, "little")
        + (9).to_bytes(2, "little")
        + b"\x20\x08"
        + os.urandom(9 * 512)
    )
    (tmp_path / "core").write_bytes(core)
    order = Order(
        "1.1",
        "prime",
        table="gpt",
        images=(added(server, tmp_path / "core", "1"),),
        partitions=(Partition(1, MIB, "bios", boot=True), Partition(2, 0, "linux")),
    )
    run(order, dirty(tmp_path / "disk", 16 * MIB))
    content = (tmp_path / "disk").read_bytes()
    assert content[:440] == bootcode.code(2048, "gpt", grub=True)
    assert content[MIB + 500 : MIB + 512] == (2049).to_bytes(8, "little") + core[508:512]
    assert content[MIB + 512 : MIB + len(core)] == core[512:]


def test_what_cannot_be_started_is_no_boot_partition(server: Server, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"no boot sector".ljust(MIB, b"."))
    order = Order(
        "1.1",
        "prime",
        table="mbr",
        images=(added(server, tmp_path / "data", "1"),),
        partitions=(Partition(1, MIB, "linux", boot=True),),
    )
    with pytest.raises(
        PrimeError,
        match="partition 1 is to start the system, but its image has neither a boot sector",
    ):
        run(order, dirty(tmp_path / "disk", 16 * MIB))


def test_a_bios_machines_disk_has_a_signature_of_its_own(server: Server, tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.write_bytes(bytes(4 * MIB))
    subprocess.run(
        ["/usr/sbin/sfdisk", "-q", image], input="label: gpt\nsize=1MiB\n", text=True, check=True
    )
    source = added(server, image)
    first, second = dirty(tmp_path / "first", 8 * MIB), dirty(tmp_path / "second", 8 * MIB)

    def primed(disk: Disk, *others: Disk) -> int:
        order = one(
            source, disk=f"path:{disk.path}", keep=tuple(f"path:{other.path}" for other in others)
        )
        return cprime.prime(
            order, [*others, disk], lambda *_: None, QUICK, bios=True
        ).disk_signature

    one_of = primed(first)
    other = primed(second, first)
    assert len({one_of, other, 0}) == 3
    assert (tmp_path / "second").read_bytes()[440:444] == other.to_bytes(4, "little")
    assert "No problems found" in output("/usr/sbin/sgdisk", "-v", tmp_path / "second")
    assert run(one(source), first).disk_signature == 0, "UEFI goes by boot entries"


def test_a_disk_that_the_bios_cannot_start_is_refused_before_anything_is_erased(
    server: Server, tmp_path: Path
) -> None:
    image_file(tmp_path / "image", 2 * MIB)
    disk = replace(dirty(tmp_path / "disk", 4 * MIB), bootable=False)
    before = (tmp_path / "disk").read_bytes()
    with pytest.raises(PrimeError, match=r"BIOS does not offer .*/disk to start a system from"):
        run(one(added(server, tmp_path / "image")), disk)
    assert (tmp_path / "disk").read_bytes() == before


def test_the_plan_is_printed_and_nothing_is_touched(server: Server, tmp_path: Path) -> None:
    image_file(tmp_path / "image", 2 * MIB)
    source = added(server, tmp_path / "image")
    dirty(tmp_path / "disk", 2 * MIB)
    before = (tmp_path / "disk").read_bytes()
    (tmp_path / "order.xml").write_bytes(encode(one(source)))
    command = [
        sys.executable,
        "-m",
        "trampoline.cprime",
        "--order",
        tmp_path / "order.xml",
        "--disk",
        tmp_path / "disk",
        "--dry-run",
    ]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f"erase {tmp_path / 'disk'} ({2 * MIB} bytes)" in printed
    assert source.url in printed
    assert (tmp_path / "disk").read_bytes() == before


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("cat > {disk}", ""),
        ("echo first; echo nothing works >&2; exit 3", "failed with status 3: nothing works"),
        ("head -c 10 > {disk}; echo no more >&2; exit 1", "failed with status 1: no more"),
    ],
)
@pytest.mark.parametrize("form", ["chunks", "gzip"])
def test_a_program_of_its_own_installs_the_image(
    server: Server, tmp_path: Path, body: str, words: str, form: str
) -> None:
    content = image_file(tmp_path / "image", 3 * MIB + 5)
    source = (
        added(server, tmp_path / "image")
        if form == "chunks"
        else elsewhere(server, content, "gzip")
    )
    program = f"#!/bin/sh\n{body.format(disk='$1')}\n".encode()
    (server.root / "program").write_bytes(program)
    source = replace(
        source,
        installer=f"{server.url}/program",
        installer_digest=hashlib.sha256(program).hexdigest(),
    )
    disk = dirty(tmp_path / "disk", 4 * MIB)
    if words:
        assert words in failure(one(source), disk)
        return
    run(one(source), disk)
    assert (tmp_path / "disk").read_bytes() == content
    wrong = replace(source, installer_digest="0" * 64)
    assert "bad checksum: the installer" in failure(one(wrong), dirty(tmp_path / "disk", 4 * MIB))


# ---------------------------------------------------------------- qcow2


def qcow2(
    server: Server, tmp_path: Path, *options: str, cluster: int = 65536
) -> tuple[ImageSource, bytes]:
    content = image_file(tmp_path / "image", 9 * MIB + 512, used=0.2)
    subprocess.run(
        [
            "qemu-img",
            "convert",
            "-f",
            "raw",
            "-O",
            "qcow2",
            *options,
            "-o",
            f"cluster_size={cluster}",
            tmp_path / "image",
            server.root / "image",
        ],
        check=True,
    )
    served = (server.root / "image").read_bytes()
    return (
        ImageSource(
            "disk",
            f"{server.url}/image",
            "raw",
            hashlib.sha256(served).hexdigest(),
            len(content),
            "qcow2",
        ),
        content,
    )


@pytest.mark.parametrize("options", [(), ("-c",)])
@pytest.mark.parametrize("cluster", [512, 65536, 2 * MIB])
@pytest.mark.parametrize("wipe", [True, False])
def test_a_qcow2_file_is_unpacked_while_it_comes(
    server: Server, tmp_path: Path, options: tuple[str, ...], cluster: int, wipe: bool
) -> None:
    source, content = qcow2(server, tmp_path, *options, cluster=cluster)
    run(one(source, wipe=wipe, verify=True), dirty(tmp_path / "disk", 10 * MIB))
    assert (tmp_path / "disk").read_bytes()[: len(content)] == content


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        ("digest", "bad checksum"),
        ("size", "were ordered"),
        ("cut", "short image"),
        ("backing", "not a qcow2 file"),
        ("flip", "bad checksum"),
    ],
)
def test_bad_qcow2_files(server: Server, tmp_path: Path, harm: str, words: str) -> None:
    source, _ = qcow2(server, tmp_path)
    file = server.root / "image"
    content = bytearray(file.read_bytes())
    if harm == "digest":
        source = replace(source, digest="0" * 64)
    if harm == "size":
        source = replace(source, size=source.size - 512)
    if harm == "cut":
        del content[len(content) // 2 :]
    if harm == "backing":
        content[15] = 200
    if harm == "flip":
        content[-100] ^= 1
    file.write_bytes(content)
    assert words in failure(one(source), dirty(tmp_path / "disk", 10 * MIB))


def test_a_download_goes_on_further_ahead(server: Server) -> None:
    """Near by on the same connection, further on by another request."""
    content = random.Random(1).randbytes(3 * BLOCK)
    (server.root / "file").write_bytes(content)
    download, read = Download(f"{server.url}/file", Patience()), bytearray(10)
    for place in (0, 1000, 2 * BLOCK):
        download.skip_to(place)
        assert download.fill(memoryview(read)) == len(read)
        assert read == content[place : place + len(read)]
    download.close()
    assert [asked for _, asked in server.seen] == ["", f"bytes={2 * BLOCK}-"]
