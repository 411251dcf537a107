"""Disks of OCI images, with others' tools: umoci makes the layers, skopeo and Debian's registry
carry them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from images import disk, inspection, layers, oci
from images.layers import BadImage
from tests.ports import free_port
from tests.system.qemu import CHECKOUT
from tests.waiting import until

PROGRAMS = ("skopeo", "umoci", "docker-registry", "grub-fstest")
pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0 or not all(map(shutil.which, PROGRAMS)),
        reason=f"systems are unpacked as root, with {', '.join(PROGRAMS)}",
    ),
]
CACHE = CHECKOUT / "build/cache/images"
CONFIGURATION = """version: 0.1
storage: {{filesystem: {{rootdirectory: {folder}}}}}
http: {{addr: "127.0.0.1:{port}"}}
"""


def run(*argv: str | Path) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def system(folder: Path, *, kernel: bool = True) -> Path:
    """A tree with what COD looks for in a system."""
    tree = folder / "tree"
    files = {
        "etc/os-release": 'PRETTY_NAME="Example Linux 9"\n',
        "etc/fstab": "# UNCONFIGURED\n",
        "etc/machine-id": "0123456789abcdef0123456789abcdef\n",
        "etc/ssh/ssh_host_ed25519_key": "of the build",
        "usr/lib/systemd/systemd": "init",
        "usr/bin/cloud-init": "",
        "usr/sbin/sshd": "",
        "var/cache/gone/a": "1",
        ".dockerenv": "",
    }
    if kernel:
        for release in ("6.1.9", "6.1.10"):
            files |= {
                f"boot/vmlinuz-{release}": "kernel",
                f"boot/initramfs-{release}.img": "initramfs",
                f"usr/lib/modules/{release}/modules.dep": "",
            }
    for name, content in files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(content)
    (tree / "sbin").symlink_to("usr/sbin")
    (tree / "lib").symlink_to("usr/lib")
    (tree / "usr/sbin/init").symlink_to("/usr/lib/systemd/systemd")
    os.chown(tree / "var/cache/gone", 33, 33)
    (tree / "usr/sbin/sshd").chmod(0o4755)
    return tree


def layout(folder: Path, tree: Path) -> Path:
    """An image `web` of that tree, as umoci makes it: a second layer hides files and puts others in
    their place."""
    made, more = folder / "layout", folder / "more"
    (more / "inner").mkdir(parents=True)
    (more / "inner/new").write_text("2")
    run("umoci", "init", "--layout", made)
    run("umoci", "new", "--image", f"{made}:web")
    run("umoci", "insert", "--image", f"{made}:web", tree, "/")
    run("umoci", "insert", "--image", f"{made}:web", "--opaque", more, "/var/cache")
    run("umoci", "insert", "--image", f"{made}:web", "--whiteout", "/etc/fstab")
    run("umoci", "config", "--image", f"{made}:web", "--os", "linux", "--architecture", "amd64")
    return made


def told(tree: Path) -> dict[str, tuple[object, ...]]:
    """What a tree holds: of each file its kind, mode, owner and content."""
    found: dict[str, tuple[object, ...]] = {}
    for path in tree.rglob("*"):
        state = path.lstat()
        content = (
            os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else ""
        )
        found[str(path.relative_to(tree))] = (state.st_mode, state.st_uid, state.st_gid, content)
    return found


def test_layers_give_what_umoci_makes_of_them(tmp_path: Path) -> None:
    made = layout(tmp_path, system(tmp_path))
    run("umoci", "unpack", "--image", f"{made}:web", tmp_path / "bundle")
    tree = tmp_path / "root"
    tree.mkdir()
    layers.apply(made, layers.layers_of(made), tree)
    found = told(tree)
    assert found == told(tmp_path / "bundle/rootfs")
    assert "var/cache/inner/new" in found
    assert "var/cache/gone" not in found
    assert "etc/fstab" not in found


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """The address of a registry on loopback."""
    port = free_port()
    configuration = tmp_path / "registry.yml"
    configuration.write_text(CONFIGURATION.format(folder=tmp_path / "store", port=port))
    with subprocess.Popen(
        ["docker-registry", "serve", configuration],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        address = f"127.0.0.1:{port}"

        def answers() -> bool:
            busybox = ["busybox", "wget", "-q", "-O", "-", f"http://{address}/v2/"]
            return subprocess.run(busybox, capture_output=True, check=False).returncode == 0

        until(answers, "the registry answers", 60, 0.1)
        yield address
        process.terminate()


@pytest.mark.in_turn(4)  # hundreds of megabytes are written
def test_an_image_from_a_registry_becomes_a_disk(tmp_path: Path, registry: str) -> None:
    made = layout(tmp_path, system(tmp_path))
    run(
        *("skopeo", "copy", "-q", "--dest-tls-verify=false"),
        *(f"oci:{made}:web", f"docker://{registry}/hpc/compute:9"),
    )
    with pytest.raises(BadImage, match="skopeo: "):
        oci.make(f"oci:{registry}/hpc/none:9", tmp_path / "none.img", CACHE, insecure=True)
    out = tmp_path / "compute.img"
    facts = oci.make(f"oci:{registry}/hpc/compute:9", out, CACHE, insecure=True)
    assert (facts["kernel"], facts["lacks"]) == ("6.1.10", []), "the newest, and not by letters"
    found = inspection.inspect(out)
    assert (found["system"], found["firmware"]) == ("Example Linux 9", ["bios", "uefi"])
    assert [each["content"] for each in found["partitions"]] == ["", "fat", "ext"]
    offset = found["partitions"][2]["start"]

    def cat(path: str) -> str:
        return run("debugfs", "-R", f"cat {path}", f"{out}?offset={offset}")

    assert f"UUID={disk.identifier('compute', 'root')} / ext4" in cat("/etc/fstab")
    assert cat("/etc/machine-id") == cat("/etc/ssh/ssh_host_ed25519_key") == ""


@pytest.mark.parametrize("kind", ["oci-archive", "docker-archive"])
def test_archives_are_taken_as_registries_are(tmp_path: Path, kind: str) -> None:
    made = layout(tmp_path, system(tmp_path))
    archive = tmp_path / "image.tar"
    name = f"{archive}:web" if kind == "oci-archive" else f"{archive}:hpc/web:9"
    run("skopeo", "copy", "-q", f"oci:{made}:web", f"{kind}:{name}")
    (tmp_path / "scratch").mkdir()
    found = oci.fetched(str(archive), tmp_path / "scratch", "", False)
    tree = tmp_path / "root"
    tree.mkdir()
    layers.apply(found, layers.layers_of(found), tree)
    assert oci.kernel_of(tree) == (
        "6.1.10",
        "boot/vmlinuz-6.1.10",
        "boot/initramfs-6.1.10.img",
    )


@pytest.mark.nightly  # a ramdisk with all drivers
def test_a_system_without_a_kernel_gets_the_distributions(tmp_path: Path) -> None:
    made = layout(tmp_path, system(tmp_path, kernel=False))
    out = tmp_path / "web.img"
    facts = oci.make(str(made), out, CACHE)
    assert facts["lacks"] == [
        f"kernel with an initramfs: it gets Linux {facts['kernel']} of this server's release"
    ]
    found = inspection.inspect(out)
    assert [each["release"] for each in found["kernels"]] == [facts["kernel"]]
    assert found["warnings"] == []


def test_a_diskless_system_is_a_kernel_and_a_ramdisk_with_all_of_it(tmp_path: Path) -> None:
    tree = system(tmp_path)
    (tree / "boot/initramfs-6.1.10.img").unlink()  # of which such a node has no need
    os.link(tree / "usr/bin/cloud-init", tree / "usr/bin/cloud-init-per")
    made = layout(tmp_path, tree)
    out = tmp_path / "live.img"
    facts = oci.make(str(made), out, CACHE, form=oci.diskless)
    assert (facts["kernel"], facts["lacks"]) == ("6.1.10", [])
    assert not out.exists()
    assert out.with_suffix(".kernel").read_text() == "kernel"
    root = tmp_path / "unpacked"
    root.mkdir()
    run("sh", "-c", f"zstd -dcq {out.with_suffix('.ramdisk')} | cpio --quiet -idm -D {root}")
    assert os.readlink(root / "init") == "/sbin/init"
    assert (root / "usr/sbin/sshd").stat().st_mode & 0o7777 == 0o4755
    assert (root / "var/cache/inner/new").read_text() == "2"
    assert (root / "usr/bin/cloud-init").stat().st_nlink == 2
    assert (root / "etc/fstab").read_text().startswith("#")
    assert not list(root.glob("boot/*")), "its kernel is not twice in a node's memory"
    assert facts["memory"] >= 512


@pytest.mark.parametrize(
    ("release", "magic"), [("5.8.18", b"\x1f\x8b"), ("5.14.0-503", b"\x28\xb5")]
)
def test_a_ramdisk_is_packed_as_its_kernel_unpacks_it(
    tmp_path: Path, release: str, magic: bytes
) -> None:
    tree = system(tmp_path)
    whole = oci._pack(tree, tmp_path / "ramdisk", release)
    packed = (tmp_path / "ramdisk").read_bytes()
    assert packed[:2] == magic
    program = {b"\x1f\x8b": "gzip", b"\x28\xb5": "zstd"}[magic]
    assert int(run("sh", "-c", f"{program} -dcq <{tmp_path / 'ramdisk'} | wc -c")) == whole


def test_what_holds_no_system_is_refused_with_words_on_what_to_do(tmp_path: Path) -> None:
    tree = system(tmp_path)
    (tree / "usr/sbin/init").unlink()
    (tree / "usr/lib/systemd/systemd").unlink()
    with pytest.raises(BadImage, match=r"no /sbin/init: .* Build one with systemd"):
        oci.make(str(layout(tmp_path, tree)), tmp_path / "web.img", CACHE)
