"""What `cod doctor` says of files: loaders, the kernel, the data folder, nodes without a driver."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cod import init
from cod.doctor.checks.boot import no_kernel, no_loader
from cod.doctor.checks.permissions import is_shared, others_files
from cod.doctor.examination import examine
from cod.security import partusers

SIZE = 20_000


def efi(machine: int) -> bytes:
    head = bytearray(SIZE)
    head[:2], head[0x3C], head[0x80:0x84] = b"MZ", 0x80, b"PE\0\0"
    head[0x84:0x86] = machine.to_bytes(2, "little")
    return bytes(head)


def kernel(paragraphs: int, size: int) -> bytes:
    head = bytearray(size)
    head[0x1F1], head[0x1FE:0x200], head[0x202:0x206] = 4, b"\x55\xaa", b"HdrS"
    head[0x1F4:0x1F8] = paragraphs.to_bytes(4, "little")
    return bytes(head)


@pytest.mark.parametrize(
    ("content", "uefi", "says"),
    [
        (efi(0x8664), True, ""),
        (efi(0xAA64), True, "for machine 0xaa64"),
        (efi(0x8664), False, "it is an EFI program"),
        (b"\xea\x05\0\xc0" + bytes(SIZE), False, ""),
        (b"\xea\x05\0\xc0" + bytes(SIZE), True, "it is no EFI program"),
        (b"<html>404" + bytes(SIZE), False, "a page of HTML"),
        (b"MZ" + bytes(100), True, "it has 102 bytes"),
        (b"MZ" + b"\xff" * SIZE, True, "it is no EFI program"),
    ],
)
def test_a_loader_is_of_the_firmware_that_loads_it(
    tmp_path: Path, content: bytes, uefi: bool, says: str
) -> None:
    file = tmp_path / "loader"
    file.write_bytes(content)
    found = no_loader(file, uefi=uefi)
    assert says in found
    assert bool(found) == bool(says)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (kernel(1000, 2560 + 16_000), ""),
        (kernel(1001, 2560 + 16_000), "is cut off: 18560 of 18576 bytes"),
        (bytes(SIZE), "its head is broken"),
        (b"x", "its head is broken"),
    ],
)
def test_a_kernel_is_whole(tmp_path: Path, content: bytes, says: str) -> None:
    file = tmp_path / "vmlinuz"
    file.write_bytes(content)
    found = no_kernel(file)
    assert says in found
    assert bool(found) == bool(says)


def test_a_data_folder_of_another_user_is_found(tmp_path: Path) -> None:
    (tmp_path / "cod.db").write_bytes(b"")
    mine = os.getuid()
    assert others_files(tmp_path, mine) is None
    assert others_files(tmp_path, None) is None
    found = others_files(tmp_path, mine + 12345)  # whom the server runs as
    assert found is not None
    assert (found.state, found.remedy) == ("bad", f"chown -R {mine + 12345}: {tmp_path}")
    assert f"{tmp_path} belongs to" in found.found


def test_files_of_parts_with_users_of_their_own_are_another_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partusers, "group_ids", lambda: {tmp_path.stat().st_gid})
    assert is_shared(tmp_path)
    assert not is_shared(tmp_path / "none")
    monkeypatch.setattr(partusers, "group_ids", set)
    assert not is_shared(tmp_path)


def test_each_check_is_told_before_it_is_made(tmp_path: Path) -> None:
    init.write_site_file(tmp_path / "site.toml", tmp_path, {})
    told: list[str] = []
    seen = [
        (told[-1], each.check)
        for each in examine(tmp_path / "site.toml", 0.0, ["clock", "loaders"], told.append)
        if told
    ]
    assert told == ["loaders", "clock"]
    assert all(last == check for last, check in seen)
