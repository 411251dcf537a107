"""Checks of the files that machines load at a boot (first-stage loaders and the trampoline), and of
the programs that the server calls."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from cod import recipes
from cod.doctor.finding import BAD, GOOD, UNSEEN, WARNING, Context, Finding

SMALLEST = 16384  # bytes of a loader
AMD64 = 0x8664  # IMAGE_FILE_MACHINE_AMD64
NO_BIOS_LOADER = {b"MZ": "an EFI program", b"\x7fELF": "an ELF file", b"<": "a page of HTML or XML"}
BUILD = "cod trampoline build"


def loaders(context: Context) -> Iterator[Finding]:
    for key in ("bios_loader", "uefi_loader"):
        name = getattr(context.site.boot, key)
        path = context.settings.boot / name
        if fault := _unreadable(path) or no_loader(path, uefi=key == "uefi_loader"):
            yield Finding(
                BAD,
                f"{key}: {fault}",
                "install the packages ipxe, pxelinux and syslinux-common, "
                "then run `cod init` again: it copies what is missing",
            )
        else:
            yield Finding(GOOD, f"{key}: {name}")


def trampoline(context: Context) -> Iterator[Finding]:
    """Yield a finding for the trampoline: whether it exists, is complete, is of this version, and
    has drivers for servers."""
    folder = context.settings.boot / "trampoline"
    for name in ("vmlinuz", "ramdisk"):
        path = folder / name
        if fault := _unreadable(path) or (no_kernel(path) if name == "vmlinuz" else ""):
            yield Finding(BAD, fault, f"`{BUILD}` makes it")
            return
    try:
        facts = json.loads((folder / "facts.json").read_bytes())
        flavour, release, packed = (
            str(facts["flavour"]),
            str(facts["release"]),
            int(facts["packed"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        yield Finding(
            WARNING,
            f"{folder} has no facts.json, which says how the trampoline was made",
            f"`{BUILD}` makes it anew",
        )
        return
    words = f"{flavour}, Linux {release}"
    emulated = all(rule.driver == "lab" for rule in context.site.power) and context.site.power
    if (folder / "ramdisk").stat().st_size != packed:
        yield Finding(
            BAD, f"{words}: the ramdisk is not the one that was built", f"`{BUILD}` makes it anew"
        )
    elif flavour != "generic" and not emulated:
        yield Finding(
            BAD, f"{words}: it has drivers for emulated machines alone", f"`{BUILD} generic`"
        )
    elif (wanted := _sources()) is None:
        yield Finding(UNSEEN, f"{words}: whether it is of this version")
    elif facts.get("sources") != wanted:
        yield Finding(
            WARNING,
            f"{words}: its agent is of another version than this server",
            f"`{BUILD} {flavour}`, while the server runs; machines load it at their next boot",
        )
    else:
        yield Finding(GOOD, f"{words}, of this version")
        if remedy := facts.get("firmware", {}).get("remedy"):
            yield Finding(WARNING, f"{words}: {facts['firmware']['note']}", remedy)


def programs(context: Context) -> Iterator[Finding]:
    """Yield a finding for each program that is missing, with its package."""
    wanted = {
        "qemu-img": ("qemu-utils", "qcow2 images are converted by it"),
        "ip": ("iproute2", "`cod init` and `cod doctor` list interfaces by it"),
    }
    drivers = {rule.driver for rule in context.site.power}
    if "ipmi" in drivers:
        wanted["ipmitool"] = ("ipmitool", "the power driver ipmi and its consoles need it")
    missing = {name for name in wanted if shutil.which(name) is None}
    for name in sorted(missing):
        package, why = wanted[name]
        yield Finding(BAD, f"{name} is not installed: {why}", f"apt-get install {package}")
    if len(missing) < len(wanted):
        yield Finding(GOOD, ", ".join(name for name in wanted if name not in missing))


def _unreadable(path: Path) -> str:
    """Return why the file cannot be used; '' if it can be read and is not empty."""
    try:
        with path.open("rb") as file:
            return "" if file.read(1) else f"{path} is empty"
    except FileNotFoundError:
        return f"{path} is missing"
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"


def no_loader(path: Path, *, uefi: bool) -> str:
    """Return why the file is no first-stage loader for x86 machines with that firmware; '' if it
    may be one."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(4096)
    if size < SMALLEST:
        return f"{path} is no loader: it has {size} bytes"
    if not uefi:
        kind = next((name for begin, name in NO_BIOS_LOADER.items() if head.startswith(begin)), "")
        return f"{path} is no loader for BIOS machines: it is {kind}" if kind else ""
    at = int.from_bytes(head[0x3C:0x40], "little")
    if head[:2] != b"MZ" or head[at : at + 4] != b"PE\0\0":
        return f"{path} is no loader for UEFI machines: it is no EFI program"
    machine = int.from_bytes(head[at + 4 : at + 6], "little")
    if machine != AMD64:
        return f"{path} is no loader for 64-bit x86 machines: it is for machine {machine:#06x}"
    return ""


def no_kernel(path: Path) -> str:
    """Return why the file is not a complete kernel for a boot loader (the boot protocol of Linux on
    x86); '' if it may be one."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(0x260)
    if head[0x1FE:0x200] != b"\x55\xaa" or head[0x202:0x206] != b"HdrS":
        return f"{path} is no Linux kernel: its head is broken"
    # setup sectors (0: four) and the first, then the protected-mode part in units of 16 bytes
    whole = ((head[0x1F1] or 4) + 1) * 512 + int.from_bytes(head[0x1F4:0x1F8], "little") * 16
    if size < whole:
        return f"{path} is cut off: {size} of {whole} bytes"
    return ""


def _sources() -> str | None:
    """Return the digest of the agent that this version would pack; None if it cannot be
    computed."""
    try:
        done = recipes.trampoline("--sources", capture_output=True, timeout=120)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
