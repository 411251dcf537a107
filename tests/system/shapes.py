"""The machine shapes that COD is tried on, and how a machine is brought from power-on to active or
to a refusal.

`make matrix` runs all of them and writes docs/hardware.md; test_shapes.py runs those of
`COVERING`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any

from cod.demo.stage import StageError
from cod.lab.spec import LabDisk, LabNetwork, LabNic, LabNode
from tests.system.qemu import Rack, rack

IMAGE = "hello-a"
# No Linux, and for BIOS only: its boot costs next to nothing, and is active by the clock.
LIGHT, LIGHT_HELLO = "opaque", "all bits arrived"
ACTIVE = "active"
SIZE = 640 << 20  # bytes; the image needs 512 MiB
FAR = LabNetwork("far", "10.78.0.1/24")
FAR_SUBNET = """
[[subnet]]
name = "far"
network = "10.78.0.0/24"
server = "10.77.0.1"
relay = "10.78.0.1"
router = "10.78.0.1"
boot_pool = ["10.78.0.10", "10.78.0.99"]
block_pool = ["10.78.0.128", "10.78.0.254"]
"""


@dataclass(frozen=True, slots=True)
class Shape:
    """A machine of the lab and what COD is expected to do with it.

    refused  pattern of the sentence that refuses the machine; empty: the machine becomes active
    note     for the page
    """

    node: LabNode
    refused: str = ""
    note: str = ""

    @property
    def name(self) -> str:
        """Return the shape's name, which is its machine's."""
        return self.node.name

    @property
    def is_far(self) -> bool:
        """Return whether the machine is on the network behind the relay."""
        return any(nic.network == FAR.name for nic in self.node.nics)


def _shape(
    name: str,
    firmware: str,
    nics: str | Sequence[LabNic],
    disks: str | Sequence[LabDisk],
    *,
    boot: str = "",
    netboot: str = "any",
    boot_kept: bool = False,
    **more: Any,
) -> Shape:
    if isinstance(nics, str):
        nics = [LabNic(model) for model in nics.split()]
    if isinstance(disks, str):
        disks = [LabDisk(SIZE, bus) for bus in disks.split()]
    node = LabNode(
        name,
        firmware,
        nics=tuple(nics),
        disks=tuple(disks),
        boot=tuple(boot.split()),
        netboot=netboot,
        boot_kept=boot_kept,
        memory=768 if firmware == "uefi" else 512,
    )
    return Shape(node, **more)


VIRTIO = "virtio-net-pci"
SHAPES = (
    _shape("bios-virtio", "bios", VIRTIO, "virtio"),
    _shape("bios-e1000-ahci", "bios", "e1000", "ahci"),
    _shape("bios-e1000e-nvme", "bios", "e1000e", "nvme"),
    _shape("bios-rtl8139-scsi", "bios", "rtl8139", "virtio-scsi"),
    _shape("bios-virtio-megasas", "bios", VIRTIO, "megasas"),
    _shape("bios-two-disks", "bios", VIRTIO, "virtio ahci"),
    _shape("bios-two-disks-swapped", "bios", VIRTIO, "virtio ahci", boot="nic0 disk1 disk0"),
    _shape(
        "bios-three-nics", "bios", f"{VIRTIO} e1000 rtl8139", "ahci", boot="nic1 nic0 nic2 disk0"
    ),
    _shape(
        "bios-usb", "bios", "rtl8139", "usb", refused="disk", note="its only disk is a USB stick"
    ),
    _shape(
        "bios-relay", "bios", [LabNic("e1000", network="far")], "ahci", note="behind a DHCP relay"
    ),
    _shape("uefi-virtio", "uefi", VIRTIO, "virtio"),
    _shape("uefi-e1000-ahci", "uefi", "e1000", "ahci"),
    _shape("uefi-e1000e-nvme", "uefi", "e1000e", "nvme"),
    _shape("uefi-rtl8139-scsi", "uefi", "rtl8139", "virtio-scsi"),
    _shape("uefi-vmxnet3-ahci", "uefi", "vmxnet3", "ahci"),
    _shape("uefi-nvme-4k", "uefi", VIRTIO, [LabDisk(SIZE, "nvme", 4096)], refused="sector"),
    _shape("uefi-two-disks", "uefi", VIRTIO, "virtio ahci"),
    _shape("uefi-two-disks-swapped", "uefi", "vmxnet3", "virtio nvme", boot="nic0 disk1 disk0"),
    _shape(
        "uefi-three-nics", "uefi", f"{VIRTIO} {VIRTIO} e1000", "virtio", boot="nic1 nic0 nic2 disk0"
    ),
    _shape("http-virtio-nvme", "uefi", VIRTIO, "nvme", netboot="http"),
    _shape("http-e1000-ahci", "uefi", "e1000", "ahci", netboot="http"),
    _shape("http-e1000e-scsi", "uefi", "e1000e", "virtio-scsi", netboot="http"),
    _shape("http-rtl8139-virtio", "uefi", "rtl8139", "virtio", netboot="http"),
)
# Boots that `make test` proves, beside those of test_firmware.py, test_pxelinux.py and
# test_layouts.py: each way to boot, NIC and disk bus once, and disks in another order than the
# firmware's. Each machine shows several of these; what both firmwares know is booted by BIOS, which
# costs half. Those of UEFI take turns, a day each.
COVERING = {
    "bios": ("bios-two-disks-swapped",),
    "uefi": ("uefi-two-disks-swapped", "http-e1000e-scsi"),
}
# Also in `make test-all`: NICs and buses of the machines above, each with another partner, and
# machines that are refused: what their agent reports is shown by test_trampoline_boot.py, and that
# such a report is refused by tests/unit/test_needs.py.
BY_NIGHT = {
    "bios": ("bios-virtio-megasas", "bios-rtl8139-scsi", "bios-usb"),
    "uefi": ("uefi-vmxnet3-ahci", "uefi-nvme-4k"),
}


def named(name: str) -> Shape:
    """Return the shape of that name."""
    return next(shape for shape in SHAPES if shape.name == name)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How far a machine came: seconds since power-on, None for what it did not reach, and the
    sentence that stopped it.

    states    those that its node was in
    firmware  what its agent reported, or its firmware said
    """

    inactive: float | None = None
    primed: float | None = None
    active: float | None = None
    sentence: str = ""
    states: tuple[str, ...] = ()
    firmware: str = ""


