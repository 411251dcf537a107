"""A node image from an OCI image: `python -m images.oci SOURCE --out FILE [--diskless]`.

SOURCE is `oci:REGISTRY/NAME:TAG`, which skopeo fetches; a folder in the OCI image layout; an
archive of one; or an archive as `docker save` and `podman save` make it. The image must hold a
system: an init, and better a kernel with its initramfs, OpenSSH and cloud-init. Where it has no
kernel, it gets the distribution's, with a ramdisk that finds the root file system.

The disk has a GPT with GRUB for BIOS and UEFI, and the root (ext4) last, where it can grow. Of a
diskless system FILE.kernel is the kernel, and FILE.ramdisk has all of the root, which stays in
memory. FILE.json has the facts. Takes root, because files in a system are of many users.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import zstandard

from images import disk, grub, hello, layers, linux
from images.disk import MIB, ImagePartition
from images.layers import BadImage
from trampoline.recipe import packages

CHECKOUT = Path(__file__).resolve().parent.parent
NAME = "oci"
ESP_MIB, SLACK_MIB = 16, 192
MODULES = ("part_gpt", "ext2", "search_fs_uuid", "linux", "boot", "gzio", "xzio", "zstd")
CONSOLES = "console=tty0 console=ttyS0,115200"
# Where systems keep kernels, and the initramfs of each: Debian, Red Hat, SUSE, image-based systems.
KERNELS = ("boot/vmlinuz-{}", "usr/lib/modules/{}/vmlinuz", "lib/modules/{}/vmlinuz")
INITRAMFS = (
    "boot/initrd.img-{}",
    "boot/initramfs-{}.img",
    "boot/initrd-{}",
    "usr/lib/modules/{}/initramfs.img",
    "lib/modules/{}/initramfs.img",
)
# For a system that needs none: this path is there always.
NO_INITRAMFS = (".",)
INITS = ("sbin/init", "usr/lib/systemd/systemd", "lib/systemd/systemd")
# What a system needs to be a node that somebody can log in to -> what is missing without it.
WISHED = {
    "usr/bin/cloud-init": "cloud-init, so the node's name and its users' keys are not set",
    "usr/sbin/sshd": "OpenSSH's server, so nobody can log in",
}


def main(arguments: list[str] | None = None) -> int:
    """Run the command; prints a line on the image, and what it lacks on standard error."""
    parser = argparse.ArgumentParser(
        prog="python -m images.oci", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("source")
    parser.add_argument("--tag", default="", help="which image of a layout that has several")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cache", type=Path, default=CHECKOUT / "build/cache/images")
    parser.add_argument(
        "--insecure", action="store_true", help="a registry without TLS, or with a strange one"
    )
    parser.add_argument(
        "--diskless", action="store_true", help="a kernel and a ramdisk instead of a disk"
    )
    options = parser.parse_args(arguments)
    form = diskless if options.diskless else whole_disk
    try:
        facts = make(
            options.source, options.out, options.cache, options.tag, options.insecure, form
        )
    except (BadImage, packages.PackagesMissing, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    for each in facts["lacks"]:
        print(f"note: the image has no {each}", file=sys.stderr)
    memory = f", for nodes with at least {facts['memory']} MiB" if options.diskless else ""
    print(f"{options.source}: {facts['size'] >> 20} MiB, Linux {facts['kernel']}{memory}")
    return 0


def make(
    source: str,
    out: Path,
    cache: Path,
    tag: str = "",
    insecure: bool = False,
    form: Callable[[Path, Path, Path, Path], dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Write the image to `out` and its facts to `out`.json, and return them. Raises BadImage.

    form  `whole_disk` (None), or `diskless`
    """
    if os.geteuid() != 0:
        raise BadImage("unpacking a system takes root: its files are of many users")
    with TemporaryDirectory(prefix="oci-", dir=out.resolve().parent) as folder:
        scratch = Path(folder)
        layout = fetched(source, scratch, tag, insecure)
        tree = scratch / "root"
        tree.mkdir(0o755)
        # skopeo has picked the image of an archive already
        fetched_alone = layout.parent == scratch
        layers.apply(layout, layers.layers_of(layout, "" if fetched_alone else tag), tree)
        facts = (form or whole_disk)(tree, scratch, out, cache)
    out.with_suffix(".json").write_text(json.dumps(facts, indent=1) + "\n")
    return facts


def fetched(source: str, scratch: Path, tag: str, insecure: bool) -> Path:
    """Return a folder in the OCI image layout with what `source` names. Raises BadImage."""
    if source.startswith("oci:") and not Path(source.removeprefix("oci:")).exists():
        return _copied(f"docker://{source.removeprefix('oci:')}", scratch, insecure)
    path = Path(source.removeprefix("oci:"))
    if path.is_dir():
        return path
    try:
        with tarfile.open(path, "r:") as archive:
            names = archive.getnames()
    except (OSError, tarfile.TarError) as error:
        raise BadImage(f"{path} is no OCI image: {error}") from None
    suffix = f":{tag}" if tag else ""
    kind = "oci-archive" if {"oci-layout", "./oci-layout"} & {*names} else "docker-archive"
    return _copied(f"{kind}:{path.resolve()}{suffix}", scratch, insecure)


