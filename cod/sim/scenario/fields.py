"""Records out of TOML tables: a dataclass is the description of a table, checked as a whole.

Each field of the record is a key; its type, its default and the limits in its metadata are what may be written. A key
that is not known is refused, with the nearest known one named.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

Record = TypeVar("Record")

LARGEST = 4e9  # as in the site file: seconds in 32 bits


class BadScenario(Exception):
    """The scenario cannot be used. `problems` are sentences, each beginning with the key it is about."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def key(
    about: str, default: Any = dataclasses.MISSING, *, low: float = 0, high: float = LARGEST,
    words: tuple[str, ...] = (),
) -> Any:
    """Return a field of a record: what it means, its default, its limits (of numbers), its only values (of texts)."""
    metadata = {"about": about, "low": low, "high": high, "words": words}
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def record(cls: type[Record], table: Any, where: str) -> Record:
    """Return `table` as a record; `where` is its place in the file, for messages. Raises `BadScenario` with all
    problems."""
    if not isinstance(table, Mapping):
        raise BadScenario([f"{where}: should be a table"])
    problems: list[str] = []
    hints = get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    values = {}
    for name, value in table.items():
        place = f"{where}.{name}" if where else str(name)
        if name not in fields:
            problems.append(f"{place}: no such key{_near_miss(str(name), list(fields))}")
            continue
        try:
            values[name] = _value(hints[name], value, place, fields[name].metadata)
        except BadScenario as bad:
            problems += bad.problems
    problems += [f"{where}.{name}: is missing; give it a value".lstrip(".") for name, field in fields.items()
                 if name not in table and _required(field)]
    if problems:
        raise BadScenario(problems)
    return cls(**values)


def described(cls: type[Any], where: str = "") -> Iterator[tuple[str, str, str]]:
    """(key, default as in TOML, what it means) of a record's fields; those of records in it by their dotted names."""
    hints = get_type_hints(cls)
    for field in dataclasses.fields(cls):
        name = f"{where}.{field.name}".lstrip(".")
        if dataclasses.is_dataclass(hints[field.name]):
            yield from described(hints[field.name], name)
        else:
            default = "" if _required(field) else _toml(field.default)
            yield name, default, field.metadata.get("about", "")


def _toml(value: Any) -> str:
    if value is None:
        return "left out"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else f"{value:g}"


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _near_miss(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {near[0]!r}?" if near else f"; this table has {', '.join(known)}"


def _value(hint: Any, value: Any, where: str, limits: Mapping[str, Any]) -> Any:
    """Return `value` as the annotation `hint` says. Raises `BadScenario`."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _value(next(one for one in inner if one is not type(None)), value, where, limits)
    if dataclasses.is_dataclass(hint):
        return record(hint, value, where)  # type: ignore[arg-type]
    if origin is tuple:
        if not isinstance(value, list):
            raise BadScenario([f"{where}: should be a list, not {value!r}"])
        return tuple(_value(inner[0], one, f"{where}.{number}", limits) for number, one in enumerate(value))
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(inner, value, where, limits)
    return _plain(hint, value, where, limits)


def _mapping(inner: tuple[Any, ...], value: Any, where: str, limits: Mapping[str, Any]) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        raise BadScenario([f"{where}: should be a table"])
    try:
        return {inner[0](name): _value(inner[1], one, f"{where}.{name}", limits) for name, one in value.items()}
    except ValueError:
        raise BadScenario([f"{where}: its keys should be whole numbers, as in {{ 10 = 3600 }}"]) from None


def _plain(hint: Any, value: Any, where: str, limits: Mapping[str, Any]) -> Any:
    if hint is bool or hint is str:
        if not isinstance(value, hint):
            raise BadScenario([f"{where}: should be {'true or false' if hint is bool else 'a text'}, not {value!r}"])
        if hint is str and limits.get("words") and value not in limits["words"]:
            raise BadScenario([f"{where}: should be one of {', '.join(limits['words'])}, not {value!r}"])
        return value
    if isinstance(value, bool) or not isinstance(value, int if hint is int else (int, float)):
        raise BadScenario([f"{where}: should be {'a whole number' if hint is int else 'a number'}, not {value!r}"])
    low, high = limits.get("low", 0), limits.get("high", LARGEST)
    if not math.isfinite(value) or not low <= value <= high:
        raise BadScenario([f"{where}: should be between {low:g} and {high:g}, not {value!r}"])
    return hint(value)
