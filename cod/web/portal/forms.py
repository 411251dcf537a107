"""Forms: the text that was typed, its faults, and its conversion to the body of a route of the
API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from functools import lru_cache, partial
from typing import Any
from urllib.parse import parse_qsl
from zoneinfo import ZoneInfo

from pydantic import BaseModel

from cod.model import Remedy
from cod.web.api.calls import checked
from cod.web.http.errors import HttpProblem
from cod.web.portal import formatting
from cod.wire.multipart import BadForm, FileForm, boundary

OWN = ("csrf", "once", "timezone")  # fields that the portal adds to each form
MOST_FIELDS = 2000
DEEPEST = 6


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of a sent form; each may have several values."""

    values: Mapping[str, list[str]] = field(default_factory=dict)

    @classmethod
    def read(cls, content: bytes, kind: str) -> Fields:
        """Return the fields of a POST's body; the value of a file is its text. Raises
        `HttpProblem`."""
        if kind.startswith("multipart/form-data"):
            return cls(_with_file(content, kind))
        if kind.partition(";")[0].strip().lower() != "application/x-www-form-urlencoded":
            raise HttpProblem(
                415,
                "unsupported_media_type",
                "the form should be sent as application/x-www-form-urlencoded",
            )
        try:
            pairs = parse_qsl(
                content.decode("ascii"),
                keep_blank_values=True,
                errors="strict",
                max_num_fields=MOST_FIELDS,
            )
        except ValueError:
            raise HttpProblem(
                400, "bad_form", "the form cannot be read: it should be UTF-8"
            ) from None
        values: dict[str, list[str]] = {}
        for name, value in pairs:
            values.setdefault(name, []).append(value.replace("\r\n", "\n"))
        return cls(values)

    @classmethod
    def of(cls, query: str) -> Fields:
        """Return the fields of a query string. Raises `HttpProblem`."""
        return cls.read(query.encode(errors="replace"), "application/x-www-form-urlencoded")

    def one(self, name: str, default: str = "") -> str:
        """Return the field's first value; `default` if it has none."""
        return next(iter(self.values.get(name, ())), default)

    def all(self, name: str) -> list[str]:
        """Return the field's values."""
        return list(self.values.get(name, []))


def _with_file(content: bytes, kind: str) -> dict[str, list[str]]:
    """Return the fields of a form with a file as its last field, `file`. Raises `HttpProblem`."""
    try:
        form = FileForm(boundary(kind), len(content))
        text = form.feed(content).decode("utf-8-sig")
        form.close()
    except BadForm as error:
        raise HttpProblem(400, "bad_form", f"{error}.") from None
    except UnicodeDecodeError:
        raise HttpProblem(400, "bad_form", "The file should be text in UTF-8.") from None
    return {name: [value] for name, value in form.fields.items()} | {"file": [text]}


@dataclass(slots=True)
class Form:
    """A form on a page. A form that was sent with faults has the typed text and a sentence for each
    fault.

    path    the path that it is sent to
    csrf    the token that proves that the form comes from a page of this site, masked for this page
    key     makes sending the form twice harmless
    errors  faults by field; those by '' are about the whole form
    shown   the fields that have shown their faults
    remedies  changes that would make a refused request for nodes possible
    mark    distinguishes the form from others on its page: the ids of its fields begin with it
    """

    path: str
    csrf: str
    key: str
    typed: Fields | None = None
    errors: Mapping[str, str] = field(default_factory=dict)
    shown: set[str] = field(default_factory=set)
    mark: str = ""
    remedies: tuple[Remedy, ...] = ()

    def id(self, name: str) -> str:
        """Return the id of a field's element."""
        return f"{self.mark}-{name}" if self.mark else name

    def value(self, name: str, default: Any = "") -> str:
        """Return the text in the field: the typed text, or else `default`."""
        if self.typed is None:
            return "" if default is None else str(default)
        return self.typed.one(name)

    @property
    def clock(self) -> str:
        """Return the name of the form's time zone."""
        return str(clock(self.typed))

    def moved(self, start: float) -> str:
        """Return `start` as the value of a field for times. If an end was typed, append the end
        that keeps the length."""
        zone = clock(self.typed)
        times = [start]
        with suppress(ValueError):
            began, ended = (moment(self.value(name), zone) for name in ("starts_at", "ends_at"))
            times.append(start + ended - began)
        return " ".join(formatting.typed(at, zone) for at in times)

    def ticked(self, name: str, value: str, default: bool = False) -> bool:
        """Return whether this check box or option is chosen."""
        return default if self.typed is None else value in self.typed.all(name)

    def sent(self, fields: Mapping[str, Any]) -> bool:
        """Return whether this form was sent with these values alone."""
        if self.typed is None:
            return False
        typed = {name: texts for name, texts in self.typed.values.items() if name not in OWN}
        return typed == {name: [str(value)] for name, value in fields.items()}

    def error(self, name: str) -> str:
        """Return the fault of the field; '' for none. The field shows the fault, so `unshown`
        leaves it out."""
        self.shown.add(name)
        return self.errors.get(name, "")

    def unshown(self) -> list[str]:
        """Return the faults that no field has shown: those about the whole form, and those about
        values that the form has no field for."""
        return [text for name, text in self.errors.items() if name not in self.shown]


# ---------------------------------------------------------------- fields -> body


