"""Scenario files: reading them, changing single keys, refusing contradictions."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, ValidationError
from pydantic.fields import FieldInfo

from cod.model import Energy, Policy, Refused, field_error, unknown_key
from cod.policy.hardware import match
from cod.policy.reservations import maintenance
from cod.sim.scenario.records import (
    Demand,
    Farm,
    Jobs,
    Moves,
    OwnerTable,
    PlannedWindow,
    Queue,
    Recorded,
    Reservations,
    Scenario,
    Trace,
    Type,
    key,
    word,
)
from cod.site import coherence
from cod.site.coherence import together

KINDS = {
    "dataclass_type": "should be a table",
    "dict_type": "should be a table",
    "tuple_type": "should be a list",
    "model_type": "should be a table",
}
TIMES_ON = 9  # as long as its days may a trace run on until its last job has ended
SHIPPED = Path(__file__).parent / "shipped"


class BadScenario(Exception):
    """The scenario cannot be used. `problems` are sentences, each beginning with the key that it is
    about."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class ScenarioFile(BaseModel):
    """A scenario's file. `policy` and `energy` are the site file's own tables."""

    model_config = ConfigDict(extra="forbid")

    name: str = word("its name", "scenario")
    about: str = word("what it shows", "")
    days: float = key("how long jobs are submitted", 30.0, low=0.001, high=100_000)
    run_on: float | None = key(
        "days, at most, that it then runs on until all jobs have ended; left out: 9 times "
        "`days` where there is a trace, else 0",
        None,
        high=1_000_000,
    )
    seed: int = key("of all random numbers", 1)
    period: float = key("a pass of the manager at least so often", 300.0, low=1)
    image_mb: float = key("MB that a node gets when it is primed", 1000.0, low=1)
    image_at_once: int | None = key(
        "nodes that are primed at once; the others wait; left out: any number", None, low=1
    )
    image_mb_per_s: float | None = key(
        "MB/s of the server, divided among the nodes that are primed; left out: each is "
        "primed as fast as if it were alone",
        None,
        low=0.001,
    )
    wrong_templates: float = key(
        "share of the virtual clusters of jobs whose template no system becomes ready with",
        0.0,
        high=1,
    )
    failing_machines: float = key(
        "share of machines on which no system becomes ready; as one is repaired, another fails",
        0.0,
        high=1,
    )
    blame: StrictBool = word(
        "false: each machine whose system does not become ready is set aside", True
    )
    policy: Policy = Policy()
    energy: Annotated[Energy, together(coherence.energy)] = Energy()
    type: list[Type] = Field(min_length=1)
    group: list[OwnerTable] = Field(min_length=1)
    demand: list[Annotated[Demand, Field(discriminator="model")]] = Field(min_length=1)
    window: list[PlannedWindow] = []


def keys() -> Iterator[tuple[str, str, str]]:
    """Yield (key, default, meaning) of all keys of a scenario file, without the site file's own
    tables."""
    yield from _described(ScenarioFile.model_fields, "")
    yield from _described(_fields(Type), "type.NAME.")
    yield from _described(_fields(OwnerTable), "group.NAME.")
    yield from _described(_fields(PlannedWindow), "window.NAME.")
    for model in MODELS:
        for name, default, about in _described(TABLES[model], "demand.NAME."):
            yield f"{name} ({model})", default, about


def _fields(record: Any) -> dict[str, FieldInfo]:
    found: dict[str, FieldInfo] = record.__pydantic_fields__
    return found


MODELS = ("jobs", "queue", "farm", "trace", "recorded", "reservations", "moves")
TABLES: dict[str, Mapping[str, FieldInfo]] = {
    "type": _fields(Type),
    "group": _fields(OwnerTable),
    "window": _fields(PlannedWindow),
    "jobs": _fields(Jobs),
    "queue": _fields(Queue),
    "farm": _fields(Farm),
    "trace": _fields(Trace),
    "recorded": _fields(Recorded),
    "reservations": _fields(Reservations),
    "moves": _fields(Moves),
}


