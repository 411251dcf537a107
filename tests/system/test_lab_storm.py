"""`cod lab storm`, as `bench_storm` runs it: machines on a real wire are all served, or counted as
lost; nothing is left of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from cod.lab import network, record
from cod.lab.storm import report
from cod.lab.storm.machine import STEPS
from cod.lab.storm.site import PARTS, StormSite
from tests.bench import bench_storm

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]
MACHINES = 20


@pytest.fixture(autouse=True)
def _labs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Keep labs apart from those of others."""
    folder = Path(f"/tmp/cod-storm-{os.getpid()}")  # a socket's path has at most 107 bytes
    folder.symlink_to(tmp_path)
    monkeypatch.setenv("COD_LAB_ROOT", str(folder))
    yield
    folder.unlink()


def test_all_are_served_and_what_each_costs_is_told(tmp_path: Path) -> None:
    picture = tmp_path / "storm.svg"
    storms = bench_storm.storm(
        "--patience", "180", "--svg", str(picture), machines=MACHINES, over=1.0
    )
    assert list(storms) == ["unknown", "known", "to be erased"]
    for storm in storms.values():
        counts = [storm[key] for key in ("machines", "served", "lost", "idle")]
        assert counts == [MACHINES, MACHINES, 0, MACHINES]
        assert {step: storm["steps"][step]["machines"] for step in STEPS} == dict.fromkeys(
            STEPS, MACHINES
        )
        assert set(storm["parts"]) == set(PARTS)
        assert storm["server"]["statements"] > storm["server"]["commits"] > 1
        assert storm["generator_cpu"] > 0
    # to wait is done at once; an erasure, once the server has acknowledged its end
    works = [storms[which]["steps"]["work"]["p50"] for which in ("known", "to be erased")]
    assert works[0] < works[1]
    assert ET.fromstring(picture.read_text()).tag.endswith("svg")
    names = [row.name for row in bench_storm.measures("SQLite", storms)]
    assert len(names) == len(set(names)) == 24
    assert record.names() == []


def test_machines_that_hear_nothing_are_lost() -> None:
    name = f"storm{os.getpid()}"
    with StormSite(name, 1, 99.99, "") as site:
        before = site.figures()
        said = site.storm(3, 0.1, 1.0)
        found = report.summary(said, before, site.figures())
    assert (found["machines"], found["served"], found["lost"], found["idle"]) == (3, 0, 3, 0)
    assert found["steps"][report.WHOLE] == {"machines": 0, "p50": None, "p99": None}
    assert network.all_of(record.namespace(name)) == []
