"""Scenario files: reading, changing single keys of them, refusing what makes no sense."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cod.model import Energy, Policy, Refused
from cod.policy.hardware import match
from cod.sim.scenario.fields import BadScenario, described, key, record
from cod.sim.scenario.records import MODELS, Demand, Farm, Jobs, Owner, Queue, Scenario, Trace, Type

SHIPPED = Path(__file__).parent / "shipped"


@dataclass(frozen=True, slots=True)
class Top:
    """The keys outside of the file's tables."""

    name: str = key("its name", "scenario")
    about: str = key("what it shows", "")
    days: float = key("how long it runs", 30.0, low=0.001, high=100_000)
    seed: int = key("of all random numbers", 1)
    period: float = key("a pass of the manager at least so often", 300.0, low=1)


def keys() -> Iterator[tuple[str, str, str]]:
    """(key, default, what it means) of all that a scenario file may say, except the site file's own tables."""
    yield from described(Top)
    yield from described(Type, "type.NAME")
    yield from described(Owner, "group.NAME")
    for model in (Jobs, Queue, Farm, Trace):
        for name, default, about in described(model, "demand.NAME"):
            yield f"{name} ({model.__name__.lower()})", default, about


def load(name: str) -> dict[str, Any]:
    """Return the tables of the file `name`, or of the scenario of that name that ships with COD. Raises
    `BadScenario`."""
    path = Path(name)
    if not path.is_file() and (SHIPPED / f"{name}.toml").is_file():
        path = SHIPPED / f"{name}.toml"
    try:
        tables = tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        known = ", ".join(sorted(one.stem for one in SHIPPED.glob("*.toml")))
        sentence = f"{name}: cannot be read ({error.strerror}); scenarios that ship with COD: {known}"
        raise BadScenario([sentence]) from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadScenario([f"{name}: is not TOML: {error}"]) from None
    tables.setdefault("name", path.stem)
    return tables


def change(tables: dict[str, Any], path: str, value: str) -> None:
    """Set one key of a scenario's tables: 'policy.inertia', 'type.thin.cost', 'demand.web.high'. Raises `BadScenario`.

    The value is written as in TOML; a text needs no quotes.
    """
    *way, last = path.split(".")
    table: Any = tables
    for number, part in enumerate(way):
        if isinstance(table, list):
            named = [one for one in table if isinstance(one, dict) and one.get("name") == part]
            table = named[0] if named else None
        else:
            table = table.setdefault(part, {}) if isinstance(table, dict) else None
        if table is None:
            raise BadScenario([f"{'.'.join(way[:number + 1])}: there is no such table"])
    if not isinstance(table, dict):
        raise BadScenario([f"{path}: should name a key in a table, such as policy.inertia"])
    try:
        table[last] = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        table[last] = value


def read(tables: Mapping[str, Any], folder: Path = Path()) -> Scenario:
    """Return a scenario out of its file's tables. Raises `BadScenario` with all that is wrong."""
    problems: list[str] = []

    def made(cls: type[Any], table: Any, where: str) -> Any:
        try:
            return record(cls, table, where)
        except BadScenario as bad:
            problems.extend(bad.problems)
            return None

    parts = {"policy", "energy", "type", "group", "demand"}
    top = made(Top, {name: value for name, value in tables.items() if name not in parts}, "")
    policy, energy = made(Policy, tables.get("policy", {}), "policy"), made(Energy, tables.get("energy", {}), "energy")
    types = [made(Type, one, f"type.{_name(one, n)}") for n, one in enumerate(_list(tables, "type", problems))]
    groups = [made(Owner, one, f"group.{_name(one, n)}") for n, one in enumerate(_list(tables, "group", problems))]
    demands = []
    for number, one in enumerate(_list(tables, "demand", problems)):
        where = f"demand.{_name(one, number)}"
        model = one.get("model") if isinstance(one, dict) else None
        if model in MODELS:
            demands.append(made(MODELS[model], one, where))
        else:
            problems.append(f"{where}.model: should be one of {', '.join(MODELS)}, not {model!r}")
    if not problems:
        problems += _contradictions(energy, types, groups, demands)
    if problems:
        raise BadScenario(problems)
    return Scenario(top.name, tuple(types), tuple(groups), tuple(demands), policy, energy, top.about, top.days,
                    top.seed, top.period, folder)


def _list(tables: Mapping[str, Any], name: str, problems: list[str]) -> list[Any]:
    found = tables.get(name, [])
    if not isinstance(found, list) or not found:
        problems.append(f"{name}: at least one [[{name}]] is needed")
        return []
    return found


def _name(table: Any, number: int) -> str:
    return str(table.get("name", number)) if isinstance(table, dict) else str(number)


def _contradictions(energy: Energy, types: list[Type], groups: list[Owner], demands: list[Demand]) -> list[str]:
    """Return what no single key can say."""
    problems = []
    for one in types:
        low = energy.warm_low if one.warm_low is None else one.warm_low
        high = energy.warm_high if one.warm_high is None else one.warm_high
        if low > high:
            problems.append(f"type.{one.name}: warm_low {low} should not be above warm_high {high}")
    names = {one.name for one in groups}
    for demand in demands:
        if demand.group not in names:
            problems.append(f"demand.{demand.name}.group: there is no group {demand.group!r}")
        if isinstance(demand, Farm) and demand.low > demand.high:
            problems.append(f"demand.{demand.name}: low {demand.low} should not be above high {demand.high}")
        try:
            match.check(demand.needs)
        except Refused as refused:
            problems.append(f"demand.{demand.name}.needs: {refused.sentence}")
    for what, listed in (("type", types), ("group", groups), ("demand", demands)):
        seen = [one.name for one in listed]
        problems += [f"{what}: {name!r} is used twice" for name in sorted(set(seen)) if seen.count(name) > 1]
    return problems
