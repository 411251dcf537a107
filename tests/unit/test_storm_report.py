"""The figures of a storm: what counts as lost, and at which step; centiles, a machine's share,
states over time; descriptors for all machines, or a refusal."""

from __future__ import annotations

import resource
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from cod.lab.storm import report, site
from cod.lab.storm.site import PartFigures
from cod.model import Refused
from tests.bench import bench_storm

ORDER = report.WHOLE["order"]


def machine(on: float, at: str = "", **ended: float) -> dict[str, Any]:
    """Return the record of a machine whose first boot failed at its script."""
    failed = {"script": 1}
    rest = {"at": at, "failed": failed, "took": dict(ended), "boots": 2, "reconnects": 1}
    return {"on": on, "ended": ended, **rest}


def said(*machines: dict[str, Any], cpu: float = 0.5) -> dict[str, Any]:
    return {"machines": list(machines), "cpu": cpu, "memory": 10, "settled": 100.0}


def samples(**cpu: float) -> list[site.Sample]:
    """Return samples of the edge at the times 90, 101, 102 ... with those CPU seconds."""
    times = [90.0, *(101.0 + number for number in range(len(cpu) - 1))]
    return [
        (at, {"edge": PartFigures(used, 100 + 50 * place, 70 + place, 10 + 20 * place, 4)})
        for place, (at, used) in enumerate(zip(times, cpu.values(), strict=True))
    ]


def test_a_machine_without_an_order_is_lost_at_a_step() -> None:
    both = [
        said(machine(1.0, loader=2.0, order=5.0, work=6.0)),
        said(machine(2.0, "welcome", loader=3.0), cpu=0.25),
    ]
    found = report.summary(both, samples(before=1.0, after=3.0))
    assert [found[key] for key in ("machines", "served", "lost", "idle")] == [2, 1, 1, 1]
    assert (found["lost_at"], found["failed_at"]) == ({"welcome": 1}, {"script": 2})
    assert found["server"] == {"cpu": 1.0, "statements": 10.0, "commits": 0.0}
    edge = found["parts"]["edge"]
    assert (edge["memory"], edge["descriptors"]) == (150, 71)
    assert found["waiting"] is None
    assert (found["generator_cpu"], found["generator_memory"]) == (0.375, 10)
    assert found["steps"][ORDER] == {"machines": 1, "p50": 4.0, "p99": 4.0}
    assert report.whole(found) is found["steps"][ORDER]
    assert (found["boots_again"], found["connections_again"]) == (2, 2)


def test_a_node_of_a_cluster_is_served_with_its_metadata() -> None:
    both = [said(machine(1.0, "metadata", system=2.0), machine(1.0, system=2.0, metadata=4.0))]
    found = report.summary(both, samples(only=1.0), "metadata")
    assert [found[key] for key in ("served", "lost", "idle")] == [1, 1, 1]
    assert found["lost_at"] == {"metadata": 1}
    assert report.whole(found) == {"machines": 1, "p50": 3.0, "p99": 3.0}
    assert "order" not in found["steps"]


@pytest.mark.parametrize(("share", "value"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.001, 1)])
def test_centiles(share: float, value: int) -> None:
    assert report.centile(range(100, 0, -1), share) == value


def test_no_values_have_no_centile() -> None:
    assert report.centile([], 0.5) is None


@pytest.mark.parametrize(
    ("moment", "state"),
    [(1.0, "asks for an address"), (2.0, "loads"), (4.0, "connects"), (9.0, report.IDLE)],
)
def test_states_follow_the_steps(moment: float, state: str) -> None:
    ended = {"loader": 2.0, "secret": 3.0, "welcome": 5.0, "order": 6.0, "work": 9.0}
    assert report.state_at(ended, moment) == state


def test_the_picture_names_every_state() -> None:
    text = report.picture("a storm", [said(machine(1.0, loader=2.0, order=5.0))])
    assert all(f">{state}<" in text for state in (*report.STATES, report.IDLE))


def test_what_is_done_while_all_wait_is_no_part_of_their_boots() -> None:
    used = samples(before=1.0, after=3.0, later=3.5, last=4.0)
    found = report.summary([said(machine(0.0, order=5.0))], used, linger=3.5)
    assert (found["server"]["cpu"], found["waiting"]) == (2.0, {"edge": 0.5})
    assert found["parts"]["edge"]["memory"] == 250


