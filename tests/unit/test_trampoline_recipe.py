"""How the ramdisk is made: the archive, the choice of modules, the choice of Python modules."""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import re
import struct
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from cod.cli.root import cod
from trampoline import build
from trampoline.recipe import cpio, firmware, modules, packages, python

pytestmark = pytest.mark.slow  # together with its like more than the quick run has time for

ROOT = Path(__file__).resolve().parents[2]


def unpack(archive: bytes) -> dict[str, tuple[int, bytes]]:
    """A newc archive's modes and contents by name, read by the letter of the kernel's
    description."""
    found, at = {}, 0
    while True:
        assert archive[at : at + 6] == b"070701"
        fields = [int(archive[at + 6 + 8 * n : at + 14 + 8 * n], 16) for n in range(13)]
        assert fields[5] == 0, "a time"
        name = archive[at + 110 : at + 110 + fields[11] - 1].decode()
        at = -(-(at + 110 + fields[11]) // 4) * 4
        if name == "TRAILER!!!":
            assert at == len(archive), "something behind the end"
            return found
        found[name] = (fields[1], archive[at : at + fields[6]])
        at = -(-(at + fields[6]) // 4) * 4


names = st.lists(
    st.text("abc.-", min_size=1, max_size=5).filter(lambda part: part not in (".", "..")),
    min_size=1,
    max_size=3,
).map("/".join)


@given(st.dictionaries(names, st.binary(max_size=9), max_size=6))
def test_an_archive_holds_what_was_put_in(contents: dict[str, bytes]) -> None:
    files = {
        name: data
        for name, data in contents.items()
        if not any(o.startswith(f"{name}/") for o in contents)
    }
    archive = cpio.archive({name: cpio.file(data) for name, data in files.items()})
    found = unpack(archive)
    assert len(archive) % 4 == 0, "another archive cannot follow"
    assert {name: data for name, (mode, data) in found.items() if mode == 0o100644} == files
    folders = {name for name, (mode, _) in found.items() if mode == 0o040755}
    assert folders == {name[:at] for name in files for at in range(len(name)) if name[at] == "/"}
    assert list(found) == sorted(found), "a folder must come before what is in it"
    assert archive == cpio.archive(
        dict(reversed({name: cpio.file(data) for name, data in files.items()}.items()))
    )


def test_the_cpio_program_reads_it(tmp_path: Path) -> None:
    entries = {
        "bin/sh": cpio.link("busybox"),
        "bin/busybox": cpio.file(b"\x7fELF", 0o755),
        "cod": cpio.folder(0o700),
    }
    subprocess.run(
        ["cpio", "-id", "--quiet"], input=cpio.archive(entries), cwd=tmp_path, check=True
    )
    assert (tmp_path / "bin/busybox").read_bytes() == b"\x7fELF"
    assert (tmp_path / "bin/sh").readlink() == Path("busybox")
    assert (tmp_path / "cod").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("script", ["init", "udhcpc"])
def test_the_shell_can_read_it(script: str) -> None:
    subprocess.run(["sh", "-n", ROOT / "trampoline" / script], check=True)


def test_an_interface_that_comes_back_is_waited_for_and_brought_up(tmp_path: Path) -> None:
    """`network` of init, with what it calls in its place."""
    found = re.search(
        r"^network\(\) \{.*?^\}$", (ROOT / "trampoline/init").read_text(), re.M | re.S
    )
    assert found
    script = (
        found[0].replace("/run/", f"{tmp_path}/")
        + """
    says() { echo "$1"; }
    links() { says links; }
    carrier() { says "carrier $1"; }
    say() { :; }
    pause() { says pause; }
    udhcpc() { [ "$2" = eth1 ]; }
    interfaces() { wired=$next; next=eth1; [ -n "$wired" ]; }
    wired=eth0 next=
    network
    """
    )
    done = subprocess.run(["sh", "-c", script], check=True, capture_output=True, text=True)
    lost = ["links", "carrier eth0", "pause"]
    assert done.stdout.splitlines() == [*lost, "links", "pause", "links", "carrier eth1"]
    assert (tmp_path / "nic").read_text() == "eth1\n"


# ---------------------------------------------------------------- kernel modules


def kernel_module(*facts: str) -> bytes:
    """The smallest ELF64 file with a .modinfo section that says `facts`."""
    info, strings = "\0".join([*facts, ""]).encode(), b"\0.modinfo\0.shstrtab\0"
    sections = 64 + len(info) + len(strings)
    rest = struct.pack("<HHIQQQIHHHHHH", 1, 62, 1, 0, 0, sections, 0, 64, 0, 0, 64, 3, 2)
    header = b"\x7fELF\x02\x01\x01" + bytes(9) + rest

    def section(name: int, offset: int, size: int) -> bytes:
        return struct.pack("<IIQQQQIIQQ", name, 1, 0, 0, offset, size, 0, 0, 1, 0)

    table = section(0, 0, 0) + section(1, 64, len(info)) + section(10, 64 + len(info), len(strings))
    return header + info + strings + table


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An unpacked kernel package with a diamond of dependencies, and a flavour that wants its
    tip."""
    for path, facts in {
        "drivers/net/tip-one.ko": (
            "depends=base_bus,left,right",
            "alias=pci:v00008086d*",
            "license=GPL",
        ),
        "drivers/net/left.ko": ("depends=base_bus",),
        "drivers/net/right.ko": ("depends=base_bus", "alias=right-alias"),
        "lib/base-bus.ko": ("depends=",),
        "drivers/sound/unwanted.ko": ("depends=",),
    }.items():
        file = tmp_path / "lib/modules/6.1.0/kernel" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(kernel_module(*facts))
    monkeypatch.setattr(modules, "LAB", ("tip_one",))
    return tmp_path


def test_a_module_brings_what_it_needs_and_no_more(kernel: Path) -> None:
    tree = modules.tree(kernel, "lab")
    assert {name.removeprefix("lib/modules/6.1.0/") for name in tree} == {
        "kernel/drivers/net/tip-one.ko.xz",
        "kernel/drivers/net/left.ko.xz",
        "kernel/drivers/net/right.ko.xz",
        "kernel/lib/base-bus.ko.xz",
        "modules.dep",
        "modules.alias",
    }
    packed = tree["lib/modules/6.1.0/kernel/lib/base-bus.ko.xz"].content
    assert lzma.decompress(packed) == kernel_module("depends=")


def test_modprobe_is_told_the_order(kernel: Path) -> None:
    """modprobe loads a line from its end: what is needed by others must stand behind them."""
    lines = (
        modules.tree(kernel, "lab")["lib/modules/6.1.0/modules.dep"].content.decode().splitlines()
    )
    needs = {line.split(":")[0].split("/")[-1]: line.split(":")[1].split() for line in lines}
    assert [path.split("/")[-1] for path in needs["tip-one.ko.xz"]] == [
        "left.ko.xz",
        "right.ko.xz",
        "base-bus.ko.xz",
    ]
    assert needs["base-bus.ko.xz"] == []


def test_aliases_name_modules_as_the_kernel_does(kernel: Path) -> None:
    assert (
        modules.tree(kernel, "lab")["lib/modules/6.1.0/modules.alias"].content.decode()
        == "alias right-alias right\nalias pci:v00008086d* tip_one\n"
    )


def test_the_generic_flavour_takes_whole_folders(
    kernel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modules, "GENERIC", ("drivers/sound",))
    monkeypatch.setattr(modules, "GENERIC_EXTRA", ("not-in-this-kernel",))
    names = [name for name in modules.tree(kernel, "generic") if name.endswith(".xz")]
    assert [name.split("/")[-1] for name in names] == ["unwanted.ko.xz"]


# ---------------------------------------------------------------- firmware


def test_drivers_files_are_carried_as_their_modules_name_them(
    kernel: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(modules, "GENERIC", ("drivers/wired",))
    monkeypatch.setattr(modules, "GENERIC_EXTRA", ())
    for name, facts in {
        "card": ("firmware=card/two.fw", "firmware=card/one.fw"),
        "old": ("firmware=old.bin",),
        "plain": (),
    }.items():
        file = kernel / f"lib/modules/6.1.0/kernel/drivers/wired/{name}.ko"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(kernel_module(*facts))
    needs = modules.firmware(kernel, "generic")
    assert needs == {"card": ("card/one.fw", "card/two.fw"), "old": ("old.bin",)}
    folder = tmp_path / "blobs/lib/firmware/card"
    folder.mkdir(parents=True)
    (folder / "one-7.fw").write_bytes(b"one")
    (folder / "one.fw").symlink_to("one-7.fw")
    (folder / "unasked.fw").write_bytes(b"three")
    carried = firmware.tree(tmp_path / "blobs", needs)
    assert carried == {"lib/firmware/card/one.fw": cpio.file(b"one")}, (
        "a link's content, and nothing that nobody wants"
    )
    assert firmware.lacking(carried, needs) == {"card": ["card/two.fw"], "old": ["old.bin"]}


@pytest.mark.parametrize(
    ("known", "missing", "told"),
    [
        (
            firmware.PACKAGES,
            {"aic94xx": ["a"], "acenic": ["b"]},
            ("firmware for all drivers but acenic, aic94xx, whose files Debian does not have", ""),
        ),
        (
            tuple(set(firmware.PACKAGES) - {"firmware-bnx2"}),
            {"bnx2": ["a"], "acenic": ["b"]},
            (
                "no firmware for the drivers bnx2: apt does not know firmware-bnx2",
                (
                    "add the component non-free-firmware to "
                    "Debian's entry in /etc/apt, run apt-get update, and build again"
                ),
            ),
        ),
    ],
)
def test_what_is_missing_is_told_with_the_remedy(
    known: tuple[str, ...],
    missing: dict[str, list[str]],
    told: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(firmware, "available", lambda: list(known))
    assert firmware.note(missing) == told


def test_cod_shows_what_machines_boot(tmp_path: Path) -> None:
    words = ["--site", str(tmp_path / "site.toml"), "trampoline", "show"]
    assert (
        CliRunner()
        .invoke(
            cod,
            ["--site", str(tmp_path / "site.toml"), "init", "--dir", str(tmp_path), "--no-check"],
        )
        .exit_code
        == 0
    )
    (tmp_path / "boot/trampoline/facts.json").unlink(missing_ok=True)
    assert "there is no trampoline" in CliRunner().invoke(cod, words).stderr
    facts = {
        "flavour": "generic",
        "release": "6.1.0",
        "kernel": 8_000_000,
        "packed": 28_000_000,
        "unpacked": 7,
        "firmware": {
            "files": 3,
            "bytes": 1234,
            "missing": {"bnx2": ["a"]},
            "note": "no firmware for bnx2",
            "remedy": "buy",
        },
    }
    (tmp_path / "boot/trampoline/facts.json").write_text(json.dumps(facts))
    shown = CliRunner().invoke(cod, words).stdout
    assert "ramdisk 28,000,000 bytes" in shown
    assert "firmware: 3 files, 1,234 bytes" in shown
    assert shown.splitlines()[-2:] == ["no firmware for bnx2", "buy"]
    assert json.loads(CliRunner().invoke(cod, [*words, "--json"]).stdout) == facts


# ---------------------------------------------------------------- Python's modules


def test_imports_are_found_wherever_they_stand(tmp_path: Path) -> None:
    (tmp_path / "trampoline").mkdir()
    (tmp_path / "trampoline/__init__.py").write_text("")
    (tmp_path / "trampoline/a.py").write_text(
        "from typing import TYPE_CHECKING\nfrom . import b\n"
        "if TYPE_CHECKING:\n    import decimal\n"
        "def late():\n    import zlib\n    from xml.etree import ElementTree\n"
        "if __name__ == '__main__':\n    import argparse\n"
    )
    (tmp_path / "trampoline/b.py").write_text("import os.path\nfrom trampoline.c import name\n")
    (tmp_path / "trampoline/c.py").write_text("name = 1\n")
    mine, others = python.reachable(("trampoline.a",), tmp_path)
    assert mine == ["trampoline", "trampoline.a", "trampoline.b", "trampoline.c"]
    assert others == ["os.path", "typing", "xml.etree", "zlib"]


def test_only_what_belongs_on_a_node_travels() -> None:
    mine, others = python.reachable(python.AGENT, ROOT)
    assert {"trampoline.agent", "trampoline.cprime", "trampoline.inventory", "cod.orders"} <= set(
        mine
    )
    assert not {"trampoline.recipe", "trampoline.build", "trampoline.options"} & set(mine)
    assert [
        name for name in mine if name.startswith("cod.") and not name.startswith("cod.wire")
    ] == ["cod.orders"]
    assert not {"lxml", "twisted", "sqlalchemy", "zstandard"} & {
        name.partition(".")[0] for name in others
    }


# ---------------------------------------------------------------- what is up to date


def test_a_change_of_the_agent_or_the_recipe_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (
        "trampoline/ctramp.py",
        "trampoline/cprime.py",
        "trampoline/init",
        "cod/__init__.py",
        "cod/orders.py",
        "cod/states.py",
        "trampoline/__init__.py",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("import cod.orders\n" if name.endswith("ctramp.py") else "")
    monkeypatch.setattr(build, "CHECKOUT", tmp_path)
    stamps = [build._stamp("lab", [])]
    for name, counts in (
        ("cod/states.py", False),
        ("cod/orders.py", True),
        ("trampoline/init", True),
    ):
        (tmp_path / name).write_text("# changed\n")
        stamps.append(build._stamp("lab", []))
        assert (stamps[-1] != stamps[-2]) is counts, name
    assert build._stamp("generic", []) != stamps[-1]


def test_package_files_of_old_builds_go_beyond_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keep what the build uses, and of the rest what was used last."""
    monkeypatch.setattr(packages, "LIMIT", 25)
    digest = hashlib.sha256(bytes(10)).hexdigest()
    for name, when in (("used", 0), ("older", 1), ("newer", 2)):
        (tmp_path / f"{name}_1_all.deb").write_bytes(bytes(10))
        os.utime(tmp_path / f"{name}_1_all.deb", (when, when))
    packages.fetched([packages.Package("used_1_all.deb", digest)], tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["newer_1_all.deb", "used_1_all.deb"]
    (later,) = packages.fetched([packages.Package("newer_1_all.deb", digest)], tmp_path)
    assert later.stat().st_mtime > 1000, "it counts as used"
