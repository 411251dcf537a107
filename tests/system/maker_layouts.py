"""Disks laid out as makers lay out their cloud images, of Debian's packages: no maker's file is
here.

rocky      Rocky and Alma 9: ESP, /boot (XFS), BIOS boot, root (XFS), labels of SELinux, BLS entries
rocky-lvm  their variant LVM: the root is a logical volume
ubuntu     Ubuntu 24.04: the root is number 1 and lies last, /boot (ext4) is number 16
opensuse   openSUSE: the root is Btrfs, with subvolumes and a default one

The kernel is Debian's, its initramfs is dracut's. Takes root: file systems are mounted from loop
devices.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from images import debian, grub
from images.disk import MIB, TYPES, fat, put
from tests.loops import loop_device
from trampoline.recipe import packages

PACKAGES = (*debian.PACKAGES, "dracut", "xfsprogs", "btrfs-progs", "lvm2")
# folders of the kernel's modules that no machine of the lab has a use for
UNUSED = ("sound", "drivers/gpu", "drivers/media", "drivers/net/wireless", "drivers/infiniband")
GRUB = "usr/lib/grub/i386-pc"  # a tree without it is given no boot loader
LABEL = "system_u:object_r:etc_t:s0"
VOLUME_GROUP = "rocky"
SUBVOLUMES = ("@", "@/home", "@/var", "@/boot/grub2/i386-pc")
ROOT = 1536  # MiB
MODULES = ("part_gpt", "xfs", "btrfs", "ext2", "lvm", "search_fs_uuid")
# What only costs an emulated processor time, and shows nothing of a layout, is left out.
QUICK = "mitigations=off audit=0 modprobe.blacklist=powernow_k8,acpi_cpufreq,kvm_amd,pcspkr,psmouse"
# 90 s are short for an emulated machine under load, for devices and for mounts
WAIT = "x-systemd.device-timeout=900"
PATIENT = "systemd.default_timeout_start_sec=900"
MASKED = (
    *("apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer"),
    *("e2scrub_reap.service", "fstrim.timer", "logrotate.timer", "systemd-pstore.service"),
    *("getty@tty1.service", "serial-getty@ttyS0.service", "cron.service"),
)
CLOUD = """\
cloud_init_modules:
 [write-files, growpart, resizefs, set_hostname, update_etc_hosts, users-groups, ssh]
cloud_config_modules: [runcmd]
cloud_final_modules: [scripts-vendor, scripts-user]
"""
# LVM without the kernel's device mapper, and without a look at other disks
LVM = (
    "--driverloaded",
    "n",
    "--config",
    'devices {{ filter=["a|^{}$|","r|.*|"] use_devicesfile=0 hints="none" }} '
    "backup {{ backup=0 archive=0 }} global {{ event_activation=0 }} "
    "activation {{ monitoring=0 udev_sync=0 udev_rules=0 }}",
)


@dataclass(frozen=True, slots=True)
class Part:
    """A partition: number, MiB, type, file system and where that is mounted."""

    number: int
    size: int
    type: str
    kind: str = ""
    at: str = ""


LAYOUTS = {  # in the order of their places on the disk
    "rocky": (
        Part(1, 32, "esp", "vfat", "/boot/efi"),
        Part(2, 320, "linux", "xfs", "/boot"),
        Part(3, 1, "bios"),
        Part(4, ROOT, "linux", "xfs", "/"),
    ),
    "rocky-lvm": (
        Part(1, 32, "esp", "vfat", "/boot/efi"),
        Part(2, 320, "linux", "xfs", "/boot"),
        Part(3, 1, "bios"),
        Part(4, ROOT, "E6D6D379-F507-44C2-A23C-238F2A3DF928", "lvm", "/"),
    ),
    "ubuntu": (
        Part(14, 4, "bios"),
        Part(15, 32, "esp", "vfat", "/boot/efi"),
        Part(16, 256, "BC13C2FF-59E6-4262-A352-B275FD6F7172", "ext4", "/boot"),
        Part(1, ROOT, "linux", "ext4", "/"),
    ),
    "opensuse": (
        Part(1, 2, "bios"),
        Part(2, 32, "esp", "vfat", "/boot/efi"),
        Part(3, ROOT, "linux", "btrfs", "/"),
    ),
}


def system(cache: Path) -> Path:
    """Return a folder with the system's files, made once for each set of packages."""
    with packages.alone(cache):
        wanted = packages.closure((*debian.MINIMAL, *PACKAGES))
        stamp = hashlib.sha256(repr((wanted, UNUSED)).encode()).hexdigest()[:12]
        tree = cache / f"layouts-{stamp}"
        if not tree.is_dir():
            for old in cache.glob("layouts-*"):
                shutil.rmtree(old)
            scratch = cache / "layouts-partial"
            shutil.rmtree(scratch, ignore_errors=True)  # of a run that was broken off
            scratch.mkdir()
            debian.install(
                PACKAGES, packages.fetched(wanted, cache / "packages"), scratch, scratch / "root"
            )
            for name in UNUSED:
                for found in (scratch / "root/lib/modules").glob(f"*/kernel/{name}"):
                    shutil.rmtree(found)
            (scratch / "root").rename(tree)
            shutil.rmtree(scratch)
        return tree


