"""Reserving a new cluster in the portal: the check for a time, the calendar's links, time zones."""

# ruff: noqa: F401, F811 (fixtures)

from __future__ import annotations

import re
from datetime import datetime
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import update

from cod.client import ApiError
from cod.store import tables as t
from cod.web.portal.formatting import typed
from tests.net.apiserver import NOW, Served
from tests.net.ownersite import asked, browse, engine, furnished_sqlite, there, vcluster
from tests.net.portalclient import Shown, signed_in

pytestmark = pytest.mark.slow

NEW, SENT, CHECK = "/vclusters/new", "/vclusters", "/vclusters/check"
DAY = 86400.0
START = (NOW + 10 * DAY) // 60 * 60


LARGE = {"attributes": '<requires><memory><mib min="1024 GiB"/></memory></requires>'}  # 3 nodes


def matched(there: Served, **asked_for: Any) -> Any:
    wanted = {"count": 1, "template": "debian", "group": "physics", **asked_for}
    return there.local.post("/match", wanted)


def reserve(there: Served, size: int) -> None:
    wanted = {"name": "first", "size": size, "template": "debian", "group": "physics", **LARGE}
    there.local.post("/vclusters", wanted | {"starts_at": START, "lease": DAY})


def test_a_form_that_begins_with_a_reservation_leaves_a_start_out_that_is_over(
    there: Served,
) -> None:
    reserve(there, 1)
    [request] = asked(there, "first")

    def start() -> str:
        page = signed_in(there, now=there.clock.now).get(NEW, request=request.id)
        return dict(page.fields(SENT))["starts_at"]

    assert start() == typed(START)
    there.clock.now = START + DAY
    assert start() == ""


def test_the_forecast_is_of_the_time_that_is_asked_for(there: Served) -> None:
    asked_for = {"starts_at": START, "lease": DAY, **LARGE}
    most = matched(there, **asked_for)["matching"]
    assert matched(there, count=most, **asked_for)["granted"]
    reserve(there, most - 1)
    beside = matched(there, count=most, **asked_for)
    assert (beside["granted"], beside["code"]) == (False, "reserved")
    assert "in the way are" in beside["sentence"]
    fewer, later = beside["proposals"]
    assert fewer["starts_at"] == START
    assert 0 < fewer["count"] < most
    assert later["count"] == most
    assert later["starts_at"] > START + DAY
    assert later["starts_at"] % 60 == 0
    for one in (fewer, later):
        again = matched(there, **asked_for | one)
        assert again["granted"], "a proposal is accepted when it is taken"
    more = matched(there, count=fewer["count"] + 1, **asked_for)
    assert not more["granted"], "and it is the largest"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"starts_at": NOW - 60}, "is over"),
        ({"starts_at": START, "ends_at": START - 60}, "the end is not after the start"),
        ({"starts_at": START, "ends_at": START + 60, "lease": 60}, "in place of the lease"),
        ({"ends_at": START}, "an end belongs to a start"),
        ({"starts_at": NOW + 400 * DAY}, "too far ahead: 1971-01-13"),
        ({"starts_at": 1e300}, "should be at most"),
        ({"starts_at": START, "preemptible": True}, "preemptible vcluster cannot be reserved"),
        ({"starts_at": START, "vcluster": "batch"}, "has a start and a duration"),
    ],
)
def test_what_no_nodes_could_help_is_said_at_once(
    there: Served, wrong: dict[str, Any], said: str
) -> None:
    with pytest.raises(ApiError, match=said):
        matched(there, **wrong)


