"""A captured disk comes in piece by piece: bit-exact, and whatever dies in the middle, nothing is
seen of it before."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cod.images import deposit, store
from cod.images.deposit import CaptureBusy, Deposit
from cod.images.verify import verify
from cod.model import CaptureLimits, Ingested, Refused
from cod.wire import capture, manifest
from cod.wire.manifest import CHUNK
from tests.unit.test_images import unpacked

ORDER = "7.12"


def frame(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1).compress(data)


def noise(seed: int, length: int = CHUNK) -> bytes:
    return random.Random(seed).randbytes(1000) + bytes(length - 2000) + b"x" * 1000


def piece(*chunks: tuple[int, bytes]) -> bytes:
    return b"".join(capture.pack(at, len(data), frame(data)) for at, data in chunks)


def whole(root: Path, made: Ingested, content: bytes) -> None:
    assert unpacked(root, made.digest) == content
    assert verify(root, made.digest).bad == ()
    assert made.size == len(content)
    found = manifest.decode((root / made.digest / "manifest.json").read_bytes())
    assert (found.size, found.used, found.stored) == (made.size, made.used, made.stored)
    assert {path.name for path in (root / made.digest).iterdir()} == {"manifest.json", "data.zst"}


def finish(incoming: Deposit, size: int) -> Ingested:
    made = incoming.seal(size)
    incoming.publish(made.digest)
    return made


def test_a_disk_comes_in_and_is_an_image(tmp_path: Path) -> None:
    incoming = Deposit(tmp_path, ORDER)
    assert incoming.at == 0
    assert incoming.add(piece((0, noise(1)), (2 * CHUNK, noise(2)))) == 3 * CHUNK
    assert incoming.add(piece((5 * CHUNK, noise(3, 4096)))) == 5 * CHUNK + 4096
    assert store.digests(tmp_path) == frozenset()
    made = finish(incoming, 5 * CHUNK + 4096)
    whole(tmp_path, made, noise(1) + bytes(CHUNK) + noise(2) + bytes(2 * CHUNK) + noise(3, 4096))
    assert store.digests(tmp_path) == {made.digest}
    assert [path.name for path in tmp_path.iterdir()] == [made.digest]


def test_holes_count_in_what_a_capture_may_take(tmp_path: Path) -> None:
    incoming = Deposit(tmp_path, ORDER)
    far, end = piece((1000 * CHUNK, b"x" * CHUNK)), 1001 * CHUNK
    for limits, code in (
        (CaptureLimits(disk=end - 1, room=None), "invalid"),
        (CaptureLimits(disk=end, room=10_000), "quota"),
    ):
        with pytest.raises(Refused) as refused:
            incoming.add(far, limits)
        assert refused.value.code == code
        assert (incoming.at, (incoming.folder / "data.zst").stat().st_size) == (0, 0)
        with pytest.raises(Refused) as refused:
            incoming.seal(end, limits)
        assert refused.value.code == code
    assert incoming.add(far, CaptureLimits(disk=end, room=100_000)) == end


@given(
    used=st.sets(st.integers(0, 9)),
    size=st.integers(1, 10 * CHUNK),
    crash=st.sets(st.integers(0, 9)),
    torn=st.integers(0, 60),
    twice=st.booleans(),
)
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
def test_whatever_is_used_and_wherever_it_dies(
    tmp_path_factory: pytest.TempPathFactory,
    used: set[int],
    size: int,
    crash: set[int],
    torn: int,
    twice: bool,
) -> None:
    root = tmp_path_factory.mktemp("images")
    content = bytearray(size)
    for number in used:
        if number * CHUNK < size:
            content[number * CHUNK : (number + 1) * CHUNK] = noise(
                number, max(min(CHUNK, size - number * CHUNK), 2000)
            )
    content = content[:size]
    incoming = Deposit(root, ORDER)
    number = 0
    while number * CHUNK < size:
        data = bytes(content[number * CHUNK : (number + 1) * CHUNK])
        if number * CHUNK >= incoming.at and any(data):
            incoming.add(piece((number * CHUNK, data)))
        number += 1
        if number in crash:
            crash.discard(number)
            incoming.close()
            tear(root, torn)
            incoming = Deposit(root, ORDER)
            number = incoming.at // CHUNK
    if twice:
        incoming.seal(size)
    whole(root, finish(incoming, size), bytes(content))


def tear(root: Path, count: int) -> None:
    """The machine went down: the last bytes of either file are not there, or are something else."""
    for name, length in (("data.zst", count), ("chunks", count // 2)):
        path = root / f".capture-{ORDER}" / name
        os.truncate(path, max(path.stat().st_size - length, 0))
        if name == "data.zst" and count % 3 == 0:
            with path.open("ab") as file:
                file.write(bytes(count))


def test_the_same_disk_captured_twice_is_one_folder(tmp_path: Path) -> None:
    digests = set()
    for order in (ORDER, "7.14"):
        incoming = Deposit(tmp_path, order)
        incoming.add(piece((0, noise(1))))
        digests.add(finish(incoming, CHUNK).digest)
    assert len(digests) == 1
    assert len(list(tmp_path.iterdir())) == 1


def test_a_later_order_takes_over_what_an_earlier_one_has_sent(tmp_path: Path) -> None:
    first = Deposit(tmp_path, ORDER)
    sent = piece((0, noise(1)), (2 * CHUNK, noise(2)))
    first.add(sent)
    assert first.heads == manifest.digest(capture.heads(sent))
    for other in ("7.9", "7.13", "8.1"):
        Deposit(tmp_path, other).close()
    assert deposit.earlier(tmp_path, "7.14") == ["7.13", ORDER, "7.9"]
    assert deposit.earlier(tmp_path, ORDER) == ["7.9"]
    first.hand_over("7.14")
    assert deposit.earlier(tmp_path, "7.14") == ["7.13", "7.9"]
    first.close()
    again = Deposit(tmp_path, "7.14")
    assert (again.at, again.heads) == (
        3 * CHUNK,
        first_heads := manifest.digest(capture.heads(sent)),
    )
    again.add(piece((3 * CHUNK, noise(3))))
    assert again.heads != first_heads
    whole(tmp_path, finish(again, 4 * CHUNK), noise(1) + bytes(CHUNK) + noise(2) + noise(3))


def test_an_empty_disk_is_an_image_too(tmp_path: Path) -> None:
    whole(tmp_path, finish(Deposit(tmp_path, ORDER), 3 * CHUNK + 512), bytes(3 * CHUNK + 512))


def test_an_mbr_makes_a_disk(tmp_path: Path) -> None:
    sector = bytearray(CHUNK)
    sector[446:462] = bytes.fromhex("80feffff83feffff0008000000100000")
    sector[510:512] = b"\x55\xaa"
    for data, content in ((bytes(sector), "disk"), (noise(1), "partition")):
        incoming = Deposit(tmp_path, ORDER)
        incoming.add(piece((0, data)))
        assert finish(incoming, CHUNK).content == content


def flipped() -> bytes:
    """A piece in which a bit has changed that zstd does not miss."""
    whole = bytearray(piece((0, random.Random(4).randbytes(CHUNK))))
    whole[len(whole) // 2] ^= 1
    return bytes(whole)


BAD: dict[str, Callable[[], bytes]] = {
    "one bit": flipped,
    "cut short": lambda: piece((0, noise(1)))[:-1],
    "only a head": lambda: piece((0, noise(1)))[:20],
    "out of order": lambda: piece((CHUNK, noise(1)), (0, noise(2))),
    "twice": lambda: piece((0, noise(1)), (0, noise(1))),
    "not aligned": lambda: piece((512, noise(1))),
    "too long": lambda: piece((0, noise(1, CHUNK + 512))),
    "empty": lambda: piece((0, b"")),
    "behind a short one": lambda: piece((0, noise(1, 4096)), (CHUNK, noise(2))),
    "damaged": lambda: piece((0, noise(1))).replace(b"\x28\xb5\x2f\xfd", b"\x28\xb5\x2f\xfe"),
    "no frame": lambda: capture.pack(0, CHUNK, b"rubbish"),
    "a frame and more": lambda: capture.pack(0, CHUNK, frame(noise(1)) + b"more"),
    "another length": lambda: capture.pack(0, CHUNK, frame(noise(1, 4096))),
    "says it unpacks to much": lambda: capture.pack(0, CHUNK, frame(bytes(1 << 26))),
    "half a frame": lambda: capture.pack(0, CHUNK, frame(noise(1))[:-3]),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_piece_changes_nothing(tmp_path: Path, what: str) -> None:
    incoming = Deposit(tmp_path, ORDER)
    incoming.add(b"")
    with pytest.raises(Refused):
        incoming.add(BAD[what]())
    assert incoming.at == 0
    incoming.add(piece((0, noise(5))))
    whole(tmp_path, finish(incoming, CHUNK), noise(5))


def test_an_end_before_the_last_chunk_is_refused(tmp_path: Path) -> None:
    incoming = Deposit(tmp_path, ORDER)
    incoming.add(piece((CHUNK, noise(5, 4096))))
    for size in (0, CHUNK, CHUNK + 4095, 2 * CHUNK):
        with pytest.raises(Refused):
            incoming.seal(size)
    incoming.seal(CHUNK + 4096)
    with pytest.raises(Refused):
        Deposit(tmp_path, "7.14").seal(0)


@pytest.mark.parametrize(
    "order", ["", "1", "1.2/..", "../7.12", "1.2.3", "1.-2", "a.b", "1" * 19 + ".1"]
)
def test_an_order_is_never_a_path(tmp_path: Path, order: str) -> None:
    with pytest.raises(Refused):
        Deposit(tmp_path, order)
    assert not deposit.discard(tmp_path, order)
    assert not list(tmp_path.iterdir())


def test_what_is_being_filled_is_neither_opened_nor_discarded(tmp_path: Path) -> None:
    incoming = Deposit(tmp_path, ORDER)
    with pytest.raises(CaptureBusy):
        Deposit(tmp_path, ORDER)
    assert not deposit.discard(tmp_path, ORDER)
    assert deposit.orders(tmp_path) == {ORDER}
    store.clean(tmp_path)
    incoming.close()
    assert deposit.discard(tmp_path, ORDER)
    assert not list(tmp_path.iterdir())


def test_what_is_discarded_is_not_read_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent waits for its refusal: a disk of 100 GB would be read for minutes."""
    incoming = Deposit(tmp_path, ORDER)
    incoming.add(piece((0, noise(1))))
    incoming.close()
    monkeypatch.setattr(manifest, "digest", None)
    assert deposit.discard(tmp_path, ORDER)
    assert not list(tmp_path.iterdir())
    assert not deposit.discard(tmp_path, ORDER)


def test_a_folder_that_could_not_be_opened_is_not_busy_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", fails)
        with pytest.raises(OSError, match="No space"):
            Deposit(tmp_path, ORDER)
    Deposit(tmp_path, ORDER).close()
