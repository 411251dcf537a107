"""Calendars as text (RFC 5545), to which calendar programs subscribe. Times are UTC, so that no
time zones need to be described."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from cod.flows.scheduler.calendar_feed import Entry

KIND = "text/calendar; charset=utf-8"
WIDTH = 75  # octets of a line, without its end
_SPECIAL = re.compile(r"([\\;,])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def calendar(name: str, entries: Iterable[Entry]) -> bytes:
    """Return the calendar with that name. Equal entries give equal bytes."""
    lines = [
        "BEGIN:VCALENDAR",
        "VERSION:2.0",
        "PRODID:-//COD//Calendar//EN",
        "CALSCALE:GREGORIAN",
        f"NAME:{_text(name)}",
        f"X-WR-CALNAME:{_text(name)}",
        "REFRESH-INTERVAL;VALUE=DURATION:PT15M",
        "X-PUBLISHED-TTL:PT15M",
    ]
    for entry in entries:
        lines += _event(entry)
    lines.append("END:VCALENDAR")
    return "".join(f"{part}\r\n" for line in lines for part in _folded(line)).encode()


def _event(entry: Entry) -> Iterator[str]:
    yield "BEGIN:VEVENT"
    yield f"UID:{entry.uid}"
    yield f"DTSTAMP:{_time(entry.changed)}"
    yield f"DTSTART:{_time(entry.start)}"
    if entry.end is not None:
        yield f"DTEND:{_time(max(entry.end, entry.start + 1))}"
    yield f"SEQUENCE:{entry.sequence}"
    yield f"STATUS:{'CANCELLED' if entry.cancelled else 'CONFIRMED'}"
    yield f"SUMMARY:{_text(entry.title)}"
    yield f"DESCRIPTION:{_text(entry.about)}"
    if entry.url:
        yield f"URL:{entry.url}"
    yield "TRANSP:TRANSPARENT"
    yield "END:VEVENT"


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y%m%dT%H%M%SZ")


def _text(value: str) -> str:
    return _SPECIAL.sub(r"\\\1", _CONTROLS.sub("", value)).replace("\n", "\\n")


def _folded(line: str) -> Iterator[str]:
    """Yield the parts of a line of at most `WIDTH` octets, none of which ends within a
    character."""
    part = ""
    for character in line:
        if len((part + character).encode()) > WIDTH:
            yield part
            part = " "
        part += character
    yield part
