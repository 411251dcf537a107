"""The execution host's root file system, without booting it: looked at from a chroot."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from images import build, disk, execd
from tests.system.login import root_of

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("images")]

CACHE = build.CHECKOUT / "build/cache/images"


@pytest.fixture(scope="module")
def image() -> Path:
    build.build(execd.NAME, build.CHECKOUT / "build/images", CACHE)
    return build.CHECKOUT / f"build/images/{execd.NAME}.img"


@pytest.fixture(scope="module")
def built(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files in its root partition, beside which that lies as it is."""
    return root_of(image, execd.ROOT_MIB, tmp_path_factory.mktemp("execd"))


@pytest.fixture
def root(built: Path, tmp_path: Path) -> Path:
    """A copy of them."""
    subprocess.run(["cp", "-a", built, tmp_path], check=True)
    return tmp_path / built.name


def inside(root: Path, script: str) -> str:
    return subprocess.run(["chroot", root, "/bin/sh", "-c", script], check=True, capture_output=True, text=True).stdout


def test_every_program_finds_its_libraries(root: Path) -> None:
    said = inside(root, "for file in /usr/lib/gridengine/* /usr/bin/* /usr/sbin/*; do [ -L $file ] || "
                        "ldd $file 2>/dev/null | sed -n \"s|not found|& by $file|p\"; done")
    assert said == ""
    assert "GNU bash" in inside(root, "bash --version")
    assert inside(root, "readlink /sbin/init /bin/sh") == "../bin/busybox\ndash\n"


def test_owners_modes_and_times_do_not_depend_on_who_builds(built: Path) -> None:
    every = [path for path in built.rglob("*") if not path.is_symlink()]
    assert {(path.stat().st_uid, path.stat().st_gid) for path in every} == {(0, 0)}
    assert {path.stat().st_mtime for path in every if path.is_file()} == {float(disk.EPOCH)}
    partition = built.with_name("root.ext4")
    modes = {place: subprocess.run(["debugfs", "-R", f"stat {place}", partition], check=True, capture_output=True,
                                   text=True).stdout.split("Mode:")[1].split()[0] for place in ("/tmp", "/root")}
    assert modes == {"/tmp": "01777", "/root": "0700"}


def test_it_is_small(image: Path) -> None:
    assert image.stat().st_blocks * 512 < 100 << 20


def settings(root: Path, user_data: str) -> tuple[dict[str, str], str]:
    """What the settings make of user data: /etc/default/gridengine, /etc/hosts."""
    (root / "run/seed").mkdir(exist_ok=True)
    (root / "run/seed/user-data").write_text(user_data)
    inside(root, "/etc/cod/settings")
    words = dict(line.split("=", 1) for line in (root / "etc/default/gridengine").read_text().splitlines())
    return words, (root / "etc/hosts").read_text()


def test_without_a_seed_it_looks_for_the_vclusters_first_node(root: Path) -> None:
    words, hosts = settings(root, "#cloud-config\n{}\n")
    assert words == {"SGE_ROOT": "/var/lib/gridengine", "SGE_CELL": "default", "SGE_ARCH": "lx-amd64",
                     "SGE_QMASTER_PORT": "6444", "SGE_EXECD_PORT": "6445"}
    assert (root / "var/lib/gridengine/default/common/act_qmaster").read_text() == "n1\n"
    assert hosts == "127.0.0.1 localhost\n"


def test_the_seed_names_cell_master_ports_and_users(root: Path) -> None:
    words, hosts = settings(root, "SGE_CELL=biology\nSGE_MASTER=head\nSGE_MASTER_ADDRESS=10.1.2.3\n"
                                  "SGE_QMASTER_PORT=7000\nSGE_EXECD_PORT=7001\nUSERS=alice:2001 bob:2002:100 root:0\n")
    assert (words["SGE_CELL"], words["SGE_QMASTER_PORT"], words["SGE_EXECD_PORT"]) == ("biology", "7000", "7001")
    common = root / "var/lib/gridengine/biology/common"
    assert (common / "act_qmaster").read_text() == "head\n"
    assert "ignore_fqdn true" in (common / "bootstrap").read_text()
    assert hosts == "127.0.0.1 localhost\n10.1.2.3 head\n"
    assert inside(root, "id alice; id bob").splitlines() == [
        "uid=2001(alice) gid=2001(alice) groups=2001(alice)", "uid=2002(bob) gid=100(users) groups=100(users)"]
    assert (root / "etc/passwd").read_text().count("\nroot:") == 0, "a user that is there is left alone"
    again, _ = settings(root, "USERS=alice:2001\n")  # the next boot
    assert again["SGE_CELL"] == "default"
    assert (root / "etc/passwd").read_text().count("alice:") == 1


@pytest.mark.parametrize("value", ["$(touch /evil)", "`touch /evil`", "a;touch /evil", "a\"b", "../../etc"])
def test_values_that_could_be_commands_or_paths_are_passed_over(root: Path, value: str) -> None:
    words, _ = settings(root, f"SGE_CELL={value}\nSGE_MASTER={value}\n")
    assert words["SGE_CELL"] == "default"
    assert not (root / "evil").exists()


def test_the_same_inputs_make_the_same_bytes(image: Path, tmp_path: Path) -> None:
    again = build.build(execd.NAME, tmp_path, CACHE)
    assert again["sha256"] == disk.digest(image)
