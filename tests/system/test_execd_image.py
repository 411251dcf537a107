"""An execution host's settings, made from its user data in a chroot."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.batch_image import copied, files_of, inside, with_user_data

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("images")]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return files_of("execd", tmp_path_factory.mktemp("execd"))


@pytest.fixture
def root(built: Path, tmp_path: Path) -> Path:
    return copied(built, tmp_path)


def settings(root: Path, user_data: str) -> tuple[dict[str, str], str]:
    """What the settings make of user data: /etc/default/gridengine, /etc/hosts."""
    with_user_data(root, user_data)
    words = dict(
        line.split("=", 1) for line in (root / "etc/default/gridengine").read_text().splitlines()
    )
    return words, (root / "etc/hosts").read_text()


def test_without_a_seed_it_looks_for_the_vclusters_first_node(root: Path) -> None:
    words, hosts = settings(root, "#cloud-config\n{}\n")
    assert words == {
        "SGE_ROOT": "/var/lib/gridengine",
        "SGE_CELL": "default",
        "SGE_ARCH": "lx-amd64",
        "SGE_QMASTER_PORT": "6444",
        "SGE_EXECD_PORT": "6445",
    }
    assert (root / "var/lib/gridengine/default/common/act_qmaster").read_text() == "n1\n"
    assert hosts == "127.0.0.1 localhost\n"


def test_the_seed_names_cell_master_ports_and_users(root: Path) -> None:
    words, hosts = settings(
        root,
        "SGE_CELL=biology\nSGE_MASTER=head\nSGE_MASTER_ADDRESS=10.1.2.3\n"
        "SGE_QMASTER_PORT=7000\nSGE_EXECD_PORT=7001\nUSERS=alice:2001 bob:2002:100 root:0\n",
    )
    assert (words["SGE_CELL"], words["SGE_QMASTER_PORT"], words["SGE_EXECD_PORT"]) == (
        "biology",
        "7000",
        "7001",
    )
    common = root / "var/lib/gridengine/biology/common"
    assert (common / "act_qmaster").read_text() == "head\n"
    assert "ignore_fqdn true" in (common / "bootstrap").read_text()
    assert hosts == "127.0.0.1 localhost\n10.1.2.3 head\n"
    assert inside(root, "id alice; id bob").splitlines() == [
        "uid=2001(alice) gid=2001(alice) groups=2001(alice)",
        "uid=2002(bob) gid=100(users) groups=100(users)",
    ]
    assert (root / "etc/passwd").read_text().count("\nroot:") == 0, (
        "a user that is there is left alone"
    )
    again, _ = settings(root, "USERS=alice:2001\n")  # the next boot
    assert again["SGE_CELL"] == "default"
    assert (root / "etc/passwd").read_text().count("alice:") == 1


@pytest.mark.parametrize(
    "value", ["$(touch /evil)", "`touch /evil`", "a;touch /evil", 'a"b', "../../etc"]
)
def test_values_that_could_be_commands_or_paths_are_passed_over(root: Path, value: str) -> None:
    words, _ = settings(root, f"SGE_CELL={value}\nSGE_MASTER={value}\n")
    assert words["SGE_CELL"] == "default"
    assert not (root / "evil").exists()
