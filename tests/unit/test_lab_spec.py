"""A lab's description: what is derived, what is refused; and the command line that comes of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cod.lab import accel, machine, processes, record
from cod.lab.processes import Process
from cod.lab.record import Record
from cod.lab.spec import LabDisk, LabNode, LabSpec, as_dict, completed, counted, from_dict, parse, size_of
from cod.model import Refused

TEXT = """
name = "demo"
address = "10.5.0.1/24"
[[nodes]]
name = "n1"
[[nodes]]
name = "big"
firmware = "uefi"
nic = "e1000"
memory = 1024
disks = [{ size = "4G" }, { size = "1T", bus = "nvme" }]
mac = "52:54:00:AA:BB:CC"
"""


def test_toml() -> None:
    spec = parse(TEXT)
    assert (spec.name, spec.address, [node.name for node in spec.nodes]) == ("demo", "10.5.0.1/24", ["n1", "big"])
    small, big = spec.nodes
    assert (small.firmware, small.machine, small.disks) == ("bios", "pc", (LabDisk(4 << 30, "virtio"),))
    assert (big.machine, big.mac) == ("q35", "52:54:00:aa:bb:cc")
    assert big.disks == (LabDisk(4 << 30, "virtio"), LabDisk(1 << 40, "nvme"))
    assert from_dict(json.loads(json.dumps(as_dict(spec)))) == spec


def test_identities_are_stable_and_differ_by_lab_and_node() -> None:
    nodes = [*counted("a", 2, 1).nodes, *counted("b", 2, 1).nodes]
    assert counted("a", 2, 1) == counted("a", 2, 1)
    for identity in ("mac", "uuid", "serial"):
        assert len({getattr(node, identity) for node in nodes}) == 6
    assert all(node.mac.startswith("52:54:00:") for node in nodes)
    assert [node.firmware for node in nodes[:3]] == ["bios", "bios", "uefi"]


@pytest.mark.parametrize(("text", "words"), [
    ("name = ", "not TOML"),
    ("nam = 'x'", "unknown key 'nam'"),
    ("[[nodes]]\nfirmware = 'bios'", "needs a name"),
    ("[[nodes]]\nname = 'n1'\ncolour = 'red'", "unknown key 'colour'"),
    ("[[nodes]]\nname = 'n1'\nfirmware = 'arc'", "'arc' is not one of bios, uefi"),
    ("[[nodes]]\nname = 'n1'\nnic = 'ne2000'", "'ne2000' is not one of"),
    ("[[nodes]]\nname = 'n1'\nmachine = 'isapc'", "'isapc' is not one of"),
    ("[[nodes]]\nname = 'n1'\nmemory = 16", "16 MiB"),
    ("[[nodes]]\nname = 'n1'\ncpus = 0", "0 is not between"),
    ("[[nodes]]\nname = 'n1'\ndisks = [{ size = '4 G' }]", "'4 G' is not a size"),
    ("[[nodes]]\nname = 'n1'\ndisks = [{ size = 1000 }]", "1000 is no size"),
    ("[[nodes]]\nname = 'n1'\ndisks = [{ bus = 'scsi' }]", "'scsi' is not one of"),
    ("[[nodes]]\nname = 'n1'\ndisks = [{ speed = 1 }]", "unknown key 'speed'"),
    ("[[nodes]]\nname = 'n1'\n[[nodes]]\nname = 'n1'", "same name"),
    ("[[nodes]]\nname = 'a'\nmac = '52:54:00:00:00:01'\n[[nodes]]\nname = 'b'\nmac = '52:54:00:00:00:01'", "same MAC"),
    ("name = 'Not/a/name'", "is not a name"),
    ("address = '10.77.0.1/99'", "is not an IPv4 address"),
])
def test_refusals_name_the_trouble(text: str, words: str) -> None:
    with pytest.raises(Refused, match=words):
        parse(text)


def test_sizes() -> None:
    assert [size_of(text) for text in ("512", "4k", "3M", "2G", "1T", 7)] == [512, 4096, 3 << 20, 2 << 30, 1 << 40, 7]


def device(argv: list[str], start: str) -> str:
    return next(word for word in argv if word.startswith(start))


def test_network_first_then_the_disks_in_order() -> None:
    node = completed(LabSpec("x", (LabNode("n", disks=(LabDisk(), LabDisk(1 << 30, "ahci"), LabDisk(1 << 30, "nvme"))),
                                   ))).nodes[0]
    argv = machine.command(node, 3, Path("/labs/x"), "tcg")
    assert "bootindex=1" in device(argv, "virtio-net-pci")
    assert "ifname=tap3" in device(argv, "tap,")
    assert "bootindex=2" in device(argv, "virtio-blk-pci")
    assert "bus=sata.1" in device(argv, "ide-hd")
    assert "bootindex=3" in device(argv, "ide-hd")
    assert "bootindex=4" in device(argv, "nvme")
    assert "accel=tcg" not in " ".join(argv), "QEMU refuses -accel beside -machine accel="


def test_only_uefi_with_virtio_goes_without_the_rom() -> None:
    for firmware, nic, without in (("bios", "virtio-net-pci", False), ("uefi", "virtio-net-pci", True),
                                   ("uefi", "e1000", False), ("bios", "e1000", False)):
        node = completed(LabSpec("x", (LabNode("n", firmware, nic),))).nodes[0]
        argv = machine.command(node, 0, Path("/labs/x"), "tcg")
        assert device(argv, f"{nic},").endswith(",romfile=") == without
        assert any("OVMF_CODE" in word for word in argv) == (firmware == "uefi")


def test_a_process_is_its_pid_and_its_start() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        known = processes.identify(child.pid)
        assert known is not None
        assert known.alive()
        impostor = Process(child.pid, known.start - 1)  # the pid was somebody else's before
        assert not impostor.alive()
        processes.end([impostor], grace=0.1)
        assert known.alive(), "a signal meant for an earlier owner of the pid must not arrive"
        processes.end([known], grace=10)
        assert not known.alive(), "a zombie is not alive"
    finally:
        child.kill()
        child.wait()
    assert processes.identify(child.pid) is None


def test_one_that_ignores_the_polite_signal_is_killed() -> None:
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    processes.end([identity for identity in [processes.identify(child.pid)] if identity], grace=0.1)
    assert child.wait(5) == -9
    child.stdout.close()


def test_no_namespace_holds_no_process() -> None:
    assert processes.inside("cod-lab-never-made") == []


def test_the_record_survives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COD_LAB_ROOT", str(tmp_path))
    with pytest.raises(Refused, match="no lab 'x'"):
        record.load("x")
    record.folder("x").mkdir()
    made = Record(counted("x", 1, 1), "tcg", Process(10, 20), {"n1": Process(30, 40)})
    made.save()
    assert record.load("x") == made
    assert made.processes() == [Process(10, 20), Process(30, 40)]
    assert record.names() == ["x"]
    (record.folder("x") / "lab.json").write_text("{")
    with pytest.raises(Refused, match="cannot be read"):
        record.load("x")


def test_the_accelerator_is_asked_once_a_boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COD_LAB_ACCEL", raising=False)
    asked: list[int] = []
    monkeypatch.setattr(accel, "kvm_works", lambda: bool(asked.append(1)))
    assert [accel.choose(tmp_path), accel.choose(tmp_path)] == ["tcg", "tcg"]
    assert len(asked) == 1
    (tmp_path / ".accel.json").write_text('{"boot": "another", "accel": "kvm"}')
    assert accel.choose(tmp_path) == "tcg"
    assert len(asked) == 2
    (tmp_path / ".accel.json").write_text("rubbish")
    assert accel.choose(tmp_path) == "tcg"
    monkeypatch.setenv("COD_LAB_ACCEL", "kvm")
    assert accel.choose(tmp_path) == "kvm"
    assert os.environ["COD_LAB_ACCEL"] == "kvm"
