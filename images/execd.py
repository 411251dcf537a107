"""A Debian system that is a Grid Engine execution host: the distribution's kernel, a small userland and `sge_execd`.

Its root is ext4 on the disk, made of the files of the packages below, unpacked and not installed: BusyBox is its init
and DHCP client, everything else is Debian's own. It takes address, name and name server from DHCP, its cell from the
NoCloud seed (docs/gridengine-image.md), starts the execution daemon, and starts it again whenever that ends.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from stat import S_IFDIR, S_IFLNK, S_IMODE

from images import disk, linux, ssh
from images.disk import ImagePartition

NAME, VERSION = "execd", "2"
SIZE, ROOT_MIB = 416, 384  # MiB of the image, of its root partition
PACKAGES = (
    "base-files", "base-passwd", "bash", "busybox-static", "coreutils", "dash", "debianutils", "findutils", "grep",
    "gridengine-common", "gridengine-exec", "gzip", "hostname", "libacl1", "libattr1", "libc-bin",
    "libcom-err2", "libgcc-s1", "libgssapi-krb5-2", "libhwloc15", "libjemalloc2", "libk5crypto3",
    "libkeyutils1", "libkrb5-3", "libkrb5support0", "libmunge2", "libpcre2-8-0", "libselinux1", "libssl3", "libstdc++6",
    "libtinfo6", "libtirpc-common", "libtirpc3", "libudev1", "mawk", "ncurses-base", "netbase", "sed", "tar",
    *ssh.PACKAGES,
)
ROOTFS = Path(__file__).resolve().parent / "exechost"
# What nobody reads on an execution host. The copyright files stay.
LEFT_OUT = ("usr/share/man/", "usr/share/info/", "usr/share/locale/", "usr/share/lintian/", "usr/share/bug/",
            "usr/share/gridengine/pvm/", "usr/share/gridengine/mpi/", "usr/share/gridengine/Qmon", "usr/lib/systemd/",
            "usr/sbin/update-passwd")
MERGED = ("bin", "sbin", "lib", "lib64")  # links into usr/ since Debian 12
FOLDERS = {"dev": 0o755, "proc": 0o555, "sys": 0o555, "run": 0o755, "tmp": 0o1777, "root": 0o700, "var/tmp": 0o1777,
           "home": 0o755, "mnt": 0o755, "srv": 0o755, "var/log": 0o755, "var/lib/gridengine": 0o755,
           "var/spool/gridengine/execd": 0o755}
LINKS = {"usr/bin/sh": "dash", "usr/bin/awk": "mawk", "usr/sbin/init": "../bin/busybox", "var/run": "/run",
         "var/lib/gridengine/util": "/usr/share/gridengine/util", "etc/mtab": "../proc/self/mounts"}

Files = dict[str, tuple[bytes, int]]


def make(tools: Path, root: Path, scratch: Path, path: Path) -> dict[str, object]:
    """Write the image to `path`; returns facts beyond its size: `digest` of the system partition.

    tools  the unpacked packages with kernel and GRUB; `root`: those of PACKAGES
    """
    last = ImagePartition(f"{NAME}-root", ROOT_MIB, "linux")
    image = f"name={NAME}\nversion={VERSION}\nroot=disk\n".encode()
    boot = {"bin/busybox": ((tools / "bin/busybox").read_bytes(), 0o755), "etc/image": (image, 0o644),
            "init": ((linux.ROOTFS / "init").read_bytes(), 0o755),
            "etc/partition": ((linux.ROOTFS / "partition").read_bytes(), 0o755)}
    whole = files(root) | {"etc/image": (image, 0o644)}
    digest = linux.write(path, SIZE, tools, scratch, last=last, ramdisk=linux.ramdisk(tools, boot),
                         content=disk.ext4(scratch, last.name, last.size, whole))
    return {"version": VERSION, "digest": digest}


def files(root: Path) -> Files:
    """Return the root file system: the packages' files, what their installation would have added, and our own."""
    found = dict(_packaged(root))
    found |= {folder: (b"usr/" + folder.encode(), S_IFLNK | 0o777) for folder in MERGED}
    found |= {path: (b"", S_IFDIR | mode) for path, mode in FOLDERS.items()}
    for name in ("passwd", "group"):
        found[f"etc/{name}"] = found[f"usr/share/base-passwd/{name}.master"]
    found["etc/shells"] = (b"/bin/sh\n/bin/bash\n", 0o644)  # with others nobody gets in
    found["etc/nsswitch.conf"] = (b"passwd: files\ngroup: files\nhosts: files dns\n", 0o644)
    found |= {path: (target.encode(), S_IFLNK | 0o777) for path, target in LINKS.items()}
    found |= _applets(root, found)
    found["etc/inittab"] = ((ROOTFS / "inittab").read_bytes(), 0o644)
    for source in (linux.ROOTFS / "network", linux.ROOTFS / "sshkeys", *sorted(ROOTFS.iterdir())):
        if source.name != "inittab":
            found[f"etc/cod/{source.name}"] = (source.read_bytes(), 0o755)
    return found


def _packaged(root: Path) -> Iterator[tuple[str, tuple[bytes, int]]]:
    for path in sorted(root.rglob("*")):
        place = _merged(str(path.relative_to(root)))
        if any(place.startswith(prefix) for prefix in LEFT_OUT) or (
                place.startswith("usr/share/doc/") and path.name != "copyright"):
            continue
        if path.is_symlink():
            yield place, (os.readlink(path).encode(), S_IFLNK | 0o777)
        elif path.is_file():
            yield place, (path.read_bytes(), S_IMODE(path.stat().st_mode))


def _merged(place: str) -> str:
    return f"usr/{place}" if place.partition("/")[0] in MERGED else place


def _applets(root: Path, found: Mapping[str, object]) -> Files:
    """BusyBox's commands, where no package has one of the same name."""
    listed = subprocess.run([root / "bin/busybox", "--list-full"], capture_output=True, text=True, check=True).stdout
    there = {path.rpartition("/")[2] for path in found if "bin/" in path}
    return {_merged(place): (b"/usr/bin/busybox", S_IFLNK | 0o777) for place in listed.split()
            if place.rpartition("/")[2] not in there and "bin/" in place}
