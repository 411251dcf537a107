"""Secrets in files: who may read them, and that several processes make one key."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cod.security import secretfile
from cod.security.secretfile import Unreadable


def written(path: Path, content: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("content", [b"s3cret", b"s3cret\n", b"s3cret\r\nmore\n"])
def test_the_first_line_counts(tmp_path: Path, content: bytes) -> None:
    assert secretfile.first_line(written(tmp_path / "p", content)) == "s3cret"


@pytest.mark.parametrize(
    ("content", "mode", "words"),
    [
        (b"x\n", 0o640, "mode 0640"),
        (b"x\n", 0o604, "chmod 600"),
        (b"", 0o600, "nothing in its first line"),
        (b"\nx", 0o600, "nothing in"),
        (b"\xff\n", 0o600, "not UTF-8"),
        (b"a\0b", 0o600, "nothing in"),
    ],
)
def test_what_cannot_be_used_says_why_and_does_not_show_it(
    tmp_path: Path, content: bytes, mode: int, words: str
) -> None:
    with pytest.raises(Unreadable, match=words) as caught:
        secretfile.first_line(written(tmp_path / "p", content, mode))
    assert str(tmp_path / "p") in str(caught.value)


def test_no_file_a_folder_and_a_fifo(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    for name, words in (
        ("none", "No such file"),
        (".", "Is a directory|no regular"),
        ("fifo", "no regular file"),
    ):
        with pytest.raises(Unreadable, match=words):
            secretfile.first_line(tmp_path / name)


def test_a_key_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "webhook.key"
    first = secretfile.key(path)
    assert len(first) == 32
    assert path.stat().st_mode & 0o777 == 0o600
    assert secretfile.key(path) == first
    path.unlink()
    assert secretfile.key(path) != first
    assert list(tmp_path.iterdir()) == [path]


def test_all_who_make_it_at_once_have_the_same_key(tmp_path: Path) -> None:
    for n in range(20):
        with ThreadPoolExecutor(8) as threads:
            keys = set(threads.map(lambda _, n=n: secretfile.key(tmp_path / f"k{n}"), range(8)))
        assert len(keys) == 1


@pytest.mark.parametrize("content", [b"abc\n", b"zz" * 32, b"ab" * 31])
def test_a_broken_key_is_not_replaced(tmp_path: Path, content: bytes) -> None:
    path = written(tmp_path / "k", content)
    with pytest.raises(Unreadable, match="64 hexadecimal digits"):
        secretfile.key(path)
    assert path.read_bytes() == content


def test_a_key_that_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="cannot be made"):
        secretfile.key(tmp_path / "missing" / "k")
