"""Scenario files: what they mean, and that what makes no sense is refused, all of it at once, with
its key."""

from __future__ import annotations

import copy
import tomllib
from pathlib import Path
from typing import Any

import pytest

from cod.model import Energy, Policy
from cod.sim.scenario.records import Arrivals, Farm, Jobs, Queue, Runtime, Trace
from cod.sim.scenario.tables import SHIPPED, BadScenario, change, load, read
from tests.manual import page

EXAMPLES = Path(__file__).resolve().parents[2] / "docs/examples"
SMALL = """
name = "small"
days = 2
[policy]
inertia = 60
inertia_by_priority = { 10 = 900 }
lease_warnings = [600]
[energy]
manage = true
[[type]]
name = "thin"
blocks = [2, 3]
times = { wake = 10, spread = 0 }
[[group]]
name = "lab"
priority = 5
[[demand]]
name = "runs"
group = "lab"
model = "jobs"
nodes = [1, 2]
arrivals = { per_day = 4 }
"""


def small(**changes: Any) -> dict[str, Any]:
    tables = tomllib.loads(SMALL)
    for key, value in changes.items():
        change(tables, key.replace("__", "."), value)
    return tables


def problems(tables: dict[str, Any]) -> list[str]:
    with pytest.raises(BadScenario) as bad:
        read(tables)
    return bad.value.problems


def test_a_scenario_is_read() -> None:
    made = read(small())
    assert (made.name, made.days, made.seed, made.nodes) == ("small", 2.0, 1, 5)
    assert made.policy == Policy(
        inertia=60.0, inertia_by_priority={10: 900.0}, lease_warnings=(600.0,)
    )
    assert made.energy == Energy(manage=True)
    (kind,) = made.types
    assert (kind.blocks, kind.times.wake, kind.times.boot) == ((2, 3), 10.0, 120.0)
    assert kind.canonical == '<node><memory mib="65536" /></node>'
    assert made.demands == (
        Jobs("runs", "lab", nodes=(1, 2), arrivals=Arrivals(per_day=4.0), runtime=Runtime()),
    )


@pytest.mark.parametrize(("model", "cls"), [("jobs", Jobs), ("queue", Queue), ("farm", Farm)])
def test_each_model_has_its_record(model: str, cls: type[Any]) -> None:
    tables = small()
    tables["demand"] = [{"name": "runs", "group": "lab", "model": model}]
    assert read(tables).demands == (cls("runs", "lab"),)


def test_a_trace_names_its_file() -> None:
    tables = small()
    tables["demand"] = [{"group": "lab", "model": "trace", "file": "log.swf", "by": "user"}]
    assert read(tables).demands == (Trace("log.swf", "lab", by="user"),)


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("days", "0", "days: should be at least 0.001, not 0"),
        ("days", "many", "days: should be a number, not 'many'"),
        ("seed", "1.5", "seed: should be a whole number, not 1.5"),
        ("sede", "1", "sede: no such key; did you mean 'seed'?"),
        ("policy.inertia", "-1", "policy.inertia: should be at least 0, not -1"),
        ("policy.inertia", "inf", "policy.inertia: should be a finite number, not inf"),
        ("policy.inerta", "1", "policy.inerta: no such key; did you mean 'inertia'?"),
        (
            "policy.auto_approve",
            "3",
            "policy.auto_approve: should be true or false, not 3",
        ),
        ("policy.unknown", "1", "policy.unknown: should be 'discover' or 'known-only', not 1"),
        ("policy.lease_warnings", "60", "policy.lease_warnings: should be a list, not 60"),
        (
            "policy.lease_warnings",
            "['x']",
            "policy.lease_warnings.0: should be a number, not 'x'",
        ),
        (
            "policy.inertia_by_priority",
            "{ high = 1 }",
            "policy.inertia_by_priority: its keys should be whole numbers, as in { 10 = 3600 }",
        ),
        ("policy.inertia_by_priority", "3", "policy.inertia_by_priority: should be a table, not 3"),
        ("energy.warm_low", "9", "energy: warm_low 9 should not be above warm_high 4"),
        ("type.thin.warm_low", "9", "type.thin: warm_low 9 should not be above warm_high 4"),
        ("type.thin.blocks", "[0]", "type.thin.blocks.0: should be at least 1, not 0"),
        ("type.thin.times", "3", "type.thin.times: should be a table, not 3"),
        (
            "type.thin.times.wake",
            "true",
            "type.thin.times.wake: should be a number, not True",
        ),
        ("type.thin.wake_fails", "1.5", "type.thin.wake_fails: should be at most 1, not 1.5"),
        ("demand.runs.group", "nobody", "demand.runs.group: there is no group 'nobody'"),
        (
            "demand.runs.model",
            "magic",
            (
                "demand.runs.model: should be one of jobs, queue, farm, trace, recorded,"
                " reservations, moves, not 'magic'"
            ),
        ),
        (
            "demand.runs.arrivals.per_dya",
            "3",
            "demand.runs.arrivals.per_dya: no such key; did you mean 'per_day'?",
        ),
        (
            "demand.runs.colour",
            "3",
            (
                "demand.runs.colour: no such key; this table has name, group, model, needs, cache, "
                "preemptible, may_spread, may_wait, nodes, arrivals, runtime, estimate, extends"
            ),
        ),
    ],
)
def test_a_bad_key_is_named(key: str, value: str, sentence: str) -> None:
    tables = small()
    change(tables, key, value)
    assert problems(tables) == [sentence]


