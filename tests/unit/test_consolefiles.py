"""The files of consoles: one row of bytes in stretches, none of two holders, never more than they
may take."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cod import consolefiles as files
from cod.consolefiles import State

SIZE = 1000


def put(root: Path, data: bytes, tenure: str = "free", node: int = 7, size: int = SIZE) -> None:
    files.append(root, node, tenure, data, size)


def got(
    root: Path,
    tenure: str | None = None,
    since: int | None = None,
    most: int = 10**6,
    node: int = 7,
) -> bytes:
    return files.read(root, node, tenure, since, most).data


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "consoles"


def test_what_is_put_down_can_be_read(root: Path) -> None:
    put(root, b"one ")
    put(root, b"two")
    piece = files.read(root, 7, None, None, 100)
    assert (piece.start, piece.data, piece.first, piece.end) == (0, b"one two", 0, 7)
    assert piece.at == pytest.approx(os.stat(next((root / "7").glob("*.log"))).st_mtime)
    assert got(root, most=3) == b"two"
    assert files.read(root, 7, None, None, 3).start == 4


def test_of_a_node_that_never_said_anything_there_is_nothing(root: Path) -> None:
    assert files.read(root, 8, None, None, 100) == files.Piece(0, b"", 0, 0, 0, None)
    assert files.read(root, 8, "free", 50, 100) == files.Piece(0, b"", 0, 0, 0, None)
    assert files.noted(root, 8) is None


def test_each_holder_reads_their_own_stretch(root: Path) -> None:
    put(root, b"nobody's ")
    put(root, b"first's ", "v1-5")
    put(root, b"nobody's again ")
    put(root, b"second's", "v1-9")
    assert got(root) == b"nobody's first's nobody's again second's"
    assert got(root, "v1-5") == b"first's "
    assert got(root, "v1-9") == b"second's"
    assert got(root, "v2-5") == b""
    own = files.read(root, 7, "v1-9", 0, 100)
    assert (own.start, own.first, own.end, own.data) == (32, 32, 40, b"second's")
    assert got(root, "v1-5", since=12) == b"st's "
    assert got(root, "v1-5", since=12, most=2) == b"st"


def test_what_is_anothers_between_is_passed_over(root: Path) -> None:
    """Pass over what is heard first when the server begins anew: it is nobody's."""
    for data, tenure in (
        (b"one ", "v1-5"),
        (b"doubtful ", "free"),
        (b"two ", "v1-5"),
        (b"again ", "free"),
        (b"three", "v1-5"),
    ):
        put(root, data, tenure)
    whole = files.read(root, 7, "v1-5", 0, 100)
    assert (whole.start, whole.data, whole.stop, whole.end) == (0, b"one two three", 28, 28)
    last = files.read(root, 7, "v1-5", None, 7)
    assert (last.start, last.data, last.stop) == (15, b"o three", 28)
    for most in range(1, 14):
        seen, at = b"", 0
        while at < 28:
            piece = files.read(root, 7, "v1-5", at, most)
            assert 0 < len(piece.data) <= most
            seen, at = seen + piece.data, piece.stop
        assert seen == b"one two three"
        assert files.read(root, 7, "v1-5", None, most).data == b"one two three"[-most:]
    assert files.read(root, 7, "v1-5", 28, 10).data == b""
    assert files.read(root, 7, "v1-5", 6, 10).data == b"two three"
    assert got(root) == b"one doubtful two again three"


def test_nobody_else_can_read_the_files(root: Path) -> None:
    before = os.umask(0)
    try:
        put(root, b"secret")
        files.note(root, 7, State("lost", "why", 1.0))
    finally:
        os.umask(before)
    assert [root.stat().st_mode & 0o777, (root / "7").stat().st_mode & 0o777] == [0o750, 0o750]
    assert {each.stat().st_mode & 0o777 for each in (root / "7").iterdir()} == {0o640}


def test_a_link_in_place_of_a_file_is_not_followed(root: Path, tmp_path: Path) -> None:
    put(root, b"x")
    file = next((root / "7").glob("*.log"))
    file.unlink()
    (tmp_path / "precious").write_bytes(b"")
    file.symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic link"):
        put(root, b"y")
    assert (tmp_path / "precious").read_bytes() == b""


