"""The lab's trampoline in QEMU, kernel and ramdisk given directly: it boots, reports, wipes, primes
and switches off.

The network is QEMU's own (its DHCP server, and the host's loopback as 10.0.2.2), so no namespace is
needed; the server is the real server's end of the protocol on a socket. Firmware and loaders are
others' tests.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from cod.images.ingest import ingest
from cod.lab.machine import OVMF_CODE, OVMF_VARS, QEMU
from cod.orders import ImageSource, Order
from cod.wire import xmldoc
from cod.wire.confd import protocol
from cod.wire.confd.messages import Ack, Done, Failed, Heartbeat, Message, Report
from tests.hardware import host_interface
from tests.imageserver import serving
from tests.ports import free_port
from tests.system.bmcs import IpmiSim
from trampoline import build
from trampoline.recipe import cpio

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("trampoline")]

OUT, CACHE = build.CHECKOUT / "build/trampoline", build.CHECKOUT / "build/cache/trampoline"
MAC = "52:54:00:aa:bb:01"
DISK = 24 << 20  # bytes
SECRET = protocol.Secret("boot", bytes(range(32)))
EMPTY = ("stick", "large-sectors")  # disks that a machine may have beside its own
EMPTY_DISK = f"driver=null-co,node-name={{}},size={DISK},read-zeroes=on"


@pytest.fixture(scope="session")
def lab() -> Path:
    """The lab flavour, built unless it is up to date."""
    return build.build("lab", OUT, CACHE)


@pytest.fixture(scope="session")
def generic() -> Path:
    """The flavour for real servers, the same."""
    return build.build("generic", OUT, CACHE)


def test_it_is_little_larger_than_the_papers(lab: Path) -> None:
    """The paper's had 6 MB, and 16 MB unpacked. The drivers of the lab's NICs and disk buses are
    0.6 MB of this one."""
    facts = json.loads((lab / "facts.json").read_text())
    packed = (lab / "ramdisk").stat().st_size
    unpacked = subprocess.run(
        ["zstd", "-dc"], input=(lab / "ramdisk").read_bytes(), capture_output=True
    ).stdout
    assert (facts["packed"], facts["unpacked"]) == (packed, len(unpacked))
    assert packed <= 6_700_000
    assert packed % 4 == 0, "a second archive could not follow"
    assert len(unpacked) <= 16_600_000


@pytest.mark.nightly  # test_images.py shows it of ramdisks that are packed by the same code
def test_the_same_inputs_give_the_same_bytes(lab: Path, tmp_path: Path) -> None:
    """Unpacked anew, elsewhere, with another hash seed, time zone and umask."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/packages").symlink_to(CACHE / "packages")
    variables = {
        **os.environ,
        "PYTHONHASHSEED": "77",
        "TZ": "Asia/Tokyo",
        "PYTHONPATH": str(build.CHECKOUT),
    }
    subprocess.run(
        [
            sys.executable,
            "-m",
            "trampoline.build",
            "lab",
            "--out",
            tmp_path,
            "--cache",
            tmp_path / "cache",
        ],
        check=True,
        env=variables,
        cwd=tmp_path,
        umask=0o077,
    )
    for name in ("vmlinuz", "ramdisk", "facts.json"):
        assert (tmp_path / "lab" / name).read_bytes() == (lab / name).read_bytes(), name


def test_nothing_is_done_when_nothing_has_changed(lab: Path) -> None:
    before = (lab / "ramdisk").stat()
    assert build.build("lab", OUT, CACHE) == lab
    assert (lab / "ramdisk").stat() == before


