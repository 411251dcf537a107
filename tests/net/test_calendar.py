"""The calendar: over the API, on the command line and as a page; others' vclusters have no
names."""

# ruff: noqa: F401, F811 (fixtures)

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import insert, update

from cod.client import ApiError
from cod.model import Role
from cod.store import tables as t
from tests.net.apiserver import NOW, Served, as_json, said
from tests.net.credentials import as_user
from tests.net.ownersite import browse, engine, furnished_sqlite, there

pytestmark = pytest.mark.slow

HOUR, DAY = 3600.0, 86400.0
WEEK = {"from": NOW, "to": NOW + 7 * DAY}


def planned(tx: Any) -> None:
    """batch (physics) has nodes reserved and gets some by a move; farm (web) has nodes reserved,
    and no lease's end; notebooks drains."""
    rows = (
        (21, 1, {"kind": "grow", "starts_at": NOW + DAY, "duration": 2 * DAY}),
        (22, 3, {"kind": "grow", "starts_at": NOW - HOUR, "duration": DAY}),
        (23, 1, {"kind": "move", "source_id": 2, "deadline": NOW + HOUR, "granted": 1}),
    )
    for number, vcluster, columns in rows:
        tx.execute(
            insert(t.node_requests).values(
                id=number,
                vcluster_id=vcluster,
                state="pending",
                reason="",
                priority=1,
                submitted_at=NOW,
                **columns,
            )
        )
        tx.execute(
            insert(t.request_tuples).values(
                request_id=number, position=0, count=3, template_id=1, attributes=""
            )
        )
    for number, changes in (
        (3, {"expires_at": None}),
        (2, {"expires_at": NOW - HOUR, "drain_until": NOW + HOUR}),
    ):
        tx.execute(update(t.vclusters).where(t.vclusters.c.id == number).values(**changes))


def bars(row: Any) -> list[tuple[str, int, float, float | None]]:
    """A row's bars: what, nodes, from, until in hours from now on."""
    return [
        (
            bar["kind"],
            bar["nodes"],
            round((bar["start"] - NOW) / HOUR, 1),
            None if bar["end"] is None else round((bar["end"] - NOW) / HOUR, 1),
        )
        for bar in row["bars"]
    ]


def test_who_has_nodes_until_when_and_what_comes(there: Served) -> None:
    there.tx(planned)
    found = {row["vcluster"]: row for row in there.local.get("/calendar", **WEEK)["rows"]}
    assert sorted(found) == ["batch", "farm", "notebooks"]
    held = bars(found["batch"])[0]
    assert held == ("held", 9, -0.2, 72.0)
    assert sum(found["batch"]["types"].values()) == 9
    assert bars(found["batch"])[1:] == [
        ("moving", 2, 1.0, 72.0),
        ("reserved", 3, 24.0, 72.0),
    ], "one has moved already"
    late = next(bar for bar in bars(found["farm"]) if bar[0] == "reserved")
    assert late == ("reserved", 3, 0.0, 24.0), "what is late begins now, for all of its time"
    assert next(bar for bar in bars(found["farm"]) if bar[0] == "held")[3] is None
    assert ("leaving", 1, 0.2, 0.2) in bars(found["farm"])
    assert bars(found["notebooks"]) == [("draining", 4, -0.2, 1.0)], "its lease was over before now"


def test_only_what_is_in_the_time_that_is_asked_for(there: Served) -> None:
    there.tx(planned)
    later = there.local.get("/calendar", **{"from": NOW + 4 * DAY, "to": NOW + 5 * DAY})
    assert [row["vcluster"] for row in later["rows"]] == ["farm"], "of a lease without an end"
    cut = there.local.get("/calendar", limit=1, **WEEK)
    assert (len(cut["rows"]), cut["omitted"]) == (1, 2)
    for end, why in ((NOW, "'from' should be before 'to'"), (NOW + 400 * DAY, "at most 366 days")):
        with pytest.raises(ApiError, match=why):
            there.local.get("/calendar", **{"from": NOW, "to": end})