def as_expected(shape: Shape, outcome: Outcome) -> bool:
    """Return whether a machine became active, or was refused with the sentence that its shape
    names."""
    if shape.refused:
        return outcome.active is None and re.search(shape.refused, outcome.sentence) is not None
    return outcome.active is not None


def rack_of(chosen: Sequence[Shape]) -> AbstractContextManager[Rack]:
    """Return a rack of all these machines, with a network behind a relay, to be entered."""
    return rack([shape.node for shape in chosen], patience=3.0, policy=FAR_SUBNET, networks=(FAR,))


def bring_up(stand: Rack, shape: Shape, seconds: float, image: str = IMAGE) -> Outcome:
    """Switch the machine on, request it for a vcluster, return the outcome, and switch it off.

    The image has been offered; LIGHT has to say its words, too. No other machine may be idle.
    Raises AssertionError when a step takes longer than `seconds`.
    """
    began = time.time()
    stand.power(shape.name, "on")
    created = ""
    try:
        stand.reaches(shape.name, "inactive", "quarantined", seconds=seconds)
        if stand.state(shape.name) == "inactive":
            created = _created(stand, shape, image)
        sentence = created or stand.wait(
            lambda: _end(stand, shape), lambda: _standing(stand, shape), seconds
        )
        if image == LIGHT and sentence == ACTIVE:
            stand.wait(
                lambda: LIGHT_HELLO in stand.console(shape.name),
                lambda: _standing(stand, shape),
                seconds,
            )
        history = stand.history(shape.name)
        at = {
            state: next((row["at"] - began for row in history if row["to_state"] == state), None)
            for state in ("inactive", "boot", "active")
        }
        return Outcome(
            at["inactive"],
            at["boot"],
            at["active"],
            "" if sentence == ACTIVE else sentence,
            tuple(row["to_state"] for row in history),
            str(stand.node(shape.name).get("firmware", "")),
        )
    finally:
        stand.power(shape.name, "off")
        if shape.refused:  # its request would take the next machine
            with suppress(StageError):  # it was refused at once
                stand.cod("vcluster", "delete", shape.name)
        if stand.state(shape.name) not in ("", "active"):
            stand.cod("node", "retire", stand.node(shape.name)["name"])


def _created(stand: Rack, shape: Shape, image: str) -> str:
    """Create a vcluster of the machine's name; returns why it is refused, where no machine of the
    site would do for it. Raises StageError where the machine should not be refused."""
    try:
        stand.cod("vcluster", "create", shape.name, "--size", "1", "--template", image)
    except StageError as refused:
        if not shape.refused:
            raise
        return str(refused)
    return ""


def _end(stand: Rack, shape: Shape) -> str:
    """Return ACTIVE, or the sentence that refuses the machine, or '' while it is starting."""
    node = stand.node(shape.name)
    if node["state"] == "quarantined":
        return str(node["reason"])
    return (
        ACTIVE
        if node["state"] == "active"
        else _refusal(stand, shape.name)
        if node["state"] == "inactive"
        else ""
    )


def _standing(stand: Rack, shape: Shape) -> str:
    states, console = ", ".join(stand.states(shape.name)), stand.console(shape.name)
    return f"{shape.name} came to {states}; its console ends {console[-500:]!r}"


def _refusal(stand: Rack, vcluster: str) -> str:
    """Return what the machine lacks for the vcluster's request, or why else the request waits, once
    the manager has looked at it; '' before, and when it is granted."""
    with stand.client() as api:
        waiting = [
            row
            for row in api.every("/requests")
            if row["vcluster"] == vcluster
            and row["state"] in ("pending", "rejected")
            and row["reason"]
        ]
        if not waiting:
            return ""
        why = api.get(f"/requests/{waiting[0]['id']}/explain")
    phrases = [
        phrase for kind in why["types"] for lack in kind["lacks"] for phrase in lack["phrases"]
    ]
    return "; ".join(phrases) or str(why["sentence"])
