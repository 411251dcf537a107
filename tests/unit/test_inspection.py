"""What is found on a disk image before it is added: an initramfs's drivers, makers' layouts by
small disks, warnings, and a template."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from click.testing import CliRunner

from cod.cli.root import cod
from cod.cli.server import image_sources
from cod.cli.server.image_sources import template_for
from cod.policy.nodes import template
from images import inspection
from tests.system import maker_layouts
from trampoline.recipe import cpio

ALL = ("ext4", "xfs", "btrfs", "dm-mod", *inspection.DISKS)
PROGRAMS = ("grub-fstest", "mkfs.xfs", "mkfs.btrfs", "lvcreate")
needs_tools = pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, PROGRAMS)),
    reason=f"root mounts the disks; and {', '.join(PROGRAMS)} make and read them",
)


def initramfs(*modules: str, pack: Callable[[bytes], bytes] = zstandard.compress) -> bytes:
    """Return an initramfs with these modules, and microcode in front that is not compressed."""
    early = cpio.archive({"kernel/x86/microcode/GenuineIntel.bin": cpio.file(b"x" * 700)})
    files = {f"usr/lib/modules/6.1/kernel/{name}.ko.xz": cpio.file(b"m") for name in modules}
    return early + bytes(512) + pack(cpio.archive(files | {"init": cpio.file(b"#!")}))


@pytest.mark.parametrize(
    "pack", [bytes, gzip.compress, zstandard.compress, lambda data: lzma.compress(data)]
)
def test_the_drivers_of_an_initramfs_are_found(pack: Callable[[bytes], bytes]) -> None:
    assert inspection.drivers(initramfs("nvme", "dm-mod", pack=pack)) == {"nvme", "dm_mod"}


@pytest.mark.parametrize(
    "data", [b"", b"\x04\x22\x4d\x18 lz4", initramfs("a")[:-9], b"\x1f\x8b" + bytes(99), b"rubbish"]
)
def test_of_what_cannot_be_read_nothing_is_said(data: bytes) -> None:
    assert inspection.drivers(data) is None


def test_a_bomb_is_unpacked_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "LIMIT", 1 << 20)
    assert inspection.drivers(gzip.compress(bytes(8 << 20))) is None


@pytest.mark.parametrize(
    ("limit", "value", "said"),
    [("SECONDS", -1, "takes longer"), ("SPARE", 1 << 62, "does not fit")],
)
def test_a_bomb_of_a_disk_ends(
    limit: str, value: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection, limit, value)
    monkeypatch.setattr(shutil, "which", lambda _: "grub-fstest")
    (tmp_path / "disk.gz").write_bytes(gzip.compress(bytes(4 << 20)))
    with pytest.raises(inspection.BadFile, match=said):
        inspection.inspect(tmp_path / "disk.gz")


def test_an_archive_that_lies_about_its_sizes_ends() -> None:
    whole = cpio.archive({"a.ko": cpio.file(b"x")})
    lies = [(94, b"zzzzzzzz"), (54, b"FFFFFFFF"), (94, b"-0000074"), (54, b"-0000078")]
    for at, lie in lies:
        told = inspection.drivers(whole[:at] + lie + whole[at + 8 :])
        assert told in ({"a"}, set(), None)


def test_many_archives_are_read_in_one_go() -> None:
    """The bytes that are copied or searched grow with the file, not with its square."""
    copied = [0]

    class Counted(bytes):
        def __getitem__(self, key: Any) -> Any:
            found = super().__getitem__(key)
            copied[0] += len(found) if isinstance(key, slice) else 1
            return Counted(found) if isinstance(key, slice) else found

        def lstrip(self, *words: Any) -> Any:
            return Counted(super().lstrip(*words))

    data = cpio.archive({"a.ko": cpio.file(b"x")}) * 500
    assert inspection.drivers(Counted(data)) == {"a"}
    assert copied[0] < 2 * len(data)


@needs_tools
def test_a_file_that_says_it_is_endless_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tree").mkdir()
    with (tmp_path / "tree/large").open("wb") as file:
        file.write(b"a")  # GRUB reads no file that is a hole alone
        file.truncate(1 << 40)
    (tmp_path / "tree/small").write_bytes(b"a" * 999)
    disk = tmp_path / "disk.img"
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-d", tmp_path / "tree", disk, "8M"], check=True)
    assert inspection._RawImage(disk)._grub("cat", "(loop0)/small") == b"a" * 999
    assert inspection._RawImage(disk)._grub("cat", "(loop0)/large") == b""
    monkeypatch.setattr(inspection, "SECONDS", 0)
    with pytest.raises(inspection.BadFile, match="took more than 0 min"):
        inspection._RawImage(disk)._grub("cat", "(loop0)/large", most=1 << 34)


@pytest.fixture
def tree(tmp_path: Path) -> Callable[..., Path]:
    def make(*modules: str, without: tuple[str, ...] = ()) -> Path:
        files = {
            "etc/os-release": b'PRETTY_NAME="Example Linux 9"\n',
            "etc/passwd": b"",
            "etc/ssh/moduli": b"",
            "usr/bin/bash": b"",
            "usr/bin/cloud-init": b"",
            "usr/sbin/sshd": b"",
            "usr/sbin/rpc.gssd": b"",
            "usr/lib64/sssd/libsss_krb5.so": b"",
            "etc/selinux/config": b"# comment\nSELINUX=enforcing\n",
            "etc/default/grub": b"",
            "etc/network/interfaces": b"",
            "boot/vmlinuz-6.1": b"kernel",
            "boot/initrd.img-6.1": initramfs(*modules),
            "lib/modules/6.1/modules.builtin": b"kernel/drivers/scsi/sd_mod.ko\n",
            "lib/modules/6.1/modules.dep": "".join(
                f"kernel/{each}.ko.xz:\n" for each in inspection.CARDS if each not in without
            ).encode(),
        }
        root = tmp_path / "tree"
        for name, content in files.items():
            if name not in without:
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_bytes(content)
        return root

    return make


GRUB = b"GRUB \0Geom\0Hard Disk\0"
BOOT_IMG = bytes(0x5A) + b"\0\x80" + (34).to_bytes(8, "little") + bytes(284) + GRUB


@pytest.mark.parametrize(
    ("code", "signature", "starts"),
    [
        pytest.param(b"", b"\x55\xaa", False, id="a protective MBR"),
        pytest.param(b"\xfa\x31\xc0", b"\x55\xaa", True, id="another loader"),
        pytest.param(b"\xfa\x31\xc0", b"\0\0", False, id="a sector no BIOS starts"),
        pytest.param(b"This is not a bootable disk.", b"\x55\xaa", False, id="a FAT's own"),
        pytest.param(BOOT_IMG, b"\x55\xaa", True, id="GRUB"),
        pytest.param(b"\xeb\x48".ljust(384, b"\x90") + GRUB, b"\x55\xaa", True, id="GRUB Legacy"),
        pytest.param(
            BOOT_IMG.replace((34).to_bytes(8, "little"), b"\xff" * 8),
            b"\x55\xaa",
            False,
            id="GRUB whose second stage is nowhere",
        ),
    ],
)
def test_only_a_loader_starts_a_disk_on_bios(code: bytes, signature: bytes, starts: bool) -> None:
    disk = code.ljust(510, b"\0") + signature + bytes(33 * 512) + b"core".ljust(512, b"\0")
    assert inspection.starts_on_bios(lambda length, at: disk[at : at + length]) is starts


def test_grub_without_its_second_stage_starts_nothing() -> None:
    disk = BOOT_IMG.ljust(510, b"\0") + b"\x55\xaa" + bytes(40 * 512)
    assert not inspection.starts_on_bios(lambda length, at: disk[at : at + length])


@needs_tools
@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "root", "content", "boot"),
    [
        ("rocky", "(loop0,gpt4)", "xfs", "(loop0,gpt2)"),
        ("rocky-lvm", "(lvm/rocky-root)", "xfs", "(loop0,gpt2)"),
        ("ubuntu", "(loop0,gpt1)", "ext", "(loop0,gpt16)"),
        ("opensuse", "(loop0,gpt3)/@", "btrfs", "(loop0,gpt3)/@/boot"),
    ],
)
def test_makers_layouts_are_recognised(
    tmp_path: Path,
    tree: Callable[..., Path],
    layout: str,
    root: str,
    content: str,
    boot: str,
) -> None:
    image = tmp_path / "disk.img"
    maker_layouts.make(layout, tree(*ALL), tmp_path, image)
    found = inspection.inspect(image)
    assert (found["root"], found["root_content"], found["boot"]) == (root, content, boot)
    assert (found["system"], found["selinux"], found["loader_entries"]) == (
        "Example Linux 9",
        "enforcing",
        1,
    )
    assert found["kerberos"] == ["nfs", "sssd"]
    assert [each["release"] for each in found["kernels"]] == ["6.1"]
    assert found["warnings"] == [
        "No firmware boots it: there is no boot code in the MBR and no EFI/BOOT on an ESP."
    ]
    parts = {each["number"]: each["content"] for each in found["partitions"]}
    kinds = {"vfat": "fat", "ext4": "ext"}
    assert parts == {
        part.number: kinds.get(part.kind, part.kind) if part.kind != "vfat" else ""
        for part in maker_layouts.LAYOUTS[layout]
    }


@needs_tools
@pytest.mark.slow
def test_a_system_for_one_machine_alone_is_warned_of(
    tmp_path: Path, tree: Callable[..., Path]
) -> None:
    """An initramfs with the build machine's drivers, as dracut makes it; and of a kernel for
    virtual machines, as Ubuntu's linux-virtual."""
    image = tmp_path / "disk.img"
    lacking = ("usr/sbin/sshd", "usr/bin/cloud-init", "bnxt_en", "mlx5_core")
    maker_layouts.make("rocky-lvm", tree("virtio_blk", "dm-mod", without=lacking), tmp_path, image)
    warned = "\n".join(inspection.inspect(image)["warnings"])
    assert "has no xfs, which the root needs: no node starts it" in warned
    assert "has no drivers ahci, megaraid_sas, mpt3sas, nvme: a node" in warned, (
        "sd_mod is built in"
    )
    assert "dracut --force --no-hostonly" in warned
    assert "has no drivers bnxt_en, mlx5_core: a node with such a network card" in warned
    assert "no cloud-init" in warned
    assert "no OpenSSH" in warned

    done = CliRunner().invoke(cod, ["image", "inspect", str(image), "--json"])
    assert done.exit_code == 1
    assert json.loads(done.stdout)["root_content"] == "xfs"
    assert "warning: The initramfs of kernel 6.1 has no xfs" in done.stderr


