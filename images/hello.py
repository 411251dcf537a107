"""Two small Linux images for BIOS and UEFI: the distribution's kernel, busybox, a web page that
says who is speaking, and an SSH server for those whose keys are in the seed.

hello-a  runs from its ramdisk; user data on a FAT partition
hello-b  runs from an ext4 root partition; user data there

Both ask DHCP as any operating system does, read a NoCloud seed if there is one, answer HTTP on port
80 (`/` for people, `/identity.json` for programs), and print one line beginning with ``hello:`` on
the serial console. The digest that they show is computed on the running machine over the whole
system partition, and is the build's if every bit of it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from images import disk, linux, ssh
from images.disk import ImagePartition


@dataclass(frozen=True, slots=True)
class Hello:
    """One of the images to make: `size` in MiB; `root` is 'ram' or 'disk'."""

    name: str
    version: str
    colour: str
    size: int
    root: str


HELLOS = {
    hello.name: hello
    for hello in (
        Hello("hello-a", "2", "teal", 512, "ram"),
        Hello("hello-b", "2", "darkorange", 768, "disk"),
    )
}


def make(hello: Hello, packages: Path, scratch: Path, path: Path) -> dict[str, object]:
    """Write the image to `path`; returns facts beyond its size: `digest` of the system
    partition."""
    last = (
        ImagePartition(f"{hello.name}-data", 64, "data")
        if hello.root == "ram"
        else ImagePartition(f"{hello.name}-root", 256, "linux")
    )
    first = files(hello, packages) if hello.root == "ram" else _own(hello, packages)
    digest = linux.write(
        path,
        hello.size,
        packages,
        scratch,
        last=last,
        ramdisk=linux.ramdisk(packages, first),
        content=_last(hello, packages, scratch, last),
    )
    return {"version": hello.version, "digest": digest}


def _last(hello: Hello, packages: Path, scratch: Path, part: ImagePartition) -> bytes:
    if hello.root == "ram":
        return disk.fat(scratch / "data", "data", part.size, {"README": b"user data goes here\n"})
    mountpoints = {
        f"{folder}/.keep": (b"", 0o644)
        for folder in ("proc", "sys", "dev", "run", "tmp", "data", "sbin", "usr/bin", "usr/sbin")
    }
    return disk.ext4(scratch, part.name, part.size, files(hello, packages) | mountpoints)


def files(hello: Hello, packages: Path) -> dict[str, tuple[bytes, int]]:
    """Return the root file system's files, (content, mode) by path."""
    return _own(hello, packages) | ssh.files(packages)


def _own(hello: Hello, packages: Path) -> dict[str, tuple[bytes, int]]:
    """Return the files without the SSH server: what hello-b's ramdisk needs on the way to its disk
    is among these."""
    return early(
        f"name={hello.name}\nversion={hello.version}\ncolour={hello.colour}\nroot={hello.root}\n",
        packages,
    )


def early(words: str, packages: Path) -> dict[str, tuple[bytes, int]]:
    """Return busybox and the scripts of rootfs, for an image that `words` describe."""
    found = {
        "bin/busybox": ((packages / "bin/busybox").read_bytes(), 0o755),
        "etc/image": (words.encode(), 0o644),
    }
    for source in sorted(linux.ROOTFS.iterdir()):
        place = "init" if source.name == "init" else f"etc/{source.name}"
        content = source.read_bytes()
        found[place] = (content, 0o755 if content.startswith(b"#!") else 0o644)
    return found
