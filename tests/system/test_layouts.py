"""Layouts boot: one image for each partition, on BIOS and UEFI, from GPT and MBR tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cod.lab.spec import LabDisk, LabNode
from images import build, grub, linux
from tests.system.qemu import build_all, rack
from trampoline.recipe import packages

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.xdist_group("layouts"),
    pytest.mark.timeout(2400),
]

MIB = 1 << 20
SECTOR = 2048  # where a layout's first partition begins
# partitions of hello-a's image: start and size in MiB
PLACES = {"core": (1, 1), "system": (2, 24), "data": (26, 64)}
LAYOUTS = {
    "gpt": (
        """<layout table="gpt"><partition number="1" size="1MiB" type="bios"/>
      <partition number="2" size="24MiB" type="esp" name="hello-a-system"/>
      <partition number="3" size="64MiB" type="data" name="hello-a-data"/></layout><image target="1" name="core"/>"""
    ),
    "mbr": (
        """<layout table="mbr"><partition number="1" size="1MiB" type="linux" boot="yes"/>
      <partition number="2" size="24MiB" type="esp"/>
      <partition number="3" size="64MiB" type="data"/></layout><image target="1" name="sector"/>"""
    ),
}
TEMPLATE = """<template name="{name}">
  <requires><disk><size equal="{size}"/></disk><firmware><kind equal="{kind}"/></firmware></requires>
  {layout}<image target="2" name="system"/><image target="3" name="data"/>
  <ready port="80" path="/identity.json"/><personalise seed="nocloud"/></template>"""
# machine, named by its firmware -> its table
USUAL = {"bios": "mbr"}
UEFI = {"uefi": "gpt"}
CROSSED = {"bios": "gpt", "uefi": "mbr"}


def pieces(folder: Path) -> dict[str, Path]:
    """Images of partitions: those of hello-a, and a boot sector for an MBR's, with GRUB behind
    it."""
    whole = build.CHECKOUT / "build/images/hello-a.img"
    found = {}
    with whole.open("rb") as image:
        for name, (start, size) in PLACES.items():
            image.seek(start * MIB)
            found[name] = folder / name
            found[name].write_bytes(image.read(size * MIB))
    cache = build.CHECKOUT / "build/cache/images"
    with packages.alone(cache):
        tools = packages.unpacked(packages.wanted(linux.PACKAGES), cache)
    boot, core = grub.bios(tools, folder, SECTOR + 1, prefix=f"(,msdos{grub.SYSTEM})/")
    found["sector"] = folder / "sector"
    found["sector"].write_bytes((boot.ljust(510, b"\0") + b"\x55\xaa" + core).ljust(MIB, b"\0"))
    return found


@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param(USUAL, marks=pytest.mark.in_turn(3, first=2)),
        *(pytest.param(each, marks=pytest.mark.nightly) for each in (UEFI, CROSSED)),
    ],
    ids=["usual", "uefi", "crossed"],
)
def test_layouts_boot(kinds: dict[str, str], tmp_path: Path) -> None:
    build_all("hello-a")
    digest = json.loads((build.CHECKOUT / "build/images/hello-a.json").read_text())["digest"]
    # The sizes make two types of machines, so that each gets the template that is meant for it.
    sizes = {name: (n + 1) * 256 * MIB for n, name in enumerate(kinds)}
    nodes = [LabNode(name, name, disks=(LabDisk(size, "ahci"),)) for name, size in sizes.items()]
    with rack(nodes, restored=True) as stand:
        for name in kinds:
            stand.power(name, "on")
        for name, path in pieces(tmp_path).items():
            stand.cod("image", "add", name, str(path), "--raw", "--wait")
        for name, table in kinds.items():
            stand.reaches(name, "inactive")
            document = tmp_path / f"{name}.xml"
            document.write_text(
                TEMPLATE.format(name=name, kind=name, size=sizes[name], layout=LAYOUTS[table])
            )
            stand.cod("template", "add", str(document))
            stand.cod("vcluster", "create", name, "--size", "1", "--template", name)
        for name, table in kinds.items():
            stand.reaches(name, "active")
            assert stand.booted(name, 1)["digest"] == digest, f"{name}: {table}"
            assert "boot_failed" not in [row["event"] for row in stand.history(name)]