def make(layout: str, tree: Path, scratch: Path, path: Path) -> None:
    """Write an image with that layout and the system in `tree` to `path`.

    In a mount namespace of its own: a process that copies this one's meanwhile, as `ip netns exec`
    does, would keep the file systems mounted after they are unmounted here, and XFS would not write
    what is in its log.
    """
    program = [sys.executable, "-m", "tests.system.maker_layouts", layout, tree, scratch, path]
    _run("unshare", "--mount", "--propagation", "private", *map(str, program))


def _make(layout: str, tree: Path, scratch: Path, path: Path) -> None:
    parts = LAYOUTS[layout]
    starts = {}
    at = 1
    for part in parts:
        starts[part.number] = at
        at += part.size
    ids = {part.number: str(uuid.uuid4()) for part in parts}
    with path.open("wb") as file:
        file.truncate((at + 1) * MIB)
    script = "label: gpt\nunit: sectors\n" + "".join(
        f"{part.number}: start={starts[part.number] * 2048}, size={part.size * 2048},"
        f" type={TYPES.get(part.type, part.type)}\n"
        for part in parts
    )
    _run("sfdisk", "-q", "--no-reread", "--no-tell-kernel", str(path), text=script)
    where = {part.at: part for part in parts if part.at}
    boot = where.get("/boot", where["/"])
    kernel = next((tree / "boot").glob("vmlinuz-*")).name.removeprefix("vmlinuz-")
    prefix = {"xfs": "", "ext4": "", "btrfs": "/@"}[boot.kind] + (
        "" if "/boot" in where else "/boot"
    )
    find = f"search.fs_uuid {ids[boot.number]} root\nset prefix=($root){prefix}/grub\n"

    root = where["/"]
    device = f"/dev/{VOLUME_GROUP}/root" if root.kind == "lvm" else f"UUID={ids[root.number]}"
    words = f"root={device} ro {debian.CONSOLES} {QUICK} {PATIENT}"
    if root.kind == "lvm":
        words += f" rd.lvm.lv={VOLUME_GROUP}/root"
    if root.kind == "btrfs":
        words += " rootflags=subvol=@"
    settle(tree, mounts(parts, ids, device), kernel, words, prefix, ids[boot.number])
    with ExitStack() as stack:
        top = scratch / "top"
        top.mkdir()
        for part in sorted(
            (each for each in parts if each.kind not in ("", "vfat")), key=lambda each: each.at
        ):
            here = top if part.at == "/" else top / part.at.strip("/")
            here.mkdir(exist_ok=True)
            start, size = starts[part.number] * MIB, part.size * MIB
            kind = part.kind
            if kind == "lvm":
                start, size, kind = *volume(path, start, size), "xfs"
            stack.enter_context(mounted(path, start, size, kind, ids[part.number], here))
        subprocess.run(
            f"tar -C {tree} --xattrs --xattrs-include='*' --exclude=./boot/efi/* -cf - . "
            f"| tar -C {top} --xattrs --xattrs-include='*' -xpf -",
            shell=True,
            check=True,
        )
    if (tree / GRUB).is_dir():
        _make_bootable(tree, scratch, path, parts, starts, prefix, find)


def _make_bootable(
    tree: Path,
    scratch: Path,
    path: Path,
    parts: tuple[Part, ...],
    starts: dict[int, int],
    prefix: str,
    find: str,
) -> None:
    """Put GRUB's own parts onto the disk."""
    bios = next(part for part in parts if part.type == "bios")
    code, core = grub.bios(
        tree,
        scratch,
        starts[bios.number] * 2048,
        prefix=f"{prefix}/grub",
        configuration=find,
        modules=MODULES,
    )
    with open(path, "r+b") as file:
        file.write(code)
    put(path, core, starts[bios.number] * MIB)
    esp = next(part for part in parts if part.type == "esp")
    signed = tree / "usr/lib/grub/x86_64-efi-signed"
    files = {
        "EFI/BOOT/BOOTX64.EFI": (tree / "usr/lib/shim/shimx64.efi.signed").read_bytes(),
        "EFI/BOOT/grubx64.efi": (signed / "grubx64.efi.signed").read_bytes(),
        "EFI/debian/grub.cfg": (find + "configfile $prefix/grub.cfg\n").encode(),
    }
    put(path, fat(scratch, "efi", esp.size, files), starts[esp.number] * MIB)


