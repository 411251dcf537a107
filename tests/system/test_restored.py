"""A machine that begins with a snapshot: the real server treats it as one that has booted, and it
goes on as one, through its firmware to the system on its disk. What it did not do is a boot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cod.lab.snapshots import Snapshot
from cod.lab.spec import LabDisk, LabNode
from tests.system.qemu import CHECKOUT, SNAPSHOTS, Rack, build_all, offer, rack
from tests.system.shapes import LIGHT, LIGHT_HELLO

pytestmark = [
    pytest.mark.system,
    pytest.mark.in_turn(3, first=2),
    pytest.mark.slow,
    pytest.mark.xdist_group("restored"),
]

MACHINE = LabNode("r1", disks=(LabDisk(1 << 30),))


def began(ledger: Path) -> list[str]:
    """How machines were switched on, by the ledger."""
    rows = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert {row["machine"] for row in rows} == {MACHINE.name}
    return [row["event"] for row in rows]


def of_this_machine() -> Snapshot:
    """The machine's snapshot, the one that was used last."""
    ours = [
        path
        for path in SNAPSHOTS.glob("*.json")
        if json.loads(path.read_text())["machine"] == MACHINE.name
    ]
    newest = max(ours, key=lambda path: path.with_suffix(".zst").stat().st_mtime)
    return Snapshot(SNAPSHOTS, newest.stem)


def says_hello(stand: Rack, times: int) -> None:
    """Wait until the system on the machine's disk has booted so often."""
    stand.wait(lambda: stand.console("r1").count(LIGHT_HELLO) >= times, f"{times} boots")


def knocked(stand: Rack, secret: str, folder: Path) -> str:
    """What the server tells an agent at the machine's place that proves itself by `secret`."""
    (folder / "secret").write_text(secret)
    (folder / "disk").write_bytes(bytes(1 << 20))
    node = stand.node(MACHINE.name)
    argv = [f"{CHECKOUT}/.venv/bin/python", "-m", "trampoline.ctramp", "--once"]
    argv += ["--confd", "10.77.0.1:8070", "--mac", node["boot_mac"], "--root", str(folder)]
    return stand.inside(
        [*argv, "--secret", str(folder / "secret"), "--disk", str(folder / "disk")], 60
    )


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that tells how machines are switched on."""
    monkeypatch.setenv("COD_LAB_LEDGER", str(tmp_path / "ledger"))
    return tmp_path / "ledger"


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    """The machine's, by a boot, unless an earlier run has left it."""
    build_all(LIGHT)
    ledger = tmp_path_factory.mktemp("first") / "ledger"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COD_LAB_LEDGER", str(ledger))
        with rack([MACHINE], restored=True) as stand:
            known = set(SNAPSHOTS.glob("*.zst"))
            stand.power("r1", "on")
            stand.reaches("r1", "inactive")
            if began(ledger) == ["cold"]:
                stand.wait(lambda: set(SNAPSHOTS.glob("*.zst")) - known, "it is recorded")
    return of_this_machine()


def test_a_restored_machine_has_this_boots_secret_and_goes_on_to_its_disk(
    snapshot: Snapshot, ledger: Path, tmp_path: Path
) -> None:
    before = snapshot.file.read_bytes()
    with rack([MACHINE], restored=True) as stand:
        stand.power("r1", "on")
        stand.reaches("r1", "inactive")
        assert began(ledger) == ["restored"]
        assert stand.states("r1") == ["new", "registering", "trampoline", "inactive"]
        assert "COD trampoline on Linux" not in stand.console("r1"), "no kernel has started"
        secret = json.loads(snapshot.about.read_text())["secret"]
        assert "unknown" in knocked(stand, secret, tmp_path), (
            "the recorded boot's secret is nobody's"
        )

        offer(stand, LIGHT)
        stand.cod("vcluster", "create", "web", "--size", "1", "--template", LIGHT)
        stand.reaches("r1", "active")
        says_hello(stand, 1)
        # It has a disk that is not empty now: switched on again, it boots, and is not recorded.
        stand.power("r1", "reset")
        says_hello(stand, 2)
        assert began(ledger) == ["restored", "cold"]
        assert snapshot.file.read_bytes() == before


def test_a_file_that_is_not_whole_is_removed_and_the_machine_boots(
    snapshot: Snapshot, ledger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Snapshot(tmp_path / "snapshots", snapshot.key)
    broken.folder.mkdir()
    broken.about.write_bytes(snapshot.about.read_bytes())
    broken.file.write_bytes(snapshot.file.read_bytes()[: 1 << 20])
    monkeypatch.setattr("tests.system.qemu.SNAPSHOTS", broken.folder)
    with rack([MACHINE], restored=True) as stand:
        stand.power("r1", "on")
        assert began(ledger) == ["cold"]
        assert not broken.exists()
