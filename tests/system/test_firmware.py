"""Whole machines with unmodified firmware, from power-on to active and back, with kills on the way.

One rack serves all tests of the file; each leaves its machines idle in the reserve.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cod.demo.story import is_zero
from cod.lab.spec import LabDisk, LabNic, LabNode
from images import linux
from tests.system.qemu import CHECKOUT, Rack, build_all, fat_file, offer, rack

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.xdist_group("firmware"),
    pytest.mark.timeout(2400),
]

SIZE = 640 << 20  # bytes; the largest image needs 512 MiB
MACHINES = (
    LabNode("b1", "bios", nics=(LabNic("e1000"),), disks=(LabDisk(SIZE, "ahci"),)),
    LabNode("u1", "uefi", disks=(LabDisk(SIZE, "virtio"),)),
)
NAMES = [machine.name for machine in MACHINES]
SYSTEM_AT, DATA_AT = 2, 2 + linux.SYSTEM_MIB  # MiB: where hello-a's FAT partitions begin
DISKLESS = """<template name="live">
  <requires><firmware><kind equal="bios"/></firmware></requires>
  <boot mode="diskless"><kernel image="live-kernel"/><ramdisk image="live-ramdisk"/>
  <cmdline>console=ttyS0,115200 quiet panic=10</cmdline></boot>
  <ready port="80" path="/identity.json"/>
</template>"""


@pytest.fixture(scope="module")
def stand() -> Iterator[Rack]:
    """A rack whose machines have been switched on and idle. The server was killed while they loaded
    the trampoline."""
    build_all("hello-a", "opaque")
    with rack(MACHINES) as stand:
        offer(stand, "hello-a", "opaque")
        for name in NAMES:
            stand.power(name, "on")
        stand.wait(lambda: len(stand.nodes()) == len(NAMES), "all have asked for a boot")
        stand.kill()
        stand.serve()
        for name in NAMES:
            node = stand.reaches(name, "inactive")
            assert node["firmware"] == next(m.firmware for m in MACHINES if m.name == name)
        yield stand


def test_on_every_firmware_a_node_survives_three_kills_on_its_way(stand: Rack) -> None:
    stand.cod(
        "vcluster", "create", "web", "--size", str(len(NAMES)), "--template", "hello-a", "--spread"
    )
    to_reset, to_kill = set(NAMES), set(NAMES)

    def all_active() -> bool:
        nodes = stand.nodes()
        states = {name: nodes[name]["state"] for name in NAMES}
        for name in [name for name in to_reset if states[name] == "prime"]:
            stand.power(name, "reset")
            to_reset.remove(name)
        if late := {name for name in to_kill - to_reset if states[name] == "boot"}:
            stand.kill()
            stand.serve()
            to_kill.difference_update(late)
        assert "quarantined" not in states.values(), [nodes[name]["reason"] for name in NAMES]
        return set(states.values()) == {"active"}

    stand.wait(all_active, "all machines are active")
    assert not to_reset, "each was power-cycled while it was being primed"
    assert not to_kill, "the server was killed while each was booting its system"
    shown = {name: says_who_it_is(stand, name, "hello-a") for name in NAMES}
    assert len(set(shown.values())) == len(NAMES), "no name or address is used twice"
    for name in NAMES:
        assert stand.states(name).count("active") == 1, "no boot was lost"
        assert "prime trampoline prime boot active" in " ".join(stand.states(name))

    boots_without_any_server(stand)
    assert {name: says_who_it_is(stand, name, "hello-a") for name in NAMES} == shown

    stand.cod("vcluster", "delete", "web")
    for name in NAMES:
        assert stand.reaches(name, "inactive")["disk"] == "clean"
        assert stand.states(name)[-4:] == ["trampoline", "wipe", "trampoline", "inactive"]
        assert is_zero(stand.disk(name)), f"every byte of the disk of {name} reads as zero"


def says_who_it_is(stand: Rack, name: str, image: str) -> str:
    """The machine's own page says its name, its address and its image; returns the page's first
    words."""
    node = stand.node(name)
    page = stand.page(node["address"])
    for wanted in (
        f"<h1>{node['hostname']}</h1>",
        f"at <b>{node['address']}</b>",
        "web.cod.demo",
        f"<b>{image}</b>",
    ):
        assert wanted in page, page
    return f"{node['hostname']} {node['address']}"


def boots_without_any_server(stand: Rack) -> None:
    """With all of COD dead, machines that are power-cycled find the way to their disks by
    themselves."""
    before = {name: boots(stand, name) for name in NAMES}
    stand.kill()
    for name in NAMES:
        stand.power(name, "reset")
    after = {name: count + 1 for name, count in before.items()}
    stand.wait(
        lambda: {name: boots(stand, name) for name in NAMES} == after,
        "each has booted its disk once more",
    )
    stand.serve()
    stand.wait(
        lambda: all(f"boots={after[name]} " in stand.console(name) for name in NAMES),
        "all say hello",
    )
    assert all(stand.states(name)[-1] == "active" for name in NAMES)


def boots(stand: Rack, name: str) -> int:
    """How often the system on the machine's disk has booted, as it has noted there."""
    return int(fat_file(stand.disk(name), DATA_AT, "boots") or 0)


