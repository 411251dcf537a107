"""The system of an OCI image on its way to a disk: its symbolic links lead nowhere else."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from images import disk, hello, linux, oci


@pytest.fixture
def trees(tmp_path: Path) -> tuple[Path, Path]:
    """Return a system's tree, and a folder that stands for this computer's /etc and /boot."""
    tree, host = tmp_path / "root", tmp_path / "host"
    (tree / "etc").mkdir(parents=True)
    (host / "ssh").mkdir(parents=True)
    (host / "ssh/ssh_host_ed25519_key").write_text("ours")
    (host / "kept").write_text("ours")
    return tree, host


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(each.relative_to(folder)): each.read_bytes()
        for each in folder.rglob("*")
        if each.is_file()
    }


def links(tree: Path, host: Path) -> None:
    (tree / "etc/ssh").symlink_to(host / "ssh")
    (tree / "etc/fstab").symlink_to(host / "kept")
    (tree / "run").symlink_to(host)
    (host / ".containerenv").write_text("ours")
    (tree / "etc/selinux").mkdir()
    (tree / "etc/selinux/config").write_bytes(b"# \xff\nSELINUX=enforcing\n")
    (tree / ".autorelabel").symlink_to(host / "new")


def folders(tree: Path, host: Path) -> None:
    for name in ("etc/fstab", "etc/machine-id", ".dockerenv"):
        (tree / name).mkdir()


@pytest.mark.parametrize("hostile", [links, folders])
def test_settling_an_image_changes_nothing_of_this_computer(
    trees: tuple[Path, Path], hostile: Callable[[Path, Path], None]
) -> None:
    tree, host = trees
    hostile(tree, host)
    before = content(host)
    oci._settle(tree, "UUID=0c0d1a6e-0000-0000-0000-000000000000 / ext4 defaults 0 1\n")
    assert content(host) == before
    assert (tree / "etc/fstab").read_text().startswith("UUID=0c0d1a6e")


def test_settling_reads_no_file_of_the_image_as_a_whole(trees: tuple[Path, Path]) -> None:
    tree, _ = trees
    (tree / "etc/selinux").mkdir()
    with (tree / "etc/selinux/config").open("wb") as file:
        file.write(b"SELINUX=enforcing\n")
        file.truncate(1 << 43)
    oci._settle(tree, "UUID=0c0d1a6e-0000-0000-0000-000000000000 / ext4 defaults 0 1\n")
    assert (tree / ".autorelabel").exists()


def test_lending_a_kernel_changes_nothing_of_this_computer(
    trees: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image has names of the kernel's already, some of which lead out."""
    tree, host = trees
    tools, scratch = tmp_path / "tools", tmp_path / "scratch"
    for name in ("boot/vmlinuz-6.1", "lib/modules/6.1/kernel/a.ko"):
        (tools / name).parent.mkdir(parents=True)
        (tools / name).write_text("lent")
    (tree / "boot").mkdir()
    for name in ("vmlinuz-6.1", "initrd.img-6.1"):
        (tree / "boot" / name).symlink_to(host / "kept")
    (tree / "lib").symlink_to("/usr/lib")
    (tree / "usr/lib/modules/6.1/old").mkdir(parents=True)
    before = content(host)
    monkeypatch.setattr(hello, "early", lambda *_: {})
    monkeypatch.setattr(linux, "ramdisk", lambda *_, **__: b"ramdisk")
    scratch.mkdir()
    kernel = oci._lend_kernel(tree, scratch, tools)
    assert kernel == ("6.1", "boot/vmlinuz-6.1", "boot/initrd.img-6.1")
    oci._lend_ramdisk(tree, tools, kernel)
    assert content(host) == before
    assert (tree / "boot/initrd.img-6.1").read_text() == "ramdisk"
    assert "kernel/a.ko" in content(tree / "usr/lib/modules/6.1")
    assert not (tree / "usr/lib/modules/6.1/old").exists()


@pytest.mark.slow
def test_a_system_of_many_small_files_finds_room(tmp_path: Path) -> None:
    """A file system of this size has 2048 inodes if nobody says otherwise."""
    tree, image = tmp_path / "root", tmp_path / "disk.img"
    for number in range(50):
        (tree / str(number)).mkdir(parents=True)
        for name in range(50):
            (tree / str(number) / str(name)).touch()
    disk.ext4_from(image, 0, 8, tree, "root", "0c0d1a6e-0000-4000-8000-000000000000", 2700)
    told = subprocess.run(["dumpe2fs", "-h", image], capture_output=True, text=True, check=True)
    assert int(told.stdout.partition("Inode count:")[2].split()[0]) > 2600
