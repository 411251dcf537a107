"""What the images of all batch hosts have in common, as they are shipped."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from images import build, debian, disk
from tests.system.batch_image import CACHE, copied, files_of, image_of, inside

pytestmark = [
    pytest.mark.system,
    pytest.mark.in_turn(3, together=True),
    pytest.mark.xdist_group("images"),
]


HOSTS = [  # packages of other releases than this system's have to be fetched
    pytest.param(name, marks=[] if host.suite == debian.SUITE else pytest.mark.nightly)
    for name, host in sorted(build.BATCH_HOSTS.items())
]


@pytest.fixture(scope="module", params=HOSTS)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return files_of(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture
def root(built: Path, tmp_path: Path) -> Path:
    return copied(built, tmp_path)


def name_of(built: Path) -> str:
    return (built / "etc/image").read_text().splitlines()[0].removeprefix("name=")


def test_every_program_finds_its_libraries(root: Path) -> None:
    said = inside(
        root,
        "for file in /usr/lib/gridengine/* /usr/lib/x86_64-linux-gnu/slurm-wlm/* /usr/bin/* "
        "/usr/sbin/*; do [ -L $file ] || [ ! -e $file ] || "
        'ldd $file 2>/dev/null | sed -n "s|not found|& by $file|p"; done',
    )
    assert said == ""
    assert "GNU bash" in inside(root, "bash --version")
    assert inside(root, "readlink /sbin/init /bin/sh") == "../bin/busybox\ndash\n"


def test_every_command_of_the_scripts_is_there(root: Path) -> None:
    """A script that calls a command which BusyBox does not have fails on the node alone."""
    wanted = {
        "base64",
        "chown",
        "cut",
        "date",
        "findfs",
        "grep",
        "hostname",
        "ip",
        "mount",
        "sed",
        "su",
        "tail",
        "timeout",
        "udhcpc",
        "umount",
        "usleep",
        "wget",
        "httpd",
    }
    assert (
        inside(
            root,
            f"for name in {' '.join(sorted(wanted))}; do command -v $name >/dev/null || echo $name;"
            " done",
        )
        == ""
    )


def test_owners_modes_and_times_do_not_depend_on_who_builds(built: Path) -> None:
    every = [path for path in built.rglob("*") if not path.is_symlink()]
    assert {(path.stat().st_uid, path.stat().st_gid) for path in every} == {(0, 0)}
    assert {path.stat().st_mtime for path in every if path.is_file()} == {float(disk.EPOCH)}
    partition = built.with_name("root.ext4")
    modes = {
        place: (
            subprocess.run(
                ["debugfs", "-R", f"stat {place}", partition],
                check=True,
                capture_output=True,
                text=True,
            )
            .stdout.split("Mode:")[1]
            .split()[0]
        )
        for place in ("/tmp", "/root")
    }
    assert modes == {"/tmp": "01777", "/root": "0700"}


def test_it_is_small(built: Path) -> None:
    assert image_of(name_of(built)).stat().st_blocks * 512 < 100 << 20


@pytest.mark.nightly  # test_images.py shows it of smaller images
def test_the_same_inputs_make_the_same_bytes(built: Path, tmp_path: Path) -> None:
    again = build.build(name_of(built), tmp_path, CACHE)
    assert again["sha256"] == disk.digest(image_of(name_of(built)))
