"""Evaluation of search filters (RFC 4511 section 4.5.1.7), and the conditions of a filter that
narrow the database query. Pure.

A filter is true, false or undefined for an entry; the entry matches only if the filter is true.
Before rows are read, a filter shows which kinds of entries cannot match (`possible`), and which
names and numbers an entry must have to match (`narrowed`). Its other conditions are evaluated on
the rows of the vcluster.
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
"""Attributes whose values are compared with regard to case (RFC 2307); all others are not."""
NUMBERS = frozenset({"uidnumber", "gidnumber"})
NAMES_OF_ENTRIES = frozenset({"member"})

Values = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Narrowed:
    """Necessary conditions on a row for its entry to match: by attribute, a set of values of which
    the entry must have one. An attribute that is missing here may have any value."""

    values: Mapping[str, frozenset[str]]

    def of(self, *attributes: str) -> frozenset[str] | None:
        """Return the values of the first of the attributes that is narrowed; None: none is."""
        return next((self.values[each] for each in attributes if each in self.values), None)


def matches(filter: LdapFilter, values: Values) -> bool:
    """Return whether a filter is true for an entry. `values`: by attribute name in lower case."""
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
    """Return a value of an attribute in its normal form, in which values are compared."""
    if attribute in NAMES_OF_ENTRIES:
        return normal_dn(value)
    if attribute in NUMBERS:
        return str(int(value)) if value.isascii() and value.isdigit() and len(value) < 20 else value
    return value if attribute in EXACT else " ".join(value.lower().split())


def normal_dn(text: str) -> str:
    """Return a distinguished name in lower case, without spaces around its parts (RFC 4514). Names
    of COD's entries need no escapes, so escapes are not decoded."""
    parts = [part.partition("=") for part in text.lower().split(",")] if text.strip() else []
    return ",".join(f"{key.strip()}={value.strip()}" for key, _, value in parts)


# ---------------------------------------------------------------- before rows are read


def narrowed(filter: LdapFilter) -> Narrowed:
    """Return what the filter demands of an entry by equality, by which fewer rows are read from the
    database: '(|(uid=ann)(uid=bob))' demands that the `uid` is 'ann' or 'bob'. An entry that meets
    this may still not match; one that does not meet it cannot."""
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
    """Return whether the filter can be true for an entry with those object classes and attributes,
    in lower case."""
    if filter.kind in ("and", "or"):
        each = [possible(part, classes, attributes) for part in filter.parts]
        return all(each) if filter.kind == "and" else any(each)
    if filter.kind in ("not", "unknown"):
        return filter.kind == "not"
    if filter.kind == "equal" and filter.attribute == "objectclass":
        return normal("objectclass", filter.values[0]) in classes
    return filter.attribute in attributes
