"""Formats of values on pages, for the templates' filters: times, lengths of time, sizes, counts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from typing import Any

from markupsafe import Markup

from cod import quantity
from cod.model import FieldKind, dotted, kind_by_name
from cod.states import OTHER_WORDS, PHASES, WORDS

__all__ = [
    "browser",
    "by_word",
    "clock",
    "colons",
    "count",
    "dotted",
    "duration",
    "node_word",
    "percent",
    "phase",
    "remedy",
    "size",
    "typed",
    "when",
]

NONE = Markup("&ndash;")
NAMED = 4  # the most things that a message names


def when(at: float | None, now: float) -> Markup:
    """Return a time relative to now, '3 min ago' or 'in 2 h', with the exact time (UTC) in its
    tooltip."""
    if at is None:
        return NONE
    words = (
        ("in " + duration(at - now))
        if at > now + 1
        else "now"
        if at > now - 1
        else duration(now - at) + " ago"
    )
    full = datetime.fromtimestamp(at, UTC)
    return Markup('<time datetime="{}" title="{} UTC" data-at="{}">{}</time>').format(
        full.strftime("%Y-%m-%dT%H:%M:%SZ"), full.strftime("%Y-%m-%d %H:%M:%S"), f"{at:.0f}", words
    )


def clock(at: float | None) -> Markup:
    """Return a time as date and time of day: '2026-11-20 19:30:36 UTC'."""
    if at is None:
        return NONE
    full = datetime.fromtimestamp(at, UTC)
    return Markup('<time datetime="{}">{} UTC</time>').format(
        full.strftime("%Y-%m-%dT%H:%M:%SZ"), full.strftime("%Y-%m-%d %H:%M:%S")
    )


def at(time: float) -> str:
    """Return a time within a sentence: '2026-11-20 19:30 UTC'. A page's script shows it in the
    reader's zone."""
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M UTC")


def typed(at: float, zone: tzinfo = UTC) -> str:
    """Return a time as the value of a form's field for times, which `forms.moment` reads."""
    return datetime.fromtimestamp(at, zone).strftime("%Y-%m-%dT%H:%M")


def duration(seconds: float | None) -> str:
    """Return a length of time (`quantity.span`); a dash for None."""
    return NONE if seconds is None else quantity.span(seconds)


def size(count: float | None) -> str:
    """Return bytes (`quantity.size`); a dash for None."""
    return NONE if count is None else quantity.size(count)


def percent(done: float, total: float) -> int:
    """Return whole per cent, 0 to 100."""
    return max(0, min(100, int(100 * done / total))) if total else 0


def count(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun: '1 node', '2 nodes'."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


_TONES = {
    "in use": "good",
    "free": "rest",
    "asleep": "sleep",
    "expected": "wait",
    "new": "wait",
    "waiting for approval": "wait",
    "out of service": "bad",
    "retired": "rest",
}
TONES = {word: _TONES.get(word, "busy") for word in WORDS.values()}
"""The colour of a word's badge; in charts, too."""
NODE_WORDS = {str(state): (word, TONES[word]) for state, word in WORDS.items()}
"""What people call a node's states, and the colour of the badge."""


def node_word(state: str) -> tuple[str, str]:
    """Return the word for a node's state, and the colour of its badge."""
    return NODE_WORDS.get(state, (state, "busy"))


def state_word(state: str) -> str:
    """Return the word for a state of a virtual cluster, a request or an image."""
    return OTHER_WORDS.get(state, state)


def colons(digest: str) -> str:
    """Return a fingerprint as browsers show it: 'AB:CD:…'."""
    return ":".join(digest[place : place + 2] for place in range(0, len(digest), 2)).upper()


def phase(name: str) -> str:
    """Return the words for a step of a node's progress; '' for none."""
    return PHASES.get(name, name)


def by_word(counts: Mapping[str, int]) -> list[tuple[str, str, int, list[str]]]:
    """Return (word, colour, nodes, states) for each word that people call states by, given the
    nodes counted by state. The states are those that have this word."""
    found: dict[str, tuple[str, str, int, list[str]]] = {}
    for state in sorted(
        counts, key=lambda one: list(NODE_WORDS).index(one) if one in NODE_WORDS else -1
    ):
        word, tone = node_word(state)
        _, _, nodes, states = found.get(word, (word, tone, 0, []))
        if counts[state]:
            found[word] = (word, tone, nodes + counts[state], [*states, state])
    return list(found.values())


def remedy(change: Any, wanted: int | None) -> str:
    """Return the label of the button that changes a request (a `RemedyReply`): 'Take 38 nodes'."""
    kinds = "of several types and blocks" if change.spread else ""
    if change.count == wanted:
        return "Allow several types and blocks" if kinds else "Allow one type and block only"
    return f"Take {count(change.count, 'node')} {kinds}".strip()


_SIZES = {"size", "stored", "used"}  # bytes, of images and volumes


def audit_value(name: str, value: Any, *, in_bytes: bool = False) -> str:
    """Return a value of the audit as text. Times, lengths of time and sizes get people's units.
    `in_bytes`: the value is of an image or a volume."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        kind = kind_by_name(name)
        if kind is FieldKind.MOMENT:
            return clock(value).striptags()
        if kind is FieldKind.SPAN:
            return quantity.exact_span(value)
        if kind is FieldKind.SIZE or (in_bytes and name in _SIZES):
            return size(value)
    if isinstance(value, dict):
        return ", ".join(
            f"{each} {audit_value(each, one, in_bytes=in_bytes)}" for each, one in value.items()
        )
    if isinstance(value, list) and any(isinstance(one, dict) for one in value):
        return "; ".join(audit_value(name, one, in_bytes=in_bytes) for one in value)
    return json.dumps(value, ensure_ascii=False)


# A browser's User-Agent also names the browsers that it is compatible with: the first entry of this
# table that the User-Agent has is the browser.
_BROWSERS = (
    ("Edg/", "Edge"),
    ("OPR/", "Opera"),
    ("Firefox/", "Firefox"),
    ("Chrome/", "Chrome"),
    ("Safari/", "Safari"),
)
_SYSTEMS = (
    ("Android", "Android"),
    ("iPhone", "iPhone"),
    ("iPad", "iPad"),
    ("Windows", "Windows"),
    ("Mac OS X", "macOS"),
    ("Linux", "Linux"),
)


def browser(agent: str) -> str:
    """Return the browser and system of a User-Agent: 'Firefox on Linux'. Return the User-Agent
    itself if they are unknown."""
    name = next((name for mark, name in _BROWSERS if mark in agent), "")
    system = next((name for mark, name in _SYSTEMS if mark in agent), "")
    return f"{name} on {system}" if name and system else name or agent or "a browser"


def outcomes(items: Sequence[Any]) -> str:
    """Return the number of items by outcome, with the reasons of refusals: '38 done, 2 refused: n7
    (there is a node r12-07 already), n9 (it is active)'."""
    counts = Counter(str(each.outcome) for each in items)
    order = sorted(counts, key=lambda outcome: (outcome == "refused", outcome))
    refused = [f"{each.name} ({each.about})" for each in items if each.outcome == "refused"]
    more = [f"{len(refused) - NAMED} more"] if len(refused) > NAMED else []
    text = ", ".join(f"{counts[outcome]} {outcome}" for outcome in order)
    return f"{text}: {', '.join([*refused[:NAMED], *more])}" if refused else text
