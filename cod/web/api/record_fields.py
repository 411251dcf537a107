"""Fields of replies and bodies, made from the descriptions of a record's fields
(`model.described`)."""

from __future__ import annotations

from dataclasses import MISSING, fields
from enum import StrEnum
from inspect import get_annotations
from typing import Annotated, Any, get_args, get_type_hints

from pydantic import BaseModel, Field

from cod.model import FieldKind, RecordField, described

_UNITS = {FieldKind.SPAN: "in seconds", FieldKind.SIZE: "in bytes"}
_LONGEST_SPAN = 1e10
_MOST_BYTES = 2**62
_LAST_MOMENT = 1e11  # seconds since the epoch; dates of later ones cannot be written


def record_of(model: type[BaseModel]) -> type | None:
    """Return the described record of a subclass of a generic model, such as the group of
    `ReplyOf[Group]`; None for other models."""
    for base in model.__bases__:
        for record in getattr(base, "__pydantic_generic_metadata__", {}).get("args", ()):
            if isinstance(record, type) and described(record):
                return record
    return None


def add_all(model: type[BaseModel]) -> None:
    """Add all fields of the record to a new subclass of `ReplyOf[the record]`, but for those that
    the subclass declares itself."""
    (record,) = vars(model.__bases__[0])["__pydantic_generic_metadata__"]["args"]
    hints, own = get_type_hints(record, include_extras=True), get_annotations(model)
    model.__annotations__ = {each.name: hints[each.name] for each in fields(record)} | own


def add_to_reply(model: type[BaseModel], fields: list[RecordField]) -> None:
    """Add to a new model the record's fields that people may see."""
    own = get_annotations(model)
    model.__annotations__ = {
        each.name: Annotated[
            own.get(each.name, _or_none(each.type, each.optional or each.about.closed)),
            _shown(order, each),
        ]
        for order, each in enumerate(fields)
    } | {name: hint for name, hint in own.items() if name not in {each.name for each in fields}}


def add_to_body(
    model: type[BaseModel], fields: tuple[RecordField, ...], defaults: dict[str, Any] | None
) -> None:
    """Add to a new model the record's fields that people may set. The value of a field that is left
    out is that in `defaults`, or else the record's own. If `defaults` is None, each field may be
    left out, and is None then."""
    own = get_annotations(model)
    made: dict[str, Any] = {}
    for order, each in enumerate(fields):
        if each.name in own or each.about.set_by is None:
            continue
        kind = list[get_args(each.type)[0]] if each.several else each.type  # type: ignore[misc]
        made[each.name] = Annotated[
            _or_none(Annotated[kind, _bounds(each)], defaults is None or each.optional),
            _shown(order, each),
        ]
        default = None if defaults is None else defaults.get(each.name, each.default)
        if default is not MISSING:
            setattr(model, each.name, default)
    model.__annotations__ = own | made


def _or_none(kind: Any, optional: bool) -> Any:
    return kind | None if optional else kind


def _shown(order: int, field: RecordField) -> Any:
    """Return the field's description in the OpenAPI document: its sentence, label, kind and place
    among the record's fields."""
    about = field.about
    extra: dict[str, Any] = {"x-label": about.label, "x-kind": str(about.kind), "x-order": order}
    sentence = field.sentence("null", _UNITS.get(about.kind, ""))
    return Field(description=sentence or None, json_schema_extra=extra)


def _bounds(field: RecordField) -> Any:
    about = field.about
    least, most = about.least, about.most
    if about.kind is FieldKind.SPAN:
        above = {"gt": 0} if least is None else {"ge": least}
        return Field(**above, le=most or _LONGEST_SPAN, allow_inf_nan=False)
    if about.kind is FieldKind.SIZE:
        return Field(ge=least or 0, le=most or _MOST_BYTES)
    if about.kind is FieldKind.MOMENT:
        return Field(ge=least or 0, le=most or _LAST_MOMENT, allow_inf_nan=False)
    if isinstance(field.type, type) and issubclass(field.type, StrEnum):
        return Field(strict=False)  # a name of them; bodies are strict otherwise
    if field.type is float:
        return Field(ge=least, le=most, allow_inf_nan=False)
    return Field(ge=least, le=most, max_length=about.longest, pattern=about.pattern)