class Guest:
    """A machine in QEMU, and the server's end of its agent's connection."""

    def __init__(
        self, folder: Path, lab: Path, hardware: str, uefi: bool, more: Sequence[str] = ()
    ) -> None:
        self.disk, self.console = folder / "disk", folder / "console"
        self.content = random.Random(1).randbytes(DISK)
        self.disk.write_bytes(self.content)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(600)  # emulated, on a machine that may be busy with other tests
        secret = cpio.archive({"cod/secret": cpio.file(str(SECRET).encode(), 0o600)})
        (folder / "initrd").write_bytes((lab / "ramdisk").read_bytes() + secret)
        line = (
            f"console=ttyS0 quiet panic=-1 cod.confd=10.0.2.2:{self.listener.getsockname()[1]}"
            f" cod.mac={MAC}"
        )
        nic, *disk = hardware.split()
        firmware = _uefi(folder) if uefi else []
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            [
                QEMU,
                "-machine",
                "pc,graphics=off",
                "-accel",
                "tcg,thread=multi",
                "-m",
                "512",
                "-nodefaults",
                "-display",
                "none",
                "-serial",
                f"file:{self.console}",
                "-no-reboot",
                *firmware,
                "-kernel",
                lab / "vmlinuz",
                "-initrd",
                folder / "initrd",
                "-append",
                line,
                "-netdev",
                "user,id=n",
                "-device",
                f"{nic},netdev=n,mac={MAC},romfile=",
                "-drive",
                f"file={self.disk},format=raw,if=none,id=d,discard=unmap",
                *(word for name in EMPTY for word in ("-blockdev", EMPTY_DISK.format(name))),
                *(word for d in disk for word in ("-device", d)),
                *more,
            ],
            stdin=subprocess.DEVNULL,
        )

    def connect(self) -> ET.Element:
        """Wait for the agent; its report, checked against the schema."""
        self.socket, _ = self.listener.accept()
        self.socket.settimeout(120)
        self.side = protocol.ServerSide(
            os.urandom(32), os.urandom(32), lambda body: xmldoc.parse(body, "confd")
        )
        self.heard: list[Any] = []
        report = self.next(Report)
        self.seconds = time.monotonic() - self.started
        self.say(Ack())
        return ET.fromstring(report.document)

    def say(self, message: Message) -> None:
        self.socket.sendall(self.side.send(message))

    def next(self, *kinds: type) -> Any:
        """The next message of those kinds; others are skipped."""
        while True:
            while self.heard:
                if isinstance(message := self.heard.pop(0), kinds):
                    return message
            data = self.socket.recv(65536)
            assert data, f"the agent went away: {self.console.read_text()}"
            self._hear(self.side.receive(data))

    def _hear(self, events: list[Any]) -> None:
        while events:
            event = events.pop(0)
            if isinstance(event, protocol.NeedVerifier):
                events += self.side.known(protocol.verifier(SECRET.key, b"s" * 16))
            elif isinstance(event, protocol.Proved):
                events += self.side.welcome("n1", 5.0)
            elif isinstance(event, Heartbeat):
                self.say(event)
            else:
                self.heard.append(event)
        self.socket.sendall(self.side.to_send())

    def obey(self, order: Order) -> Done | Failed:
        """Give an order; its result, acknowledged."""
        self.say(order)
        result = self.next(Done, Failed)
        self.say(Ack(order.id))
        assert isinstance(result, Done | Failed)
        return result


def _uefi(folder: Path) -> list[str]:
    shutil.copy(OVMF_VARS, folder / "vars.fd")
    return [
        "-drive",
        f"if=pflash,format=raw,readonly=on,file={OVMF_CODE}",
        "-drive",
        f"if=pflash,format=raw,file={folder / 'vars.fd'}",
    ]


@pytest.fixture
def guest(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Guest]:
    hardware, uefi, *flavour = request.param
    guest = Guest(tmp_path, request.getfixturevalue(*flavour or ["lab"]), hardware, uefi)
    yield guest
    guest.process.kill()
    guest.process.wait()
    guest.listener.close()


AHCI = "e1000 ahci,id=a ide-hd,drive=d,bus=a.0,serial=S1"
VIRTIO = "virtio-net-pci virtio-blk-pci,drive=d,serial=S1"
# a second NIC, not plugged in
NVME = "virtio-net-pci nvme,drive=d,serial=S1 e1000,mac=52:54:00:aa:bb:02,romfile="
# disks that no usual image is written to: see tests/unit/test_needs.py
UNUSUAL = (
    " qemu-xhci,id=usb usb-storage,bus=usb.0,drive=stick,serial=U1"
    " nvme,drive=large-sectors,serial=N1,logical_block_size=4096,physical_block_size=4096"
)
# what only the generic flavour drives
SERVER = "e1000e megasas,id=s scsi-hd,bus=s.0,drive=d,serial=S1"
SCSI = "virtio-net-pci virtio-scsi-pci,id=s scsi-hd,bus=s.0,drive=d,serial=S1"


