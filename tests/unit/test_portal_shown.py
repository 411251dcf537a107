"""How values look on pages and in charts."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cod.net.portal import attributes, shown, timeline


@pytest.mark.parametrize(("path", "value", "said"), [
    ("memory/mib", "131072 MiB", "128 GiB"), ("memory/mib", "512 MiB", "0.5 GiB"), ("cpu/mhz", "2400 MHz", "2.4 GHz"),
    ("nic/speed", "100000 Mb/s", "100 Gb/s"), ("nic/speed", "100 Mb/s", "100 Mb/s"),
    ("disk/size", "3.84 TB", "3.84 TB"),
    ("cpu/count", "96", "96")])
def test_facts_as_people_say_them(path: str, value: str, said: str) -> None:
    assert attributes.spoken(path, value) == said


def test_a_time_as_such_says_that_it_is_utc() -> None:
    text = str(shown.clock(1e9))
    assert ">2001-09-09 01:46:40 UTC<" in text
    assert 'datetime="2001-09-09T01:46:40Z"' in text
    assert shown.clock(None) == shown.NONE


@given(st.lists(st.floats(0, 1e6), max_size=60).map(sorted), st.floats(0, 1e5))
def test_what_is_written_below_a_chart_does_not_lie_on_each_other(moments: list[float], least: float) -> None:
    kept = timeline.apart(moments, least)
    assert all(later - earlier >= least for earlier, later in pairwise(kept))
    assert kept[:1] == moments[:1]
    assert all(any(0 <= at - one <= least for one in kept) for at in moments)  # and nothing is left out in vain
