"""A stock Debian 12 server: the distribution's kernel, GRUB for BIOS and UEFI, systemd, OpenSSH and
cloud-init.

mmdebstrap sets the packages up in a folder, which takes root; the disk is then put together without
a mount or a loop device. The system is what Debian calls minimal, and cloud-init makes a node of
it: name, keys, network, the root partition's growth. Partitions: GRUB's own for BIOS; the EFI
system partition with Debian's signed shim and GRUB at the removable path; the root last, where it
can grow.

The variant `debian-members` lets the members of the group log in, each by their own account: SSSD
for accounts, keys and sudo rules, autofs and NFS for volumes, each with Kerberos. Nothing in it is
configured: the seed of the node does that.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from images import disk, grub
from images.disk import MIB, ImagePartition
from trampoline.recipe import packages

NAME, VERSION, SUITE = "debian", "1", "bookworm"
VARIANTS = {  # name of the image -> packages beside those of every variant
    NAME: (),
    "debian-members": (
        "sssd-ldap",
        "sssd-krb5",
        "krb5-user",
        "libnss-sss",
        "libpam-sss",
        "libsss-sudo",
        "autofs",
        "nfs-common",
    ),
}
PACKAGES = (
    "linux-image-amd64",
    "grub-cloud-amd64",
    "cloud-init",
    "cloud-guest-utils",
    "openssh-server",
    "sudo",
    "dbus",
    "libpam-systemd",
    "ca-certificates",
    "zstd",
)
# mmdebstrap's variant `important`, for apt
MINIMAL = ("?essential", "?priority(required)", "?priority(important)")
SOURCES = ("images/debian.py", "images/disk.py", "images/grub.py", "trampoline/recipe/packages.py")
ESP_MIB, SLACK_MIB = 16, 192
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
LEFT_OUT = ("doc", "info", "locale", "man")  # folders of /usr/share; the copyright files stay
CONSOLES = "console=tty0 console=ttyS0,115200"
FILES = {
    "etc/apt/sources.list.d/0000sources.list": None,  # its content becomes etc/apt/sources.list
    "etc/apt/apt.conf.d/99mmdebstrap": None,
    # what is installed later comes whole, with its manual pages
    "etc/dpkg/dpkg.cfg.d/99mmdebstrap": None,
    "etc/hostname": f"{NAME}\n",
    "etc/machine-id": "",  # made at the first boot
    "etc/network/interfaces": (
        "source /etc/network/interfaces.d/*\n\nauto lo\niface lo inet loopback\n"
    ),
    "etc/resolv.conf": "",  # the build machine's
    "etc/default/locale": "LANG=C.UTF-8\n",
    # as in Debian's own cloud images
    "etc/cloud/cloud.cfg.d/10_image.cfg": "manage_etc_hosts: true\n",
    # grub-cloud-amd64 installs GRUB anew when its packages are upgraded
    "etc/grub.d/enable_cloud": "",
    "etc/initramfs-tools/update-initramfs.conf": "update_initramfs=yes\nbackup_initramfs=no\n",
    "etc/default/grub": (
        f'GRUB_DEFAULT=0\nGRUB_TIMEOUT=1\nGRUB_DISTRIBUTOR=Debian\nGRUB_CMDLINE_LINUX="{CONSOLES}"\n'
    ),
}
GRUB_BIOS = ("part_gpt", "part_msdos", "ext2", "search_fs_uuid")  # the rest is in /boot/grub


def wanted(variant: str = NAME) -> list[packages.Package]:
    """Return every package of the system, at the version that apt would install today. Reads apt's
    lists only."""
    return packages.closure((*MINIMAL, *PACKAGES, *VARIANTS[variant]))


def make(variant: str, debs: list[Path], scratch: Path, path: Path) -> dict[str, object]:
    """Write the image to `path`; returns facts beyond its size: its `kernel`, and how many
    `packages` it has.

    debs  the files of all that is `wanted`
    """
    tree = scratch / "root"
    install((*PACKAGES, *VARIANTS[variant]), debs, scratch, tree)
    root = disk.identifier(NAME, "root")
    kernel = next((tree / "boot").glob("vmlinuz-*")).name.removeprefix("vmlinuz-")
    _settle(tree, root, kernel)
    used = sum(4096 + -(-found.lstat().st_size // 4096) * 4096 for found in tree.rglob("*")) // MIB
    parts = [
        ImagePartition(f"{NAME}-boot", 1, "bios"),
        ImagePartition(f"{NAME}-esp", ESP_MIB, "esp"),
        ImagePartition(f"{NAME}-root", -(-(used + SLACK_MIB) // 64) * 64, "linux"),
    ]
    disk.create(path, 2 + sum(part.size for part in parts), "gpt", parts)
    boot_at, esp_at, root_at = disk.starts(parts)
    boot, core = grub.bios(
        tree,
        scratch,
        boot_at * MIB // 512,
        prefix=f"(,gpt{len(parts)})/boot/grub",
        configuration=_find(root),
        modules=GRUB_BIOS,
    )
    with open(path, "r+b") as file:
        file.write(boot)
    disk.put(path, core, boot_at * MIB)
    signed = tree / "usr/lib/grub/x86_64-efi-signed"
    disk.put(
        path,
        disk.fat(
            scratch,
            f"{NAME}-esp",
            ESP_MIB,
            {
                "EFI/BOOT/BOOTX64.EFI": (tree / "usr/lib/shim/shimx64.efi.signed").read_bytes(),
                "EFI/BOOT/mmx64.efi": (tree / "usr/lib/shim/mmx64.efi.signed").read_bytes(),
                "EFI/BOOT/grubx64.efi": (signed / "grubx64.efi.signed").read_bytes(),
                # signed GRUB looks here
                "EFI/debian/grub.cfg": (_find(root) + "configfile $prefix/grub.cfg\n").encode(),
            },
        ),
        esp_at * MIB,
    )
    disk.ext4_from(path, root_at, parts[-1].size, tree, f"{NAME}-root", root)
    return {"version": VERSION, "kernel": kernel, "packages": len(debs)}


def sources() -> str:
    """Return the release's lines for sources.list, from where apt is set up to fetch it here.
    Raises PackagesMissing."""
    form = f"deb [signed-by={KEYRING}] $(REPO_URI) $(RELEASE) $(COMPONENT)"
    listed = packages.run(
        "apt-get",
        "indextargets",
        "--format",
        form,
        "Created-By: Packages",
        "Origin: Debian",
        "Component: main",
    )
    lines = sorted(
        {line for line in listed.splitlines() if line.split()[-2].partition("-")[0] == SUITE}
    )
    if not lines:
        raise packages.PackagesMissing(
            f"apt has no sources of Debian {SUITE}: add them in /etc/apt/sources.list.d, "
            "and run apt-get update"
        )
    return "\n".join(lines) + "\n"


def install(names: Sequence[str], debs: list[Path], scratch: Path, tree: Path) -> None:
    """Set the packages `names`, whose files and dependencies are `debs`, up in `tree`."""
    if os.getuid() != 0:
        raise SystemExit(f"{NAME}: setting up a system's packages in a folder takes root")
    (scratch / "sources.list").write_text(sources())
    (scratch / "debs").mkdir()
    for deb in debs:
        (scratch / "debs" / deb.name).symlink_to(deb.resolve())
    hooks = (
        (
            f'mkdir -p "$1/var/cache/apt/archives" && cp -L {scratch}/debs/*.deb'
            ' "$1/var/cache/apt/archives/"'
        ),
        (
            'mkdir -p "$1/etc/initramfs-tools" && echo update_initramfs=no'
            ' >"$1/etc/initramfs-tools/update-initramfs.conf"'
        ),
    )
    leave_out = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in LEFT_OUT]
    done = subprocess.run(
        [
            "mmdebstrap",
            "--quiet",
            "--mode=root",
            "--variant=important",
            f"--include={','.join(names)}",
            "--aptopt=APT::Install-Recommends false",
            *leave_out,
            "--dpkgopt=path-include=/usr/share/doc/*/copyright",
            "--dpkgopt=force-confold",
            f"--setup-hook={hooks[0]}",
            f"--essential-hook={hooks[1]}",
            SUITE,
            str(tree),
            str(scratch / "sources.list"),
        ],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | disk.TIMES | {"LC_ALL": "C.UTF-8"},
    )
    if done.returncode:
        raise RuntimeError(f"mmdebstrap: {done.stderr.strip()[-3000:]}")


def _settle(tree: Path, root: str, kernel: str) -> None:
    """Make a disk's system of what mmdebstrap has left: nothing of the build machine stays, and
    GRUB has its files."""
    sources_list = tree / "etc/apt/sources.list.d/0000sources.list"
    files = FILES | {
        "etc/apt/sources.list": sources_list.read_text(),
        "etc/fstab": (
            f"UUID={root} / ext4 errors=remount-ro 0 1\n"
            f"UUID={disk.volume_id(f'{NAME}-esp')} /boot/efi vfat umask=0077,nofail 0 1\n"
        ),
        "boot/grub/grub.cfg": (
            f"""set timeout=1
menuentry 'Debian GNU/Linux' {{
    search --no-floppy --fs-uuid --set=root {root}
    linux /boot/vmlinuz-{kernel} root=UUID={root} ro {CONSOLES}
    initrd /boot/initrd.img-{kernel}
}}
"""
        ),
    }
    (tree / "boot/efi").mkdir()
    shutil.copytree(
        tree / "usr/lib/grub/i386-pc",
        tree / "boot/grub/i386-pc",
        ignore=lambda _, names: [name for name in names if not name.endswith((".mod", ".lst"))],
    )
    for name, content in files.items():
        (tree / name).unlink(missing_ok=True)
        if content is not None:
            (tree / name).write_text(content)
    for made in (*tree.glob("etc/ssh/ssh_host_*"), *tree.glob("*.old"), *tree.glob("boot/*.bak")):
        made.unlink()


def _find(root: str) -> str:
    """GRUB's first words on either firmware: its files are on the root partition."""
    return f"search.fs_uuid {root} root\nset prefix=($root)/boot/grub\n"