@needs_tools
@pytest.mark.slow
def test_an_initramfs_without_a_driver_is_warned_of(
    tmp_path: Path, tree: Callable[..., Path]
) -> None:
    image = tmp_path / "disk.img"
    maker_layouts.make("ubuntu", tree(), tmp_path, image)
    warned = "\n".join(inspection.inspect(image)["warnings"])
    assert "has no ext4, which the root needs: no node starts it" in warned


@needs_tools
def test_a_disk_is_told_in_words(tmp_path: Path) -> None:
    """Nothing of these disks is called 'NONE' or 'FULL'."""
    image = tmp_path / "disk.img"
    with image.open("wb") as made:
        made.truncate(1 << 20)
    assert "1.0 MiB, no partition table" in shown_of(image)
    entries = [struct.pack("<B3sB3sII", 0, b"", 0x83, b"", n * 256, 256) for n in (1, 2, 3, 4)]
    with image.open("r+b") as made:
        made.write(bytes(446) + b"".join(entries) + b"\x55\xaa")
    assert "1.0 MiB, MBR whose four partitions are taken" in shown_of(image)
    disk = {"size": 512, "table": "gpt", "partitions": [], "firmware": ["bios", "uefi"]}
    assert "BIOS and UEFI" in shown_of(image, disk | {"warnings": []})


