"""Whole machines with unmodified firmware, from power-on to active and back, with kills on the way.

A rack of one machine serves the tests of its firmware; each leaves the machine idle in the reserve.
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
    pytest.mark.in_turn(3, together=True),
    pytest.mark.xdist_group("firmware"),
    pytest.mark.timeout(2400),
]

SIZE = 640 << 20  # bytes; the largest image needs 512 MiB
BIOS = LabNode("b1", "bios", nics=(LabNic("e1000"),), disks=(LabDisk(SIZE, "ahci"),))
UEFI = LabNode("u1", "uefi", disks=(LabDisk(SIZE, "virtio"),))
SYSTEM_AT, DATA_AT = 2, 2 + linux.SYSTEM_MIB  # MiB: where hello-a's FAT partitions begin
DISKLESS = """<template name="live">
  <requires><firmware><kind equal="bios"/></firmware></requires>
  <boot mode="diskless"><kernel image="live-kernel"/><ramdisk image="live-ramdisk"/>
  <cmdline>console=ttyS0,115200 quiet panic=10</cmdline></boot>
  <ready port="80" path="/identity.json"/>
</template>"""


@pytest.fixture(scope="module")
def stand(request: pytest.FixtureRequest) -> Iterator[Rack]:
    """A rack with a machine that has been switched on and is idle. The server was killed while it
    loaded the trampoline."""
    build_all("hello-a", "opaque")
    with rack([request.param]) as stand:
        offer(stand, "hello-a", "opaque")
        name = request.param.name
        stand.power(name, "on")
        stand.wait(lambda: stand.node(name), f"{name} has asked for a boot")
        stand.kill()
        stand.serve()
        assert stand.reaches(name, "inactive")["firmware"] == request.param.firmware
        yield stand


@pytest.fixture
def name(stand: Rack) -> str:
    """The machine's."""
    return str(next(iter(stand.machines.values()))["name"])


def on(*machines: LabNode) -> pytest.MarkDecorator:
    """On these machines; on UEFI by night, because test_shapes.py shows how its machines boot."""
    return pytest.mark.parametrize(
        "stand",
        [
            pytest.param(machine, marks=[pytest.mark.nightly] if machine is UEFI else [])
            for machine in machines
        ],
        ids=[machine.firmware for machine in machines],
        indirect=True,
    )


@on(BIOS, UEFI)
def test_a_node_survives_kills_of_itself_and_of_its_server_on_its_way(
    stand: Rack, name: str
) -> None:
    stand.cod("vcluster", "create", "web", "--size", "1", "--template", "hello-a")
    stand.reaches(name, "prime")
    stand.power(name, "reset")
    stand.reaches(name, "boot")
    stand.kill()
    stand.serve()
    stand.reaches(name, "active")
    shown = says_who_it_is(stand, name, "hello-a")
    assert stand.states(name).count("active") == 1, "no boot was lost"
    assert "prime trampoline prime boot active" in " ".join(stand.states(name))

    boots_without_any_server(stand, name)
    assert says_who_it_is(stand, name, "hello-a") == shown

    stand.cod("vcluster", "delete", "web")
    assert stand.reaches(name, "inactive")["disk"] == "clean"
    assert stand.states(name)[-4:] == ["trampoline", "wipe", "trampoline", "inactive"]
    assert is_zero(stand.disk(name)), "every byte of its disk reads as zero"


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


def boots_without_any_server(stand: Rack, name: str) -> None:
    """With all of COD dead, a machine that is power-cycled finds the way to its disk by itself."""
    after = boots(stand, name) + 1
    stand.kill()
    stand.power(name, "reset")
    stand.wait(lambda: boots(stand, name) == after, f"{name} has booted its disk once more")
    stand.serve()
    stand.wait(lambda: f"boots={after} " in stand.console(name), f"{name} says hello")
    assert stand.states(name)[-1] == "active"


def boots(stand: Rack, name: str) -> int:
    """How often the system on the machine's disk has booted, as it has noted there."""
    return int(fat_file(stand.disk(name), DATA_AT, "boots") or 0)


@on(BIOS)
@pytest.mark.nightly  # two more boots; test_bootscript.py shows that it loads as the trampoline does
def test_a_diskless_node_runs_and_its_disk_is_not_touched(
    stand: Rack, name: str, tmp_path: Path
) -> None:
    built = CHECKOUT / "build/images/hello-a.img"
    for image, file in (("live-kernel", "vmlinuz"), ("live-ramdisk", "ramdisk")):
        path = tmp_path / file
        path.write_bytes(fat_file(built, SYSTEM_AT, file))
        stand.cod("image", "add", image, str(path), "--plain", "--wait")
    (tmp_path / "live.xml").write_text(DISKLESS)
    stand.cod("template", "add", str(tmp_path / "live.xml"))
    before = stand.disk(name).stat().st_mtime_ns
    stand.cod("vcluster", "create", "web", "--size", "1", "--template", "live")
    stand.reaches(name, "active")
    says_who_it_is(stand, name, "hello-a")
    assert stand.states(name)[-3:] == ["inactive", "boot", "active"]
    assert stand.disk(name).stat().st_mtime_ns == before
    stand.wait(lambda: "hello: image=hello-a" in recorded(stand, name), "its console is recorded")
    stand.cod("vcluster", "delete", "web")
    stand.reaches(name, "inactive")


@on(BIOS)
@pytest.mark.nightly  # tests/store/test_dhcp_flow.py shows what an active diskless node is told
def test_a_diskless_node_that_is_reset_runs_again(stand: Rack, name: str) -> None:
    """Such a node has no other way to boot than the network."""
    stand.cod("vcluster", "create", "web", "--size", "1", "--template", "live")
    stand.reaches(name, "active")
    hellos = stand.console(name).count("hello: image=hello-a")
    stand.power(name, "reset")
    stand.wait(
        lambda: stand.console(name).count("hello: image=hello-a") > hellos, f"{name} runs again"
    )
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


@on(BIOS)
@pytest.mark.nightly  # one more boot from disk; tests/net/test_readiness.py shows when it is active
def test_an_image_that_is_no_operating_system_boots(stand: Rack, name: str) -> None:
    """Boot what never asks DHCP, and is active by its template's word; take the node back from it
    again."""
    stand.cod("vcluster", "create", "odd", "--size", "1", "--template", "opaque")
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
