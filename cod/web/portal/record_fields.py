"""Facts about a record and forms for it, made from the descriptions of its fields
(`model.described`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from cod import quantity
from cod.model import FieldKind, FieldLevel, RecordField, Right, described
from cod.web.api.routes import Call
from cod.web.http.errors import HttpProblem
from cod.web.portal import links
from cod.web.portal.formatting import NONE, size, state_word, typed, when
from cod.web.portal.forms import Fields, moment

_READ: dict[FieldKind, Callable[[str], Any]] = {
    FieldKind.SPAN: quantity.read_span,
    FieldKind.SIZE: quantity.read_size,
    FieldKind.MOMENT: moment,
}
_TYPED: dict[FieldKind, Callable[[Any], Any]] = {
    FieldKind.SPAN: quantity.exact_span,
    FieldKind.SIZE: quantity.exact_size,
    FieldKind.MOMENT: typed,
}


@dataclass(frozen=True, slots=True)
class Setting:
    """A field of a form.

    value    the value as a person types it; for several choices, those that are chosen
    options  (value, words) of each choice; (): the value is typed
    several  any number of the options may be chosen
    flag     the field is a check box
    """

    name: str
    label: str
    value: Any
    help: str
    options: tuple[tuple[str, str], ...] = ()
    several: bool = False
    flag: bool = False


def word(field: RecordField, value: Any, now: float) -> Any:
    """Return a field's value as people read it. For None, return the meaning of null, or else a
    dash."""
    if value in (None, "", ()):
        return (field.about.none if field.clears or not field.about.set_by else "") or NONE
    match field.about.kind:
        case FieldKind.SPAN:
            return quantity.exact_span(value)
        case FieldKind.SIZE:
            return size(value)
        case FieldKind.MOMENT:
            return when(value, now)
        case FieldKind.STATE:
            return state_word(value)
        case FieldKind.FLAG:
            return "yes" if value else "no"
        case FieldKind.LINK:
            return Markup('<a href="{}">{}</a>').format(links.url(field.about.place, value), value)
    if isinstance(value, tuple):
        return ", ".join(value)
    return f"{value:g}" if isinstance(value, float) else value


def facts_of(
    record: Any,
    now: float,
    *,
    without: Collection[str] = (),
    words: Mapping[str, Any] | None = None,
    admin: bool = False,
) -> list[tuple[str, Any]]:
    """Return (label, words) for each of a record's fields.

    without  fields that the page shows elsewhere
    words    words for fields, in place of those made from their values
    admin    whether to include fields that only administrators may see
    """
    by_hand = words or {}
    return [
        (each.about.label, by_hand.get(each.name) or word(each, each.get(record), now))
        for each in described(record.__class__)
        if each.name not in without and (admin or not each.about.closed)
    ]


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a page's table that are made from a record's description."""

    fields: tuple[RecordField, ...]
    now: float

    @property
    def heads(self) -> list[str]:
        """Return the headings of the columns."""
        return [each.about.label for each in self.fields]

    def cells(self, record: object) -> list[tuple[str, Any]]:
        """Return (label, words) for each cell of a row."""
        return [(each.about.label, word(each, each.get(record), self.now)) for each in self.fields]


def columns_of(record: type, ask: Call[Any, Any], without: Collection[str]) -> Columns:
    """Return the columns for the fields of a record that lists show, without the fields in
    `without` and those closed to the caller."""
    return Columns(
        tuple(
            each
            for each in described(record)
            if each.about.level is FieldLevel.LIST
            and each.name not in without
            and (ask.who.admin or not each.about.closed)
        ),
        ask.now,
    )


def settings_of(
    record: object,
    right: Right,
    *,
    options: Mapping[str, Mapping[str, str]] | None = None,
    none: Mapping[str, str] | None = None,
    without: Collection[str] = (),
) -> list[Setting]:
    """Return the form fields for the record's fields that `right` may set.

    options  words of choices by field; '' is the choice None
    none     the meaning of None by field, if the page knows it better than the record's description
    without  fields that the page has form fields for already
    """
    return [
        _setting(each, each.get(record), (options or {}).get(each.name), (none or {}))
        for each in _set_by(type(record), right)
        if each.name not in without
    ]


def _setting(
    field: RecordField, value: Any, words: Mapping[str, str] | None, none: Mapping[str, str]
) -> Setting:
    about = field.about
    help_text = about.about[:1].upper() + about.about[1:].replace("vcluster", "virtual cluster")
    help_text += f", such as {about.example}" if about.example else ""
    means = none.get(field.name, about.none)
    nothing = {"": means or "none"} if field.clears and field.choices else {}
    known = words or nothing | {each: each for each in field.choices}
    return Setting(
        field.name,
        "Name" if field.name == "name" else about.label,  # a column is headed by the noun
        _typed(field, value),
        f"{help_text}." + (f" Empty: {means}." if means else ""),
        tuple(known.items()),
        field.several and bool(field.choices),
        field.type is bool,
    )


def _typed(field: RecordField, value: Any) -> Any:
    """Return a value as a person types it."""
    if field.several and not field.choices:
        return ", ".join(value)
    return "" if value is None else _TYPED.get(field.about.kind, _number)(value)


def _number(value: Any) -> Any:
    """Return a number with all its digits, because a form sets the number that it shows."""
    return f"{value:.15g}" if isinstance(value, float) else value


def body_by(record: type, right: Right, fields: Fields) -> dict[str, Any]:
    """Return the body of a request from a form of `settings_of`. An empty field is null if null has
    a meaning for it; otherwise only fields of text may be empty, and others are left out. Raises
    `HttpProblem`."""
    body: dict[str, Any] = {}
    for field in _set_by(record, right):
        text = fields.one(field.name).strip()
        if field.several and not field.choices:
            if field.name in fields.values:
                body[field.name] = re.split(r"[\s,]+", text) if text else []
        elif field.several:
            body[field.name] = fields.all(field.name)
        elif field.type is bool:
            if field.name in fields.all("boxes"):
                body[field.name] = bool(text)
        elif field.name in fields.values and (text or field.clears or field.type is str):
            body[field.name] = _read(field, text) if text or not field.clears else None
    return body


def readers(record: type) -> dict[str, Callable[[str], Any]]:
    """Return readers, by field, for the record's fields that people write in another form than
    JSON."""
    return {
        each.name: _READ[each.about.kind]
        for each in described(record)
        if each.about.set_by and each.about.kind in _READ
    }


def _read(field: RecordField, text: str) -> Any:
    try:
        if field.about.kind is FieldKind.NUMBER:
            return field.type(text)
        return _READ.get(field.about.kind, str)(text)
    except ValueError as error:
        if field.about.kind is FieldKind.NUMBER:
            return text  # the API refuses it with a reason
        raise HttpProblem(422, "invalid", str(error), field.name) from None


def _set_by(record: type, right: Right) -> Iterator[RecordField]:
    return (each for each in described(record) if each.about.set_by is right)
