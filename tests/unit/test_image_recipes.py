"""The images' recipes without building any: templates that COD accepts, boot code that adds up."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from stat import S_IFDIR, S_IFLNK, S_IMODE, S_ISDIR, S_ISLNK

import pytest
import zstandard
from click.testing import CliRunner
from lxml import etree

from cod import data, recipes
from cod.cli.root import cod
from cod.cli.server import recipe
from cod.policy.nodes import template
from images import batch, build, disk, linux, opaque
from images.disk import ImagePartition, identifier, put, starts
from tests.unit.test_trampoline_recipe import kernel_module, unpack
from trampoline.recipe import firmware, modules
from trampoline.recipe import packages as apt

IMAGES = Path(build.__file__).parent


@pytest.mark.parametrize("name", build.NAMES)
def test_every_image_has_a_template_that_is_valid(name: str) -> None:
    text = (IMAGES / f"{name}.xml").read_text()
    schema = etree.RelaxNG(etree.parse(IMAGES.parent / "schema/template.rng"))
    schema.assertValid(etree.fromstring(text))
    read = template.parse(text)
    assert [(image.target, image.name) for image in read.images] == [("disk", name)]
    assert read.diskless is None


def test_every_image_can_be_made_by_cod_image_make() -> None:
    assert set(recipe.NAMES) == set(build.NAMES)


def test_boot_code_fits_and_jumps_where_it_should() -> None:
    code = opaque.boot_code(34816)
    assert len(code) <= 440
    packet = code.index(bytes.fromhex("10000100007e0000") + (34816).to_bytes(8, "little"))
    message = code.index(opaque.MESSAGE.encode())
    assert b"\xbe" + (0x7C00 + message).to_bytes(2, "little") + b"\xe8" in code, (
        "mov si, message; call"
    )
    assert b"\xbe" + (0x7C00 + packet).to_bytes(2, "little") + b"\xb4\x42\xcd\x13" in code, (
        "mov si, packet; int 0x13"
    )
    show = code.index(b"\xac\x84\xc0")  # lodsb; test al, al
    calls = [at for at in range(show) if code[at] == 0xE8]
    assert len(calls) == 3
    assert {
        at + 3 + int.from_bytes(code[at + 1 : at + 3], "little", signed=True) for at in calls
    } == {show}
    halt = code.index(b"\xf4\xeb")
    assert code[halt + 2] == 0xFD, "jmp to the hlt before it"


def test_parts_follow_each_other_from_the_first_mebibyte() -> None:
    assert starts(
        [
            ImagePartition("a", 1, "bios"),
            ImagePartition("b", 24, "esp"),
            ImagePartition("c", 64, "data"),
        ]
    ) == [1, 2, 26]


def test_identifiers_depend_on_the_words_alone() -> None:
    assert identifier("a", 1) == identifier("a", 1)
    assert identifier("a", 1) != identifier("a", 2)


def test_zeros_stay_holes(tmp_path: Path) -> None:
    path = tmp_path / "image"
    path.write_bytes(b"")
    path.open("r+b").truncate(1 << 20)
    put(path, bytes(65536) + b"x" + bytes(65536), 8192)
    assert path.read_bytes().index(b"x") == 8192 + 65536
    assert path.stat().st_blocks * 512 <= 8192


def test_a_tree_has_folders_and_links_and_one_time(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    disk.write_tree(
        tree,
        {
            "a/file": (b"x", 0o640),
            "tmp": (b"", S_IFDIR | 0o1777),
            "link": (b"a/file", S_IFLNK | 0o777),
            "dangling": (b"/nowhere", S_IFLNK | 0o777),
        },
    )
    assert (tree / "link").read_bytes() == b"x"
    assert (tree / "dangling").readlink() == Path("/nowhere")
    assert [S_IMODE((tree / name).stat().st_mode) for name in ("a/file", "tmp")] == [0o640, 0o1777]
    assert {path.lstat().st_mtime for path in (tree, *tree.rglob("*"))} == {float(disk.EPOCH)}


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """What unpacked packages look like, as far as the recipe looks."""
    root = tmp_path / "packages"
    for name in (
        "bin/bash",
        "usr/bin/mawk",
        "usr/share/man/man1/bash.1",
        "usr/share/doc/bash/copyright",
        "usr/share/doc/bash/README",
        "usr/share/base-passwd/passwd.master",
        "usr/share/base-passwd/group.master",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / "bin/busybox").write_text(
        "#!/bin/sh\necho bin/bash sbin/ip usr/bin/mawk usr/bin/vi linuxrc\n"
    )
    (root / "bin/busybox").chmod(0o755)
    (root / "lib64").mkdir()
    (root / "lib64/ld.so").symlink_to("/lib/ld-2.so")
    return root


HOSTS = pytest.mark.parametrize("host", build.BATCH_HOSTS.values(), ids=lambda host: host.name)


@HOSTS
def test_a_batch_host_has_the_packages_files_where_debian_has_them_now(
    packages: Path, host: batch.BatchHost
) -> None:
    found = batch.files(host, packages)
    assert found["usr/bin/bash"] == (b"bin/bash", S_IMODE((packages / "bin/bash").stat().st_mode))
    assert found["usr/lib64/ld.so"] == (b"/lib/ld-2.so", S_IFLNK | 0o777)
    assert found["bin"] == (b"usr/bin", S_IFLNK | 0o777)
    assert not [path for path in found if path.split("/")[0] in batch.MERGED and "/" in path]
    assert "usr/share/man/man1/bash.1" not in found
    assert "usr/share/doc/bash/README" not in found
    assert "usr/share/doc/bash/copyright" in found, "licences stay with what they are for"
    users = found["etc/passwd"][0].decode().removeprefix("usr/share/base-passwd/passwd.master")
    assert [line.split(":")[:3] for line in users.splitlines()] == [
        [name, "x", str(uid)] for name, uid in host.users.items()
    ]


@HOSTS
def test_busybox_stands_in_where_no_package_has_the_command(
    packages: Path, host: batch.BatchHost
) -> None:
    found = batch.files(host, packages)
    assert {
        path
        for path, (content, mode) in found.items()
        if S_ISLNK(mode) and content == b"/usr/bin/busybox"
    } == {"usr/sbin/ip", "usr/bin/vi"}


@HOSTS
def test_a_batch_host_has_what_init_starts(packages: Path, host: batch.BatchHost) -> None:
    found = batch.files(host, packages)
    started = [
        line.rpartition(":")[2].split()[0].lstrip("/")
        for line in found["etc/inittab"][0].decode().splitlines()
    ]
    ours = [path for path in started if path.startswith("etc/")]
    assert ours == [
        "etc/cod/start",
        "etc/cod/network",
        *(f"etc/cod/{daemon}" for daemon in host.daemons),
    ]
    assert all(found[path][1] == 0o755 for path in ours)
    assert {path for path, (_, mode) in found.items() if S_ISDIR(mode)} == {
        *batch.FOLDERS,
        *host.folders,
    }
    assert "etc/cod/settings" in found


def test_a_template_that_needs_user_data_is_not_added_as_it_is(tmp_path: Path) -> None:
    for name in ("debian", "slurmd", "slurmd-debian13"):
        shutil.copy(data.path(f"images/{name}.xml"), tmp_path)
    assert recipe.next_steps("debian", tmp_path).endswith(f"cod template add {tmp_path}/debian.xml")
    for name in ("slurmd", "slurmd-debian13"):
        said = recipe.next_steps(name, tmp_path)
        assert f"write user data into {tmp_path}/{name}.xml" in said
        assert said.endswith("--group GROUP")


# ---------------------------------------------------------------- drivers


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an unpacked kernel with a driver of the lab's machines and one that servers need."""
    for name, facts in {
        "drivers/net/ours": (),
        "drivers/scsi/raid": ("firmware=raid.bin",),
    }.items():
        path = tmp_path / f"kernel/lib/modules/6.1.0/kernel/{name}.ko"
        path.parent.mkdir(parents=True)
        path.write_bytes(kernel_module("depends=", *facts))
    monkeypatch.setattr(modules, "LAB", ("ours",))
    monkeypatch.setattr(modules, "GENERIC_EXTRA", ("ours",))
    monkeypatch.setattr(linux, "MODULES", ())
    (tmp_path / "blobs/lib/firmware").mkdir(parents=True)
    (tmp_path / "blobs/lib/firmware/raid.bin").write_bytes(b"microcode")
    return tmp_path / "kernel"


