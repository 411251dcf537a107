"""Each image boots from its disk, as COD boots a node: network first, then the disk. One firmware
for each here: test_disk_order.py and test_layouts.py boot hello-a on UEFI, test_capture.py hello-b
on both (UEFI by night), after a power cut too.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cod.lab import control, record
from cod.lab.spec import LabDisk, LabNic, LabNode, LabSpec, completed
from images import build
from tests.waiting import until

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("images")]

PATTERN = b"COD-USER-DATA written under hello-"
WHERE = {  # node -> image, what the machine is
    "a1": (
        "hello-a",
        LabNode("a1", "bios", nics=(LabNic("e1000"),), disks=(LabDisk(1 << 30, "ahci"),)),
    ),
    "b1": ("hello-b", LabNode("b1", "uefi", disks=(LabDisk(1 << 30, "nvme"),))),
    "o1": ("opaque", LabNode("o1", "bios", disks=(LabDisk(256 << 20, "virtio"),))),
}
DNSMASQ = """
port=0
interface=br0
bind-interfaces
dhcp-range=10.77.1.0,10.77.1.199,1h
dhcp-leasefile={folder}/leases
domain=web.cod.test
enable-tftp
tftp-root={folder}/tftp
dhcp-userclass=set:ipxe,iPXE
dhcp-match=set:efi64,option:client-arch,7
dhcp-vendorclass=set:http,HTTPClient
dhcp-option-force=tag:http,tag:!ipxe,60,HTTPClient
dhcp-boot=tag:http,tag:!ipxe,http://10.77.0.1:8080/snponly.efi
dhcp-boot=tag:ipxe,exit.ipxe
dhcp-boot=tag:!ipxe,tag:efi64,snponly.efi
log-dhcp
user=root
no-ping
enable-ra
dhcp-range=fd00:77::,ra-only,64
"""


@pytest.fixture(scope="module")
def facts() -> dict[str, dict[str, Any]]:
    """The built images' facts; they are built if they are not up to date."""
    out = build.CHECKOUT / "build/images"
    return {
        name: build.build(name, out, build.CHECKOUT / "build/cache/images")
        for name, _ in WHERE.values()
    }


@pytest.fixture(scope="module")
def lab(facts: dict[str, dict[str, Any]]) -> Iterator[str]:
    """A lab with an image on each node's disk, a DHCP server that sends everybody on to the disk,
    all switched off."""
    with tempfile.TemporaryDirectory(prefix="cod-") as place, pytest.MonkeyPatch.context() as patch:
        patch.setenv("COD_LAB_ROOT", f"{place}/labs")
        spec = completed(
            LabSpec(
                f"images-{Path(place).name[4:].lower().strip('_-')}".replace("_", "-"),
                tuple(node for _image, node in WHERE.values()),
                "10.77.0.1/16",
            )
        )
        control.up(spec)
        try:
            for node, (image, _) in WHERE.items():
                write(
                    build.CHECKOUT / f"build/images/{image}.img",
                    record.folder(spec.name) / f"disks/{node}-0.img",
                )
            serve(spec, Path(place))
            yield spec.name
        finally:
            control.down(spec.name)


def write(image: Path, disk: Path) -> None:
    subprocess.run(
        ["dd", f"if={image}", f"of={disk}", "bs=1M", "conv=sparse,notrunc", "status=none"],
        check=True,
    )


def serve(spec: LabSpec, folder: Path) -> None:
    (folder / "tftp").mkdir()
    (folder / "tftp/exit.ipxe").write_text("#!ipxe\niseq ${platform} efi && exit 1 || exit\n")
    (folder / "tftp/snponly.efi").write_bytes(Path("/usr/lib/ipxe/snponly.efi").read_bytes())
    hosts = "".join(f"dhcp-host={node.mac},host-{node.name}\n" for node in spec.nodes)
    (folder / "dnsmasq.conf").write_text(DNSMASQ.format(folder=folder) + hosts)
    with open(folder / "dnsmasq.log", "wb") as log:
        control.run_inside(
            spec.name, ["dnsmasq", "-d", "-C", str(folder / "dnsmasq.conf")], stderr=log
        )
        control.run_inside(
            spec.name,
            [sys.executable, "-m", "http.server", "8080", "-d", str(folder / "tftp")],
            stdout=log,
            stderr=log,
        )


def line(lab: str, node: str) -> dict[str, str]:
    """Switch the node on, if it is off; the words of its hello line."""
    control.power(lab, node, "on")

    def search() -> dict[str, str] | None:
        text = control.console(lab, node).read_bytes().decode(errors="replace")
        # whole lines
        hellos = [row.partition("hello: ")[2] for row in text.split("\n")[:-1] if "hello: " in row]
        words = [
            dict(word.split("=", 1) for word in hello.split() if "=" in word) for hello in hellos
        ]
        return next((each for each in words if each.get("boots") == "1"), None)

    found: dict[str, str] = until(search, f"{node} says hello", 600)
    return found


def served(lab: str, address: str, path: str) -> str:
    """What a machine's web server shows, once it answers."""

    def asked() -> bytes:
        return control.run_inside(
            lab, ["curl", "-sS", "-m", "10", f"http://{address}{path}"], stdout=subprocess.PIPE
        ).communicate()[0]

    return str(until(asked, f"http://{address}{path} answers", 120).decode())


@pytest.mark.nightly
def test_the_opaque_image_says_hello_with_its_own_boot_code(lab: str) -> None:
    def text() -> str:
        return control.console(lab, "o1").read_bytes().decode(errors="replace")

    control.power(lab, "o1", "on")
    # SeaBIOS writes to the same port behind the boot code's back: its progress dot may fall between
    # the two texts.
    until(lambda: "all bits arrived" in text(), "the opaque image says hello", 600)
    assert "opaque: image=opaque version=1 hello from my own boot code" in text()
    assert "cannot read" not in text()


@pytest.mark.parametrize("node", ["a1", "b1"])
@pytest.mark.nightly
def test_a_hello_image_says_who_it_is(
    lab: str, facts: dict[str, dict[str, Any]], node: str
) -> None:
    image, machine = WHERE[node]
    hello = line(lab, node)
    assert hello["image"] == image
    assert hello["version"] == facts[image]["version"]
    assert hello["digest"] == facts[image]["digest"], (
        "the running machine has found every bit of the built image"
    )
    assert hello["firmware"] == machine.firmware
    assert (hello["hostname"], hello["domain"]) == (f"host-{node}", "web.cod.test")
    shown = json.loads(served(lab, hello["address"], "/identity.json"))
    assert (
        shown.items()
        >= {
            key: hello[key]
            for key in ("image", "version", "digest", "hostname", "domain", "address", "firmware")
        }.items()
    )
    front = served(lab, hello["address"], "/")
    assert f"<h1>host-{node}</h1>" in front
    assert facts[image]["digest"] in front


@pytest.mark.parametrize("node", ["a1", "b1"])
@pytest.mark.nightly
def test_what_a_user_leaves_behind_is_on_the_disk(lab: str, node: str) -> None:
    line(lab, node)
    assert (record.folder(lab) / f"disks/{node}-0.img").read_bytes().count(PATTERN) > 10_000


def test_the_same_inputs_make_the_same_bytes(
    tmp_path: Path, facts: dict[str, dict[str, Any]]
) -> None:
    for name in ("hello-b", "opaque"):
        again = build.build(name, tmp_path, build.CHECKOUT / "build/cache/images")
        assert again == facts[name]
