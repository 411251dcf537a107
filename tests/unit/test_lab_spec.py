"""A lab's description: what is derived, what is refused; and the command line that comes of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from cod.lab import accel, control, machine, network, processes, record
from cod.lab.commands import lab
from cod.lab.processes import Process
from cod.lab.record import Record
from cod.lab.servers import hosts
from cod.lab.servers.galera import GaleraCluster
from cod.lab.servers.mariadb import DatabaseServer
from cod.lab.spec import (
    BUSES,
    NICS,
    LabDisk,
    LabNetwork,
    LabNic,
    LabNode,
    LabSpec,
    as_dict,
    completed,
    counted,
    from_dict,
    parse,
    size_of,
)
from cod.model import Refused

TEXT = """
name = "demo"
address = "10.5.0.1/24"
snapshots = "/snapshots"
[[nodes]]
name = "n1"
[[nodes]]
name = "big"
firmware = "uefi"
nics = [{ model = "e1000", mac = "52:54:00:AA:BB:CC" }, { network = "far" }]
boot = ["nic1", "disk1"]
memory = 1024
disks = [{ size = "4G" }, { size = "1T", bus = "nvme" }]
[[networks]]
name = "far"
address = "10.6.0.1/24"
"""


def test_toml() -> None:
    spec = parse(TEXT)
    assert (spec.name, spec.address, [node.name for node in spec.nodes]) == (
        "demo",
        "10.5.0.1/24",
        ["n1", "big"],
    )
    small, big = spec.nodes
    assert (small.firmware, small.machine, small.disks) == (
        "bios",
        "pc",
        (LabDisk(4 << 30, "virtio"),),
    )
    assert (big.machine, big.macs[0]) == ("q35", "52:54:00:aa:bb:cc")
    assert big.mac == big.macs[1], "the MAC of a machine is of the NIC that boots"
    assert (small.boot, big.boot) == (("nic0", "disk0"), ("nic1", "disk1"))
    assert spec.snapshots == "/snapshots"
    assert spec.networks == (LabNetwork("far", "10.6.0.1/24"),)
    assert big.disks == (LabDisk(4 << 30, "virtio"), LabDisk(1 << 40, "nvme"))
    assert from_dict(json.loads(json.dumps(as_dict(spec)))) == spec


def test_identities_are_stable_and_differ_by_lab_and_node() -> None:
    nodes = [*counted("a", 2, 1).nodes, *counted("b", 2, 1).nodes]
    assert counted("a", 2, 1) == counted("a", 2, 1)
    for identity in ("mac", "uuid", "serial"):
        assert len({getattr(node, identity) for node in nodes}) == 6
    assert all(node.mac.startswith("52:54:00:") for node in nodes)
    assert [node.firmware for node in nodes[:3]] == ["bios", "bios", "uefi"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name = ", "not TOML"),
        ("nam = 'x'", "unknown key 'nam'"),
        ("[[nodes]]\nfirmware = 'bios'", "needs a name"),
        ("[[nodes]]\nname = 'n1'\ncolour = 'red'", "unknown key 'colour'"),
        ("[[nodes]]\nname = 'n1'\nfirmware = 'arc'", "'arc' is not one of bios, uefi"),
        ("[[nodes]]\nname = 'n1'\nnics = [{ model = 'ne2000' }]", "'ne2000' is not one of"),
        ("[[nodes]]\nname = 'n1'\nnics = []", "1 to 10 NICs"),
        ("[[nodes]]\nname = 'n1'\nnics = [{ network = 'far' }]", "'far' is not one of"),
        ("[[nodes]]\nname = 'n1'\nnics = [{ colour = 'red' }]", "unknown key 'colour'"),
        ("[[nodes]]\nname = 'n1'\nboot = ['disk1']", "'disk1' is not one of nic0, disk0"),
        ("[[nodes]]\nname = 'n1'\nboot = ['nic0', 'nic0']", "listed twice"),
        ("[[nodes]]\nname = 'n1'\nboot_kept = true", "are for UEFI"),
        (
            "[[nodes]]\nname = 'n1'\nfirmware = 'uefi'\nboot = ['nic0']\nboot_kept = true",
            "imposed or kept",
        ),
        ("[[nodes]]\nname = 'n1'\nnetboot = 'ftp'", "'ftp' is not one of any, http"),
        ("[[networks]]\naddress = '10.6.0.1/24'", "a name is missing"),
        ("[[networks]]\nname = 'a'\naddress = '10.6.0.1/40'", "is not an IPv4 address"),
        ("[[networks]]\nname = 'a'\n[[networks]]\nname = 'a'", "two networks"),
        ("[[nodes]]\nname = 'n1'\nmachine = 'isapc'", "'isapc' is not one of"),
        ("[[nodes]]\nname = 'n1'\nmemory = 16", "16 MiB"),
        ("[[nodes]]\nname = 'n1'\ncpus = 0", "0 is not between"),
        ("[[nodes]]\nname = 'n1'\ndisks = [{ size = '4 X' }]", "'4 X' should be an amount"),
        ("[[nodes]]\nname = 'n1'\ndisks = [{ size = 1000 }]", "1000 is no size"),
        ("[[nodes]]\nname = 'n1'\ndisks = [{ bus = 'scsi' }]", "'scsi' is not one of"),
        ("[[nodes]]\nname = 'n1'\ndisks = [{ speed = 1 }]", "unknown key 'speed'"),
        ("[[nodes]]\nname = 'n1'\ndisks = [{ sector = 1024 }]", "1024 is not one of 512, 4096"),
        (
            "[[nodes]]\nname = 'n1'\ndisks = [{ sector = 4096, bus = 'ahci' }]",
            "SATA disks have sectors of 512",
        ),
        ("[[nodes]]\nname = 'n1'\n[[nodes]]\nname = 'n1'", "same name"),
        (
            (
                "[[nodes]]\nname = 'a'\nnics = [{ mac = '52:54:00:00:00:01' }, { mac ="
                " '52:54:00:00:00:01' }]"
            ),
            "same MAC",
        ),
        ("name = 'Not/a/name'", "is not a name"),
        ("address = '10.77.0.1/99'", "is not an IPv4 address"),
    ],
)
def test_refusals_name_the_trouble(text: str, words: str) -> None:
    with pytest.raises(Refused, match=words):
        parse(text)


def test_sizes() -> None:
    assert [size_of(text) for text in ("512", "4k", "3M", "2G", "1T", "1.5 GiB", "2 GB", 7)] == [
        512,
        4096,
        3 << 20,
        2 << 30,
        1 << 40,
        3 << 29,
        2 * 10**9,
        7,
    ]


def device(argv: list[str], start: str) -> str:
    return next(word for word in argv if word.startswith(start))


def test_network_first_then_the_disks_in_order() -> None:
    node = completed(
        LabSpec(
            "x",
            (LabNode("n", disks=(LabDisk(), LabDisk(1 << 30, "ahci"), LabDisk(1 << 30, "nvme"))),),
        )
    ).nodes[0]
    argv = machine.command(node, 3, Path("/labs/x"), "tcg")
    assert "bootindex=1" in device(argv, "virtio-net-pci")
    assert "ifname=tap3n0" in device(argv, "tap,")
    assert "bootindex=2" in device(argv, "virtio-blk-pci")
    assert "bus=sata.0" in device(argv, "ide-hd")
    assert "bootindex=3" in device(argv, "ide-hd")
    assert "bootindex=4" in device(argv, "nvme")
    assert "accel=tcg" not in " ".join(argv), "QEMU refuses -accel beside -machine accel="


def command(node: LabNode) -> list[str]:
    return machine.command(completed(LabSpec("x", (node,))).nodes[0], 0, Path("/labs/x"), "tcg")


def test_the_firmware_tries_what_the_spec_says_and_nothing_else() -> None:
    nics, disks = (LabNic(), LabNic("e1000e"), LabNic("rtl8139")), (LabDisk(), LabDisk(bus="nvme"))
    argv = command(LabNode("n", nics=nics, disks=disks, boot=("nic2", "disk1", "nic0")))
    for start, index in (("rtl8139", 1), ("nvme", 2), ("virtio-net-pci", 3)):
        assert f"bootindex={index}" in device(argv, start)
    for start in ("e1000e", "virtio-blk-pci"):
        assert "bootindex" not in device(argv, start)
    kept = command(LabNode("n", "uefi", boot_kept=True))
    assert not any("bootindex" in word for word in kept)


def test_a_4k_disk_and_http_boot_alone() -> None:
    argv = command(LabNode("n", "uefi", disks=(LabDisk(bus="nvme", sector=4096),), netboot="http"))
    assert "logical_block_size=4096,physical_block_size=4096" in device(argv, "nvme")
    assert "name=opt/org.tianocore/IPv4PXESupport,string=no" in argv
    plain = command(LabNode("n", "uefi"))
    assert "block_size" not in " ".join(plain)
    assert "IPv4PXESupport" not in " ".join(plain)


def test_every_bus_has_one_controller_for_all_its_disks() -> None:
    argv = command(LabNode("n", disks=tuple(LabDisk(bus=bus) for bus in (*BUSES[2:], *BUSES[1:]))))
    for controller in ("ich9-ahci", "virtio-scsi-pci", "megasas", "qemu-xhci"):
        assert sum(word.startswith(controller) for word in argv) == 1
    assert [word.split(",")[2] for word in argv if word.startswith("scsi-hd,bus=raid")] == [
        "scsi-id=0",
        "scsi-id=1",
    ]


def test_routers_stand_beside_the_server() -> None:
    spec = LabSpec("x", (), "10.77.0.1/16", (LabNetwork("dark"), LabNetwork("far", "10.78.0.1/24")))
    (router,) = network.routers("cod-lab-x", completed(spec))
    assert (router.namespace, str(router.near), str(router.far)) == (
        "cod-lab-x.far",
        "10.77.0.3/16",
        "10.78.0.1/24",
    )


@pytest.mark.parametrize("model", NICS)
def test_a_rom_is_there_or_not_as_the_spec_says(model: str) -> None:
    for rom in (True, False):
        argv = command(LabNode("n", "uefi", nics=(LabNic(model, rom=rom),)))
        assert device(argv, f"{model},").endswith(",romfile=") != rom


def test_only_uefi_with_virtio_goes_without_the_rom() -> None:
    for firmware, nic, without in (
        ("bios", "virtio-net-pci", False),
        ("uefi", "virtio-net-pci", True),
        ("uefi", "e1000", False),
        ("bios", "e1000", False),
    ):
        node = completed(LabSpec("x", (LabNode("n", firmware, nics=(LabNic(nic),)),))).nodes[0]
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
    code = (
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True);"
        " signal.pause()"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    processes.end([identity for identity in [processes.identify(child.pid)] if identity], grace=0.1)
    assert child.wait(60) == -9
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


def test_the_accelerator_is_asked_once_a_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_hosts_of_servers_follow_from_the_spec() -> None:
    assert completed(LabSpec("x", ())).hosts == ()
    assert completed(LabSpec("x", (), servers=1)).hosts == ("s1",)
    assert completed(LabSpec("x", (), servers=2)).hosts == ("s1", "s2", "d1")
    spec = parse('name = "x"\nservers = 2\ngalera = true')
    assert spec.hosts == ("s1", "s2", "d1", "d2", "d3")
    assert from_dict(as_dict(spec)) == spec


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("servers = 4", "4 is not a number of servers from 0 to 3"),
        ('servers = "2"', "'2' is not a number of servers"),
        ("servers = 2\ngalera = 1", "1 is not true or false"),
        ("galera = true", "a Galera cluster is for servers: say how many"),
        ('servers = 2\naddress = "10.77.0.2/16"', "the first address of a network of /24 or more"),
        ('servers = 2\naddress = "10.77.0.1/28"', "the first address of a network of /24 or more"),
        ('servers = 1\n[[nodes]]\nname = "s1"', "a node and a host, have the same name"),
        (
            'servers = 1\n[[networks]]\nname = "far"\naddress = "10.78.0.1/24"',
            "a lab with servers of its own has no relays",
        ),
    ],
)
def test_hosts_that_cannot_be_are_refused(text: str, sentence: str) -> None:
    with pytest.raises(Refused, match=re.escape(sentence)):
        parse(text)


def test_a_database_that_is_not_installed_is_refused_with_its_packages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(hosts, "NEEDED", hosts.NEEDED | {"/nowhere/libgalera.so": "galera-4"})
    hosts.check(LabSpec("x", (), servers=1))  # SQLite
    with pytest.raises(Refused, match=r"\(Debian: apt install mariadb-server-core\)"):
        hosts.check(LabSpec("x", (), servers=2))
    with pytest.raises(Refused, match=r"apt install mariadb-server-core .*galera-4"):
        hosts.check(LabSpec("x", (), servers=2, galera=True))


def test_the_makers_of_a_database_end_with_its_lab(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda words, **_: ran.append(words))
    DatabaseServer(tmp_path, namespace="cod-lab-x.d1").install()
    assert [words[:4] for words in ran] == [["ip", "netns", "exec", "cod-lab-x.d1"]]


@pytest.mark.parametrize("sizes", [[1], [0] * 10, [3, 3, 1], [3, 0, 0, 1], [3] + [0] * 10])
def test_nodes_that_are_left_without_a_quorum_are_started_anew_with_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: list[int]
) -> None:
    """The node that runs may count nodes that were just killed: only what it says afterwards
    counts."""
    quorum, told = sizes[-1] > 0, iter(sizes)
    monkeypatch.setenv("COD_LAB_ROOT", str(tmp_path))
    record.folder("x").mkdir()
    Record(completed(LabSpec("x", (), servers=1, galera=True)), "none").save()
    runs, done = {"cod-lab-x.s1", "cod-lab-x.d3"}, list[str]()

    def end(left: list[str], *_: object) -> None:
        runs.difference_update(left)

    monkeypatch.setattr(processes, "inside", lambda namespace: list({namespace} & runs))
    monkeypatch.setattr(processes, "end", end)
    monkeypatch.setattr(GaleraCluster, "size", lambda _: next(told))
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setattr(GaleraCluster, "start", lambda *_: done.append("start"))
    monkeypatch.setattr(GaleraCluster, "recover", lambda _: done.append("recover"))
    hosts.LabHosts("x").power("d1", "on")
    left = {"cod-lab-x.s1", "cod-lab-x.d3"} if quorum else {"cod-lab-x.s1"}
    assert (done, runs) == (["start"] if quorum else ["recover"], left)
    assert next(told, None) is None


def test_the_command_refuses_servers_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[LabSpec] = []
    monkeypatch.setattr(control, "up", lambda spec: made.append(spec) or {"nodes": []})
    words = ["up", "--bios", "0", "--uefi", "0", "--json"]
    said = CliRunner().invoke(lab, [*words, "--galera"])
    assert (said.exit_code, said.output) == (
        1,
        "Error: a Galera cluster is for servers: say how many\n",
    )
    assert CliRunner().invoke(lab, [*words, "--servers", "4"]).exit_code == 2
    assert CliRunner().invoke(lab, [*words, "--servers", "2", "--galera"]).exit_code == 0
    assert [spec.hosts for spec in made] == [("s1", "s2", "d1", "d2", "d3")]