def moment(text: str, clock: tzinfo = UTC) -> float:
    """Return a time as browsers send it, '2026-12-01T08:00', in seconds since the epoch. `clock` is
    its time zone unless the text names another. If the clock shows that time twice, the first
    counts. Raises ValueError, also for a time that the clock skips."""
    try:
        typed = datetime.fromisoformat(text)
        at = (typed if typed.tzinfo else typed.replace(tzinfo=clock)).timestamp()
        again = datetime.fromtimestamp(at, typed.tzinfo or clock)
    except (ValueError, OverflowError):
        raise ValueError("should be a date and a time such as 2026-12-01 08:00") from None
    if again.replace(tzinfo=None) != typed.replace(tzinfo=None):
        raise ValueError(f"does not exist: the clocks of {clock} go forward then")
    return at


def clock(fields: Fields | None) -> tzinfo:
    """Return the time zone of a form's times: that of the browser, which the page's script writes
    into the field `timezone`; UTC without the script."""
    try:
        return ZoneInfo((fields.one("timezone") if fields else "") or "UTC")
    except (KeyError, OSError, ValueError):
        return UTC


def moments(fields: Fields) -> Callable[[str], float]:
    """Return a reader of the form's times, by the form's time zone."""
    return partial(moment, clock=clock(fields))


def moment_in(fields: Fields, name: str) -> float | None:
    """Return the time in that field; None if the field is empty. Raises `HttpProblem`."""
    text = fields.one(name).strip()
    try:
        return moments(fields)(text) if text else None
    except ValueError as error:
        raise HttpProblem(422, "invalid", str(error), name, {name: str(error)}) from None


def body_of(
    model: type[BaseModel], fields: Fields, convert: Mapping[str, Callable[[str], Any]]
) -> dict[str, Any]:
    """Return the fields as values of `model`, which has yet to check them.

    A field named 'a.0.b' is within a list. An empty field is null if the model allows that.
    Otherwise it is left out if it is neither a text nor required, and '' if it is. Raises
    `HttpProblem` with all that `convert` and `model` refuse.
    """
    schema = _schema(model)
    values: dict[str, Any] = {}
    faults: dict[str, str] = {}
    for name, texts in fields.values.items():
        if name not in OWN and texts:
            try:
                _put(values, _path(name), _value(name, texts, _at(schema, _path(name)), convert))
            except ValueError as error:
                faults[name] = str(error)
    for name, about in schema.get("properties", {}).items():
        if _kinds(about, schema) == {"boolean"} and name in fields.values.get("boxes", []):
            values.setdefault(name, False)
    values.pop("boxes", None)
    made: dict[str, Any] = _as_lists(values)
    if faults:  # all faults are shown at once, those that the model finds, too
        try:
            checked(model, made)
        except HttpProblem as wrong:
            faults = {
                name: text for name, text in wrong.faults.items() if name not in faults
            } | faults
        raise HttpProblem(422, "invalid", next(iter(faults.values())), next(iter(faults)), faults)
    return made


def _path(name: str) -> list[str]:
    """Return the keys and indices that lead to a field in the body; no body is deeper than
    `DEEPEST`."""
    return name.split(".", DEEPEST)


def _is_place(text: str) -> bool:
    """Return whether the text is an index of a list."""
    return text.isascii() and text.isdigit() and len(text) < 6


_LEFT_OUT = object()


def _value(
    name: str, texts: list[str], about: Any, convert: Mapping[str, Callable[[str], Any]]
) -> Any:
    """Return the value for the texts of a field. Raises ValueError with a sentence for what
    `convert` refuses."""
    if name in convert and texts[0].strip():
        return convert[name](texts[0].strip())
    kinds, required = about
    if "array" in kinds:
        return [line.strip() for text in texts for line in text.split("\n") if line.strip()]
    text = texts[-1]
    if not text.strip() and ("null" in kinds or "string" not in kinds):
        return None if "null" in kinds else ("" if required else _LEFT_OUT)
    return _typed(text, kinds)


def _typed(text: str, kinds: set[str]) -> Any:
    """Return the text as one of those JSON types. A text that fits none of them stays a text, so
    that the model refuses it and names the type it needs."""
    if "boolean" in kinds:
        return text in ("true", "on", "1", "yes")
    for kind, make in (("integer", int), ("number", float)):
        if kind in kinds:
            try:
                return make(text.strip())
            except ValueError:
                continue
    return text


def _put(values: dict[str, Any], path: list[str], value: Any) -> None:
    if value is _LEFT_OUT:
        return
    for part in path[:-1]:
        values = values.setdefault(part, {})
        if not isinstance(values, dict):
            return
    values[path[-1]] = value


def _as_lists(value: Any) -> Any:
    """Return the value with lists in place of mappings whose keys are all numbers, in the order of
    the numbers."""
    if not isinstance(value, dict):
        return value
    made = {key: _as_lists(each) for key, each in value.items()}
    if made and all(_is_place(key) for key in made):
        return [made[key] for key in sorted(made, key=int)]
    return made


@lru_cache
def _schema(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema()


def _at(schema: dict[str, Any], path: list[str]) -> tuple[set[str], bool]:
    """Return the JSON types that a field may have, and whether the field is required."""
    about: Any = schema
    required = False
    for part in path:
        about = _resolved(about, schema)
        if _is_place(part):
            about = about.get("items", {})
        else:
            required = part in about.get("required", [])
            about = about.get("properties", {}).get(part, {})
    return _kinds(about, schema), required


def _kinds(about: Any, schema: dict[str, Any]) -> set[str]:
    about = _resolved(about, schema)
    every = about.get("anyOf") or [about]
    return {_resolved(each, schema).get("type", "string") for each in every}


def _resolved(about: Any, schema: dict[str, Any]) -> Any:
    found = about
    while "$ref" in found:
        found = schema["$defs"][found["$ref"].rpartition("/")[2]]
    return found
