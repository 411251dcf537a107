"""Evaluation of search filters (RFC 4511 section 4.5.1.7), and the part of a filter that narrows
the rows to look at. Pure.

A filter is true, false or undefined of an entry; only what is true matches. Before rows are read,
it tells which kinds of entries cannot match, and the names and numbers that alone can: what it says
beyond that is looked for among the rows of the one vcluster.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import reduce

from cod.model import LdapFilter

EXACT = frozenset(
    {
        "homedirectory",
        "loginshell",
        "memberuid",
        "sshpublickey",
        "nisnetgrouptriple",
        "automountkey",
        "automountinformation",
        "automountmapname",
        "sudocommand",
    }
)
"""Attributes whose values differ by case (RFC 2307); of all others they do not."""
NUMBERS = frozenset({"uidnumber", "gidnumber"})
NAMES_OF_ENTRIES = frozenset({"member"})

Values = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Narrowed:
    """Necessary conditions on a row for its entry to match: by attribute, the values one of which
    it must have. An attribute that is missing is not narrowed."""

    values: Mapping[str, frozenset[str]]

    def of(self, *attributes: str) -> frozenset[str] | None:
        """Return the values that one of the attributes must have; None: any."""
        return next((self.values[each] for each in attributes if each in self.values), None)


def matches(filter: LdapFilter, values: Values) -> bool:
    """Return whether a filter is true of an entry, whose attributes are named in lower case."""
    return _is_true(filter, values) is True


def _is_true(filter: LdapFilter, values: Values) -> bool | None:
    """Return whether the filter is true; None: undefined."""
    if filter.kind in ("and", "or"):
        found = [_is_true(each, values) for each in filter.parts]
        settled = filter.kind == "or"
        return settled if settled in found else None if None in found else not settled
    if filter.kind == "not":
        inner = _is_true(filter.parts[0], values)
        return None if inner is None else not inner
    if filter.kind == "unknown":
        return None
    have = values.get(filter.attribute)
    if filter.kind == "present" or have is None:
        return have is not None
    return any(_compares(filter, value) for value in have)


def _compares(filter: LdapFilter, value: str) -> bool:
    attribute = filter.attribute
    if filter.kind == "substrings":
        return _holds(normal(attribute, value), [normal(attribute, each) for each in filter.values])
    wanted, has = normal(attribute, filter.values[0]), normal(attribute, value)
    if filter.kind == "equal":
        return wanted == has
    if attribute in NUMBERS:
        if not wanted.isdecimal():
            return False
        return int(has) >= int(wanted) if filter.kind == "at_least" else int(has) <= int(wanted)
    return has >= wanted if filter.kind == "at_least" else has <= wanted


def _holds(value: str, pieces: list[str]) -> bool:
    first, *middle, last = pieces
    if not value.startswith(first) or not value[len(first) :].endswith(last):
        return False
    rest = value[len(first) : len(value) - len(last)]
    for piece in middle:
        _, found, rest = rest.partition(piece) if piece else ("", "x", rest)
        if not found:
            return False
    return True


def normal(attribute: str, value: str) -> str:
    """Return a value as it is compared."""
    if attribute in NAMES_OF_ENTRIES:
        return normal_dn(value)
    if attribute in NUMBERS:
        return str(int(value)) if value.isascii() and value.isdigit() and len(value) < 20 else value
    return value if attribute in EXACT else " ".join(value.lower().split())


def normal_dn(text: str) -> str:
    """Return a distinguished name in lower case, without spaces that do not count (RFC 4514); COD's
    own names have nothing in them that would have to be escaped."""
    parts = [part.partition("=") for part in text.lower().split(",")] if text.strip() else []
    return ",".join(f"{key.strip()}={value.strip()}" for key, _, value in parts)


# ---------------------------------------------------------------- before rows are read


def narrowed(filter: LdapFilter) -> Narrowed:
    """Return what a row must be for the filter to be true of its entry."""
    return Narrowed(_narrowed(filter))


def _narrowed(filter: LdapFilter) -> dict[str, frozenset[str]]:
    if filter.kind == "equal":
        return {filter.attribute: frozenset({normal(filter.attribute, filter.values[0])})}
    parts = [_narrowed(each) for each in filter.parts] if filter.kind in ("and", "or") else []
    if not parts:
        return {}
    return reduce(_both if filter.kind == "and" else _either, parts)


def _both(
    one: dict[str, frozenset[str]], other: dict[str, frozenset[str]]
) -> dict[str, frozenset[str]]:
    """Return the values that both sides of an 'and' allow. Where both name one attribute, the first
    side's values are kept: they narrow the search enough, and an attribute may have several
    values."""
    return {**other, **one}


def _either(
    one: dict[str, frozenset[str]], other: dict[str, frozenset[str]]
) -> dict[str, frozenset[str]]:
    return {key: one[key] | other[key] for key in one.keys() & other.keys()}


def possible(filter: LdapFilter, classes: Collection[str], attributes: Collection[str]) -> bool:
    """Return whether the filter can be true of an entry of those object classes and attributes (in
    lower case)."""
    if filter.kind in ("and", "or"):
        each = [possible(part, classes, attributes) for part in filter.parts]
        return all(each) if filter.kind == "and" else any(each)
    if filter.kind in ("not", "unknown"):
        return filter.kind == "not"
    if filter.kind == "equal" and filter.attribute == "objectclass":
        return normal("objectclass", filter.values[0]) in classes
    return filter.attribute in attributes
