"""Disks laid out as makers lay out their cloud images, on whole machines: primed, booted on BIOS
and UEFI, logged in to by key, grown, captured.

What was seen of each is in docs/howto/admin/existing-images.md.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cod.lab import control
from cod.lab.spec import LabDisk, LabNic, LabNode
from tests.system import maker_layouts
from tests.system.login import Key
from tests.system.owner import API, Owner
from tests.system.qemu import CHECKOUT, Rack, rack
from tests.system.test_debian import logs_in, tries

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(6 * 3600)]

DISK = 3 << 30
# A machine is given up that has used its processors for so many seconds and given no sign of life;
# or that gives none for so long, because it is off or waits for what never comes.
QUIET, STILL = 600.0, 3600.0
# A starved machine is silent for longer than the usual three times five seconds.
TABLES = f"""
heartbeat = 30.0
[api]
listen = ["{API}"]
plain = true
"""
MACHINES = (
    LabNode(
        "b1", "bios", memory=1024, cpus=2, nics=(LabNic("e1000"),), disks=(LabDisk(DISK, "ahci"),)
    ),
    LabNode(
        "u1",
        "uefi",
        memory=1024,
        cpus=2,
        nics=(LabNic("virtio-net-pci"),),
        disks=(LabDisk(DISK, "nvme"),),
    ),
)
READY = "cloud-init status | grep -q 'status: done'"
SEEN = """
hostname -f; findmnt -no FSTYPE /; findmnt -no SOURCE /; df -B1M --output=size / | tail -1
findmnt -no FSTYPE /boot || echo none
python3 -c 'import os; print(os.getxattr("/usr/bin/bash", "security.selinux"))'
cloud-init status | tail -1; test -d /sys/firmware/efi && echo uefi || echo bios
"""
ROOTS = {
    "rocky": ("xfs", "xfs"),
    "rocky-lvm": ("xfs", "xfs"),
    "ubuntu": ("ext4", "ext4"),
    "opensuse": ("btrfs", "none"),
}


@pytest.fixture(scope="module")
def tree() -> Path:
    """The system's files. To make them takes minutes: a test asks for them before it asks for a
    stand, which would wait meanwhile."""
    return maker_layouts.system(CHECKOUT / "build/cache/images")


@pytest.fixture(scope="module")
def stand() -> Iterator[Rack]:
    with rack(MACHINES, patience=10.0, policy=TABLES, restored=True) as stand:
        stand.cod("group", "create", "physics", "--priority", "10")
        yield stand


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Key:
    return Key(tmp_path_factory.mktemp("keys"), "laptop")


@pytest.fixture(scope="module")
def ann(stand: Rack, key: Key) -> Owner:
    return Owner(stand, "ann", [key])


@pytest.mark.nightly
@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.firmware)
@pytest.mark.parametrize("layout", maker_layouts.LAYOUTS)
def test_a_makers_layout_boots_grows_and_boots_again_from_a_capture(
    tree: Path,
    stand: Rack,
    ann: Owner,
    key: Key,
    layout: str,
    machine: LabNode,
    tmp_path: Path,
) -> None:
    name = f"{layout}-{machine.firmware}"
    image = tmp_path / f"{name}.img"
    maker_layouts.make(layout, tree, tmp_path, image)
    stand.cod("image", "add", name, str(image), "--wait")
    template = tmp_path / "template.xml"
    template.write_text(inspected(image, "--template", name))
    stand.cod("template", "add", str(template))
    if not stand.state(machine.name):
        stand.power(machine.name, "on")
    runs(stand, ann, key, name, ROOTS[layout], machine, tmp_path)

    taken = f"{name}-taken"
    node = stand.node(machine.name)["name"]
    stand.cod("node", "capture", node, "--image", taken, "--wait", "--timeout", "4h")
    size = stand.cod("image", "show", f"physics/{taken}")
    assert size["used"] < 1700 << 20 < size["size"], "what was not used is not in the image"
    ann.cod("vcluster", "delete", name)
    runs(stand, ann, key, taken, ROOTS[layout], machine, tmp_path)
    ann.cod("vcluster", "delete", taken)


def runs(
    stand: Rack,
    ann: Owner,
    key: Key,
    name: str,
    kinds: tuple[str, str],
    machine: LabNode,
    folder: Path,
) -> None:
    """Make a cluster with the template of that name on the machine, and see there what the layout
    promises. `kinds`: of the file systems of / and /boot. The cluster's address is the one of the
    cluster before, and its host keys are others: known hosts are a cluster's own."""
    folder = folder / f"{name}-seen"
    folder.mkdir()
    lives(stand, machine, lambda: stand.state(machine.name) == "inactive")
    wanted = folder / "wanted.xml"
    wanted.write_text(
        f'<requires><firmware><kind one-of="{machine.firmware}"/></firmware></requires>'
    )
    ann.cod(
        *("vcluster", "create", name, "--group", "physics", "--size", "1"),
        *("--template", name, "--attributes", str(wanted)),
    )
    lives(stand, machine, lambda: stand.state(machine.name) == "active")
    node = stand.node(machine.name)
    to = f"root@{node['address']}"
    lives(stand, machine, lambda: tries(stand, key, to, READY, folder).returncode == 0)
    said = logs_in(stand, key, node["address"], SEEN, folder).splitlines()
    assert said[0] == f"{node['hostname']}.{name}.cod.demo"
    assert (said[1], said[4]) == kinds
    assert int(said[3]) > 2400, f"the root has grown: {said}"
    assert maker_layouts.LABEL in said[5], "SELinux's labels are kept"
    assert said[6:] == ["status: done", machine.firmware]


def lives(stand: Rack, machine: LabNode, truth: Callable[[], bool]) -> None:
    """Wait until `truth()`, as long as the machine gives signs of life: its node's state and
    progress, its console, what its disk has taken. A busy host makes it slow, and fails nothing."""
    seen: object = None
    began, before = time.monotonic(), 0.0
    while not truth():
        node = stand.node(machine.name)
        assert node.get("state") != "quarantined", node["reason"]
        now = (
            (node.get("state"), node.get("progress"), node.get("reason")),
            len(stand.console(machine.name)),
            stand.disk(machine.name).stat().st_blocks,
        )
        used = cpu(stand, machine)
        if now != seen or used < before:  # a processor that was switched off counts from nothing
            seen, began, before = now, time.monotonic(), used
        assert used < before + QUIET, f"{used - before:.0f} CPU s without a sign of life: {seen}"
        assert time.monotonic() < began + STILL, f"no sign of life for {STILL:.0f} s: {seen}"
        time.sleep(2.0)


def cpu(stand: Rack, machine: LabNode) -> float:
    """Return the CPU seconds of the machine's processors since it was switched on; 0.0 if it is
    off."""
    nodes = control.status(stand.lab)["nodes"]
    pid = next(each["pid"] for each in nodes if each["name"] == machine.name)
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    words = stat.rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def inspected(image: Path, *words: str) -> str:
    """What `cod image inspect` prints, which has no warnings."""
    done = subprocess.run(
        [sys.executable, "-m", "cod", "image", "inspect", image, *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout
