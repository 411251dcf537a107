"""Descriptions of a record's fields, written at the field itself, for the API, the portal and the
command line.

    grace: Annotated[float | None, About("Grace", FieldKind.SPAN, set_by=Right.MANAGE)] = None

A record is a described record if any of its fields has an `About`. Each of its other fields then
needs one, too, or is `Undescribed`. `described` refuses a record without this.

A request to make a thing is a record as well. It names the record of the thing, `MAKES:
ClassVar[type] = Vcluster`, and has all fields of the thing that people can set (`set_by`), whose
descriptions are those in the thing's record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from enum import Enum, StrEnum
from functools import cache
from operator import attrgetter
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from cod.model.rights import Right

_T = TypeVar("_T")


class FieldKind(StrEnum):
    """The kind of a field's value, which decides how it is read and shown."""

    TEXT = "text"
    NUMBER = "number"
    SPAN = "span"  # seconds
    SIZE = "size"  # bytes
    MOMENT = "moment"  # seconds since the epoch
    STATE = "state"
    LINK = "link"  # the name of another thing
    CHOICE = "choice"  # one of the values of its type, or several of them
    FLAG = "flag"


class FieldLevel(StrEnum):
    """The view in which a field is first shown."""

    LIST = "list"
    WIDE = "wide"
    DETAIL = "detail"


@dataclass(frozen=True, slots=True)
class About:
    """The description of a field.

    label    its name, as the head of a column, a line or an entry in a form
    about    a phrase without a full stop, such as 'priority of its requests'
    none     the meaning of no value (null, or an empty text that people can set), such as "no
             limit"; '': people cannot set the field to null
    example  a value as people write it: '8h'
    null     the word for null in commands: 'none' or 'site'
    set_by   the right that is needed to set it; None: people cannot set it
    closed   whether only administrators see it, while others see null
    level    the first view that shows it
    least, most, longest, pattern  bounds of a number, most characters or items, pattern of a text
    place    the collection of the API that a link leads to: 'vclusters'
    part     the hand-written part of a reply that has the field: 'power' has `power_driver` as
             `driver`
    """

    label: str
    kind: FieldKind = FieldKind.TEXT
    about: str = ""
    none: str = ""
    example: str = ""
    null: str = "none"
    set_by: Right | None = None
    closed: bool = False
    level: FieldLevel = FieldLevel.LIST
    least: float | None = None
    most: float | None = None
    longest: int | None = None
    pattern: str | None = None
    place: str = ""
    part: str = ""


_UNDESCRIBED = object()
Undescribed = Annotated[_T, _UNDESCRIBED]
"""A field of a described record that is not shown, or is shown by code of its own."""


@dataclass(frozen=True, slots=True)
class RecordField:
    """A field of a described record.

    type      its type without None
    optional  whether None is allowed
    default   its default; MISSING: it has none
    path      the attributes that lead from the record to the field: 'node.name'
    get       returns the field's value, given a record
    """

    name: str
    about: About
    type: Any
    optional: bool
    default: Any
    path: str
    get: Callable[[Any], Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "get", attrgetter(self.path))

    @property
    def clears(self) -> bool:
        """Return whether people may set the field to null. A text is never null, but ''."""
        return self.optional and self.type is not str and bool(self.about.none)

    @property
    def several(self) -> bool:
        """Return whether the value is a list."""
        return get_origin(self.type) is tuple

    @property
    def choices(self) -> tuple[str, ...]:
        """Return the allowed values; (): any."""
        one = get_args(self.type)[0] if self.several else self.type
        if isinstance(one, type) and issubclass(one, Enum):
            return tuple(str(each.value) for each in one)
        return tuple(map(str, get_args(one))) if get_origin(one) is Literal else ()

    def sentence(self, none: str = "null", *details: str) -> str:
        """Return the description without a full stop. `none`: how null is written; `details`:
        further phrases, such as a unit."""
        none = "''" if self.type is str and self.about.set_by else none
        ends = f"{none}: {self.about.none}" if self.about.none else ""
        about = ", ".join(filter(None, (self.about.about, *details)))
        return "; ".join(filter(None, (about, ends)))


@cache
def described(record: type) -> tuple[RecordField, ...]:
    """Return a record's described fields, in the order of their columns; () if the record is not
    described. Fields of a described record inside it are in the place of that record, and
    properties are at the end. Raise `TypeError` if a field is neither described nor `Undescribed`.
    """
    if not is_dataclass(record):
        return ()
    hints = get_type_hints(record, include_extras=True)
    made = {each.name: each.about for each in described(_made(record)) if each.about.set_by}
    defaults = {each.name: each.default for each in fields(record)}
    for name, value in vars(record).items():
        if isinstance(value, property) and "return" in (value.fget.__annotations__ or {}):
            hints[name] = get_type_hints(value.fget, include_extras=True)["return"]
    found: list[RecordField] = []
    forgotten = []
    for name, hint in hints.items():
        marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        about = next((mark for mark in marks if isinstance(mark, About)), made.get(name))
        if about is not None:
            kind, optional = _without_none(get_args(hint)[0] if marks else hint)
            default = defaults.get(name, MISSING)
            found.append(RecordField(name, about, kind, optional, default, name))
        elif isinstance(hint, type) and described(hint):
            found += [
                replace(each, path=f"{name}.{each.path}", default=MISSING)
                for each in described(hint)
            ]
        elif _UNDESCRIBED not in marks and name in defaults:
            forgotten.append(name)
    if not_asked := ", ".join(made.keys() - defaults.keys()):
        raise TypeError(f"{record.__name__}.{not_asked}: {_made(record).__name__} has it to be set")
    if found and forgotten:
        raise TypeError(
            f"{record.__name__}.{', '.join(forgotten)}: neither described nor Undescribed"
        )
    return tuple(found)


_MOMENTS = {"deadline", "since", "until", "last_seen", "at"}
_SPANS = {"default_lease", "max_lease", "lease_time", "lease", "lifetime", "grace", "delete_after"}


def kind_by_name(name: str) -> FieldKind:
    """Return the kind of a number of the audit, which keeps no more of a field than its name."""
    if name.endswith(("_at", "_until")) or name in _MOMENTS:
        return FieldKind.MOMENT
    if name in _SPANS:
        return FieldKind.SPAN
    return FieldKind.SIZE if name in ("image_quota", "volume_quota") else FieldKind.NUMBER


def set_by(record: type, right: Right) -> frozenset[str]:
    """Return the names of the fields that may be set with exactly this right."""
    return frozenset(each.name for each in described(record) if each.about.set_by is right)


def set_names(record: type) -> tuple[str, ...]:
    """Return the names of the fields of a record that people can set."""
    return tuple(each.name for each in described(record) if each.about.set_by)


def set_values(record: type, source: object) -> dict[str, Any]:
    """Return the values in `source` of the fields of a record that people can set, by name."""
    return {name: getattr(source, name) for name in set_names(record)}


def _made(record: type) -> type:
    """Return the record of the thing that a request with this record makes; NoneType: the record is
    no such request."""
    made: type = vars(record).get("MAKES", NoneType)
    return made


def _without_none(hint: Any) -> tuple[Any, bool]:
    """Return the type without None, and whether None was in it."""
    if get_origin(hint) not in (Union, UnionType):
        return hint, False
    kinds = [each for each in get_args(hint) if each is not NoneType]
    return Union[tuple(kinds)], len(kinds) < len(get_args(hint))  # noqa: UP007
