"""`cod lab storm`, as `bench_storm` runs it: machines on a real wire are all served, or counted as
lost; nothing is left of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from cod.lab import network, record
from cod.lab.commands import STORMS
from cod.lab.storm import report
from cod.lab.storm.machine import SYSTEM_STEPS, TRAMPOLINE_STEPS
from cod.lab.storm.site import PARTS, StormSite
from tests.bench import bench_storm

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.in_turn(2, together=True),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]
MACHINES = 10
SHARE = 200  # of a storm as sites have it


@pytest.fixture(autouse=True)
def _labs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Keep labs apart from those of others."""
    folder = Path(f"/tmp/cod-storm-{os.getpid()}")  # a socket's path has at most 107 bytes
    folder.symlink_to(tmp_path)
    monkeypatch.setenv("COD_LAB_ROOT", str(folder))
    yield
    folder.unlink()


def test_all_are_served_and_what_each_costs_is_told(tmp_path: Path) -> None:
    picture, steps = tmp_path / "storm.svg", tmp_path / "steps.svg"
    words = ["--patience", "180", "--whole-files", "--svg", str(picture), "--svg-steps", str(steps)]
    storms = bench_storm.storm(*words, machines=MACHINES, over=1.0)
    assert tuple(storms) == STORMS
    for which, storm in storms.items():
        counts = [storm[key] for key in ("machines", "served", "lost", "idle")]
        assert counts == [MACHINES, MACHINES, 0, MACHINES]
        passed = SYSTEM_STEPS if which == "in a cluster" else TRAMPOLINE_STEPS
        assert {step: storm["steps"][step]["machines"] for step in passed} == dict.fromkeys(
            passed, MACHINES
        )
        assert set(storm["parts"]) == set(PARTS)
        assert storm["server"]["statements"] > storm["server"]["commits"] > 1
        assert storm["generator_cpu"] > 0
        assert all(part["memory"] > 1 << 20 for part in storm["parts"].values())
    # to wait is done at once; an erasure, once the server has acknowledged its end
    works = [storms[which]["steps"]["work"]["p50"] for which in ("known", "to be erased")]
    assert works[0] < works[1]
    assert all(ET.fromstring(each.read_text()).tag.endswith("svg") for each in (picture, steps))
    names = [row.name for row in bench_storm.measures("SQLite", storms)]
    assert len(names) == len(set(names)) == 5 * 13
    assert record.names() == []


def test_two_hundred_are_served_though_packets_are_lost() -> None:
    words = ["--patience", "240", "--loss", "1", "--only", "in a cluster"]
    storms = bench_storm.storm(*words, machines=SHARE, over=10.0)
    assert {which: (storm["served"], storm["lost"]) for which, storm in storms.items()} == {
        "unknown": (SHARE, 0),
        "in a cluster": (SHARE, 0),
    }


def test_machines_that_hear_nothing_are_lost() -> None:
    name = f"storm{os.getpid()}"
    with StormSite(name, 1, 99.99, "") as site:
        found = report.summary(site.storm(3, 0.1, 1.0), site.samples)
    assert (found["machines"], found["served"], found["lost"], found["idle"]) == (3, 0, 3, 0)
    assert found["lost_at"] == {"firmware": 3}
    assert report.whole(found) == {"machines": 0, "p50": None, "p99": None}
    assert network.all_of(record.namespace(name)) == []
