"""How values look on pages and in charts."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cod import quantity
from cod.flows.scheduler.calendar import Bar
from cod.flows.scheduler.usage import Chart, Series
from cod.web.portal import formatting, forms, requirements_form
from cod.web.portal.pages import calendar, timeline


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("memory/mib", "131072 MiB", "128 GiB"),
        ("memory/mib", "512 MiB", "0.5 GiB"),
        ("cpu/mhz", "2400 MHz", "2.4 GHz"),
        ("nic/speed", "100000 Mb/s", "100 Gb/s"),
        ("nic/speed", "100 Mb/s", "100 Mb/s"),
        ("disk/size", "3.84 TB", "3.84 TB"),
        ("cpu/count", "96", "96"),
    ],
)
def test_facts_as_people_say_them(path: str, value: str, said: str) -> None:
    assert requirements_form.spoken(path, value) == said


def test_a_time_as_such_says_that_it_is_utc() -> None:
    text = str(formatting.clock(1e9))
    assert ">2001-09-09 01:46:40 UTC<" in text
    assert 'datetime="2001-09-09T01:46:40Z"' in text
    assert formatting.clock(None) == formatting.NONE


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("default_lease", 259200.0, "3 d"),
        ("image_quota", 200 * 2**30, "200.0 GiB"),
        ("expires_at", 1e9, "2001-09-09 01:46:40 UTC"),
        ("size", 4, "4"),
        ("admin", True, "true"),
        ("name", "ann", "ann"),
        ("group", None, ""),
        ("events", ["notices"], '["notices"]'),
        ("lifetime", None, ""),
        ("delete_after", 2592000.0, "30 d"),
    ],
)
def test_what_the_audit_says(name: str, value: object, text: str) -> None:
    assert formatting.audit_value(name, value) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (200 * 10**9, "200 GB"),
        (3 * 2**39, "1.5 TiB"),
        (2 * 10**12, "2 TB"),
        (2**30 + 1, "1073741825 B"),
        (0, "0 B"),
    ],
)
def test_a_size_in_a_field_is_short_where_it_can_be(count: int, text: str) -> None:
    assert quantity.exact_size(count) == text


def test_the_size_of_an_image_is_in_bytes_and_of_a_vcluster_in_nodes() -> None:
    assert formatting.audit_value("size", 4 * 2**30, in_bytes=True) == "4.0 GiB"
    assert formatting.audit_value("size", 40) == "40"


@pytest.mark.parametrize(
    ("agent", "text"),
    [
        (
            (
                "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko)"
                " Chrome/126.0 Safari/537.36"
            ),
            "Chrome on Linux",
        ),
        (
            (
                "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko)"
                " Chrome/126 Safari/537 Edg/126.0"
            ),
            "Edge on Windows",
        ),
        (
            (
                "Mozilla/5.0 (iPhone; CPU iPhone OS 17_5 like Mac OS X) AppleWebKit/605"
                " Version/17.5 Mobile/15E Safari/604.1"
            ),
            "Safari on iPhone",
        ),
        (
            "Mozilla/5.0 (X11; Linux x86_64; rv:127.0) Gecko/20100101 Firefox/127.0",
            "Firefox on Linux",
        ),
        ("Lynx/2.9", "Lynx/2.9"),
        ("", "a browser"),
    ],
)
def test_browsers_by_their_names(agent: str, text: str) -> None:
    assert formatting.browser(agent) == text


@given(st.lists(st.floats(0, 1e6), max_size=60).map(sorted), st.floats(0, 1e5))
def test_what_is_written_below_a_chart_does_not_lie_on_each_other(
    moments: list[float], least: float
) -> None:
    kept = timeline.apart(moments, least)
    assert all(later - earlier >= least for earlier, later in pairwise(kept))
    assert kept[:1] == moments[:1]
    # and nothing is left out in vain
    assert all(any(0 <= at - one <= least for one in kept) for at in moments)


def test_the_audit_has_times_and_no_epochs() -> None:
    at = 1_763_647_200.0
    assert (
        formatting.audit_value("deadline", at)
        == formatting.audit_value("expires_at", at)
        == "2025-11-20 14:00:00 UTC"
    )
    nested = formatting.audit_value("lease", {"expires_at": at, "lease_time": 3600.0})
    assert nested == "expires_at 2025-11-20 14:00:00 UTC, lease_time 1 h"
    assert str(int(at)) not in formatting.audit_value("changes", [{"since": at}, {"until": at}])


def test_nodes_are_counted_in_peoples_words() -> None:
    assert formatting.by_word({"boot": 1, "trampoline": 2, "active": 3, "odd": 1, "off": 0}) == [
        ("odd", "busy", 1, ["odd"]),
        ("in use", "good", 3, ["active"]),
        ("starting", "busy", 3, ["trampoline", "boot"]),
    ]


@given(st.integers(0, 4_000_000_000 // 60))
def test_a_time_in_a_field_is_read_again(minutes: int) -> None:
    assert forms.moment(formatting.typed(60.0 * minutes)) == 60.0 * minutes


@pytest.mark.parametrize(
    "text", ["2026-12-01T08:00+01:00", "2026-12-01T07:00Z", "2026-12-01 07:00"]
)
def test_a_time_is_in_utc_unless_it_names_a_zone(text: str) -> None:
    assert forms.moment(text) == 1_796_108_400.0


@pytest.mark.parametrize("text", ["tomorrow", "2026-13-01T00:00", "9", "²"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="such as 2026-12-01 08:00"):
        forms.moment(text)


@given(st.lists(st.tuples(st.floats(0, 100), st.one_of(st.none(), st.floats(0, 50))), max_size=12))
def test_no_bar_of_the_calendar_hides_another(spans: list[tuple[float, float | None]]) -> None:
    bars = [
        Bar("reserved", 1, start, None if length is None else start + length)
        for start, length in sorted(spans, key=lambda span: span[0])
    ]
    lanes = calendar._lanes(bars)
    assert sorted(map(id, bars)) == sorted(id(bar) for lane in lanes for bar in lane)
    assert all(
        one.end is not None and one.end <= other.start
        for lane in lanes
        for one, other in pairwise(lane)
    )


def test_a_chart_ends_with_what_was_counted() -> None:
    """The hour that goes on has counted 6 minutes of its 12 nodes; of the next nothing is known."""
    nodes = (12.0, 12.0, 1.2, 0.0)
    counted = Chart("type", 3600, (0, 3600, 7200, 10800), (Series("t", nodes),), 7200.0 + 360)
    shown = timeline.so_far(counted)
    assert shown.starts == (0, 3600, 7200)
    assert [one.nodes for one in shown.series] == [pytest.approx((12.0, 12.0, 12.0))]
    whole = replace(counted, counted_until=14400.0)
    assert timeline.so_far(whole) == whole
    assert timeline.so_far(replace(counted, counted_until=None)).series == ()
