"""Boot scripts, word for word, and what must never get into them."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cod import init
from cod.model import BootPlan
from cod.wire import bootscript

TRAMPOLINE = BootPlan(
    "trampoline",
    "state new",
    "http://h:1/files/trampoline/vmlinuz",
    ("http://h:1/files/trampoline/ramdisk", "http://h:1/boot/aa/secret.cpio"),
    "quiet panic=10",
)


def test_the_trampolines_script_word_for_word() -> None:
    assert (
        bootscript.ipxe(TRAMPOLINE)
        == """\
#!ipxe
# state new
kernel http://h:1/files/trampoline/vmlinuz initrd=initrd0 initrd=initrd1 quiet panic=10 || goto failed
initrd --name initrd0 http://h:1/files/trampoline/ramdisk || goto failed
initrd --name initrd1 http://h:1/boot/aa/secret.cpio || goto failed
boot || goto failed
:failed
echo COD: the boot files could not be loaded; trying again
imgfree
sleep 5
chain --replace --autofree ${filename} || reboot
"""
    )


def test_a_diskless_systems_kernel_is_loaded_as_the_trampolines_is() -> None:
    diskless = replace(TRAMPOLINE, action="kernel")
    assert bootscript.ipxe(diskless) == bootscript.ipxe(TRAMPOLINE)
    assert bootscript.pxelinux(diskless) == bootscript.pxelinux(TRAMPOLINE)


def test_a_script_goes_on_with_the_other_servers_where_a_file_cannot_be_loaded() -> None:
    others = tuple(f"http://{host}:1/boot/aa/script.ipxe" for host in ("i", "j"))
    script = bootscript.ipxe(replace(TRAMPOLINE, scripts=others))
    assert script.endswith(
        """\
imgfree
sleep 5
chain --replace --autofree http://i:1/boot/aa/script.ipxe ||
chain --replace --autofree http://j:1/boot/aa/script.ipxe ||
chain --replace --autofree ${filename} || reboot
"""
    )


def test_the_local_disk() -> None:
    assert (
        bootscript.ipxe(BootPlan("local", "state active"))
        == """\
#!ipxe
# state active
iseq ${platform} efi && exit 1 ||
sanboot --no-describe --drive 0x80 || exit 1
"""
    )


def test_the_disk_that_was_written_is_found_by_a_program() -> None:
    plan = BootPlan("local", "state active", "http://h:1/boot/disk/1234abcd-or-first")
    assert (
        bootscript.ipxe(plan)
        == """\
#!ipxe
# state active
iseq ${platform} efi && exit 1 ||
kernel http://h:1/boot/disk/1234abcd-or-first || goto failed
boot || goto failed
:failed
echo COD: the boot files could not be loaded; trying again
imgfree
sleep 5
chain --replace --autofree ${filename} || reboot
"""
    )
    assert bootscript.pxelinux(plan).endswith(
        "LABEL cod\n KERNEL boot/disk/1234abcd-or-first\n APPEND\n"
    )


def test_pxelinux_word_for_word() -> None:
    assert (
        bootscript.pxelinux(TRAMPOLINE)
        == """\
# state new
DEFAULT cod
PROMPT 0
LABEL cod
 KERNEL trampoline/vmlinuz
 INITRD trampoline/ramdisk,boot/aa/secret.cpio
 APPEND quiet panic=10
"""
    )
    assert bootscript.pxelinux(BootPlan("local", "state active")).endswith(
        "LABEL cod\n LOCALBOOT 0\n"
    )
    assert (
        bootscript.pxelinux(BootPlan("none", "retired"))
        == """\
# retired
DEFAULT cod
PROMPT 0
SAY COD: retired
PROMPT 1
TIMEOUT 100
TOTALTIMEOUT 100
NOESCAPE 1
IMPLICIT 0
ALLOWOPTIONS 0
LABEL cod
 KERNEL reboot.c32
"""
    )


def test_a_site_has_every_file_that_a_pxelinux_configuration_names() -> None:
    """And what those are linked with: PXELINUX loads modules by their bare names from the boot
    root."""
    plans = (TRAMPOLINE, BootPlan("local", ""), BootPlan("none", ""))
    wanted = {name for plan in plans for name in re.findall(r"\w+\.c32", bootscript.pxelinux(plan))}
    assert wanted == {"reboot.c32"}
    sources = {name: Path(places[0]) for name, places in init.LOADERS.items()}
    wanted.add("ldlinux.c32")
    for name in [each for each in wanted if sources[each].exists()]:
        wanted |= {
            match.decode()
            for match in re.findall(rb"lib\w+\.c32(?=\0)", sources[name].read_bytes())
        }
    assert wanted <= set(sources)


@pytest.mark.parametrize(
    "cmdline",
    [
        "quiet\nsanboot",
        "a || shell",
        "a && b",
        "a ; b",
        "${net0/ip}",
        "a\tb",
        "\u00e9",
        "#x",
        "a\rb",
        "a\x00b",
    ],
)
def test_a_command_line_that_would_be_more_than_one_is_refused(cmdline: str) -> None:
    plan = BootPlan("kernel", "why", "http://h/k", (), cmdline)
    assert bootscript.ipxe(plan).splitlines()[-1] == "reboot"
    assert "kernel http" not in bootscript.ipxe(plan)
    assert "reboot.c32" in bootscript.pxelinux(plan)


@pytest.mark.parametrize(
    "url", ["http://h/a b", "file:///etc/passwd", "http://h/\nx", "", "http://h/${x}", "//h/x"]
)
def test_what_is_no_url_is_refused(url: str) -> None:
    for plan in (BootPlan("kernel", "", url), BootPlan("kernel", "", "http://h/k", (url,))):
        assert bootscript.ipxe(plan).splitlines()[-1] == "reboot"


@given(st.text(), st.text(), st.text())
def test_no_value_adds_a_line_or_an_expansion(why: str, kernel: str, cmdline: str) -> None:
    plan = BootPlan("kernel", why, kernel, (kernel,), cmdline)
    lengths = {
        len(bootscript.ipxe(BootPlan(action, why)).split("\n")) for action in ("none", "kernel")
    } | {11, 12, 13}
    for text in (bootscript.ipxe(plan), bootscript.ipxe(BootPlan("none", why))):
        lines = text.split("\n")
        assert len(lines) in lengths
        assert not any("${" in line for line in lines if "${filename}" not in line)
        assert all(" " <= character <= "~" or character == "\n" for character in text)
        words = {line.split(" ")[0] for line in lines}
        assert words <= {
            "#!ipxe",
            "#",
            "kernel",
            "initrd",
            "boot",
            ":failed",
            "echo",
            "imgfree",
            "sleep",
            "chain",
            "reboot",
            "",
        }


def test_the_secrets_archive_is_one_that_cpio_reads(tmp_path: Path) -> None:
    archive = bootscript.cpio_newc({"cod/secret": b"id:key\n", "cod/a/b": b""})
    assert len(archive) % 512 == 0
    subprocess.run(["cpio", "-idm", "--quiet"], input=archive, cwd=tmp_path, check=True)
    assert (tmp_path / "cod/secret").read_bytes() == b"id:key\n"
    assert (tmp_path / "cod/secret").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "cod/a/b").read_bytes() == b""
