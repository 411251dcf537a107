"""Firmware for the generic trampoline's drivers: what they name, and what Debian's packages have of
it.

The packages are most of them in a component that need not be enabled here: the test has apt's lists
of its own, which begin as this system's sources with that component added.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from images import debian
from tests.system.qemu import CHECKOUT
from trampoline import build
from trampoline.recipe import firmware, modules, packages

pytestmark = [
    pytest.mark.system,
    pytest.mark.in_turn(7, together=True),
    pytest.mark.xdist_group("trampoline"),
]

CACHE = CHECKOUT / "build/cache/trampoline"
WIRED = (
    "bnx2",
    "bnx2x",
    "cxgb3",
    "cxgb4",
    "liquidio",
    "netxen_nic",
    "qed",
    "qla2xxx",
    "r8169",
    "tg3",
)


@pytest.fixture(scope="module")
def kernel() -> Path:
    """The kernel's package, unpacked."""
    with packages.alone(CACHE):
        return packages.unpacked(packages.wanted(), CACHE)


@pytest.fixture
def component(kernel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """apt as it is where the component is enabled."""
    for folder in ("lists/partial", "cache/archives/partial"):
        (tmp_path / folder).mkdir(parents=True)
    lines = debian.sources().replace(" main\n", f" main {firmware.COMPONENT}\n")
    (tmp_path / "sources.list").write_text(lines)
    (tmp_path / "apt.conf").write_text(
        "".join(
            f'{name} "{value}";\n'
            for name, value in {
                "Dir::State::lists": tmp_path / "lists",
                "Dir::Cache": tmp_path / "cache",
                "Dir::Etc::sourceparts": "/dev/null",
                "Dir::Etc::sourcelist": tmp_path / "sources.list",
                "APT::Sandbox::User": "root",
            }.items()
        )
    )
    monkeypatch.setenv("APT_CONFIG", str(tmp_path / "apt.conf"))
    packages.run("apt-get", "update", "-q", "-q")


def test_each_file_that_a_driver_names_is_carried_or_known_to_be_nowhere(
    kernel: Path, component: None
) -> None:
    assert firmware.available() == list(firmware.PACKAGES)
    needs = modules.firmware(kernel, "generic")
    assert set(WIRED) <= set(needs)
    with packages.alone(CACHE):
        root = packages.unpacked(packages.exactly(firmware.available()), CACHE / "firmware")
    carried = firmware.tree(root, needs)
    missing = firmware.lacking(carried, needs)
    assert set(missing) == set(firmware.UNPACKAGED), (
        "each of these has its reason there, and no other driver lacks any"
    )
    assert {f"lib/firmware/{file}" for driver in WIRED for file in needs[driver]} <= set(carried)
    assert all(entry.content for entry in carried.values())
    told, remedy = firmware.note(missing)
    assert told.startswith("firmware for all drivers but acenic, ")
    assert not remedy


def test_where_the_component_is_not_enabled_the_build_goes_on_and_says_so(
    kernel: Path, component: None
) -> None:
    Path(
        packages.run("apt-config", "shell", "f", "Dir::Etc::sourcelist/f").split("'")[1]
    ).write_text(debian.sources())
    packages.run("apt-get", "update", "-q", "-q")
    assert firmware.available() == ["firmware-linux-free"]
    missing = firmware.lacking({}, modules.firmware(kernel, "generic"))
    told, remedy = firmware.note(missing)
    assert told.startswith("no firmware for the drivers advansys, bfa, bna, bnx2, bnx2x, ")
    assert "apt does not know firmware-bnx2, firmware-bnx2x, " in told
    assert "non-free-firmware" in remedy


def test_the_lab_needs_none(kernel: Path) -> None:
    assert modules.firmware(kernel, "lab") == {}
    facts = build.build("lab", CHECKOUT / "build/trampoline", CACHE) / "facts.json"
    assert '"files": 0' in facts.read_text()