def shown_of(image: Path, facts: dict[str, Any] | None = None) -> str:
    with pytest.MonkeyPatch.context() as patch:
        if facts is not None:
            patch.setattr(image_sources, "facts_of", lambda file: facts)
        done = CliRunner().invoke(cod, ["image", "inspect", str(image)])
    assert not done.exit_code, done.output
    return " ".join(done.stdout.split())


def facts(**more: Any) -> dict[str, Any]:
    return {
        "size": 2 << 30,
        "firmware": ["bios", "uefi"],
        "system": "Rocky <9>",
        "root": "(loop0,gpt4)",
        "cloud_init": True,
        "ssh_server": True,
        **more,
    }


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"firmware": ["uefi"]},
        {"root": "(lvm/rocky-root)"},
        {"kerberos": ["kinit", "nfs", "sssd"]},
        {"kerberos": ["kinit", "nfs"]},
        {"cloud_init": False, "ssh_server": False},
    ],
)
def test_the_template_for_a_disk_is_valid(more: dict[str, Any]) -> None:
    text = template_for("rocky-9", facts(**more))
    found = template.parse(text)
    assert ("lvextend" in text) == ("root" in more)
    assert ("uefi" in text) == ("firmware" in more)
    assert bool(found.seed) != ("cloud_init" in more)
    assert found.kerberos == ("sssd" in more.get("kerberos", ())), "its nodes would hang otherwise"


def test_the_systems_name_holds_no_command_for_a_terminal_or_a_parser() -> None:
    text = template_for("rocky-9", facts(system="Rocky\x1b[2J\x00 9"))
    assert template.parse(text).description == "Rocky [2J  9"


def test_nothing_is_said_of_a_disk_without_a_system() -> None:
    assert [*inspection.warnings([], {})] == []


def test_a_disk_that_boots_a_system_that_is_not_known_is_warned_of() -> None:
    (said,) = inspection.warnings(["bios"], {})
    assert "No system is found" in said


@pytest.mark.parametrize(
    ("script", "said"),
    [("exit 1", "does not read the image"), ("kill -SEGV $$", "ended by signal 11")],
)
def test_a_tool_that_fails_is_not_taken_for_a_disk_without_a_system(
    script: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool, disk = tmp_path / "grub-fstest", tmp_path / "disk"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    disk.write_bytes(bytes(1 << 20))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(inspection.BadFile, match=said):
        inspection.inspect(disk)
