"""An upload's file: whatever way it came in pieces, it is the file that was sent, and so is its
sha256."""

from __future__ import annotations

import hashlib
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cod.images import formats, incoming
from cod.images.incoming import Incoming, Sum, UploadBusy
from cod.model import Refused
from cod.policy.image_uploads import believed

pytestmark = pytest.mark.slow  # half a minute of processor time and more, together with its like


def opened(path: Path, offset: int | None = None, known: Sum | None = None) -> Incoming:
    file = Incoming(path, known)
    file.start(file.length if offset is None else offset)
    return file


def sha256(file: Incoming) -> str:
    while not file.sum_up():
        pass
    return file.sum.hexdigest()


def test_a_file_is_written_and_summed(tmp_path: Path) -> None:
    file = opened(tmp_path / "new" / "a")
    file.write([b"Die ", b"W\xc3\xbcrde ", b"des Menschen"])
    file.write([b""])
    file.write([b" ist unantastbar."])
    file.flush()
    assert sha256(file) == hashlib.sha256(file.head()).hexdigest()
    assert (file.end, file.sum.done) == (40, 40)
    file.close()
    assert (tmp_path / "new" / "a").read_text() == "Die Würde des Menschen ist unantastbar."
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "new" / "a").stat().st_mode & 0o777 == 0o640


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    first = opened(tmp_path / "a")
    with pytest.raises(UploadBusy):
        Incoming(tmp_path / "a")
    first.write([b"mine"])
    first.close()
    second = opened(tmp_path / "a")
    assert second.head() == b"mine"
    second.close()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    (tmp_path / "a").symlink_to(tmp_path / "secret")
    with pytest.raises(OSError, match="symbolic links"):
        Incoming(tmp_path / "a")


def test_a_piece_can_be_taken_back(tmp_path: Path) -> None:
    file = opened(tmp_path / "a")
    file.write([b"good"])
    offset, known = file.end, file.sum.copy()
    file.write([b"bad"])
    file.back(offset, known)
    file.write([b" piece"])
    assert sha256(file) == hashlib.sha256(b"good piece").hexdigest()
    assert file.head() == b"good piece"
    file.close()


def test_a_full_disk_keeps_what_went_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, real, room = opened(tmp_path / "a"), os.pwrite, 5

    def full(descriptor: int, data: Any, at: int) -> int:
        nonlocal room
        if not room:
            raise OSError(28, "No space left on device")
        count, room = min(room, len(data)), 0
        return real(descriptor, data[:count], at)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space"):
        file.write([b"0123456789"])
    monkeypatch.undo()
    assert file.end == 5
    file.write([b"56789"])
    assert sha256(file) == hashlib.sha256(b"0123456789").hexdigest()
    file.close()


def test_what_was_there_before_is_read_again_while_more_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incoming, "_BLOCK", 7)
    content = bytes(range(250))
    (tmp_path / "a").write_bytes(content[:100])
    file = opened(tmp_path / "a")
    assert file.sum.done == 0
    file.write([content[100:110]])
    assert file.sum.done == 40  # four bytes for each that comes
    file.write([content[110:250]])
    assert file.sum.done == 250
    assert file.sum.hexdigest() == hashlib.sha256(content).hexdigest()
    file.close()


def test_reading_again_is_done_in_slices(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 1000)
    with (tmp_path / "a").open("rb") as file:
        known, steps = Sum(), 1
        while not known.follow(file.fileno(), 1000, 300):
            steps += 1
        assert steps == 4
        with pytest.raises(OSError, match="shorter"):
            known.follow(file.fileno(), 1001)


def test_a_file_cut_short_is_summed_anew(tmp_path: Path) -> None:
    file = opened(tmp_path / "a")
    file.write([b"0123456789"])
    file.close()
    again = opened(tmp_path / "a", 4, file.sum)
    again.write([b"abc"])
    assert sha256(again) == hashlib.sha256(b"0123abc").hexdigest()
    assert again.head() == b"0123abc"
    again.close()


DATA = hashlib.shake_256(b"upload").digest(3000)
CUT = st.tuples(
    st.integers(0, 900),  # bytes that come before the end of this connection
    st.sampled_from(["done", "cut", "killed", "power"]),  # how it ends
    st.booleans(),
)  # is the sum still known next time


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cuts=st.lists(CUT, max_size=12), sizes=st.lists(st.integers(1, 400), min_size=1), data=st.data()
)
def test_any_sequence_of_cut_pieces_gives_the_file(
    tmp_path: Path, cuts: list[tuple[int, str, bool]], sizes: list[int], data: st.DataObject
) -> None:
    """A row's offset beside it, as `images.uploads` keeps it; a power cut leaves rubbish where
    nothing was flushed."""
    path, offset, boot, known = tmp_path / "u", 0, 0, None
    path.unlink(missing_ok=True)
    written_in = -1
    for count, end, remembered in [*cuts, (len(DATA), "done", True)]:
        file = Incoming(path, known)
        offset = min(believed(offset, str(written_in), str(boot), file.length), len(DATA))
        file.start(offset)
        written_in, until, number = boot, min(offset + count, len(DATA)), 0
        while file.end < until:
            step = min(sizes[number % len(sizes)], until - file.end)
            file.write([DATA[file.end : file.end + step]])
            number += 1
        if end in ("done", "cut"):
            file.flush()
            offset = file.end
        known = file.sum if remembered and end != "power" else None
        file.close()
        if end == "power":
            boot += 1
            with path.open("r+b") as raw:
                raw.seek(offset)
                raw.write(bytes(until - offset))
                raw.truncate(offset + data.draw(st.integers(0, until - offset)))
    last = opened(path, None, known)
    assert path.read_bytes() == DATA
    assert sha256(last) == hashlib.sha256(DATA).hexdigest()
    last.close()


def test_this_boot_has_a_name() -> None:
    assert incoming.boot_id() == incoming.boot_id()
    assert len(incoming.boot_id()) == 36


# ---------------------------------------------------------------- what a file is


def qcow2(size: int = 1 << 30, backing: int = 0, encryption: int = 0, features: int = 0) -> bytes:
    header = struct.pack(
        ">4sIQIIQI", b"QFI\xfb", 3, backing, 8 if backing else 0, 16, size, encryption
    )
    return header.ljust(72, b"\0") + struct.pack(">Q", features) + bytes(200)


@pytest.mark.parametrize(
    ("head", "found"),
    [
        (bytes(8192), ("raw", 5000)),
        (b"\x1f\x8b\x08", ("gzip", 0)),
        (b"\x28\xb5\x2f\xfd", ("zstd", 0)),
        (qcow2(), ("qcow2", 1 << 30)),
    ],
)
def test_formats_and_sizes_are_seen_from_the_beginning(head: bytes, found: tuple[str, int]) -> None:
    assert formats.look(head, 5000, 1 << 42) == found


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (qcow2(backing=512), "backing file"),
        (qcow2(encryption=2), "encrypted"),
        (qcow2(features=4), "in another file"),
        (qcow2(size=1 << 60), "at most"),
        (qcow2()[:50], "cut short"),
        (b"PK\x03\x04", "zip file"),
        (b"\xfd7zXZ\0", "xz file"),
    ],
)
def test_what_will_not_be_taken_in(head: bytes, why: str) -> None:
    with pytest.raises(Refused, match=why):
        formats.look(head, 5000, 1 << 42)


def test_a_raw_image_beyond_the_limit() -> None:
    with pytest.raises(Refused, match="at most 4999"):
        formats.look(b"", 5000, 4999)