@pytest.mark.nightly  # machines of test_shapes.py and test_firmware.py have these NICs and disks
@pytest.mark.parametrize(
    ("guest", "expected"),
    [
        ((AHCI, False), ("bios", "e1000", "sda", "ata")),
        ((VIRTIO, True), ("uefi", "virtio_net", "vda", "virtio")),
        ((NVME, False), ("bios", "virtio_net", "nvme0n1", "nvme")),
        ((SCSI, False), ("bios", "virtio_net", "sda", "virtio")),
    ],
    indirect=["guest"],
    ids=["e1000-ahci", "uefi-virtio", "nvme", "virtio-scsi"],
)
def test_it_reports_its_machine_and_touches_nothing(
    guest: Guest, expected: tuple[str, ...]
) -> None:
    firmware, driver, name, transport = expected
    (disk,) = reported(guest, firmware, driver, transport)
    assert disk.get("name") == name
    assert guest.obey(Order("1.1", "off")) == Done("1.1")
    assert guest.process.wait(120) == 0
    assert guest.disk.read_bytes() == guest.content
    said_to_its_console(guest)


def reported(
    guest: Guest, firmware: str, driver: str, transport: str, disks: int = 1
) -> list[ET.Element]:
    """The disks of a machine whose report is as its hardware."""
    node = guest.connect()
    while len(node.findall("disk")) < disks:  # some controllers bring their disks up late
        node = ET.fromstring(guest.next(Report).document)
        guest.say(Ack())
    (nic,), (disk,) = node.findall("nic[@boot='yes']"), node.findall("disk[@serial='S1']")
    kind = node.find("firmware")
    assert kind is not None
    assert (kind.get("kind"), nic.get("driver")) == (firmware, driver)
    assert (nic.get("mac"), nic.get("link"), nic.get("boot")) == (MAC, "up", "yes")
    assert (disk.get("transport"), disk.get("size"), disk.get("local")) == (
        transport,
        str(DISK),
        "yes",
    )
    nics = [pci for pci in node.findall("pci") if pci.get("class") == "0200"]
    assert driver in {(pci.get("driver") or "").replace("virtio-pci", "virtio_net") for pci in nics}
    assert not any((pci.get("class") or "").startswith("06") for pci in node.findall("pci"))
    assert node.find("gpu") is None
    return node.findall("disk")


def said_to_its_console(guest: Guest) -> None:
    """Look at what the machine has said: what it does, no secret and no error."""
    console = guest.console.read_text(errors="replace")
    assert "n1: reporting to its server" in console
    assert SECRET.key.hex() not in console
    assert "Traceback" not in console


LANCONTROL = """#!/bin/sh
# what ipmi_sim asks for the parameters of a LAN channel
for name; do
    case $name in
    ip_addr) echo ip_addr:10.1.0.7 ;;
    mac_addr) echo mac_addr:b4:96:91:0a:0b:0e ;;
    ip_addr_src) echo ip_addr_src:static ;;
    subnet_mask) echo subnet_mask:255.255.0.0 ;;
    default_gw_ip_addr | backup_gw_ip_addr) echo $name:0.0.0.0 ;;
    default_gw_mac_addr | backup_gw_mac_addr) echo $name:00:00:00:00:00:00 ;;
    esac
done
"""