def _copied(reference: str, scratch: Path, insecure: bool) -> Path:
    if shutil.which("skopeo") is None:
        raise BadImage("skopeo is missing, which fetches images: install Debian's package skopeo")
    layout = scratch / "layout"
    words = ["--src-tls-verify=false"] if insecure else []
    done = subprocess.run(
        [
            "skopeo",
            *("--override-os", "linux", "--override-arch", "amd64"),
            *("copy", "--quiet", *words, reference, f"oci:{layout}:{NAME}"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BadImage(f"skopeo: {done.stderr.strip()[-1000:]}")
    return layout


def _lacking(tree: Path) -> list[str]:
    """Return what a system lacks as a node. Raises BadImage where it is no system."""
    if not any(_exists(tree, each) for each in INITS):
        raise BadImage(
            "the image has no /sbin/init: it holds programs, and no system that boots. Build one "
            "with systemd, a kernel, OpenSSH and cloud-init in it"
        )
    return [text for path, text in WISHED.items() if not _exists(tree, path)]


def _tools(cache: Path) -> Path:
    with packages.alone(cache):
        return packages.unpacked(packages.wanted(linux.PACKAGES), cache)


# ---------------------------------------------------------------- a system without a disk


def diskless(tree: Path, scratch: Path, out: Path, cache: Path) -> dict[str, Any]:
    """Make a kernel and a ramdisk of a system's tree, and return the facts. The ramdisk is the
    root: an initramfs of the system's own is not needed."""
    lacks = _lacking(tree)
    kernel = kernel_of(tree, NO_INITRAMFS)
    if kernel is None:
        kernel = _lend_kernel(tree, scratch, _tools(cache))
        lacks.append(f"kernel: it gets Linux {kernel[0]} of this server's release")
    shutil.copyfile(layers.resolve(tree, Path(kernel[1]).parts), out.with_suffix(".kernel"))
    _settle(tree, "# the root is in memory\n")
    layers.cleared(tree, "init").symlink_to("/sbin/init")
    ramdisk = out.with_suffix(".ramdisk")
    unpacked = _pack(tree, ramdisk, kernel[0])
    return {
        "size": ramdisk.stat().st_size,
        "kernel": kernel[0],
        "lacks": lacks,
        # Linux gives such a root half of the memory at most
        "memory": (2 * unpacked >> 20) + 512,
    }


def _pack(tree: Path, out: Path, release: str) -> int:
    """Write a tree as a ramdisk, without what is in /boot; return the bytes that it unpacks to."""
    if shutil.which("cpio") is None:
        raise BadImage("cpio is missing, which packs ramdisks: install Debian's package cpio")
    # Linux 5.9 began to unpack zstd
    zstd = _order(release) >= _order("5.9")
    find = ["find", ".", "-path", "./boot/*", "-prune", "-o", "-print0"]
    with (
        subprocess.Popen(find, cwd=tree, stdout=subprocess.PIPE) as paths,
        subprocess.Popen(
            ["cpio", "--null", "--create", "--format=newc", "--quiet"],
            cwd=tree,
            stdin=paths.stdout,
            stdout=subprocess.PIPE,
        ) as archive,
        out.open("wb") as file,
    ):
        assert archive.stdout is not None
        if zstd:
            unpacked, _ = zstandard.ZstdCompressor(3, threads=-1).copy_stream(archive.stdout, file)
        else:
            with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=6, mtime=0) as packed:
                shutil.copyfileobj(archive.stdout, packed)
                unpacked = packed.tell()
    if archive.returncode or paths.returncode:
        raise BadImage("the system cannot be packed; the reason is above")
    return unpacked


# ---------------------------------------------------------------- the disk


def whole_disk(tree: Path, scratch: Path, out: Path, cache: Path) -> dict[str, Any]:
    """Make the disk of a system's tree, and return its facts."""
    lacks = _lacking(tree)
    tools = _tools(cache)
    root = disk.identifier(out.stem, "root")
    kernel = kernel_of(tree)
    if kernel is None:
        kernel = _lend_kernel(tree, scratch, tools)
        _lend_ramdisk(tree, tools, kernel)
        lacks.append(
            f"kernel with an initramfs: it gets Linux {kernel[0]} of this server's release"
        )
    _settle(tree, f"UUID={root} / ext4 defaults 0 1\n")
    sizes = [each.lstat().st_size for each in tree.rglob("*")]
    used = sum(4096 + -(-each // 4096) * 4096 for each in sizes) // MIB
    size = -(-(used * 17 // 16 + SLACK_MIB) // 64) * 64
    parts = [
        ImagePartition(f"{NAME}-boot", 1, "bios"),
        ImagePartition(f"{NAME}-esp", ESP_MIB, "esp"),
        ImagePartition(f"{NAME}-root", size, "linux"),
    ]
    disk.create(out, 2 + sum(part.size for part in parts), "gpt", parts)
    boot_at, esp_at, root_at = disk.starts(parts)
    words = f"root=UUID={root} ro {CONSOLES}"
    configuration = (
        f"search.fs_uuid {root} root\nset gfxpayload=text\n"
        f"linux /{kernel[1]} {words}\ninitrd /{kernel[2]}\nboot\n"
    )
    boot, core = grub.bios(
        tools, scratch, boot_at * MIB // 512, configuration=configuration, modules=MODULES
    )
    loader = grub.efi(tools, scratch, configuration=configuration, modules=MODULES)
    with open(out, "r+b") as file:
        file.write(boot)
    disk.put(out, core, boot_at * MIB)
    esp = disk.fat(scratch, f"{NAME}-esp", ESP_MIB, {"EFI/BOOT/BOOTX64.EFI": loader})
    disk.put(out, esp, esp_at * MIB)
    # mke2fs reckons with files of 16 KiB; a node needs more of them than the image has
    inodes = max(len(sizes) * 3 // 2, size * MIB // 16384)
    disk.ext4_from(out, root_at, size, tree, f"{NAME}-root", root, inodes)
    return {
        "size": out.stat().st_size,
        "sha256": disk.digest(out),
        "kernel": kernel[0],
        "lacks": lacks,
    }


def _exists(tree: Path, path: str) -> bool:
    return layers.resolve(tree, Path(path).parts).exists()


def kernel_of(tree: Path, initramfs: Sequence[str] = INITRAMFS) -> tuple[str, str, str] | None:
    """Return the newest kernel of a system that has modules and an initramfs: release, path of the
    kernel, path of the initramfs."""
    folder = layers.resolve(tree, ("lib", "modules"))
    releases = [each.name for each in folder.iterdir()] if folder.is_dir() else []
    for release in sorted(releases, key=_order, reverse=True):
        found = [
            next((path for form in forms if _exists(tree, path := form.format(release))), "")
            for forms in (KERNELS, initramfs)
        ]
        if all(found):
            # as GRUB finds them, which follows symbolic links by itself
            return release, found[0], found[1]
    return None


def _order(release: str) -> list[tuple[int, str]]:
    return [(int(each or 0), word) for each, word in re.findall(r"(\d+)|(\D+)", release)]


def _lend_kernel(tree: Path, scratch: Path, tools: Path) -> tuple[str, str, str]:
    """Give a system the distribution's kernel and its modules."""
    kernel = next((tools / "boot").glob("vmlinuz-*"))
    release = kernel.name.removeprefix("vmlinuz-")
    modules = scratch / "lib/modules" / release
    shutil.copytree(tools / "lib/modules" / release, modules, symlinks=True)
    # beside the tree, whose links depmod would follow
    depmod = subprocess.run(
        ["depmod", "-b", scratch, release], capture_output=True, text=True, check=False
    )
    if depmod.returncode:
        raise BadImage(f"depmod: {depmod.stderr.strip()[-500:]}")
    modules.rename(layers.cleared(tree, f"lib/modules/{release}"))
    names = f"boot/vmlinuz-{release}", f"boot/initrd.img-{release}"
    shutil.copy(kernel, layers.cleared(tree, names[0]))
    return release, *names


def _lend_ramdisk(tree: Path, tools: Path, kernel: tuple[str, str, str]) -> None:
    """Give a system that was lent a kernel a ramdisk that mounts the root."""
    own = hello.early(f"name={NAME}\nroot=disk\n", tools)
    layers.cleared(tree, kernel[2]).write_bytes(linux.ramdisk(tools, own, "generic", level=3))


def _settle(tree: Path, mounts: str) -> None:
    """Make a node's system of a container's: mounts, an identity of its own, nothing of a
    container engine."""
    for path, content in {
        "etc/fstab": mounts,
        "etc/machine-id": "",  # made at the first boot
    }.items():
        layers.cleared(tree, path).write_text(content)
    for path in (".dockerenv", "run/.containerenv"):
        layers.cleared(tree, path)
    for made in layers.resolve(tree, ("etc", "ssh")).glob("ssh_host_*"):
        made.unlink()
    for name in ("dev", "proc", "sys", "run", "tmp"):
        layers.resolve(tree, (name,), make=True)
    selinux = layers.resolve(tree, ("etc", "selinux", "config"))
    if selinux.is_file():
        with selinux.open("rb") as file:
            text = file.read(1 << 16)  # a layer of a few bytes may make it fill the memory
        if re.search(rb"(?m)^SELINUX=enforcing", text):
            layers.cleared(tree, ".autorelabel").touch()  # layers carry no labels


if __name__ == "__main__":
    sys.exit(main())
