"""The QEMU command line of one machine: real firmware that tries its devices in the spec's order.

BIOS machines run SeaBIOS with the iPXE ROMs of their NICs, as a server's own PXE ROM would. UEFI
machines run OVMF, whose own PXE stack works with virtio NICs; their ROM is left out unless the spec
asks for it. For NICs of other models OVMF has no driver; the NIC's ROM brings one. OVMF lists the
ROM's iPXE, and its own PXE stack on top of the ROM's driver, as two boot options.
"""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from cod.lab.network import tap
from cod.lab.spec import LabNode

OVMF_CODE = Path("/usr/share/OVMF/OVMF_CODE_4M.fd")
OVMF_VARS = Path("/usr/share/OVMF/OVMF_VARS_4M.fd")
QEMU = "qemu-system-x86_64"
CONTROLLERS = {
    "ahci": "ich9-ahci,id=sata",
    "virtio-scsi": "virtio-scsi-pci,id=vscsi",
    "megasas": "megasas,id=raid",
    "usb": "qemu-xhci,id=usb",
}
# The number counts the disks of one bus.
DEVICES = {
    "virtio": "virtio-blk-pci",
    "ahci": "ide-hd,bus=sata.{}",
    "nvme": "nvme",
    "virtio-scsi": "scsi-hd,bus=vscsi.0,scsi-id={}",
    "megasas": "scsi-hd,bus=raid.0,scsi-id={}",
    "usb": "usb-storage,bus=usb.0",
}
ACCELERATORS = {
    "kvm": ["-accel", "kvm", "-cpu", "host"],
    "tcg": ["-accel", "tcg,thread=multi", "-cpu", "max"],
}


def prepare(node: LabNode, folder: Path) -> None:
    """Make the node's disks (sparse) and its firmware's variables, as they are in a new machine."""
    for position, disk in enumerate(node.disks):
        with open(disk_path(folder, node, position), "xb") as file:
            file.truncate(disk.size)
    if node.firmware == "uefi":
        shutil.copyfile(OVMF_VARS, variables_path(folder, node))


def command(
    node: LabNode, position: int, folder: Path, accel: str, switch: str = "bridge"
) -> list[str]:
    """Return the QEMU command of the machine `node`, the spec's node at `position`. `switch`: the
    kind of switch that its NICs are connected to."""
    return [
        QEMU,
        "-name",
        node.name,
        "-machine",
        f"{node.machine},graphics=off",
        *ACCELERATORS[accel],
        # A real server that finds nothing to boot tries again; by default SeaBIOS would halt.
        "-boot",
        "strict=on,reboot-timeout=10000",
        "-m",
        str(node.memory),
        "-smp",
        str(node.cpus),
        "-nodefaults",
        "-display",
        "none",
        "-vga",
        "none",
        "-uuid",
        node.uuid,
        "-smbios",
        f"type=1,manufacturer=COD,product=lab-{node.firmware},serial={node.serial},uuid={node.uuid}",
        "-qmp",
        f"unix:{qmp_path(folder, node.name)},server=on,wait=off",
        "-chardev",
        f"file,id=console,path={console_path(folder, node.name)},append=on",
        "-serial",
        "chardev:console",
        *_firmware(node, folder),
        *_nics(node, position, switch),
        *_disks(node, folder),
    ]


def describe(node: LabNode, folder: Path) -> dict[str, Any]:
    """Return a description of a machine for people and programs, ready for JSON. `mac` is the MAC
    of the NIC that boots."""
    return {
        "name": node.name,
        "firmware": node.firmware,
        "mac": node.mac,
        "macs": list(node.macs),
        "uuid": node.uuid,
        "nics": [nic.model for nic in node.nics],
        "disks": [
            {
                "bus": disk.bus,
                "size": disk.size,
                "sector": disk.sector,
                "serial": f"{node.serial}-{position}",
                "file": str(disk_path(folder, node, position)),
            }
            for position, disk in enumerate(node.disks)
        ],
        "boot": list(node.boot),
        "console": str(console_path(folder, node.name)),
    }


def console_path(folder: Path, node: str) -> Path:
    return folder / "console" / f"{node}.log"


def qmp_path(folder: Path, node: str) -> Path:
    """Return the path of QEMU's own control socket, which exists while the node is on."""
    return folder / "qmp" / f"{node}.sock"


def disk_path(folder: Path, node: LabNode, position: int) -> Path:
    """Return the file of the node's disk at `position` in its spec."""
    return folder / "disks" / f"{node.name}-{position}.img"


def variables_path(folder: Path, node: LabNode) -> Path:
    return folder / "vars" / f"{node.name}.fd"


def flash(code: Path, variables: Path) -> list[str]:
    """Return QEMU's options for the two flash chips of UEFI firmware."""
    return [
        "-drive",
        f"if=pflash,format=raw,unit=0,readonly=on,file={code}",
        "-drive",
        f"if=pflash,format=raw,unit=1,file={variables}",
    ]


def _firmware(node: LabNode, folder: Path) -> list[str]:
    if node.firmware != "uefi":
        return []
    # The firmware's set-up as in a site with IPv4. OVMF tries all of a NIC's ways to boot before
    # the first disk, and each way over IPv6 waits a quarter of a minute for an answer.
    left_out = [
        "IPv6Support",
        "IPv6PXESupport",
        *(["IPv4PXESupport"] if node.netboot == "http" else []),
    ]
    setup = [
        word for key in left_out for word in ("-fw_cfg", f"name=opt/org.tianocore/{key},string=no")
    ]
    return [*flash(OVMF_CODE, variables_path(folder, node)), *setup]


def _nics(node: LabNode, position: int, switch: str) -> list[str]:
    argv = []
    # A switch in user space passes packets on as they are: the machine has to finish their
    # checksums.
    plain = ",vnet_hdr=off" if switch == "ovs" else ""
    for n, nic in enumerate(node.nics):
        argv += [
            "-netdev",
            f"tap,id=net{n},ifname={tap(position, n)},script=no,downscript=no{plain}",
        ]
        rom = "" if nic.has_rom(node.firmware) else ",romfile="
        argv += [
            "-device",
            f"{nic.model},netdev=net{n},mac={nic.mac}{_bootindex(node, f'nic{n}')}{rom}",
        ]
    return argv


def _disks(node: LabNode, folder: Path) -> list[str]:
    argv = [
        word
        for bus, controller in CONTROLLERS.items()
        if any(disk.bus == bus for disk in node.disks)
        for word in ("-device", controller)
    ]
    counts = Counter[str]()
    for position, disk in enumerate(node.disks):
        # A power cut must not lose writes that the disk has acknowledged. QEMU's default cache mode
        # keeps them: they are in the host's page cache, which outlives QEMU.
        path = disk_path(folder, node, position)
        argv += ["-drive", f"if=none,id=disk{position},format=raw,discard=unmap,file={path}"]
        device = DEVICES[disk.bus].format(counts[disk.bus])
        sectors = (
            f",logical_block_size={disk.sector},physical_block_size={disk.sector}"
            if disk.sector != 512
            else ""
        )
        argv += [
            "-device",
            (
                f"{device},drive=disk{position},serial={node.serial}-{position}{sectors}"
                f"{_bootindex(node, f'disk{position}')}"
            ),
        ]
        counts[disk.bus] += 1
    return argv


def _bootindex(node: LabNode, device: str) -> str:
    return f",bootindex={node.boot.index(device) + 1}" if device in node.boot else ""