def _described(fields: Mapping[str, FieldInfo], where: str) -> Iterator[tuple[str, str, str]]:
    for name, field in fields.items():
        if field.default_factory is not None:
            yield from _described(_fields(field.default_factory), f"{where}{name}.")
        elif field.description is not None:
            yield (
                f"{where}{name}",
                "" if field.is_required() else _toml(field.default),
                field.description,
            )


def _toml(value: Any) -> str:
    if value is None:
        return "left out"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else f"{value:g}"


def load(name: str) -> dict[str, Any]:
    """Return the tables of the file `name`, or of the scenario of that name that ships with COD.
    Raises `BadScenario`."""
    path = Path(name)
    if not path.is_file() and (SHIPPED / f"{name}.toml").is_file():
        path = SHIPPED / f"{name}.toml"
    try:
        tables = tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        known = ", ".join(sorted(one.stem for one in SHIPPED.glob("*.toml")))
        sentence = (
            f"{name}: cannot be read ({error.strerror}); scenarios that ship with COD: {known}"
        )
        raise BadScenario([sentence]) from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadScenario([f"{name}: is not TOML: {error}"]) from None
    tables.setdefault("name", path.stem)
    return tables


def change(tables: dict[str, Any], path: str, value: str) -> None:
    """Set one key of a scenario's tables: 'policy.inertia', 'type.thin.cost', 'demand.web.high'.
    Raises `BadScenario`.

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
            raise BadScenario([f"{'.'.join(way[: number + 1])}: there is no such table"])
    if not isinstance(table, dict):
        raise BadScenario([f"{path}: should name a key in a table, such as policy.inertia"])
    try:
        table[last] = tomllib.loads(f"value = {value}")["value"]
    except ValueError:  # no TOML, or a number of thousands of digits
        table[last] = value


def read(tables: Mapping[str, Any], folder: Path = Path()) -> Scenario:
    """Return the scenario of a file's tables. Raises `BadScenario` with all errors."""
    try:
        file = ScenarioFile.model_validate(tables)
    except ValidationError as error:
        raise BadScenario(
            [_sentence(tables, each) for each in error.errors(include_url=False)]
        ) from None
    if problems := list(_contradictions(file)):
        raise BadScenario(problems)
    traced = any(isinstance(one, Trace) for one in file.demand)
    run_on = file.run_on if file.run_on is not None else TIMES_ON * file.days if traced else 0.0
    return Scenario(
        file.name,
        tuple(file.type),
        tuple(file.group),
        tuple(file.demand),
        file.policy,
        replace(file.energy, curve_file=None),
        file.about,
        file.days,
        run_on,
        file.seed,
        file.period,
        file.image_mb,
        file.image_at_once,
        file.image_mb_per_s,
        file.wrong_templates,
        file.failing_machines,
        file.blame,
        folder,
        tuple(file.window),
    )


def _sentence(tables: Any, error: Any) -> str:
    """Return the sentence for an error of pydantic, with the names of tables in place of their
    indexes."""
    place: list[str] = []
    value: Any = tables
    loc = list(error["loc"])
    if len(loc) == 1 and loc[0] in ("type", "group", "demand"):
        return f"{loc[0]}: at least one [[{loc[0]}]] is needed"
    if loc[0] == "demand" and len(loc) > 2:
        del loc[2]  # the model, by which pydantic tells the kinds of demand apart
    for part in loc:
        value = (
            value[part]
            if isinstance(value, list) or (isinstance(value, dict) and part in value)
            else None
        )
        place.append(
            str(value.get("name", part) if len(place) == 1 and isinstance(value, dict) else part)
        )
    if error["type"].startswith("union_tag"):
        return (
            f"{'.'.join(place)}.model: should be one of {', '.join(MODELS)}, not"
            f" {error['input'].get('model')!r}"
        )
    if place[-1] == "[key]":
        return f"{'.'.join(place[:-2])}: its keys should be whole numbers, as in {{ 10 = 3600 }}"
    if error["type"] not in ("extra_forbidden", "unexpected_keyword_argument"):
        sentence = KINDS.get(error["type"]) or field_error(error)
        value = "" if isinstance(error["input"], dict) else f", not {error['input']!r}"
        return f"{'.'.join(place)}: {sentence}{value}"
    known = _known([part for part in error["loc"][:-1] if isinstance(part, str)])
    return f"{'.'.join(place)}: {unknown_key(place[-1], known)}"