@pytest.mark.parametrize(
    ("flavour", "files"),
    [
        ("lab", {"ours.ko.xz"}),
        ("generic", {"ours.ko.xz", "raid.ko.xz", "raid.bin", "scsi.conf"}),
    ],
)
def test_a_ramdisk_has_the_drivers_of_its_flavour(
    kernel: Path, flavour: str, files: set[str]
) -> None:
    packed = linux.ramdisk(kernel, {"init": (b"", 0o755)}, flavour, kernel.parent / "blobs")
    found = unpack(zstandard.ZstdDecompressor().decompress(packed, max_output_size=1 << 20))
    names = {name.rpartition("/")[2] for name, (mode, _) in found.items() if not S_ISDIR(mode)}
    assert names == {"init", "modules.dep", "modules.alias", *files}


def test_firmware_is_for_batch_hosts_on_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(firmware, "available", lambda: ["firmware-qlogic"])
    monkeypatch.setattr(apt, "exactly", lambda names: [f"package {name}" for name in names])
    assert [
        build._firmware_for(*wanted)
        for wanted in (("slurmd", "generic"), ("slurmd", "lab"), ("hello-a", "generic"))
    ] == [["package firmware-qlogic"], [], []]


@pytest.mark.parametrize(
    ("words", "flavour"), [((), "generic"), (("--flavour", "lab"), "lab")], ids=["default", "lab"]
)
def test_images_are_made_for_servers_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], flavour: str
) -> None:
    asked: list[tuple[str, ...]] = []

    def make(*words: str, **_: object) -> subprocess.CompletedProcess[str]:
        asked.append(words)
        return subprocess.CompletedProcess(words, 0)

    monkeypatch.setattr(recipes, "image", make)
    ended = CliRunner().invoke(cod, ["image", "make", "slurmd", "--into", str(tmp_path), *words])
    assert ended.exit_code == 0, ended.output
    assert asked[0][-2:] == ("--flavour", flavour)


def test_the_root_partition_has_what_the_drivers_leave() -> None:
    for flavour in ("lab", "generic"):
        parts = [
            ImagePartition("boot", 1, "bios"),
            ImagePartition("system", batch.SYSTEM_MIB[flavour], "esp"),
            ImagePartition("root", batch.root_mib(flavour), "linux"),
        ]
        assert starts(parts)[-1] + parts[-1].size < batch.SIZE
