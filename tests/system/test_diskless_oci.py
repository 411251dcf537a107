"""The system of an OCI image runs in the memory of a machine without a disk, and its owner logs in
by key. The layers are left out: test_oci_images.py applies some."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from cod.lab.spec import LabNic, LabNode
from images import oci
from tests.system import maker_layouts
from tests.system.login import Key
from tests.system.maker_layouts import QUICK
from tests.system.owner import Owner
from tests.system.qemu import CHECKOUT, rack
from tests.system.test_debian import TABLES, logs_in, tries
from tests.waiting import until

pytestmark = [
    pytest.mark.system,
    pytest.mark.nightly,
    pytest.mark.slow,
    pytest.mark.timeout(2 * 3600),
]

CACHE = CHECKOUT / "build/cache/images"
MACHINE = LabNode("b1", memory=2560, cpus=2, nics=(LabNic("virtio-net-pci"),), disks=())
TEMPLATE = """<template name="live">
  <requires><memory><mib min="{memory}"/></memory></requires>
  <boot mode="diskless"><kernel image="live-kernel"/><ramdisk image="live-ramdisk"/>
  <cmdline>console=ttyS0,115200 {quick} ds=nocloud-net;s={{metadata}}nocloud/</cmdline></boot>
  <ready port="22"/>
</template>"""
SEEN = "hostname -f; findmnt -no FSTYPE /; uname -r; lsblk -nd | wc -l; cloud-init status | tail -1"


def test_a_system_of_an_oci_image_runs_in_memory(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    made = maker_layouts.system(CACHE)
    subprocess.run(["cp", "-a", "--reflink=auto", made, tree], check=True)
    for name in maker_layouts.MASKED:
        unit = tree / "etc/systemd/system" / name
        unit.unlink(missing_ok=True)
        unit.symlink_to("/dev/null")
    (tree / "etc/cloud/cloud.cfg.d/20_quick.cfg").write_text(maker_layouts.CLOUD)
    facts = oci.diskless(tree, tmp_path, tmp_path / "live.img", CACHE)
    assert facts["lacks"] == []
    assert facts["memory"] < MACHINE.memory - 64
    template = tmp_path / "live.xml"
    template.write_text(TEMPLATE.format(memory=facts["memory"], quick=QUICK))
    with rack((MACHINE,), patience=10.0, policy=TABLES) as stand:
        stand.cod("group", "create", "physics", "--priority", "10")
        key = Key(tmp_path, "laptop")
        ann = Owner(stand, "ann", [key])
        for part in ("kernel", "ramdisk"):
            file = tmp_path / f"live.{part}"
            stand.cod("image", "add", f"live-{part}", str(file), "--plain", "--wait")
        stand.cod("template", "add", str(template))
        stand.power(MACHINE.name, "on")
        stand.reaches(MACHINE.name, "inactive", seconds=1500)
        ann.cod(
            *("vcluster", "create", "farm", "--group", "physics"),
            *("--size", "1", "--template", "live"),
        )
        stand.reaches(MACHINE.name, "active", seconds=3000)
        node = stand.node(MACHINE.name)
        ready = "cloud-init status | grep -q 'status: done'"
        to = f"root@{node['address']}"
        until(
            lambda: tries(stand, key, to, ready, tmp_path).returncode == 0,
            "cloud-init is done",
            1800,
            every=2.0,
        )
        said = logs_in(stand, key, node["address"], SEEN, tmp_path).splitlines()
        assert said[0] == f"{node['hostname']}.farm.cod.demo"
        assert said[1] in ("rootfs", "tmpfs")
        assert said[2:] == [facts["kernel"], "0", "status: done"]