def _known(names: list[str]) -> list[str]:
    """Return the keys of the table at that place."""
    if not names:
        return list(ScenarioFile.model_fields)
    if names[0] in ("policy", "energy"):
        return [field.name for field in fields(Policy if names[0] == "policy" else Energy)]
    table, *inner = names[1:] if names[0] == "demand" else names
    found = TABLES[table]
    for name in inner:
        found = _fields(found[name].default_factory)
    return list(found)


def _contradictions(file: ScenarioFile) -> Iterator[str]:
    """Yield sentences about keys that contradict each other."""
    for one in file.type:
        low = file.energy.warm_low if one.warm_low is None else one.warm_low
        high = file.energy.warm_high if one.warm_high is None else one.warm_high
        if low > high:
            yield f"type.{one.name}: warm_low {low} should not be above warm_high {high}"
    types = {one.name for one in file.type}
    heads = {group.name for group in file.group if not group.parent}
    for group in file.group:
        for table, each in group.by_type.items():
            for name in sorted(each.keys() - types):
                yield f"group.{group.name}.{table}: there is no type {name!r}"
        if group.parent and group.parent not in heads:
            parent = f"{group.parent!r} should be a group that is no subgroup"
            yield f"group.{group.name}.parent: {parent}"
    names = {group.name for group in file.group}
    for demand in file.demand:
        if isinstance(demand, Moves):
            yield from _ends(demand, file.demand)
            continue
        if demand.group not in names:
            yield f"demand.{demand.name}.group: there is no group {demand.group!r}"
        if isinstance(demand, Farm) and demand.low > demand.high:
            low, high = demand.low, demand.high
            yield f"demand.{demand.name}: low {low} should not be above high {high}"
        try:
            match.check(demand.needs)
        except Refused as refused:
            yield f"demand.{demand.name}.needs: {refused.sentence}"
    blocks = sum(len(one.blocks) for one in file.type)
    for window in file.window:
        place = f"window.{window.name}"
        for block in window.blocks:
            if block > blocks:
                yield f"{place}.blocks: there is no block {block}, the last is {blocks}"
        if window.counts and len(window.counts) != len(window.blocks):
            yield f"{place}.counts: there should be one for each of `blocks`, or none"
        planned = window.begins - window.ahead
        at_once = sum(
            other.begins - other.ahead <= max(0.0, planned)
            and planned <= other.begins + other.length
            for other in file.window
        )
        if at_once > maintenance.MOST:
            yield f"{place}: more than {maintenance.MOST} windows are planned at a time"
    for what, listed in (
        ("type", file.type),
        ("group", file.group),
        ("demand", file.demand),
        ("window", file.window),
    ):
        counts = Counter(named.name for named in listed)
        yield from (
            f"{what}: {name!r} is used twice" for name, n in sorted(counts.items()) if n > 1
        )


def _ends(moves: Moves, demands: Sequence[Demand]) -> Iterator[str]:
    """Yield errors in a move's two virtual clusters."""
    able = {one.name for one in demands if isinstance(one, Queue | Farm)}
    for end, name in (("source", moves.source), ("target", moves.target)):
        if name not in able:
            yield f"demand.{moves.name}.{end}: {name!r} should be a demand: a queue or a farm"
    if moves.source == moves.target:
        yield f"demand.{moves.name}.target: should be another demand than the source"