def test_follow(root: Path) -> None:
    """Whoever names where they have come to gets what came since, and nothing twice, whatever was
    begun or deleted."""
    seen, at = b"", 0
    for turn in range(40):
        put(root, f"turn {turn} {'x' * 90}\n".encode(), "free" if turn < 20 else "v3-1")
        piece = files.read(root, 7, None, at, 10**6)
        assert piece.start == at
        seen, at = seen + piece.data, piece.stop
    assert [line.split()[1] for line in seen.splitlines()] == [
        str(turn).encode() for turn in range(40)
    ]
    old = files.read(root, 7, None, 0, 10**6)
    assert old.start == old.first > 0, (
        "the oldest has gone, and what is given begins with what is left"
    )
    assert seen.endswith(old.data)
    assert got(root, since=10**9) == old.data, "a count that it never came to"


@settings(max_examples=20)
@given(
    parts=st.lists(
        st.tuples(st.sampled_from(["free", "v1-1", "v2-2"]), st.integers(1, 700)), max_size=40
    )
)
def test_a_node_never_takes_more_than_two_files(
    tmp_path_factory: pytest.TempPathFactory, parts: list[tuple[str, int]]
) -> None:
    root, total = tmp_path_factory.mktemp("r") / "consoles", 0
    for tenure, length in parts:
        put(root, b"." * length, tenure)
        total += length
        kept = files.stretches(root / "7")
        assert sum(each.size for each in kept) <= max(2 * SIZE, length)
        assert sum(each.size for each in kept) >= min(total, SIZE - 700)
        assert [each.end for each in kept[:-1]] == [each.start for each in kept[1:]], "no gaps"
        assert kept[-1].end == total
        assert kept[-1].tenure == tenure


def test_many_short_stretches_are_not_many_files(root: Path) -> None:
    for turn in range(files.MOST_FILES + 20):
        put(root, b"x", f"v{turn}-1")
    kept = files.stretches(root / "7")
    assert len(kept) == files.MOST_FILES
    assert kept[-1].tenure == f"v{files.MOST_FILES + 19}-1"


def test_a_file_that_goes_while_it_is_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(root, b"old", "v1-1")
    put(root, b"new", "v2-2")
    kept = files.stretches(root / "7")
    kept[0].path.unlink()
    monkeypatch.setattr(files, "stretches", lambda folder: kept)
    piece = files.read(root, 7, None, 0, 100)
    assert (piece.start, piece.data) == (3, b"new")


def test_what_else_is_in_the_folder_is_passed_over(root: Path) -> None:
    put(root, b"x")
    (root / "7" / "0000000000000099.bad name.log").write_bytes(b"y")
    (root / "7" / "notes").write_bytes(b"y")
    assert got(root) == b"x"


def test_how_it_goes_is_put_down(root: Path) -> None:
    files.note(root, 7, State("lost", "the BMC does not answer", 5.0))
    files.note(root, 7, State("recording", "", 6.0))
    assert files.noted(root, 7) == State("recording", "", 6.0)
    (root / "7" / "state").write_text("{")
    assert files.noted(root, 7) is None
    (root / "7" / "state").write_text('{"x": 1}')
    assert files.noted(root, 7) is None


def test_what_is_old_goes(root: Path) -> None:
    put(root, b"a", "v1-1")
    put(root, b"b", "v2-2")
    put(root, b"c", node=8)
    put(root, b"d", node=9)
    files.note(root, 9, State("recording", "", 2000.0))
    (root / "lost+found").mkdir()
    for file, at in (("7/*v1-1*", 100), ("7/*v2-2*", 2000), ("8/*", 100), ("9/*.log", 100)):
        os.utime(next(root.glob(file)), (at, at))
    assert files.sweep(root, 1000.0) == 3
    assert sorted(each.name for each in root.iterdir()) == ["7", "9", "lost+found"]
    assert got(root) == b"b"
    assert files.noted(root, 9) is not None
    assert files.sweep(root / "none", 1000.0) == 0
