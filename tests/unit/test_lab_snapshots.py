"""Snapshots of lab machines: what makes two machines the same, which are new, what is kept."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import IO

import pytest

from cod.lab import machine, snapshots
from cod.lab.snapshots import NotRestored, Snapshot
from cod.lab.spec import LabDisk, LabNode, LabSpec, completed

OLD, NEW = "0" * 32 + " " + "a" * 64, "1" * 32 + " " + "b" * 64

pytestmark = pytest.mark.skipif(
    shutil.which(machine.QEMU) is None, reason="the version of QEMU is part of each key"
)


def node(**fields: object) -> LabNode:
    """A machine with everything derived."""
    made = replace(LabNode("n1", disks=(LabDisk(2 << 20), LabDisk(1 << 20))), **fields)
    return completed(LabSpec("rack", (made,))).nodes[0]


def key(of: LabNode, folder: str = "/a", position: int = 0) -> str:
    return snapshots.machine_key(
        of, machine.command(of, position, Path(folder), "tcg"), Path(folder)
    )


def test_a_key_is_of_the_machine_not_of_its_lab() -> None:
    assert key(node()) == key(node(), "/var/lib/b", 3)


@pytest.mark.parametrize(
    "fields",
    [
        {"memory": 513},
        {"disks": (LabDisk(2 << 20), LabDisk(2 << 20))},
        {"disks": (LabDisk(2 << 20, "ahci"), LabDisk(1 << 20))},
        {"serial": "other"},
        {"firmware": "uefi"},
    ],
)
def test_another_machine_has_another_key(fields: dict[str, object]) -> None:
    assert key(node(**fields)) != key(node())


def test_another_version_of_qemu_has_other_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = key(node())
    monkeypatch.setattr(snapshots, "_qemu_version", lambda: "another")
    assert key(node()) != ours


def test_a_systems_key_is_of_its_files_and_command_line() -> None:
    keys = [
        snapshots.system_key(line, files)
        for line in ("a", "b")
        for files in (["1", "2"], ["1", "3"], ["3", "2"])
    ]
    assert len(set(keys)) == 6


@pytest.fixture
def made(tmp_path: Path) -> Callable[[LabNode], Path]:
    """Makes a machine's files; returns their folder."""

    def make(of: LabNode) -> Path:
        for part in ("disks", "vars"):
            (tmp_path / part).mkdir()
        machine.prepare(of, tmp_path)
        return tmp_path

    return make


def test_a_machine_is_new_until_a_byte_is_on_a_disk(made: Callable[[LabNode], Path]) -> None:
    one = node()
    folder = made(one)
    assert snapshots.is_new(one, folder)
    disk = machine.disk_path(folder, one, 1)
    with open(disk, "r+b") as file:
        file.write(bytes(1 << 16))
        assert snapshots.is_new(one, folder), "zeros that take up space are zeros"
        file.seek(-1, os.SEEK_END)
        file.write(b"x")
    assert not snapshots.is_new(one, folder)


@pytest.mark.skipif(not machine.OVMF_VARS.exists(), reason="there is no OVMF")
def test_a_machine_is_new_until_its_firmware_has_kept_something(
    made: Callable[[LabNode], Path],
) -> None:
    one = node(firmware="uefi")
    folder = made(one)
    assert snapshots.is_new(one, folder)
    with open(machine.variables_path(folder, one), "ab") as file:
        file.write(b"x")
    assert not snapshots.is_new(one, folder)
    assert snapshots.has_blank_disks(one, folder)


def test_the_boots_secret_takes_the_place_of_the_recorded_one(tmp_path: Path) -> None:
    """The words are QEMU's; what they run is run here."""
    kept = kept_in(tmp_path, "k")
    kept.about.write_text(f'{{"secret": "{OLD}"}}')
    stream = b"\xff\0\n" + OLD.encode() + b"\0" * 9 + OLD.encode() + b"\xfe"
    plain = tmp_path / "stream"
    plain.write_bytes(stream)
    subprocess.run(["zstd", "-qf", plain, "-o", kept.file], check=True)
    option, uri = kept.incoming(NEW, tmp_path / "script")
    assert option == "-incoming"
    command = uri.removeprefix("exec:")
    out = subprocess.run(["sh", "-c", command], capture_output=True, check=True).stdout
    assert out == stream.replace(OLD.encode(), NEW.encode())
    assert NEW not in uri
    assert snapshots._secrets(kept.file) == [OLD]
    kept.file.write_bytes(kept.file.read_bytes()[:-3])
    assert snapshots._secrets(kept.file) == []


@pytest.mark.parametrize("secret", ["", OLD[:-1], OLD[:-1] + "/", OLD.replace(" ", "0")])
def test_a_secret_of_another_form_is_refused(tmp_path: Path, secret: str) -> None:
    kept = kept_in(tmp_path, "k")
    kept.about.write_text(f'{{"secret": "{OLD}"}}')
    with pytest.raises(NotRestored):
        kept.incoming(secret, tmp_path / "script")
    assert not (tmp_path / "script").exists()


def test_the_files_used_longest_ago_go_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "MOST_BYTES", 25)
    for number, name in enumerate(("old", "used", "new")):
        os.utime(kept_in(tmp_path, name, bytes(10)).file, (0, 1000 + number))
    stale = tmp_path / "k.1.part"
    stale.touch()
    os.utime(stale, (0, 1000))
    (tmp_path / "k.2.part").touch()
    snapshots._tidy(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "k.2.part",
        "new.json",
        "new.zst",
        "used.json",
        "used.zst",
    ]


def kept_in(folder: Path, name: str, content: bytes = b"") -> Snapshot:
    """A snapshot with that content."""
    made = Snapshot(folder, name)
    made.file.write_bytes(content)
    made.about.write_text("{}")
    return made


def test_data_behind_written_zeros_and_a_hole_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_large_blocks(path: Path, mode: str, buffering: int = 16384) -> IO[bytes]:
        return open(path, mode, buffering)

    monkeypatch.setattr(snapshots, "open", in_large_blocks, raising=False)
    path = tmp_path / "disk"
    with open(path, "wb") as file:
        file.write(bytes(4096))
        file.seek(16384)  # where the buffer ends
        file.write(b"x" * 4096)
        file.truncate(1 << 20)
    assert not snapshots.is_blank(path)


def test_the_second_of_two_that_record_one_machine_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = Snapshot(tmp_path, "key")
    for secret in (OLD, NEW):
        part = tmp_path / "key.1.part"
        part.write_text(secret)
        monkeypatch.setattr(snapshots, "_secrets", lambda file: [file.read_text()])
        assert snapshots._keep(part, snapshot, "n1")
    assert snapshot.file.read_text() == OLD
    assert OLD in snapshot.about.read_text()
