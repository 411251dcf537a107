"""The text of a calendar, read again by a parser of another origin."""

from __future__ import annotations

from datetime import UTC, datetime

import icalendar as parser
from hypothesis import given, settings
from hypothesis import strategies as st

from cod.flows.scheduler.calendar_feed import Entry
from cod.web.portal.icalendar import WIDTH, calendar

ENTRY = Entry("vcluster-7@cod.test", "web: 3 nodes", "A lease.", 1.8e9, 1.8e9 + 3600, 5, 1.7e9)


def parsed(*entries: Entry, name: str = "test") -> list[parser.Event]:
    return list(parser.Calendar.from_ical(calendar(name, entries)).walk("VEVENT"))


def test_an_entry_is_read_as_it_was_written() -> None:
    (one,) = parsed(ENTRY)
    assert (one["UID"], one["SUMMARY"], one["SEQUENCE"], one["STATUS"]) == (
        "vcluster-7@cod.test",
        "web: 3 nodes",
        5,
        "CONFIRMED",
    )
    assert one.start == datetime.fromtimestamp(1.8e9, UTC)
    assert one.end == datetime.fromtimestamp(1.8e9 + 3600, UTC)
    assert one["DTSTAMP"].dt == datetime.fromtimestamp(1.7e9, UTC)


def test_a_lease_without_an_end_and_one_without_a_length_can_be_read() -> None:
    endless, empty = parsed(
        Entry("a@x", "", "", 1.8e9, None, 0, 1.8e9), Entry("b@x", "", "", 1.8e9, 1.8e9, 0, 1.8e9)
    )
    assert "DTEND" not in endless
    assert empty.end > empty.start, "RFC 5545, 3.8.2.2: the end is later than the start"


def test_what_is_cancelled_says_so() -> None:
    (one,) = parsed(Entry("a@x", "t", "", 1.8e9, None, 9, 1.8e9, cancelled=True))
    assert one["STATUS"] == "CANCELLED"


TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=300)


@settings(max_examples=60, deadline=None)
@given(TEXTS, TEXTS)
def test_any_text_comes_through_in_lines_of_75_octets(title: str, about: str) -> None:
    written = calendar(title, [Entry("a@x", title, about, 1.8e9, None, 0, 1.8e9)])
    assert all(len(line) <= WIDTH for line in written.split(b"\r\n"))
    (one,) = parser.Calendar.from_ical(written).walk("VEVENT")
    assert (str(one["SUMMARY"]), str(one["DESCRIPTION"])) == (title, about)


def test_a_text_cannot_add_lines() -> None:
    (one,) = parsed(Entry("a@x", "a\r\nSTATUS:CANCELLED\nb\x00", "", 1.8e9, None, 0, 1.8e9))
    assert one["STATUS"] == "CONFIRMED"
    assert str(one["SUMMARY"]) == "a\nSTATUS:CANCELLED\nb"