@pytest.mark.nightly  # what is read of the answers is shown by their bytes
def test_it_asks_its_bmc_where_it_is(lab: Path, tmp_path: Path) -> None:
    """By KCS before a foreign BMC, and from a structure of SMBIOS."""
    program, interface, port = tmp_path / "lancontrol", tmp_path / "smbios", free_port()
    program.write_text(LANCONTROL)
    program.chmod(0o755)
    interface.write_bytes(host_interface(bytes((10, 1, 0, 9))) + bytes(2))
    bmc = IpmiSim(tmp_path / "bmc", tmp_path / "none", "n1")
    settings = bmc.folder / "lan.conf"
    own = f'    lan_config_program "{program}"\n  endlan\n  serial 15 127.0.0.1 {port} codec VM\n'
    settings.write_text(settings.read_text().replace("  endlan\n", own))
    kcs = ("ipmi-bmc-extern,id=b,chardev=c", "isa-ipmi-kcs,bmc=b")
    more = [word for device in kcs for word in ("-device", device)]
    more = ["-chardev", f"socket,id=c,host=127.0.0.1,port={port},reconnect=1", *more]
    with bmc.run():
        guest = Guest(tmp_path, lab, VIRTIO, False, [*more, "-smbios", f"file={interface}"])
        try:
            node = guest.connect()
        finally:
            guest.process.kill()
            guest.process.wait()
            guest.listener.close()
    assert [each.attrib for each in node.findall("bmc")] == [
        {"by": "ipmi", "address": "10.1.0.7", "mac": "b4:96:91:0a:0b:0e"},
        {"by": "redfish", "address": "10.1.0.9"},
    ]


@pytest.mark.parametrize(
    ("guest", "driver", "transport", "last"),
    [
        ((SERVER + UNUSUAL, False, "generic"), "e1000e", "scsi", "off"),
        # the machines of test_shapes.py are primed by it, and reboot
        pytest.param(
            (VIRTIO + UNUSUAL, False), "virtio_net", "virtio", "reboot", marks=pytest.mark.nightly
        ),
    ],
    indirect=["guest"],
    ids=["generic", "lab"],
)
def test_it_primes_and_wipes(
    guest: Guest, driver: str, transport: str, last: str, tmp_path: Path
) -> None:
    """All that priming needs (HTTP, zstd, digests) is in the ramdisk. It has two disks more, and
    says what they are; until an order comes it touches nothing."""
    image, root = tmp_path / "image", tmp_path / "images"
    image.write_bytes(
        random.Random(2).randbytes(3 << 20) + bytes(2 << 20) + b"end".ljust(1 << 20, b".")
    )
    root.mkdir()
    served = ingest(image, root, raw=True)
    disks = reported(guest, "bios", driver, transport, disks=3)
    assert {
        disk.get("transport"): (disk.get("local"), disk.get("sector", "512")) for disk in disks
    } == {transport: ("yes", "512"), "usb": ("no", "512"), "nvme": ("yes", "4096")}
    assert guest.disk.read_bytes() == guest.content
    with serving(root) as server:
        url = f"http://10.0.2.2:{server.server_port}/{served.digest}"
        source = ImageSource("disk", url, "chunks", served.digest, image.stat().st_size)
        order = Order("1.2", "prime", "serial:S1", table="keep", verify=True, images=(source,))
        guest.say(order)
        result = guest.next(Done, Failed)
        assert isinstance(result, Done), result
    written = guest.disk.read_bytes()
    assert written[: image.stat().st_size] == image.read_bytes()
    assert not any(written[image.stat().st_size :]), "it was to wipe before"
    assert isinstance(guest.obey(replace(order, id="1.3", action="wipe", images=())), Done)
    assert not any(guest.disk.read_bytes())
    assert guest.obey(Order("1.4", last)) == Done("1.4")
    assert guest.process.wait(120) == 0  # -no-reboot
    said_to_its_console(guest)


@pytest.mark.nightly  # loop devices and a stand-in show most of it
@pytest.mark.parametrize(
    ("guest", "method"),
    [
        ((VIRTIO, False), "write zeroes"),
        ((NVME, False), "NVMe Format, write zeroes, discard"),
        ((SCSI, False), "write zeroes, discard"),
    ],
    indirect=["guest"],
    ids=["virtio", "nvme", "virtio-scsi"],
)
def test_a_purged_disk_is_empty_and_gives_its_space_back(guest: Guest, method: str) -> None:
    guest.connect()
    result = guest.obey(Order("1.2", "wipe", purge=True))
    assert isinstance(result, Done), result
    assert [(each.serial, each.size, each.method) for each in result.erased] == [
        ("S1", DISK, method)
    ]
    assert not any(guest.disk.read_bytes())
    assert guest.disk.stat().st_blocks == 0