def test_all_problems_are_told_at_once() -> None:
    tables = small(days="0")
    tables["policy"] = {"inertia": -1, "nonsense": 1}
    del tables["type"][0]["name"]
    assert [one.partition(":")[0] for one in problems(tables)] == [
        "days",
        "policy.inertia",
        "policy.nonsense",
        "type.0.name",
    ]


def test_requirements_that_can_mean_nothing_are_refused() -> None:
    (sentence,) = problems(small(demand__runs__needs="'<requires><memory>'"))
    assert sentence.startswith("demand.runs.needs: ")


@pytest.mark.parametrize("what", ["type", "group", "demand"])
def test_there_is_one_of_each(what: str) -> None:
    tables = small()
    tables[what] = []
    assert f"{what}: at least one [[{what}]] is needed" in problems(tables)
    tables[what] = 3
    assert f"{what}: at least one [[{what}]] is needed" in problems(tables)


def test_names_are_used_once() -> None:
    tables = small()
    tables["group"].append(copy.deepcopy(tables["group"][0]))
    assert problems(tables) == ["group: 'lab' is used twice"]


def test_a_farm_has_its_low_below_its_high() -> None:
    tables = small()
    tables["demand"] = [{"name": "web", "group": "lab", "model": "farm", "low": 5, "high": 2}]
    assert problems(tables) == ["demand.web: low 5 should not be above high 2"]


# ---------------------------------------------------------------- changing keys


def test_a_key_is_changed_wherever_it_is() -> None:
    tables = small(
        policy__inertia="7",
        energy__warm_high="8",
        type__thin__cost="2.5",
        demand__runs__nodes="[4]",
        demand__runs__runtime__median="90",
        group__lab__priority="-3",
        name="other name",
    )
    made = read(tables)
    assert (made.policy.inertia, made.energy.warm_high, made.types[0].cost) == (7.0, 8, 2.5)
    (job,) = made.demands
    assert isinstance(job, Jobs)
    assert (job.nodes, job.runtime.median) == ((4,), 90.0)
    assert (made.groups[0].priority, made.name) == (-3, "other name")


@pytest.mark.parametrize(
    ("key", "sentence"),
    [
        ("type.fat.cost", "type.fat: there is no such table"),
        ("name.x", "name.x: should name a key in a table, such as policy.inertia"),
        (
            "type.thin.blocks.x",
            "type.thin.blocks.x: should name a key in a table, such as policy.inertia",
        ),
        ("name.x.y", "name.x: there is no such table"),
    ],
)
def test_what_cannot_be_changed(key: str, sentence: str) -> None:
    with pytest.raises(BadScenario, match=sentence):
        change(small(), key, "1")


def test_a_number_of_thousands_of_digits_is_none() -> None:
    tables = small()
    change(tables, "days", "1" * 5000)
    with pytest.raises(BadScenario, match="days"):
        read(tables)


# ---------------------------------------------------------------- files


def test_a_file_is_named_after_itself(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(SMALL.replace('name = "small"\n', "", 1))
    assert load(str(path))["name"] == "mine"


def test_a_file_that_is_not_there_names_those_that_ship() -> None:
    with pytest.raises(BadScenario, match=r"cannot be read .*bursts, campus, web, year"):
        load("/nowhere/none.toml")


@pytest.mark.parametrize("content", [b"name = ", b"\xff\xfe", b"[[type]\n"])
def test_a_file_that_is_not_toml(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.toml").write_bytes(content)
    with pytest.raises(BadScenario, match="is not TOML"):
        load(str(tmp_path / "bad.toml"))


@pytest.mark.parametrize("name", sorted(path.stem for path in SHIPPED.glob("*.toml")))
def test_what_ships_is_sound(name: str) -> None:
    made = read(load(name))
    assert made.name == name
    assert made.about
    assert made.nodes >= 30


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_examples_are_sound_and_explained(path: Path) -> None:
    made = read(load(str(path)))
    assert made.name == path.stem
    assert made.about
    assert f"/examples/{path.name})" in page("simulator").read_text()


@pytest.mark.parametrize(
    ("tables", "days"),
    [
        ({}, 0.0),
        ({"run_on": 3}, 3.0),
        ({"demand": [{"group": "lab", "model": "trace", "file": "log.swf"}]}, 18.0),
        ({"demand": [{"group": "lab", "model": "trace", "file": "log.swf"}], "run_on": 0}, 0.0),
    ],
)
def test_a_trace_may_run_on(tables: dict[str, Any], days: float) -> None:
    assert read({**small(), **tables}).run_on == days
