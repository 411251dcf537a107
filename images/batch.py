"""A Debian system that is a host of a batch system: the distribution's kernel, a small userland and
the batch system's daemons. `images.execd` and `images.slurmd` say which.

Its root is ext4 on the disk, made of the files of the recipe's packages, unpacked and not
installed: BusyBox is its init and DHCP client, everything else is Debian's own. It takes address,
name and name server from DHCP, the batch system's settings from the NoCloud seed, starts the
daemons, and starts them again whenever they end.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_IFDIR, S_IFLNK, S_IMODE

from images import debian, disk, linux, ssh
from images.disk import ImagePartition

# MiB of the image, and of its partition with kernel and drivers by their flavour; the root has the
# rest
SIZE, SYSTEM_MIB = 416, {"lab": linux.SYSTEM_MIB, "generic": 64}
PACKAGES = (
    "base-files",
    "base-passwd",
    "bash",
    "busybox-static",
    "coreutils",
    "dash",
    "debianutils",
    "findutils",
    "grep",
    "gzip",
    "hostname",
    "libacl1",
    "libattr1",
    "libc-bin",
    "libgcc-s1",
    "libpcre2-8-0",
    "libselinux1",
    "libtinfo6",
    "libudev1",
    "mawk",
    "ncurses-base",
    "netbase",
    "sed",
    "tar",
    *ssh.PACKAGES,
)
ROOTFS = Path(__file__).resolve().parent / "batchhost"
# What nobody reads on a compute node. The copyright files stay.
LEFT_OUT = (
    "usr/share/man/",
    "usr/share/info/",
    "usr/share/locale/",
    "usr/share/lintian/",
    "usr/share/bug/",
    "usr/lib/systemd/",
    "usr/sbin/update-passwd",
)
MERGED = ("bin", "sbin", "lib", "lib64")  # links into usr/ since Debian 12
FOLDERS = {
    "dev": 0o755,
    "proc": 0o555,
    "sys": 0o555,
    "run": 0o755,
    "tmp": 0o1777,
    "root": 0o700,
    "var/tmp": 0o1777,
    "home": 0o755,
    "mnt": 0o755,
    "srv": 0o755,
    "var/log": 0o755,
}
LINKS = {
    "usr/bin/sh": "dash",
    "usr/bin/awk": "mawk",
    "usr/sbin/init": "../bin/busybox",
    "var/run": "/run",
    "etc/mtab": "../proc/self/mounts",
}

Files = dict[str, tuple[bytes, int]]


@dataclass(frozen=True, slots=True)
class BatchHost:
    """One recipe: what a batch system's host has beyond what all have.

    packages  all that are unpacked, with what they are linked with
    rootfs    folder of its own programs, which become /etc/cod; `settings` is run once at each boot
    daemons   those that init starts, and starts again when they end
    left_out  prefixes of paths that are not taken from the packages
    users     lines of /etc/passwd beyond Debian's; each has a group of the same name
    suite     the Debian release that the packages are of; kernel and GRUB are this system's
    """

    name: str
    version: str
    packages: tuple[str, ...]
    rootfs: Path
    daemons: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    folders: Mapping[str, int] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    users: Mapping[str, int] = field(default_factory=dict)
    suite: str = debian.SUITE


def root_mib(flavour: str) -> int:
    """Return the size of the root partition in MiB."""
    return SIZE - 8 - SYSTEM_MIB[flavour]


def make(
    host: BatchHost,
    tools: Path,
    root: Path,
    scratch: Path,
    path: Path,
    *,
    flavour: str = "lab",
    blobs: Path | None = None,
) -> dict[str, object]:
    """Write the image to `path`; returns facts beyond its size: `digest` of the system partition,
    and `flavour`.

    tools    the unpacked packages with kernel and GRUB; `root`: those of the host; `blobs`: those
             of firmware
    flavour  of the drivers, as of the trampoline's: `lab`, or `generic` for servers
    """
    last = ImagePartition(f"{host.name}-root", root_mib(flavour), "linux")
    image = f"name={host.name}\nversion={host.version}\nroot=disk\n".encode()
    boot = {
        "bin/busybox": ((tools / "bin/busybox").read_bytes(), 0o755),
        "etc/image": (image, 0o644),
        "init": ((linux.ROOTFS / "init").read_bytes(), 0o755),
        "etc/partition": ((linux.ROOTFS / "partition").read_bytes(), 0o755),
    }
    whole = files(host, root) | {"etc/image": (image, 0o644)}
    digest = linux.write(
        path,
        SIZE,
        tools,
        scratch,
        last=last,
        ramdisk=linux.ramdisk(tools, boot, flavour, blobs),
        content=disk.ext4(scratch, last.name, last.size, whole),
        system_mib=SYSTEM_MIB[flavour],
    )
    return {"version": host.version, "digest": digest, "flavour": flavour}


def files(host: BatchHost, root: Path) -> Files:
    """Return the root file system: the packages' files, what their installation would have added,
    and our own."""
    found = dict(_packaged(root, LEFT_OUT + host.left_out))
    found |= {folder: (b"usr/" + folder.encode(), S_IFLNK | 0o777) for folder in MERGED}
    found |= {path: (b"", S_IFDIR | mode) for path, mode in {**FOLDERS, **host.folders}.items()}
    for name, line in (
        ("passwd", "{0}:x:{1}:{1}::/nonexistent:/usr/sbin/nologin\n"),
        ("group", "{0}:x:{1}:\n"),
    ):
        master, mode = found[f"usr/share/base-passwd/{name}.master"]
        added = "".join(line.format(user, uid) for user, uid in host.users.items())
        found[f"etc/{name}"] = (master + added.encode(), mode)
    found["etc/shells"] = (b"/bin/sh\n/bin/bash\n", 0o644)  # with others nobody gets in
    found["etc/nsswitch.conf"] = (b"passwd: files\ngroup: files\nhosts: files dns\n", 0o644)
    found |= {
        path: (target.encode(), S_IFLNK | 0o777) for path, target in {**LINKS, **host.links}.items()
    }
    found |= _applets(root, found)
    started = "".join(f"::respawn:/etc/cod/{daemon}\n" for daemon in host.daemons)
    found["etc/inittab"] = ((ROOTFS / "inittab").read_bytes() + started.encode(), 0o644)
    for source in (
        linux.ROOTFS / "network",
        linux.ROOTFS / "sshkeys",
        *sorted(ROOTFS.iterdir()),
        *sorted(host.rootfs.iterdir()),
    ):
        if source.name != "inittab":
            found[f"etc/cod/{source.name}"] = (source.read_bytes(), 0o755)
    return found


def _packaged(root: Path, left_out: tuple[str, ...]) -> Iterator[tuple[str, tuple[bytes, int]]]:
    for path in sorted(root.rglob("*")):
        place = _merged(str(path.relative_to(root)))
        if any(place.startswith(prefix) for prefix in left_out) or (
            place.startswith("usr/share/doc/") and path.name != "copyright"
        ):
            continue
        if path.parent == root and path.is_symlink():  # Debian 13 has the links as files
            continue
        if path.is_symlink():
            yield place, (os.readlink(path).encode(), S_IFLNK | 0o777)
        elif path.is_file():
            yield place, (path.read_bytes(), S_IMODE(path.stat().st_mode))


def _merged(place: str) -> str:
    return f"usr/{place}" if place.partition("/")[0] in MERGED else place


def _applets(root: Path, found: Mapping[str, object]) -> Files:
    """Return BusyBox's commands where no package has one of the same name."""
    listed = subprocess.run(
        [root / "bin/busybox", "--list-full"], capture_output=True, text=True, check=True
    ).stdout
    there = {path.rpartition("/")[2] for path in found if "bin/" in path}
    return {
        _merged(place): (b"/usr/bin/busybox", S_IFLNK | 0o777)
        for place in listed.split()
        if place.rpartition("/")[2] not in there and "bin/" in place
    }
