"""cprime on real block devices: loop devices, with and without the means to discard."""

from __future__ import annotations

import hashlib
import itertools
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cod.images.ingest import ingest
from cod.orders import ImageSource, Order, Partition
from tests.imageserver import Server, serving
from tests.loops import loop_device
from trampoline import cprime, wipe
from trampoline.errors import PrimeError
from trampoline.inventory import Disk
from trampoline.target import Target

pytestmark = pytest.mark.system
MIB = 1 << 20
SIZE = 48 * MIB


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "root").mkdir()
    with serving(tmp_path / "root") as server:
        yield server


@pytest.fixture
def device() -> Iterator[Disk]:
    """A loop device full of noise, in memory."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as backing:
        backing.write(os.urandom(SIZE))
        backing.flush()
        with loop_device(backing.name, "--partscan") as path:
            yield Disk(Path(path).name, path, SIZE, "ata", serial="L")


def content(disk: Disk) -> bytes:
    with open(disk.path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return file.read()


def silent(*_: object) -> None:
    pass


ZEROES = wipe.Abilities(zeroes=True, discards=False, unmaps=True)
DISCARDS = wipe.Abilities(zeroes=False, discards=True, unmaps=False)
BOTH = wipe.Abilities(zeroes=True, discards=True, unmaps=False)  # SCSI, NVMe
NEITHER = wipe.Abilities(zeroes=False, discards=False, unmaps=False)


@pytest.mark.parametrize(
    ("able", "broken", "expected", "method"),
    [
        (ZEROES, "", ["punch"], "write zeroes"),
        (ZEROES, "punch fails", ["punch", "zero"], "overwrite"),
        (DISCARDS, "", ["discard"], "discard"),
        (DISCARDS, "discard lies", ["discard", "zero"], "overwrite"),
        (DISCARDS, "discard fails", ["discard", "zero"], "overwrite"),
        (BOTH, "", ["punch", "discard"], "write zeroes, discard"),
        (BOTH, "punch fails", ["punch", "zero", "discard"], "overwrite, discard"),
        (BOTH, "discard fails", ["punch", "discard", "zero"], "overwrite"),
        (BOTH, "discard shows other data", ["punch", "discard", "zero"], "overwrite"),
        (NEITHER, "", ["zero"], "overwrite"),
    ],
)
def test_every_way_of_wiping_leaves_zeros(
    device: Disk,
    monkeypatch: pytest.MonkeyPatch,
    able: wipe.Abilities,
    broken: str,
    expected: list[str],
    method: str,
) -> None:
    monkeypatch.setattr(wipe, "abilities", lambda path: able)
    calls: list[str] = []
    zero, discard, punch = Target.zero, Target.discard, Target.punch

    def zeroing(self: Target, offset: int, length: int) -> None:
        calls.append("zero")
        zero(self, offset, length)

    def punching(self: Target, offset: int, length: int) -> bool:
        calls.append("punch")
        return broken != "punch fails" and punch(self, offset, length)

    def discarding(self: Target, offset: int, length: int) -> None:
        calls.append("discard")
        if broken == "discard fails":
            raise OSError(95, "Operation not supported")
        if broken == "discard shows other data":
            self.write(memoryview(os.urandom(length)), offset)
        elif broken != "discard lies":
            discard(self, offset, length)

    monkeypatch.setattr(Target, "zero", zeroing)
    monkeypatch.setattr(Target, "punch", punching)
    monkeypatch.setattr(Target, "discard", discarding)
    told: list[tuple[int, int]] = []
    (erased,) = wipe.wipe_all([device], lambda _, done, total, rate: told.append((done, total)))
    assert not any(content(device))
    assert calls == expected
    assert told[-1] == (SIZE * able.passes,) * 2, "each pass counts: a wipe that goes on is seen to"
    assert (erased.disk, erased.serial, erased.size) == (device.name, "L", SIZE)
    assert erased.method == method
    assert erased.checked > 32 * MIB


@pytest.mark.parametrize("able", [True, False])
def test_a_purged_disk_is_erased_like_any_other(
    device: Disk, monkeypatch: pytest.MonkeyPatch, able: bool
) -> None:
    """Zero a disk whatever it reads as after its own erasure, and tell whether there was one."""

    def purging(target: Target) -> bool:
        target.write(memoryview(os.urandom(MIB)), 0)
        return able

    monkeypatch.setattr("trampoline.nvme.purge", purging)
    (erased,) = wipe.wipe_all([device], silent, purge=True)
    assert not any(content(device))
    assert erased.method == ("NVMe Format, write zeroes" if able else "write zeroes")
    (erased,) = wipe.wipe_all([device], silent)
    assert erased.method == "write zeroes"


def test_a_disk_that_sanitizes_itself_shows_as_progress(
    device: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that seems to do nothing would be given up. What failed is not counted as done."""
    shares, how = [0.0, 0.0, 0.5, 1.0], "NVMe Sanitize (block erase)"

    def sanitizing(target: Target, tell: Callable[[float], None], **_: object) -> str:
        for share in shares:
            tell(share)
        return how

    monkeypatch.setattr("trampoline.sanitize.sanitize", sanitizing)
    told: list[tuple[int, int]] = []
    (erased,) = wipe.wipe_all([device], lambda _, *step: told.append(step[:2]), purge=True)
    assert (erased.method, told[-1]) == (f"{how}, write zeroes", (2 * SIZE, 2 * SIZE))
    shares, how = [0.0, 0.5], ""
    (erased,) = wipe.wipe_all([device], lambda _, *step: told.append(step[:2]))
    assert (erased.method, told[-1]) == ("write zeroes", (SIZE + SIZE // 2,) * 2)


def test_tables_alone_are_zeroed_with_the_signatures_of_partitions(device: Disk) -> None:
    """Find what LVM, RAID and file systems are recognised by where partitions begin and end."""
    table = "label: gpt\nstart=34816, size=8192, type=linux\nstart=43008, size=16384, type=linux\n"
    subprocess.run(["sfdisk", device.path], input=table, text=True, check=True, capture_output=True)
    subprocess.run(["partx", "--update", device.path], check=True)
    before = content(device)
    (erased,) = wipe.clear_all([device], silent)
    after = content(device)
    assert erased.method == "tables alone"
    zeroed = [(0, 16), (17, 18), (20, 22), (28, 29), (32, 48)]  # MiB
    for first, last in zeroed:
        assert not any(after[first * MIB : last * MIB])
    for (_, first), (last, _) in itertools.pairwise(zeroed):
        assert after[first * MIB : last * MIB] == before[first * MIB : last * MIB]
    assert not list(Path("/sys/class/block", device.name).glob("*/partition"))


def test_a_wiped_thin_disk_gives_its_space_back(device: Disk) -> None:
    """Wipe a loop device by what the kernel says of it: its file's blocks are released."""
    backing = Path("/sys/class/block", device.name, "loop/backing_file").read_text().strip()
    assert os.stat(backing).st_blocks * 512 >= SIZE
    (erased,) = wipe.wipe_all([device], silent)
    assert erased.method == "write zeroes"
    assert not any(content(device))
    assert os.stat(backing).st_blocks == 0


def test_a_disk_that_keeps_its_data_is_not_called_wiped(
    device: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Target, "zero", silent)
    monkeypatch.setattr(Target, "punch", lambda self, offset, length: True)
    monkeypatch.setattr(Target, "discard", silent)
    with pytest.raises(PrimeError, match="still shows data at byte 0"):
        wipe.wipe_all([device], silent)


@pytest.mark.parametrize("at", [0, 16 * MIB - 1, SIZE - 1])
def test_one_byte_at_the_edges_is_seen(tmp_path: Path, device: Disk, at: int) -> None:
    with Target(device.path) as target:
        target.zero(0, SIZE)
        assert wipe.data_at(target, 64) is None
        target.write(memoryview(b"x"), at)
        assert wipe.data_at(target, 64) is not None


def test_a_disk_in_use_is_not_opened(device: Disk) -> None:
    """Open a disk that is in use as by a mount: the kernel grants O_EXCL once."""
    holder = os.open(device.path, os.O_RDWR | os.O_EXCL)
    try:
        with pytest.raises(PrimeError, match="busy"):
            wipe.wipe_all([device], silent)
    finally:
        os.close(holder)


def test_a_layout_with_a_program_for_a_partition(
    server: Server, tmp_path: Path, device: Disk
) -> None:
    root = os.urandom(3 * MIB) + bytes(2 * MIB) + os.urandom(512)
    (tmp_path / "image").write_bytes(root)
    made = ingest(tmp_path / "image", server.root, raw=True)
    program = b"#!/bin/sh\nexec cat > $1\n"
    (server.root / "program").write_bytes(program)
    digest = hashlib.sha256(program).hexdigest()
    url = f"{server.url}/{made.digest}"
    order = Order(
        "1.1",
        "prime",
        table="gpt",
        verify=True,
        seed={"meta-data": "{}\n", "user-data": "#cloud-config\n"},
        partitions=(Partition(1, 8 * MIB, "linux", "a"), Partition(2, 8 * MIB, "linux", "b")),
        images=(
            ImageSource("1", url, "chunks", made.digest, made.size),
            ImageSource(
                "2", url, "chunks", made.digest, made.size, f"{server.url}/program", digest
            ),
        ),
    )
    cprime.prime(order, [device], silent)
    found = content(device)
    assert found[MIB : MIB + len(root)] == root
    assert found[9 * MIB : 9 * MIB + len(root)] == root
    assert not any(found[MIB + len(root) : 9 * MIB])
    assert found[46 * MIB + 43 : 46 * MIB + 54] == b"CIDATA     "
