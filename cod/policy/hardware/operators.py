"""Operators of requirements on an attribute: each one's test, its phrase, and the kinds that it
does not apply to.

Several operators on one element must all hold. A test that is impossible (a number compared with a
text) does not hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cod.policy.hardware import compare, quantity
from cod.policy.hardware.attributes import PARTS, TEXT, VERSION
from cod.policy.hardware.compare import BadPattern

LONGEST = 200  # characters of an operator's value

PHRASES: Mapping[str, str] = {
    "equal": "{}",
    "min": "at least {}",
    "max": "at most {}",
    "one-of": "one of {}",
    "like": "like {}",
    "version-min": "version {} or newer",
    "version-max": "version {} or older",
    "newer": "newer than version {}",
    "older": "older than version {}",
    "present": "present: {}",
}


def holds(operator: str, wanted: str, found: str, kind: str | None) -> bool:
    """Return whether the value `found` of an attribute of that kind satisfies `operator` with the
    value `wanted`."""
    test = _TESTS.get(operator)
    return test is not None and test(wanted, found, kind)


def phrase(operator: str, wanted: str, kind: str | None) -> str:
    """Return the operator with its value, for people; numbers without a unit get one."""
    if operator == "one-of":
        return PHRASES[operator].format(
            ", ".join(quantity.readable(word, kind) for word in words(wanted))
        )
    return PHRASES.get(operator, operator + " {}").format(quantity.readable(wanted, kind))


def words(text: str) -> list[str]:
    """Return the values of `one-of`: separated by bars if there are any, else by spaces."""
    return [word.strip() for word in text.split("|")] if "|" in text else text.split()


# ---------------------------------------------------------------- tests


def _same(wanted: str, found: str, kind: str | None) -> bool:
    if wanted == found:
        return True
    limit = quantity.value(wanted, kind)
    return limit is not None and limit == quantity.value(found, kind)


def _numbers(test: Callable[[float, float], bool]) -> Callable[[str, str, str | None], bool]:
    def holds_(wanted: str, found: str, kind: str | None) -> bool:
        limit, value = quantity.value(wanted, kind), quantity.value(found, kind)
        return limit is not None and value is not None and test(value, limit)

    return holds_


def _versions(test: Callable[[object, object], bool]) -> Callable[[str, str, str | None], bool]:
    def holds_(wanted: str, found: str, _kind: str | None) -> bool:
        both = compare.is_version(wanted) and compare.is_version(found)
        return both and test(compare.version(found), compare.version(wanted))

    return holds_


def _like(wanted: str, found: str, _kind: str | None) -> bool:
    try:
        return compare.pattern(wanted).fits(found)
    except BadPattern:
        return False


_TESTS: Mapping[str, Callable[[str, str, str | None], bool]] = {
    # always true of an element that exists; absence (`no`) is tested elsewhere, not by a value
    "present": lambda wanted, found, kind: True,
    "equal": _same,
    "one-of": lambda wanted, found, kind: any(_same(word, found, kind) for word in words(wanted)),
    "min": _numbers(lambda value, limit: value >= limit),
    "max": _numbers(lambda value, limit: value <= limit),
    "like": _like,
    "version-min": _versions(lambda found, limit: found >= limit),  # type: ignore[operator]
    "version-max": _versions(lambda found, limit: found <= limit),  # type: ignore[operator]
    "newer": _versions(lambda found, limit: found > limit),  # type: ignore[operator]
    "older": _versions(lambda found, limit: found < limit),  # type: ignore[operator]
}


# ---------------------------------------------------------------- what cannot be asked


def complaint(wanted: Mapping[str, str], kind: str | None) -> str:
    """Return the fault in an element's operators, as a phrase; '' if there is none. `kind`: of the
    attribute; None: unknown."""
    for operator, value in wanted.items():
        fault = _of_one(operator, value, kind)
        if fault:
            return fault
    for low, high in (("min", "max"), ("version-min", "version-max")):
        if low in wanted and high in wanted and not holds(low, wanted[low], wanted[high], kind):
            return f"{low} {wanted[low]} is above {high} {wanted[high]}"
    for low, high in (("newer", "older"), ("newer", "version-max"), ("version-min", "older")):
        if low in wanted and high in wanted and not holds("older", wanted[high], wanted[low], kind):
            return (
                f"nothing is {phrase(low, wanted[low], kind)} and"
                f" {phrase(high, wanted[high], kind)}"
            )
    equal = wanted.get("equal")
    if equal is None:
        return ""
    against = next(
        (key for key, other in wanted.items() if not holds(key, other, equal, kind)), None
    )
    return "" if against is None else f"equal {equal} contradicts {against} {wanted[against]}"


def _of_one(operator: str, value: str, kind: str | None) -> str:
    if operator not in PHRASES:
        return f"there is no operator {operator!r}; there are {', '.join(PHRASES)}"
    if not 0 < len(value) <= LONGEST:
        return f"{operator} has {len(value)} characters; it takes 1 to {LONGEST}"
    if operator == "present":
        return "" if value in ("yes", "no") else f"present is yes or no, not {value!r}"
    if kind == PARTS:
        return "it has parts and no value of its own: put the operators on a part"
    numeric, text = kind in quantity.COUNTED, kind in (TEXT, VERSION)
    if operator in ("min", "max"):
        hint = (
            "version-min and version-max compare versions"
            if kind == VERSION
            else "use equal, one-of or like"
        )
        return (
            f"{operator} compares numbers, and it is text; {hint}"
            if text
            else quantity.complaint(value, kind)
        )
    if operator in ("equal", "one-of"):
        values = words(value) if operator == "one-of" else [value]
        if not all(values):
            return "one-of has an empty value"
        return (
            next(filter(None, (quantity.complaint(each, kind) for each in values)), "")
            if numeric
            else ""
        )
    if numeric:
        return f"{operator} compares text, and it is a number; use min and max"
    if operator != "like":
        return (
            "" if compare.is_version(value) else f"{value!r} is no version: it has no number in it"
        )
    try:
        compare.pattern(value)
    except BadPattern as error:
        return f"{value!r} is no pattern: {error}"
    return ""
