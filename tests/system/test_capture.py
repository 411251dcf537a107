"""A node's disk becomes an image that other nodes boot: stand-in machines for what can go wrong,
then whole ones."""

from __future__ import annotations

import hashlib
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cod.lab.spec import LabDisk, LabNode
from images import linux
from tests import full_disk
from tests.system.qemu import Rack, build_all, offer, rack
from tests.system.site_images import offer as offer_stand_in
from tests.system.stand import Stand

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("capture")]

MIB = 1 << 20
OWN = b"what the owner of m1 wrote there"
ROOT_AT = 2 + linux.SYSTEM_MIB  # MiB: where hello-b's root file system begins


# ---------------------------------------------------------------- stand-in machines


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    """A running site with two machines, idle, and a template that writes the first 8 MiB of a
    disk."""
    with Stand(tmp_path_factory.mktemp("capture"), machines=2) as stand:
        stand.serve()
        for name in ("m1", "m2"):
            stand[name].on()
        for name in ("m1", "m2"):
            stand.reaches(name, "inactive")
        offer_stand_in(stand, "red")
        yield stand


def holder(stand: Stand) -> str:
    """A vcluster web is made: which machine is active for it?"""
    stand.cod("vcluster", "create", "web", "--size", "1", "--template", "red")
    return str(
        stand.wait(lambda: [name for name in ("m1", "m2") if stand.state(name) == "active"])[0]
    )


def ends(stand: Stand, *vclusters: str) -> None:
    """All go back to the reserve."""
    for vcluster in vclusters:
        stand.cod("vcluster", "delete", vcluster)
    for name in ("m1", "m2"):
        stand.reaches(name, "inactive")
    stand.wait(lambda: not stand.vclusters(), what="they have ended")


def over(stand: Stand, name: str, seconds: float = 240) -> dict[str, Any]:
    """The node's capture once it is over."""

    def shown() -> dict[str, Any]:
        value: dict[str, Any] = stand.get(f"/nodes/{name}/capture")
        return value if value["state"] in ("done", "failed", "cancelled") else {}

    return dict(stand.wait(shown, seconds, f"the capture of {name} is over"))


def write(stand: Stand, name: str, offset: int) -> None:
    """The node's own system writes to its disk."""
    with (stand[name].folder / "disk").open("r+b") as disk:
        disk.seek(offset)
        disk.write(OWN * 1000)


def read(stand: Stand, name: str, size: int = 8 * MIB) -> bytes:
    with (stand[name].folder / "disk").open("rb") as disk:
        return disk.read(size)


def test_captured_primed_elsewhere_and_home_again(stand: Stand) -> None:
    name = holder(stand)
    write(stand, name, 5 * MIB)
    before = hashlib.sha256((stand[name].folder / "disk").read_bytes()).digest()
    stand.cod("node", "capture", name, "--image", "mine")
    assert over(stand, name)["state"] == "done"
    stand.reaches(name, "active")
    stand.wait(lambda: "10.77.128.1" in stand[name].running())
    assert hashlib.sha256((stand[name].folder / "disk").read_bytes()).digest() == before
    assert [row["event"] for row in stand.history(name)][-5:] == [
        "capture_wanted",
        "capture_ordered",
        "captured",
        "boot_ordered",
        "booted",
    ]
    stand.cod("vcluster", "create", "copy", "--size", "1", "--template", "mine")
    other = "m2" if name == "m1" else "m1"
    stand.reaches(other, "active")
    assert read(stand, other) == read(stand, name)
    stand.wait(lambda: "red" in stand[other].running())
    ends(stand, "web", "copy")


def test_the_server_is_killed_and_the_machine_is_reset_while_it_is_captured(stand: Stand) -> None:
    name = holder(stand)
    since = len(stand.history(name))
    stand.cod("node", "capture", name, "--image", "twice")
    # on a busy machine it may be over before that is seen
    print("caught:", stand.catches(name, "capture", since))
    stand[name].signal(signal.SIGSTOP)
    stand.kill()
    stand[name].signal(signal.SIGCONT)
    stand.serve()
    stand.wait(lambda: stand.state(name) != "trampoline")
    if stand.state(name) == "capture":
        stand[name].reset()
    done = over(stand, name)
    assert done["state"] == "done", done
    stand.reaches(name, "active")
    assert stand.cod("image", "verify", "site/twice")["ok"]
    ends(stand, "web")