def test_others_vclusters_have_bars_without_names(there: Served) -> None:
    there.tx(planned)
    found = as_user(there, "vera", "physics", Role.VIEWER).get("/calendar", **WEEK)
    assert [(row["group"], row["vcluster"]) for row in found["rows"]] == [
        ("physics", "batch"),
        ("physics", "notebooks"),
        (None, None),
    ]
    assert [bar["kind"] for bar in found["rows"][2]["bars"]] == [
        "held",
        "reserved",
    ], "what they lose is theirs to know"
    assert all(bar["request"] is None for bar in found["rows"][2]["bars"])
    assert [bar["request"] for bar in found["rows"][0]["bars"]] == [None, 23, 21]


def test_ones_own_come_first_and_others_by_the_end_of_what_they_have(there: Served) -> None:
    there.tx(planned)
    rows = as_user(there, "will", "web", Role.VIEWER).get("/calendar", **WEEK)["rows"]
    assert [row["vcluster"] for row in rows] == ["farm", None, None]
    assert [bars(row)[0][3] for row in rows] == [None, 1.0, 72.0]


def test_the_command(there: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    there.tx(planned)
    monkeypatch.setattr("cod.cli.scheduler.calendar.time.time", lambda: NOW)
    words = said(there, "calendar", "--ahead", "7d")
    assert "arriving by a move" in words
    assert "open" in words
    assert as_json(there, "calendar", "--ahead", "7d")["until"] == NOW + 7 * DAY


def test_the_page(there: Served) -> None:
    there.tx(planned)
    page = browse(there).get("/calendar")
    drawn = "".join(page.tree.xpath("//svg[@class='chart']//text()"))
    assert "batch" in drawn
    assert "another cluster: 3 nodes reserved in advance" in drawn
    assert "now" in drawn
    places = [
        (float(one.get("x")), float(one.get("y")), float(one.get("width")))
        for one in page.tree.xpath("//svg[@class='chart']//rect[title[contains(., 'batch')]]")
    ]
    assert len(places) == 3
    assert len({y for _, y, _ in places}) == 3, "bars of the same time lie below each other"
    assert "farm" not in page.words
    assert "no end" in page.words
    assert page.tree.xpath("//main//a[text()='Month']/@href") == ["/calendar?window=month"]
    assert browse(there).get("/calendar", window="day").status == 200


def test_maintenance_is_everybodys_to_see(there: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    rack = {"names": "@rack1", "reason": "a <new> feed"}
    planned = there.local.post(
        "/maintenance", rack | {"begins_at": NOW + DAY, "ends_at": NOW + 2 * DAY}
    )
    cancelled = there.local.post("/maintenance", rack | {"begins_at": NOW + 3 * DAY})
    there.local.delete(f"/maintenance/{cancelled['id']}")
    later = there.local.post(
        "/maintenance", {"site": True, "reason": "a move"} | {"begins_at": NOW + 30 * DAY}
    )
    user = as_user(there, "vera", "physics", Role.VIEWER)
    (shown,) = user.get("/calendar", **WEEK)["maintenance"]
    assert shown == {
        "window": planned["id"],
        "what": "@rack1",
        "reason": "a <new> feed",
        "nodes": planned["nodes"],
        "start": NOW + DAY,
        "end": NOW + 2 * DAY,
    }
    month = user.get("/calendar", **{"from": NOW, "to": NOW + 31 * DAY})["maintenance"]
    assert [one["window"] for one in month] == [planned["id"], later["id"]]
    page = browse(there, group="physics").get("/calendar")
    (bar,) = page.tree.xpath(f"//svg[@class='chart']//a[@href='/maintenance/{planned['id']}']")
    assert "maintenance of @rack1" in "".join(bar.itertext())
    assert "a <new> feed" in page.words
    monkeypatch.setattr("cod.cli.scheduler.calendar.time.time", lambda: NOW)
    assert "maintenance of @rack1: a <new> feed" in said(there, "calendar")
