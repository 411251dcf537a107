"""Machines with two disks: the disk that was primed is the disk that boots, whatever the firmware
calls it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from cod.lab.spec import LabDisk, LabNode
from tests.system.qemu import CHECKOUT, build_all, offer, rack

pytestmark = [
    pytest.mark.system,
    pytest.mark.nightly,
    pytest.mark.slow,
    pytest.mark.xdist_group("disks"),
    pytest.mark.timeout(2400),
]

MIB = 1 << 20
GIB = 1 << 30
MACHINES = [  # in Linux's order the SATA disk comes first: sda, vda
    LabNode(
        "b1", disks=(LabDisk(GIB, "virtio"), LabDisk(GIB, "ahci")), boot=("nic0", "disk0", "disk1")
    ),
    LabNode(
        "b2",
        disks=(LabDisk(GIB * 3 // 2, "virtio"), LabDisk(GIB * 3 // 2, "ahci")),
        serial="TWIN",
        boot=("nic0", "disk1", "disk0"),
    ),
    LabNode("u1", "uefi", disks=(LabDisk(GIB, "nvme"), LabDisk(2 * GIB, "nvme")), boot_kept=True),
]
# Of each machine: the rule, the disk that it means, what keeps the template from the other
# machines.
RULES = {
    "b1": (
        "first",
        1,
        '<disk><size max="1100MiB"/></disk><firmware><kind equal="bios"/></firmware>',
    ),
    "b2": (
        "serial:TWIN-0",
        0,
        '<disk><size min="1400MiB"/></disk><firmware><kind equal="bios"/></firmware>',
    ),
    "u1": ("largest", 1, '<firmware><kind equal="uefi"/></firmware>'),
}
TEMPLATE = """<template name="{name}">
  <requires>{requires}</requires>
  <disk select="{rule}"/><image target="disk" name="hello-a"/>
  <ready port="80" path="/identity.json"/><personalise seed="nocloud"/>
</template>"""


def test_what_is_written_is_what_is_booted(tmp_path: Path) -> None:
    build_all("hello-a", "hello-b")
    with rack(MACHINES) as stand:
        for name in RULES:
            stand.power(name, "on")
        offer(stand, "hello-a")
        for name, (rule, _place, requires) in RULES.items():
            document = tmp_path / f"{name}.xml"
            document.write_text(TEMPLATE.format(name=name, requires=requires, rule=rule))
            stand.cod("template", "add", str(document))
        for name in RULES:
            stand.reaches(name, "inactive")
            stand.cod("vcluster", "create", f"on-{name}", "--size", "1", "--template", name)
        for name, (_rule, place, _requires) in RULES.items():
            stand.reaches(name, "active")
            assert stand.booted(name, 1)["image"] == "hello-a"
            assert "boot_failed" not in [row["event"] for row in stand.history(name)]
            written = [any(stand.disk(name, n).read_bytes()[: 2 * MIB]) for n in range(2)]
            assert written == [n == place for n in range(2)], f"{name}: another disk was written"

        # An owner's second disk may look as bootable as it likes.
        for name, (_rule, place, _requires) in RULES.items():
            stand.power(name, "off")
            subprocess.run(
                [
                    "dd",
                    f"if={CHECKOUT}/build/images/hello-b.img",
                    f"of={stand.disk(name, 1 - place)}",
                    "bs=1M",
                    "conv=sparse,notrunc",
                    "status=none",
                ],
                check=True,
            )
            stand.power(name, "on")
        for name in RULES:
            assert stand.booted(name, 2)["image"] == "hello-a"
            assert stand.state(name) == "active"
