"""Fields that filters know, and how the values that people write for them are read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from math import inf, isfinite
from typing import Literal

from cod import quantity
from cod.choices import NodeLabel
from cod.model.addresses import AddressRange, ipv4, mac_of
from cod.model.described import FieldKind, RecordField, described
from cod.model.views import NodeView
from cod.states import WORDS

Value = str | float | bool | AddressRange | None
Comparison = Literal["=", "~", "<", ">", "<=", ">="]
TURNED: dict[Comparison, Comparison] = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
_OCTETS = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3}){0,3}\.?", re.ASCII)
_SEPARATORS = re.compile(r"[:.-]")


class ValueKind(StrEnum):
    """The kind of value that a field is compared with."""

    TEXT = "text"
    NUMBER = "number"
    SPAN = "span"
    SIZE = "size"
    MOMENT = "moment"
    STATE = "state"
    CHOICE = "choice"
    FLAG = "flag"
    MAC = "mac"
    ADDRESS = "address"

    @property
    def comparisons(self) -> tuple[str, ...]:
        """Return the operators for values of this kind."""
        if self in (ValueKind.NUMBER, ValueKind.SPAN, ValueKind.SIZE, ValueKind.MOMENT):
            return ("=", "!=", *TURNED, "in")
        if self in (ValueKind.STATE, ValueKind.CHOICE, ValueKind.FLAG):
            return ("=", "!=", "in")
        return ("=", "!=", "~", "in")


@dataclass(frozen=True, slots=True)
class FilterField:
    """A field that a filter may name. `choices` are its possible values; (): any."""

    name: str
    kind: ValueKind
    choices: tuple[str, ...] = ()


def read(
    field: FilterField, comparison: Comparison, text: str, now: float
) -> tuple[Comparison, Sequence[Value]]:
    """Return the comparison for the database, and the values, of which one has to match. Raise
    ValueError with the sentence of what was expected."""
    match field.kind:
        case ValueKind.NUMBER:
            return comparison, [_number(text)]
        case ValueKind.SPAN:
            return comparison, [quantity.read_span(text)]
        case ValueKind.SIZE:
            return comparison, [float(quantity.read_size(text))]
        case ValueKind.MOMENT:
            return _moment(comparison, text, now)
        case ValueKind.STATE:
            return comparison, _states(text)
        case ValueKind.CHOICE:
            if text.lower() not in field.choices:
                raise ValueError(f"expected one of {', '.join(field.choices)}")
            return comparison, [text.lower()]
        case ValueKind.FLAG:
            if text.lower() not in ("yes", "no"):
                raise ValueError("expected yes or no")
            return comparison, [text.lower() == "yes"]
        case ValueKind.MAC:
            return comparison, [_mac(text) if comparison == "=" else digits(text)]
        case ValueKind.ADDRESS:
            found = addresses(text)
            if found is None or (comparison == "=" and found.first != found.last):
                raise ValueError("expected an address such as 10.1.2.3, or behind ~ how it begins")
            return comparison, [found]
    return comparison, [text] if comparison == "~" else list(spellings(text))


def spellings(text: str) -> tuple[str, ...]:
    """Return a text as written, in lower case and in upper case. A database finds each of these by
    an index, whatever its collation."""
    return tuple(dict.fromkeys((text, text.lower(), text.upper())))


def digits(text: str) -> str:
    """Return a MAC, or a part of one, without separators."""
    return _SEPARATORS.sub("", text).lower()


def addresses(text: str) -> AddressRange | None:
    """Return the IPv4 addresses that begin with these numbers; None if the text is no such
    beginning."""
    parts = text.rstrip(".").split(".")
    if not _OCTETS.fullmatch(text) or len(parts) > 4 or any(int(part) > 255 for part in parts):
        return None
    first = ipv4(".".join([*parts, "0", "0", "0"][:4]))
    return AddressRange(first, first + 256 ** (4 - len(parts)) - 1)


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = inf
    if not isfinite(number):  # MariaDB's driver takes no other
        raise ValueError("expected a number")
    return number


def _mac(text: str) -> str:
    mac = mac_of(text)
    if mac is None:
        raise ValueError("expected a MAC such as 52:54:00:00:00:01")
    return mac


def _states(text: str) -> list[Value]:
    """Return the states that people call by the word, or the state with that name."""
    wanted = text.lower()
    found: list[Value] = [
        str(state) for state, word in WORDS.items() if wanted in (word, str(state))
    ]
    if not found:
        words = ", ".join(
            f'"{word}"' if " " in word else word for word in dict.fromkeys(WORDS.values())
        )
        raise ValueError(f"expected a state: {words}; or a name of `cod states`")
    return found


def _moment(comparison: Comparison, text: str, now: float) -> tuple[Comparison, Sequence[Value]]:
    """Return the comparison and the time. A length of time is counted back from now, so that 'since
    > 2h' matches times more than 2 h ago."""
    try:
        at = datetime.fromisoformat(text)
        return comparison, [(at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()]
    except (ValueError, OverflowError):
        pass
    try:
        ago = quantity.read_span(text)
    except ValueError:
        raise ValueError(
            "expected how long ago, such as 2h, or a time such as 2026-12-01"
        ) from None
    if comparison == "=":
        raise ValueError("expected < or > before a length of time")
    return TURNED[comparison], [now - ago]


# ---------------------------------------------------------------- nodes

_KINDS = {
    "macs": ValueKind.MAC,
    "boot_mac": ValueKind.MAC,
    "address": ValueKind.ADDRESS,
}
_NOT_STORED = ("immune_until",)  # computed from other fields after the read
_MORE = (
    FilterField("group", ValueKind.TEXT),
    FilterField("power", ValueKind.CHOICE, ("on", "off", "unknown")),
    FilterField("watts", ValueKind.NUMBER),
    FilterField("person", ValueKind.TEXT),
)
_PART = FilterField(NodeLabel.PART, ValueKind.TEXT)
_CLOSED = tuple(
    FilterField(name, ValueKind.TEXT) for name in ("port", NodeLabel.BMC, NodeLabel.SWITCH)
)
_ALIASES = {
    "rack": "block",
    "mac": "macs",
    "tag": "tags",
    "owner": "group",
    "host": "hostname",
    "bmc": "power_address",
}
WORD_FIELDS = (
    *("name", "hostname", "serial", "uuid", "macs", "address", "vcluster", "group", "person"),
    *("block", "type", "tags", "part", "power_address", "reported_bmc", "port", "switch"),
)
"""Fields of nodes in which a word without a field is searched."""


def node_fields(admin: bool) -> Mapping[str, FilterField]:
    """Return the fields of nodes by the names that a filter may use. Only administrators may use
    all fields."""
    known = [
        FilterField(each.name, _kind(each), each.choices)
        for each in described(NodeView)
        if each.name not in _NOT_STORED and (admin or not each.about.closed)
    ]
    fields = {each.name: each for each in (*known, *_MORE, _PART, *(_CLOSED if admin else ()))}
    return fields | {alias: fields[name] for alias, name in _ALIASES.items() if name in fields}


def _kind(field: RecordField) -> ValueKind:
    kind = FieldKind.TEXT if field.about.kind is FieldKind.LINK else field.about.kind
    return _KINDS.get(field.name, ValueKind(kind))