def test_the_picture_of_steps_ends_where_machines_are_served() -> None:
    boots = [said(machine(0.0, loader=2.0, order=5.0, work=6.0))]
    text = report.latencies("steps", report.summary(boots, samples(only=1.0)))
    assert ET.fromstring(text).tag.endswith("svg")
    assert all(f">{label}<" in text for label in ("p50", "p99", "loader", "order"))
    assert ">work<" not in text


def test_more_machines_than_addresses_are_refused() -> None:
    with pytest.raises(Refused, match="--processes 4 or more"):
        site.make_room(3 * site.MOST + 1, 3)


def test_more_machines_than_descriptors_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (20, 1000))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: limits.append(limit))
    site.make_room(1000 - site.OTHERS, 1)
    assert limits == []
    site.make_room(1000, 1)
    assert limits == [(20, 1000 + site.OTHERS)]

    def refuse(*_: object) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "setrlimit", refuse)
    with pytest.raises(Refused, match="1,000 machines need 1,500 descriptors"):
        site.make_room(1000, 1)


@pytest.mark.parametrize("start", [1.0, 50.0, 400.0])
def test_the_shortest_time_is_found_from_either_side(start: float) -> None:
    def trial(over: float) -> dict[str, Any]:
        steps = {ORDER: {"p99": 29.0 if over >= 50.0 else 31.0}}
        return {"lost": int(over < 40.0), "lost_at": {"welcome": 1}, "steps": steps}

    assert 50.0 <= bench_storm.shortest(trial, start) <= 50.0 * bench_storm.CLOSE


def test_a_promise_that_no_time_keeps_is_not_searched_for_ever() -> None:
    steps = {ORDER: {"p99": None}}
    with pytest.raises(RuntimeError, match="not within"):
        bench_storm.shortest(lambda _: {"lost": 9, "lost_at": {}, "steps": steps}, 10.0)


def test_a_promise_that_any_time_keeps_is_not_searched_for_ever() -> None:
    tried: list[float] = []

    def trial(over: float) -> dict[str, Any]:
        tried.append(over)
        assert len(tried) < 20
        return {"lost": 0, "lost_at": {}, "steps": {ORDER: {"p99": 1.0}}}

    assert bench_storm.shortest(trial, 50.0) <= bench_storm.SHORTEST


def of_edge(cpu: float, served: int = 10_000, seconds: float = 61.0) -> dict[str, Any]:
    """Return the figures of a storm of which the edge alone has used anything."""
    nothing = {"cpu": 0.0, "memory": 0, "statements": 0.0, "commits": 0.0}
    edge = {"cpu": cpu, "memory": 187_000_000, "statements": 25.9, "commits": 0.9}
    return {
        "served": served,
        "lost": 10_000 - served,
        "seconds": seconds,
        "steps": {ORDER: {"machines": served, "p50": 1.8, "p99": 7.1}},
        "parts": dict.fromkeys(site.PARTS, nothing) | {"edge": edge},
        "server": edge,
        "generator_cpu": 0.0035,
    }


def test_a_large_storm_is_told_beside_a_smaller_one_and_by_the_minute() -> None:
    rows = bench_storm.large_measures(60.0, of_edge(0.0069), of_edge(0.006))
    found = {row.name.removeprefix("storm of 10,000 within 60 s: "): row for row in rows}
    beside = found["CPU beside"]
    assert (beside.value, beside.peer_value, beside.ratio, beside.goal) == (
        6.9,
        6.0,
        1.15,
        "<= 1.2",
    )
    assert found["taken in"].value == round(60 * 10_000 / 61.0)
    assert not found["taken in"].goal, "within 60 s it cannot be reached"
    assert bench_storm.large_measures(50.0, of_edge(0.0069), of_edge(0.006))[-1].goal
    goals = {name: row.goal for name, row in found.items() if row.goal}
    assert goals == {
        "machines lost": "<= 0 machines",
        f"{ORDER}, p99": "< 30 s",
        "largest part's memory": "< 300 MB",
        "CPU beside": "<= 1.2",
    }


def test_each_storm_is_a_row_of_the_page() -> None:
    rows = bench_storm.table({"of 10,000": of_edge(0.0069), "lost": of_edge(0.1, served=0)})
    edge = "6.9 ms | 6.9 ms | 0.0 ms | 0.0 ms | 0.0 ms | 3.5 ms | 25.9 | 0.9 | 187 MB"
    assert rows[2] == f"| of 10,000 | 0 | 61.0 s | 1.8/7.1 s | {edge} |"
    assert {row.count("|") for row in rows} == {rows[0].count("|")}
