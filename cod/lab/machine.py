"""The QEMU command line of one machine: real firmware, network first in its boot order, then its disks.

BIOS machines run SeaBIOS with the iPXE ROM of their NIC, as a server's own PXE ROM would. UEFI machines run OVMF; with
virtio its own PXE stack speaks (the ROM is left out), with e1000 the NIC's ROM brings the driver that OVMF lacks.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from cod.lab.network import tap
from cod.lab.spec import LabDisk, LabNode

OVMF_CODE = Path("/usr/share/OVMF/OVMF_CODE_4M.fd")
OVMF_VARS = Path("/usr/share/OVMF/OVMF_VARS_4M.fd")
QEMU = "qemu-system-x86_64"
ACCELERATORS = {"kvm": ["-accel", "kvm", "-cpu", "host"], "tcg": ["-accel", "tcg,thread=multi", "-cpu", "max"]}


def prepare(node: LabNode, folder: Path) -> None:
    """Make the node's disks (sparse) and its firmware's variables, as they leave the factory."""
    for position, disk in enumerate(node.disks):
        with open(_disk(folder, node, position), "xb") as file:
            file.truncate(disk.size)
    if node.firmware == "uefi":
        shutil.copyfile(OVMF_VARS, _vars(folder, node))


def command(node: LabNode, position: int, folder: Path, accel: str) -> list[str]:
    """The command that is the machine `node`, the spec's node at `position`, while it is switched on."""
    return [
        QEMU, "-name", node.name, "-machine", f"{node.machine},graphics=off", *ACCELERATORS[accel],
        # A server that finds nothing to boot begins again; SeaBIOS would halt.
        "-boot", "strict=on,reboot-timeout=10000",
        "-m", str(node.memory), "-smp", str(node.cpus), "-nodefaults", "-display", "none", "-vga", "none",
        "-uuid", node.uuid,
        "-smbios", f"type=1,manufacturer=COD,product=lab-{node.firmware},serial={node.serial},uuid={node.uuid}",
        "-qmp", f"unix:{qmp_path(folder, node.name)},server=on,wait=off",
        "-chardev", f"file,id=console,path={folder}/console/{node.name}.log,append=on", "-serial", "chardev:console",
        *_firmware(node, folder), *_nic(node, position), *_disks(node, folder),
    ]


def qmp_path(folder: Path, node: str) -> Path:
    """Where QEMU's own control socket is while the node is on."""
    return folder / "qmp" / f"{node}.sock"


def flash(code: Path, variables: Path) -> list[str]:
    """The two flash chips of UEFI firmware."""
    return [
        "-drive", f"if=pflash,format=raw,unit=0,readonly=on,file={code}",
        "-drive", f"if=pflash,format=raw,unit=1,file={variables}",
    ]


def _firmware(node: LabNode, folder: Path) -> list[str]:
    if node.firmware != "uefi":
        return []
    # Set-up as a site with IPv4 has it. OVMF tries all of a NIC's ways to boot before the first disk, and those over
    # IPv6 each wait a quarter of a minute for an answer.
    setup = [word for key in ("IPv6Support", "IPv6PXESupport") for word in
             ("-fw_cfg", f"name=opt/org.tianocore/{key},string=no")]
    return [*flash(OVMF_CODE, _vars(folder, node)), *setup]


def _nic(node: LabNode, position: int) -> list[str]:
    rom = ",romfile=" if node.firmware == "uefi" and node.nic.startswith("virtio") else ""
    return [
        "-netdev", f"tap,id=net0,ifname={tap(position)},script=no,downscript=no",
        "-device", f"{node.nic},netdev=net0,mac={node.mac},bootindex=1{rom}",
    ]


def _disks(node: LabNode, folder: Path) -> list[str]:
    argv = ["-device", "ich9-ahci,id=sata"] if any(disk.bus == "ahci" for disk in node.disks) else []
    for position, disk in enumerate(node.disks):
        # A power cut must not lose what the disk has acknowledged: the host's page cache survives QEMU, flushes too.
        argv += ["-drive", f"if=none,id=disk{position},format=raw,discard=unmap,file={_disk(folder, node, position)}"]
        argv += ["-device", _device(node, disk, position)]
    return argv


def _device(node: LabNode, disk: LabDisk, position: int) -> str:
    kind = {"virtio": "virtio-blk-pci", "ahci": f"ide-hd,bus=sata.{position}", "nvme": "nvme"}[disk.bus]
    return f"{kind},drive=disk{position},serial={node.serial}-{position},bootindex={2 + position}"


def _disk(folder: Path, node: LabNode, position: int) -> Path:
    return folder / "disks" / f"{node.name}-{position}.img"


def _vars(folder: Path, node: LabNode) -> Path:
    return folder / "vars" / f"{node.name}.fd"
