"""PXELINUX as second stage on a whole machine: the trampoline, its own system, and the sentence
that refuses it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from cod.lab import control, network, processes, record
from cod.lab.spec import LabDisk, LabNic, LabNode
from tests.system.qemu import CHECKOUT, Rack, build_all, offer, rack
from tests.system.shapes import FAR, FAR_SUBNET, LIGHT, LIGHT_HELLO, SIZE

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.xdist_group("shapes"),
    pytest.mark.timeout(1800),
]

NAME = "old"
# a NIC and a controller that no other machine of `make test` has: see shapes.py
MACHINE = LabNode(
    NAME, "bios", nics=(LabNic("rtl8139", network=FAR.name),), disks=(LabDisk(SIZE, "megasas"),)
)
SITE = FAR_SUBNET + '\n[boot]\nbios_loader = "pxelinux.0"\n'


@pytest.fixture(scope="module")
def stand() -> Iterator[Rack]:
    """A rack with one machine that has a plain PXE ROM."""
    build_all(LIGHT)
    with rack([MACHINE], policy=SITE, networks=(FAR,)) as stand:
        router = f"{record.namespace(stand.lab)}.{FAR.name}"
        processes.end(processes.inside(router))  # the lab's own relay
        relay = [
            sys.executable,
            "-m",
            "tests.system.plain_rom",
            FAR.address.partition("/")[0],
            "10.77.0.1",
            str(stand.folder / "hold"),
        ]
        started = subprocess.Popen(
            network.inside(router, relay), cwd=CHECKOUT, stdout=subprocess.PIPE
        )
        assert started.stdout is not None
        assert started.stdout.readline() == b"relays\n"
        offer(stand, LIGHT)
        stand.power(NAME, "on")
        stand.reaches(NAME, "inactive")
        yield stand
        processes.end(processes.inside(router))
        started.wait(60)


@pytest.fixture(scope="module")
def web(stand: Rack) -> None:
    """A vcluster that has the machine."""
    assert "PXELINUX" in stand.console(NAME)
    stand.cod("vcluster", "create", "web", "--size", "1", "--template", LIGHT)
    stand.reaches(NAME, "active")


@pytest.mark.in_turn(2, first=1)
@pytest.mark.usefixtures("web")
def test_its_own_system_is_booted_from_its_disk(stand: Rack) -> None:
    assert stand.states(NAME)[-4:] == ["inactive", "prime", "boot", "active"]
    stand.wait(lambda: LIGHT_HELLO in stand.console(NAME), "its system says hello")


@pytest.mark.nightly
@pytest.mark.usefixtures("web")
def test_what_it_must_not_boot_is_said_on_its_console(stand: Rack) -> None:
    """The node is retired between its last DHCP exchange and its configuration: nothing is booted,
    and it says why."""
    stand.cod("vcluster", "delete", "web")
    stand.reaches(NAME, "inactive")
    (stand.folder / "hold").touch()
    stand.power(NAME, "reset")
    # The DISCOVER, which the history shows, is too early: the REQUEST follows a second later, and a
    # retired node gets no address.
    stand.wait((stand.folder / "hold.kept").exists, "the machine's last DHCP exchange is under way")
    assert "COD:" not in stand.console(NAME)
    stand.cod("node", "retire", stand.node(NAME)["name"])
    before = len(stand.console(NAME))
    (stand.folder / "hold").unlink()
    stand.wait(lambda: "COD: retired" in stand.console(NAME)[before:], "the sentence is shown")

    def after() -> str:
        return stand.console(NAME)[before:].partition("COD: retired")[2]

    stand.wait(lambda: "SeaBIOS" in after(), "it reboots by itself")
    # Where PXELINUX only gives up, the firmware tries the disk, and resets the machine after that.
    assert "Booting from" not in after().partition("SeaBIOS")[0]
    control.power(stand.lab, NAME, "off")
