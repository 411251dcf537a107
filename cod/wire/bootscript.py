"""A boot plan in the language of the loader that asks for it: an iPXE script or a PXELINUX
configuration; and the ramdisk with the boot's secret.

Values come from templates, which users write, so no value may begin a new line, a new command or an
expansion. A plan that cannot be written safely becomes a refusal, which the machine's console then
shows.

Requirements of the loaders, found in those in use:

- iPXE of 2019 (Debian 12) loads Linux on UEFI through the kernel's EFI stub, which finds ramdisks
  only by `initrd=` on its command line, one for each; under BIOS the same words do no harm.
- On UEFI, leaving iPXE with success makes many firmwares open their set-up menu; leaving it with an
  error sends them on to the next boot option. Hence `exit 1`. On BIOS a program finds the disk
  (`wire.diskloader`).
- PXELINUX reads over TFTP: our own URLs become paths below the boot root.
- The kernel requires each concatenated ramdisk to start at a multiple of four; loaders concatenate
  files unchanged, so the secret's archive is padded to 512.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from cod.model import BootPlan

_WORD = re.compile(r"[!-~]+\Z")  # printable ASCII without blanks
_COMMANDS = {"||", "&&", ";"}


class Unsafe(ValueError):
    """A value of the plan must not be written into a boot script."""


def ipxe(plan: BootPlan) -> str:
    """Return the plan as an iPXE script."""
    try:
        body = _IPXE[plan.action](plan)
    except Unsafe as error:
        body = _refusal(BootPlan("none", str(error)))
    return "\n".join(["#!ipxe", f"# {_plain(plan.why)}", *body, ""])


def pxelinux(plan: BootPlan) -> str:
    """Return the plan as a PXELINUX configuration."""
    try:
        body = _PXELINUX[plan.action](plan)
    except Unsafe as error:
        body = _pxelinux_refusal(BootPlan("none", str(error)))
    return "\n".join([f"# {_plain(plan.why)}", "DEFAULT cod", "PROMPT 0", *body, ""])


def _words(text: str) -> list[str]:
    words = text.split(" ")
    for word in filter(None, words):
        if not _WORD.match(word) or word in _COMMANDS or "${" in word or word.startswith("#"):
            raise Unsafe(f"not safe in a boot script: {word[:40]!r}")
    return [word for word in words if word]


def _url(text: str) -> str:
    if len(_words(text)) != 1 or urlsplit(text).scheme not in ("http", "https", "tftp"):
        raise Unsafe(f"no URL: {text[:80]!r}")
    return text


def _plain(text: str) -> str:
    return re.sub(r"[^ -~]|[$|&;\\\"']", "?", text)[:200]


def _kernel(plan: BootPlan) -> list[str]:
    names = [f"initrd{number}" for number in range(len(plan.initrds))]
    named = [f"initrd={name}" for name in names]
    return [
        " ".join(["kernel", _url(plan.kernel), *named, *_words(plan.cmdline), "|| goto failed"]),
        *(
            f"initrd --name {name} {_url(url)} || goto failed"
            for name, url in zip(names, plan.initrds, strict=True)
        ),
        "boot || goto failed",
        ":failed",
        "echo COD: the boot files could not be loaded; trying again",
        "imgfree",
        "sleep 5",
        # the other servers first: this one has just failed
        *(f"chain --replace --autofree {_url(url)} ||" for url in plan.scripts),
        "chain --replace --autofree ${filename} || reboot",
    ]


def _refusal(plan: BootPlan) -> list[str]:
    # Not `exit`: that would boot from a disk whose system must perhaps not run now.
    return [f"echo COD: {_plain(plan.why)}", "sleep 10", "reboot"]


_IPXE = {
    "local": lambda plan: [
        "iseq ${platform} efi && exit 1 ||",
        *(_kernel(plan) if plan.kernel else ["sanboot --no-describe --drive 0x80 || exit 1"]),
    ],
    "kernel": _kernel,
    "trampoline": _kernel,
    "none": _refusal,
}


def _path(url: str) -> str:
    parts = urlsplit(_url(url))
    return parts.path.removeprefix("/files/").lstrip("/")


def _pxelinux_kernel(plan: BootPlan) -> list[str]:
    ramdisks = ",".join(_path(url) for url in plan.initrds)
    return [
        "LABEL cod",
        f" KERNEL {_path(plan.kernel)}",
        *([f" INITRD {ramdisks}"] if ramdisks else []),
        f" APPEND {' '.join(_words(plan.cmdline))}".rstrip(),
    ]


def _pxelinux_local(plan: BootPlan) -> list[str]:
    return _pxelinux_kernel(plan) if plan.kernel else ["LABEL cod", " LOCALBOOT 0"]


def _pxelinux_refusal(plan: BootPlan) -> list[str]:
    # The prompt is the only pause that PXELINUX knows; nothing but the label can be typed there.
    return [
        f"SAY COD: {_plain(plan.why)}",
        "PROMPT 1",
        "TIMEOUT 100",
        "TOTALTIMEOUT 100",
        "NOESCAPE 1",
        "IMPLICIT 0",
        "ALLOWOPTIONS 0",
        "LABEL cod",
        " KERNEL reboot.c32",
    ]


_PXELINUX = {
    "local": _pxelinux_local,
    "kernel": _pxelinux_kernel,
    "trampoline": _pxelinux_kernel,
    "none": _pxelinux_refusal,
}


def cpio_newc(files: Mapping[str, bytes]) -> bytes:
    """Return a cpio archive (the kernel's "newc" form) of `files`, with the folders they need,
    readable by root alone.

    Names are relative ("cod/secret"). Padded to a multiple of 512 bytes, so that archives can be
    joined.
    """
    folders = sorted(
        {
            "/".join(name.split("/")[:depth])
            for name in files
            for depth in range(1, name.count("/") + 1)
        }
    )
    entries = [(folder, 0o040700, b"") for folder in folders]
    entries += [(name, 0o100600, content) for name, content in sorted(files.items())]
    archive = b"".join(
        _entry(number, name, mode, content)
        for number, (name, mode, content) in enumerate(entries, 1)
    )
    archive += _entry(0, "TRAILER!!!", 0, b"")
    return archive + bytes(-len(archive) % 512)


def _entry(inode: int, name: str, mode: int, content: bytes) -> bytes:
    # inode, mode, uid, gid, links, mtime, size, device (2), special device (2), length of the name,
    # check sum
    numbers = (inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name.encode()) + 1, 0)
    head = (
        b"070701" + "".join(f"{number:08X}" for number in numbers).encode() + name.encode() + b"\0"
    )
    return head + bytes(-len(head) % 4) + content + bytes(-len(content) % 4)