def test_limits_count_at_the_start(there: Served) -> None:
    there.tx(lambda tx: tx.execute(update(t.groups).values(node_limit=14)))
    found = matched(there, count=12, starts_at=NOW + DAY, lease=DAY)
    assert not found["granted"]
    assert "may hold 14 nodes" in found["sentence"]
    held = re.search(r"it has (\d+) by leases", found["sentence"])
    assert held is not None
    assert found["proposals"][0]["count"] == 14 - int(held[1])
    there.tx(lambda tx: tx.execute(update(t.groups).values(node_limit=None, hours_limit=10.0)))
    hours = matched(there, count=1, starts_at=START, lease=11 * 3600)
    assert "may use 10 node-hours" in hours["sentence"]
    assert hours["proposals"] == []


def looked(there: Served, **fields: Any) -> Shown:
    page = browse(there).get(NEW)
    return page.browser.post(CHECK, page.filled(SENT, name="x", template="debian", **fields))


def test_a_proposal_is_taken_without_the_script(there: Served) -> None:
    reserve(there, 3)
    times = {"starts_at": typed(START), "ends_at": typed(START + DAY)}
    page = looked(there, size=3, memory="1024 GiB", **times)
    texts = page.tree.xpath("//button[@name='proposal']")
    value = texts[-1].get("value")
    assert texts[-1].text_content().split()[:2] == ["All", "3"]
    took = page.browser.post(CHECK, [*page.fields(SENT), ("proposal", value)])
    fields = dict(took.fields(SENT))
    start, end = (
        datetime.fromisoformat(fields[name] + "Z").timestamp() for name in ("starts_at", "ends_at")
    )
    assert start > START + DAY
    assert end - start == DAY, "it is as long as before"
    assert "can be reserved from" in took.words
    assert took.send(SENT).words.count("x is reserved") == 1


def test_times_are_read_by_the_clock_of_the_form(there: Served) -> None:
    berlin = ZoneInfo("Europe/Berlin")
    page = browse(there).get(NEW)
    assert ("timezone", "UTC") in page.fields(SENT)
    assert "From (UTC)" in page.words
    start = datetime.fromtimestamp(START, berlin)
    local = f"{start:%Y-%m-%dT%H:%M}"
    odd = page.send(
        SENT, name="x", size=1, template="debian", starts_at="later", timezone="Europe/Berlin"
    )
    assert "should be a date and a time" in odd.words
    assert "From (Europe/Berlin)" in odd.words, "what was typed keeps its zone"
    odd.send(SENT, starts_at=local, lease="1d")
    assert asked(there, "x")[0].starts_at == START
    unknown = page.send(
        SENT, name="y", size=1, template="debian", starts_at=typed(START), timezone="../../etc"
    )
    assert "y is reserved" in unknown.words, "an unknown zone is UTC, as the page says then"


def test_free_nodes_of_the_calendar_lead_to_the_form(there: Served) -> None:
    found = there.local.get("/calendar", **{"from": NOW, "to": NOW + 7 * DAY})
    assert found["free"]
    for kind in found["free"]:
        spans = kind["spans"]
        assert spans[0]["start"] == NOW
        assert spans[-1]["end"] == NOW + 7 * DAY
        assert all(a["end"] == b["start"] for a, b in pairwise(spans))
    page = browse(there).get("/calendar")
    links = page.tree.xpath("//svg[@class='chart']//a/@href")
    assert links
    form = page.browser.get(links[0])
    fields = dict(form.fields(SENT))
    assert datetime.fromisoformat(fields["starts_at"] + "Z").timestamp() > NOW
    assert any(fields[name] for name in ("memory", "cpus"))
    assert "This begins with" not in form.words
    done = form.send(SENT, name="x", template="debian")
    assert "x is reserved" in done.words, done.words


def test_free_nodes_are_fewer_while_others_have_them(there: Served) -> None:
    def free() -> int:
        spans = [
            span
            for kind in there.local.get("/calendar", **{"from": NOW, "to": NOW + 14 * DAY})["free"]
            for span in kind["spans"]
            if span["start"] <= START + 60 < span["end"]
        ]
        return sum(int(span["nodes"]) for span in spans)

    before = free()
    reserve(there, 2)
    assert free() == before - 2