def test_without_a_switch_it_waits_for_a_reboot(stand: Stand) -> None:
    name = holder(stand)
    stand.cod("node", "set", name, "--power-driver", "none")
    stand.cod("node", "capture", name, "--image", "byhand")
    assert (stand.state(name), "reboot it" in stand.node(name).reason) == ("active", True)
    stand[name].reset()
    assert over(stand, name)["state"] == "done"
    stand.reaches(name, "active")
    stand.cod("node", "set", name, "--power-driver", "lab")
    ends(stand, "web")


# ---------------------------------------------------------------- whole machines


@pytest.mark.slow
@pytest.mark.nightly  # the tests above, and tests/net/test_capture.py, have the same agent and server
@pytest.mark.timeout(900)
# what a disk holds boots on both firmwares, as test_images.py and test_layouts.py show of images
# that were not captured
@pytest.mark.parametrize("firmware", ["bios", "uefi"])
def test_a_running_nodes_disk_boots_on_another_machine(tmp_path: Path, firmware: str) -> None:
    """To be captured its node loses its power: hello-b's root file system is left with a journal to
    be replayed."""
    machines = (
        LabNode("a", "bios", disks=(LabDisk(1 << 30, "virtio"),)),
        LabNode("b", firmware, disks=(LabDisk(800 << 20, "ahci"),)),
    )
    build_all("hello-b")
    with rack(machines, restored=True) as stand:
        offer(stand, "hello-b")
        for machine in machines:
            stand.power(machine.name, "on")
        for machine in machines:
            stand.reaches(machine.name, "inactive")
        stand.cod("vcluster", "create", "web", "--size", "1", "--template", "hello-b")
        first = stand.wait(
            lambda: [m.name for m in machines if stand.state(m.name) == "active"], "one is active"
        )[0]
        other = next(m.name for m in machines if m.name != first)
        before = stand.booted(first, 1)
        node = stand.node(first)["name"]
        stand.cod("node", "capture", node, "--image", "golden")

        def over() -> dict[str, Any]:
            with stand.client() as api:
                value = api.get(f"/nodes/{node}/capture")
            return value if value["state"] in ("done", "failed") else {}

        done = stand.wait(over, "the capture is over")
        assert done["state"] == "done", done["reason"]
        stand.cod("vcluster", "create", "copy", "--size", "1", "--template", "golden")
        after = stand.booted(first, 2)
        assert {key: after[key] for key in after if key != "boots"} == {
            key: before[key] for key in before if key != "boots"
        }, "the node is who it was"
        seed = f'"instance-id": "{before["instance"]}"'.encode()
        assert seed in stand.disk(first).read_bytes()
        check_image(stand, tmp_path, seed)
        stand.reaches(other, "active")
        copy = stand.booted(other, 2)
        assert (copy["image"], copy["digest"]) == (before["image"], before["digest"])
        assert (copy["hostname"], copy["domain"]) == (
            stand.node(other)["hostname"],
            "copy.cod.demo",
        )
        assert copy["instance"] != before["instance"]


def check_image(stand: Rack, folder: Path, seed: bytes) -> None:
    """What was captured: the file system as the power cut left it, with its journal, and nobody's
    seed."""
    with stand.client() as api:
        image = api.get("/images/site/golden")
        document = api.get("/templates/site/golden")["document"]
    assert stand.cod("image", "verify", "site/golden")["ok"]
    assert re.search(r"3: ext, 256 MiB hello-b-root", document), document
    assert image["size"] < 300 * MIB
    served = stand.folder / "data/images" / image["digest"] / "data.zst"
    disk = folder / "disk"
    with disk.open("wb") as out:
        subprocess.run(["zstd", "-dc", served], stdout=out, check=True)
    content = disk.read_bytes()
    assert seed not in content
    root = folder / "root"
    root.write_bytes(content[ROOT_AT * MIB : (ROOT_AT + 256) * MIB])
    assert "needs_recovery" in full_disk.tool("dumpe2fs", "-h", str(root))
    checked = subprocess.run(
        ["/usr/sbin/e2fsck", "-fy", root], capture_output=True, text=True, check=False
    )
    assert checked.returncode in (0, 1), checked.stdout
    assert "recovering journal" in checked.stdout + checked.stderr
    for fault in ("Illegal", "multiply-claimed", "corrupt", "Unattached", "invalid"):
        assert fault not in checked.stdout, checked.stdout
    assert full_disk.tool("debugfs", "-R", "cat /data/boots", str(root)).strip() == "1"
    assert (
        full_disk.tool("debugfs", "-R", "cat /data/userdata", str(root)).count("COD-USER-DATA")
        > 10_000
    )
