"""Where people read when a waiting request is expected to start: API, command line, portal,
calendar, metrics."""

# ruff: noqa: F401, F811 (fixtures)

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import insert

from cod.flows.scheduler import starts
from cod.model import Role
from cod.store import tables as t
from cod.store.scheduler.starts import StartRow
from cod.web.api import metrics
from tests.net.apiserver import NOW, Served, as_json, said
from tests.net.credentials import as_user
from tests.net.ownersite import browse, engine, furnished_sqlite, there

HOUR, DAY = 3600.0, 86400.0
REQUEST = 31


def waiting(tx: Any) -> None:
    """batch (physics) waits for four nodes, and is told when it has them; before it, ten requests
    began three minutes late."""
    tx.execute(
        insert(t.node_requests).values(
            id=REQUEST,
            vcluster_id=1,
            kind="grow",
            state="pending",
            reason="waits for its turn",
            priority=1,
            submitted_at=NOW,
        )
    )
    tx.execute(
        insert(t.request_tuples).values(
            request_id=REQUEST, position=0, count=4, template_id=1, attributes=""
        )
    )
    starts.tell(tx, [StartRow(REQUEST, NOW + 2 * HOUR, "", 3, NOW + HOUR)], NOW)
    begun = [
        {
            "request_id": 1000 + number,
            "told_at": 0.0,
            "why": "",
            "first_at": NOW - HOUR,
            "first_told_at": NOW - 2 * HOUR,
            "began_at": NOW - HOUR + 170.0,
        }
        for number in range(10)
    ]
    tx.execute(insert(t.request_starts), begun)


@pytest.fixture
def told(there: Served) -> Served:
    there.tx(waiting)
    return there


def test_the_api_tells_it_with_the_request(told: Served) -> None:
    one = told.local.get(f"/requests/{REQUEST}")
    assert one["expected"] == {
        "at": NOW + 2 * HOUR,
        "why": "",
        "told_at": NOW,
        "sooner_nodes": 3,
        "sooner_at": NOW + HOUR,
    }
    listed = told.local.get("/requests", state="pending")["items"]
    assert next(each for each in listed if each["id"] == REQUEST)["expected"] == one["expected"]


def test_an_explanation_tells_it_in_a_sentence(told: Served) -> None:
    start = told.local.get(f"/requests/{REQUEST}/explain")["start"]
    assert start.startswith("It is expected to start in 2 h (")
    assert "usually right within 3 min" in start
    assert start.endswith("With 3 nodes it would start in 1 h.")
    assert start in said(told, "request", "explain", str(REQUEST))


def test_the_list_on_the_command_line_has_it(told: Served) -> None:
    words = " ".join(said(told, "request", "show", str(REQUEST)).split())
    assert "about" in words


def test_the_portal_has_it_in_list_and_page(told: Served) -> None:
    browser = browse(told)
    listed = browser.get("/requests")
    assert "expected to start" in listed.words
    assert "usually right within 3 min" in listed.words
    assert "It is expected to start in 2 h" in browser.get(f"/requests/{REQUEST}").words


def test_the_calendar_has_it_for_those_who_may_see_it(told: Served) -> None:
    def bars(api: Any) -> list[Any]:
        rows = api.get("/calendar", **{"from": NOW, "to": NOW + DAY})["rows"]
        return [bar for row in rows for bar in row["bars"] if bar["kind"] == "expected"]

    (bar,) = bars(told.local)
    assert (bar["nodes"], bar["start"], bar["request"]) == (4, NOW + 2 * HOUR, REQUEST)
    assert bars(as_user(told, "will", "web", Role.VIEWER)) == []
    assert "expected" in browse(told).get("/calendar").words


def test_the_metrics_say_how_right_it_was(told: Served) -> None:
    text = metrics.text(metrics.MetricsRows(starts=told.tx(starts.gauges, NOW))).decode()
    found = {
        (one.name, *one.labels.values()): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
        if family.name.startswith("cod_start")
    }
    errors = {("cod_start_error_seconds", part): 170.0 for part in ("0.5", "0.8", "0.95")}
    told_ = {("cod_started_requests", "yes"): 10.0, ("cod_started_requests", "no"): 0.0}
    assert found == errors | told_