def test_a_diskless_node_runs_and_its_disk_is_not_touched(stand: Rack, tmp_path: Path) -> None:
    built = CHECKOUT / "build/images/hello-a.img"
    for image, file in (("live-kernel", "vmlinuz"), ("live-ramdisk", "ramdisk")):
        path = tmp_path / file
        path.write_bytes(fat_file(built, SYSTEM_AT, file))
        stand.cod("image", "add", image, str(path), "--plain", "--wait")
    (tmp_path / "live.xml").write_text(DISKLESS)
    stand.cod("template", "add", str(tmp_path / "live.xml"))
    before = {name: stand.disk(name).stat().st_mtime_ns for name in NAMES}
    stand.cod("vcluster", "create", "web", "--size", "1", "--template", "live")
    name = stand.wait(
        lambda: next((n for n in NAMES if stand.node(n)["vcluster"] == "web"), ""),
        "a node is granted",
    )
    stand.reaches(name, "active")
    says_who_it_is(stand, name, "hello-a")
    assert stand.states(name)[-3:] == ["inactive", "boot", "active"]
    assert stand.disk(name).stat().st_mtime_ns == before[name]
    stand.power(name, "reset")  # it has no other way to boot than the network
    hellos = stand.console(name).count("hello: image=hello-a")
    stand.wait(
        lambda: stand.console(name).count("hello: image=hello-a") > hellos, f"{name} runs again"
    )
    stand.wait(lambda: "hello: image=hello-a" in recorded(stand, name), "its console is recorded")
    assert stand.states(name)[-1] == "active"
    stand.cod("vcluster", "delete", "web")
    stand.reaches(name, "inactive")


def recorded(stand: Rack, name: str) -> str:
    """Return what is kept of the machine's console."""
    with stand.client() as api:
        text = str(api.get(f"/nodes/{stand.node(name)['name']}/console", bytes=2**22)["text"])
    assert "\x1b" not in text, (
        "firmware draws its screens with control sequences, of which none is shown"
    )
    return text


@pytest.mark.nightly  # one more boot from disk; tests/net/test_readiness.py shows when it is active
def test_an_image_that_is_no_operating_system_boots(stand: Rack) -> None:
    """Boot what never asks DHCP, and is active by its template's word; take the node back from it
    again."""
    stand.cod("vcluster", "create", "odd", "--size", "1", "--template", "opaque")
    name = stand.wait(
        lambda: next((n for n in NAMES if stand.node(n)["vcluster"] == "odd"), ""),
        "a node is granted",
    )
    stand.wait(lambda: "all bits arrived" in stand.console(name), f"{name} says hello")
    assert "opaque: image=opaque version=1 hello from my own boot code" in stand.console(name)
    node = stand.node(name)
    assert node["firmware"] == "bios"
    stand.reaches(name, "active")
    assert "s have passed since its boot was served" in stand.history(name)[-1]["cause"]
    # Only what this vcluster did to it: the file's earlier tests have booted the same machines.
    assert stand.states(name)[-4:] == [
        "inactive",
        "prime",
        "boot",
        "active",
    ], "it was primed and booted once"
    stand.cod("vcluster", "delete", "odd")
    assert stand.reaches(name, "inactive")["disk"] == "clean"
    assert is_zero(stand.disk(name))