def mounts(parts: tuple[Part, ...], ids: dict[int, str], device: str) -> str:
    """Return the lines of /etc/fstab."""
    lines = []
    for part in parts:
        if part.kind == "btrfs":
            lines.append(f"{device} / btrfs subvol=@,{WAIT} 0 0\n")
        elif part.kind and part.kind != "vfat":
            source = device if part.at == "/" else f"UUID={ids[part.number]}"
            lines.append(f"{source} {part.at} auto {WAIT} 0 0\n")
    return "".join(lines)


def settle(tree: Path, fstab: str, kernel: str, words: str, prefix: str, boot: str) -> None:
    """Make a disk's system of what mmdebstrap has left, with the entries of its boot loader."""
    entry = (
        f"title Debian\nversion {kernel}\nlinux {prefix}/vmlinuz-{kernel}\n"
        f"initrd {prefix}/initrd.img-{kernel}\noptions {words}\n"
    )
    files = debian.FILES | {
        "etc/fstab": fstab,
        "etc/cloud/cloud.cfg.d/20_quick.cfg": CLOUD,
        "boot/loader/entries/debian.conf": entry,
        "boot/grub/grub.cfg": (
            f"search.fs_uuid {boot} root\nset timeout=0\nlinux {prefix}/vmlinuz-{kernel} {words}\n"
            f"initrd {prefix}/initrd.img-{kernel}\nboot\n"
        ),
    }
    for name, content in files.items():
        (tree / name).unlink(missing_ok=True)
        if content is not None:
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_text(content)
    (tree / "boot/efi").mkdir(exist_ok=True)
    if (tree / GRUB).is_dir():
        shutil.copytree(tree / GRUB, tree / "boot/grub/i386-pc", dirs_exist_ok=True)
    for made in tree.glob("etc/ssh/ssh_host_*"):
        made.unlink()
    for name in MASKED:
        unit = tree / "etc/systemd/system" / name
        unit.parent.mkdir(parents=True, exist_ok=True)
        unit.unlink(missing_ok=True)
        unit.symlink_to("/dev/null")
    for name in ("etc/passwd", "usr/bin/bash"):
        os.setxattr(tree / name, "security.selinux", LABEL.encode() + b"\0")


def loop(path: Path, start: int, size: int) -> AbstractContextManager[str]:
    """A loop device for a part of a file, gone afterwards."""
    return loop_device(path, f"--offset={start}", f"--sizelimit={size}")


@contextmanager
def mounted(path: Path, start: int, size: int, kind: str, name: str, here: Path) -> Iterator[None]:
    """Make a file system of that kind and UUID in a part of a file; it is mounted at `here`
    meanwhile, Btrfs by its subvolume @."""
    with loop(path, start, size) as device:
        if kind == "xfs":
            _run("mkfs.xfs", "-q", "-f", "-m", f"uuid={name}", device)
        elif kind == "ext4":
            _run(
                "mke2fs",
                "-q",
                "-t",
                "ext4",
                "-U",
                name,
                "-O",
                "^metadata_csum_seed,^orphan_file",
                device,
            )
        else:
            _run("mkfs.btrfs", "-q", "-f", "-U", name, device)
        _run("mount", "-t", kind, device, str(here))
        try:
            if kind == "btrfs":
                for each in SUBVOLUMES:
                    (here / each).parent.mkdir(parents=True, exist_ok=True)
                    _run("btrfs", "subvolume", "create", str(here / each))
                _run("btrfs", "subvolume", "set-default", str(here / "@"))
                _run("umount", str(here))
                _run("mount", "-t", kind, device, str(here))
            yield
        finally:
            _run("umount", str(here))


def volume(path: Path, start: int, size: int) -> tuple[int, int]:
    """Make a physical volume there, with a group and a logical volume over all of it; returns where
    that lies in the file, and its size."""
    with loop(path, start, size) as device:
        common = [*LVM[:3], LVM[3].format(device)]
        _run("pvcreate", *common, "-qq", "-y", device)
        _run("vgcreate", *common, VOLUME_GROUP, device)
        _run("lvcreate", *common, "-an", "-Wn", "-Zn", "-l", "100%FREE", "-n", "root", VOLUME_GROUP)
        told = _run(
            "pvs", *common, "--noheadings", "--nosuffix", "--units", "b", "-o", "pe_start,pv_size"
        )
        first, whole = (int(each) for each in told.split())
    return start + first, whole


def _run(*argv: str, text: str = "") -> str:
    done = subprocess.run(argv, input=text, text=True, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}")
    return done.stdout


if __name__ == "__main__":
    _make(sys.argv[1], *map(Path, sys.argv[2:]))
