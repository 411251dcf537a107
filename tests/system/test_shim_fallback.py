"""An image laid out as Ubuntu's, with Debian's signed shim and its fallback at the removable path,
on a UEFI machine whose variables keep the boot order.

shim at the removable path would start fbx64.efi, which makes an entry for the system and puts it
first: the machine would never ask COD again, and a driver that sets no boot device could not bring
it back.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from cod.lab import record
from cod.lab.machine import variables_path
from cod.lab.spec import LabDisk, LabNode
from images.disk import MIB
from tests.system.qemu import CHECKOUT, build_all, fat_file, rack
from trampoline.recipe import packages

pytestmark = [
    pytest.mark.system,
    pytest.mark.nightly,
    pytest.mark.slow,
    pytest.mark.xdist_group("disks"),
    pytest.mark.timeout(2400),
]

SYSTEM_AT = 2  # MiB: where hello-a's EFI system partition begins
PACKAGES = ("shim-signed", "shim-helpers-amd64-signed")
TEMPLATE = """<template name="shimmed">
  <image target="disk" name="shimmed"/>
  <ready port="80" path="/identity.json"/><personalise seed="nocloud"/>
</template>"""


def shimmed(folder: Path) -> Path:
    """hello-a with the loaders where Ubuntu's installer puts them; its GRUB is the system's own."""
    cache = CHECKOUT / "build/cache/shim"
    with packages.alone(cache):
        signed = packages.unpacked(packages.exactly(PACKAGES), cache) / "usr/lib/shim"
    image, tree = folder / "shimmed.img", folder / "tree/EFI"
    shutil.copy(CHECKOUT / "build/images/hello-a.img", image)
    for name in ("BOOT", "ubuntu"):
        (tree / name).mkdir(parents=True)
    shim = signed / "shimx64.efi.signed"
    shutil.copy(shim, tree / "BOOT/BOOTX64.EFI")
    shutil.copy(signed / "fbx64.efi.signed", tree / "BOOT/fbx64.efi")
    shutil.copy(signed / "mmx64.efi.signed", tree / "BOOT/mmx64.efi")
    shutil.copy(shim, tree / "ubuntu/shimx64.efi")
    grub = fat_file(image, SYSTEM_AT, "EFI/BOOT/BOOTX64.EFI")
    assert grub.startswith(b"MZ")
    (tree / "ubuntu/grubx64.efi").write_bytes(grub)
    entry = "shimx64.efi,ubuntu,,This is the boot entry for ubuntu\n"
    (tree / "ubuntu/BOOTX64.CSV").write_bytes(entry.encode("utf-16"))
    place = f"{image}@@{SYSTEM_AT}M"
    subprocess.run(
        ["mcopy", "-s", "-o", "-i", place, tree, "::"],
        check=True,
        env=os.environ | {"MTOOLS_SKIP_CHECK": "1"},
    )
    return image


def test_a_system_behind_shims_fallback_is_rebooted_by_its_owner_and_comes_back(
    tmp_path: Path,
) -> None:
    """The lab's power switch sets no boot device, as PDUs and Wake-on-LAN do not."""
    build_all("hello-a")
    (tmp_path / "shimmed.xml").write_text(TEMPLATE)
    machine = LabNode("u1", "uefi", disks=(LabDisk(640 * MIB, "virtio"),), boot_kept=True)
    with rack([machine]) as stand:
        stand.power("u1", "on")
        stand.cod("image", "add", "shimmed", str(shimmed(tmp_path)), "--wait")
        stand.cod("template", "add", str(tmp_path / "shimmed.xml"))
        stand.reaches("u1", "inactive")
        stand.cod("vcluster", "create", "web", "--size", "1", "--template", "shimmed")
        stand.reaches("u1", "active")
        assert stand.booted("u1", 1)["image"] == "hello-a"
        variables = variables_path(record.folder(stand.lab), machine).read_bytes()
        fell_back = "ubuntu\0".encode("utf-16-le") in variables
        assert not fell_back, "shim's fallback has made its entry"
        stand.power("u1", "reset")  # by its owner
        assert stand.booted("u1", 2)["image"] == "hello-a"
        stand.cod("vcluster", "delete", "web")
        stand.reaches("u1", "inactive")
        assert {"boot_failed", "quarantined"}.isdisjoint(
            row["event"] for row in stand.history("u1")
        )
