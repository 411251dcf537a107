"""Which file a name from the network means."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cod.net.bootfiles import BootFiles, NoSuchFile


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "boot"
    (root / "sub").mkdir(parents=True)
    (root / "sub" / "file").write_bytes(b"inside")
    (root / "near").symlink_to("sub/file")
    (root / "far").symlink_to(tmp_path / "outside")
    (root / "farther").symlink_to("/etc")
    (tmp_path / "outside").write_bytes(b"outside")
    (tmp_path / "boot2").mkdir()
    (tmp_path / "boot2" / "file").write_bytes(b"a neighbour whose name begins alike")
    (root / "alike").symlink_to("../boot2/file")
    os.mkfifo(root / "fifo")
    return root


@pytest.mark.parametrize("name", ["sub/file", "/sub/file", "//sub///file", "./sub/./file", "near"])
def test_inside(root: Path, name: str) -> None:
    assert BootFiles(root).open(name).read() == b"inside"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/",
        ".",
        "..",
        "../outside",
        "sub/../../outside",
        "sub/../sub/file",
        "far",
        "farther/passwd",
        "alike",
        "sub",
        "fifo",
        "sub\\file",
        "sub/file\0",
        "sub/file\0.txt",
        "nothing",
        "sub/file/x",
        "x" * 300,
        "x/" * 300,
        "\udcff",
        "\u2025/outside",
    ],
)
def test_outside_or_nothing(root: Path, name: str) -> None:
    with pytest.raises(NoSuchFile):
        BootFiles(root).open(name)


def test_a_root_reached_by_a_link_is_a_root(root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("boot")
    assert BootFiles(tmp_path / "link").open("near").read() == b"inside"


def test_readers_share_a_file_until_it_is_replaced(root: Path) -> None:
    files = BootFiles(root)
    first, second = files.open("near"), files.open("sub/file")
    assert first is second
    (root / "new").write_bytes(b"newer!")
    os.replace(root / "new", root / "sub" / "file")
    third = files.open("near")
    assert third is not first
    assert third.etag != first.etag
    assert (first.read(), third.read()) == (b"inside", b"newer!")


def test_files_are_closed_with_their_last_reader(root: Path) -> None:
    opened = BootFiles(root).open("near")
    fd = opened.fd
    view = opened.view()
    assert bytes(view) == b"inside"
    del opened
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_file_that_is_opened_again_is_not_looked_for_again(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, looked = BootFiles(root), []
    real = os.path.realpath

    def counted(path: str) -> str:
        looked.append(path)
        return real(path)

    monkeypatch.setattr(os.path, "realpath", counted)
    assert files.open("near").read() == b"inside"
    assert files.open("near").read() == b"inside"
    assert len(looked) == 1
    (root / "near").unlink()
    (root / "near").symlink_to(tmp_path / "outside")
    with pytest.raises(NoSuchFile):
        files.open("near")
    (root / "near").unlink()
    (root / "near").write_bytes(b"newer")
    assert files.open("near").read() == b"newer"
    assert len(looked) == 3


def test_a_file_that_is_swapped_while_it_is_opened_again_is_looked_for_again(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = BootFiles(root)
    assert files.open("near").read() == b"inside"
    stat, links = os.stat, [tmp_path / "outside"]

    def swapping(path: str, **how: bool) -> os.stat_result:
        about = stat(path, **how)
        for target in links:
            (root / "near").unlink()
            (root / "near").symlink_to(target)
        links.clear()
        return about

    monkeypatch.setattr(os, "stat", swapping)
    with pytest.raises(NoSuchFile):
        files.open("near")


@pytest.mark.parametrize("kept", [True, False])
def test_a_file_that_was_moved_out_is_not_served_through_a_link(
    root: Path, tmp_path: Path, kept: bool
) -> None:
    files, name = BootFiles(root), "swapped"
    (root / name).write_bytes(b"inside")
    opened = files.open(name)
    if not kept:
        del opened
    (root / name).rename(tmp_path / "elsewhere")
    (root / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NoSuchFile):
        files.open(name)


def test_few_files_are_known(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cod.net.bootfiles.MOST_INSIDE", 2)
    files = BootFiles(root)
    for number in range(4):
        (root / f"n{number}").write_bytes(b"%d" % number)
        assert files.open(f"n{number}").read() == b"%d" % number
    assert len(files._inside) == 2
