"""Packages for other releases than this host's, as far as they are looked at without being made."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UNITS = {path.name for path in (ROOT / "docs/systemd").glob("*.service")}


def test_a_spec_lists_what_the_tree_of_packages_has() -> None:
    """Each unit by its name: rpmbuild fails on the first file that no line of %files names."""
    spec = (ROOT / ".ci/rpm/cod.spec").read_text()
    assert set(re.findall(r"(?m)^%\{_unitdir\}/(.+)$", spec)) == UNITS
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    said = subprocess.run(
        ["rpmspec", "--query", "--queryformat", "%{name} %{version}\n", "/dev/stdin"],
        input=spec.replace("@VERSION@", version),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (said.returncode, said.stdout) == (0, f"cod {version}\n"), said.stderr


def test_scripts_of_packages_are_programs_that_a_shell_reads() -> None:
    for name in (
        "package-tree",
        "after-install",
        "tree",
        "deb/build",
        "deb/release",
        "deb/postinst",
        "rpm/build",
    ):
        path = ROOT / ".ci" / name
        assert path.stat().st_mode & 0o111, name
        subprocess.run(["sh", "-n", path], check=True)


def users(path: Path) -> list[tuple[str, ...]]:
    """Return a sysusers.d file's lines without numbers and descriptions."""
    return [
        (kind, name, rest.split()[0].partition(":")[2] if kind == "u" else rest)
        for kind, name, rest in (
            line.split(maxsplit=2)
            for line in path.read_text().splitlines()
            if line and line[0] != "#"
        )
        if kind != "g"
    ]


def test_a_containers_users_are_the_packages_with_numbers_of_their_own() -> None:
    ours, theirs = (
        ROOT / "docs/systemd/cod.sysusers.conf",
        ROOT / ".ci/container/cod.sysusers.conf",
    )
    assert users(theirs) == users(ours)
    numbers = re.findall(r"(?m)^[gu] \S+ (\d+)", theirs.read_text())
    made = re.findall(r"(?m)^[gu] ", ours.read_text())
    assert len(set(numbers)) == len(numbers) == len(made)
    assert re.findall(r"-g (\d+) /run/cod", (ROOT / "docs/systemd/cod.container").read_text()) == [
        numbers[0]
    ]


def keys(name: str) -> dict[str, list[str]]:
    """Return the keys of a unit file, with the values of each."""
    found: dict[str, list[str]] = {}
    text = (ROOT / "docs/systemd" / name).read_text().replace("\\\n", " ")
    for key, value in re.findall(r"(?m)^(\w+)=(.*)$", text):
        found.setdefault(key, []).extend(value.split())
    return found


@pytest.mark.parametrize("key", ["ConditionPathExists", "After"])
def test_a_quadlet_starts_when_the_service_starts(key: str) -> None:
    assert set(keys("cod.container")[key]) <= set(keys("cod.service")[key])


def test_a_quadlet_keeps_the_services_capabilities_and_the_hosts_network() -> None:
    quadlet = keys("cod.container")
    assert set(quadlet["AddCapability"]) == set(keys("cod.service")["CapabilityBoundingSet"])
    assert quadlet["DropCapability"] == ["all"]
    assert quadlet["Network"] == ["host"]
    assert [each for each in quadlet["Volume"] if each.endswith(":ro")] == ["/etc/cod:/etc/cod:ro"]
