"""Energy over the API, in the metrics and on the command line."""

from __future__ import annotations

import http.client
import json
import time
from typing import Any

import pytest
from sqlalchemy import insert

from cod.cli.nodes.energy import bar, figures
from cod.client import ApiError
from cod.flows.nodes import energy_curve
from cod.model import Energy, Role, Site
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.nodes import types
from cod.store.people import groups
from tests.net.apiserver import NOW, READER, Served, add_node, said
from tests.net.credentials import as_user
from tests.net.portalclient import signed_in

pytestmark = pytest.mark.slow  # together with its like more than the quick run has time for

DAY = 86400.0
TODAY = int(NOW // DAY)
KWH = 3.6e6


def book(tx: Tx, today: int) -> None:
    """Yesterday and today: physics used 30 kWh in 120 node-hours, the reserve 6 instead of 24."""
    physics = groups.add(tx, "physics", NOW).id
    kind = types.of(tx, "<node/>", NOW).id
    rows = [
        (today - 1, physics, 60.0, 20.0, 20.0),
        (today, physics, 60.0, 10.0, 10.0),
        (today, 0, 300.0, 6.0, 24.0),
    ]
    tx.execute(
        insert(t.energy_use),
        [
            dict(
                day=day,
                group_id=group,
                type_id=kind,
                seconds=hours * 3600,
                joules=kwh * KWH,
                always_on=always * KWH,
            )
            for day, group, hours, kwh, always in rows
        ],
    )
    tx.execute(insert(t.marks).values(name="energy", at=today * DAY + 60))


def approx(**figures: float) -> dict[str, Any]:
    return {name: pytest.approx(value) for name, value in figures.items()}


def test_energy_by_group_type_and_day(served: Served) -> None:
    served.tx(book, TODAY)
    report = served.local.get("/energy")
    assert report["items"] == [
        {
            "name": None,
            "day": None,
            "cost": None,
            **approx(node_hours=300.0, kwh=6.0, kwh_saved=18.0, gco2=0.0),
        },
        {
            "name": "physics",
            "day": None,
            "cost": None,
            **approx(node_hours=120.0, kwh=30.0, kwh_saved=0.0, gco2=0.0),
        },
    ]
    total = approx(node_hours=420.0, kwh=36.0, kwh_saved=18.0, gco2=0.0)
    assert report["total"] == {**total, "cost": None}
    assert (report["by"], report["counted_until"]) == ("group", TODAY * DAY + 60)
    assert (report["since"], report["until"]) == ((TODAY - 30) * DAY, (TODAY + 1) * DAY)
    by_type = served.local.get("/energy", by="type")["items"]
    assert [(line["name"], line["day"]) for line in by_type] == [("type1", None)]
    by_day = served.local.get("/energy", by="day", **{"from": TODAY * DAY, "to": TODAY * DAY + 1})[
        "items"
    ]
    assert [(line["name"], line["day"], line["kwh"]) for line in by_day] == [
        (None, TODAY * DAY, pytest.approx(16.0))
    ]


def test_owners_see_what_their_groups_used(served: Served) -> None:
    served.tx(book, TODAY)
    assert [line["kwh"] for line in served.local.get("/energy", group="physics")["items"]] == [
        pytest.approx(30.0)
    ]
    ann, bob = as_user(served, "ann", "physics", Role.VIEWER), as_user(served, "bob", "other")
    for query in ({}, {"group": "physics"}):
        report = ann.get("/energy", **query)
        assert [line["name"] for line in report["items"]] == ["physics"]
        assert report["total"]["kwh"] == pytest.approx(30.0)
    assert ann.get("/energy", by="day")["total"]["kwh"] == pytest.approx(30.0)
    assert bob.get("/energy", by="type")["items"] == []
    with pytest.raises(ApiError) as caught:
        bob.get("/energy", group="physics")
    assert caught.value.status == 404


@pytest.mark.parametrize(
    "query",
    [
        {"by": "node"},
        {"from": "yesterday"},
        {"from": "nan"},
        {"from": "-1"},
        {"to": "1e300"},
        {"since": "1"},
        {"from": "10", "to": "9"},
    ],
)
def test_what_cannot_be_asked(served: Served, query: dict[str, str]) -> None:
    with pytest.raises(ApiError) as caught:
        served.local.get("/energy", **query)
    assert caught.value.status == 422


def test_the_metrics_tell_energy_and_the_reserve(served: Served) -> None:
    served.tx(book, TODAY)
    add_node(served, "n1", 1, state="inactive", type_id=1)
    add_node(served, "n2", 2, state="off", type_id=1)
    connection = http.client.HTTPConnection("127.0.0.1", served.server.ports[0], timeout=60)
    connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {READER}"})
    lines = connection.getresponse().read().decode().splitlines()
    assert {
        'cod_energy_joules_total{group="physics"} 1.08e+08',
        'cod_energy_joules_total{group="(reserve)"} 2.16e+07',
        'cod_energy_saved_joules_total{group="(reserve)"} 6.48e+07',
        'cod_watts{type="type1"} 85.0',
        'cod_reserve_nodes{readiness="warm",type="type1"} 1.0',
        'cod_reserve_nodes{readiness="cold",type="type1"} 1.0',
        'cod_reserve_nodes{readiness="waking",type="type1"} 0.0',
        "# TYPE cod_energy_joules_total counter",
    } <= set(lines)


def test_the_command_line_draws_a_picture(served: Served) -> None:
    today = int(time.time() // DAY)
    served.tx(book, today)
    lines = said(served, "energy").splitlines()
    assert lines[0].split()[:4] == ["GROUP", "NODE-HOURS", "KWH", "SAVED"]
    assert lines[1].split() == ["(reserve)", "300.0", "6.00", "18.00", "75", "█" * 8 + "░" * 24]
    assert lines[2].split() == ["physics", "120.0", "30.00", "0.00", "0", "█" * 40]
    assert lines[3].split() == ["total", "420.0", "36.00", "18.00", "33"]
    assert "counted until" in lines[4]
    by_day = said(served, "energy", "--by", "day", "--since", "2d").splitlines()
    assert [line.split()[0] for line in by_day[1:3]] == [
        time.strftime("%Y-%m-%d", time.gmtime(each * DAY)) for each in (today - 1, today)
    ]
    assert (
        json.loads(said(served, "energy", "--by", "type", "--json"))["items"][0]["name"] == "type1"
    )


def test_a_site_that_has_not_counted_yet(served: Served) -> None:
    lines = said(served, "energy").splitlines()
    assert len(lines) == 2
    assert lines[1].endswith("nothing is counted yet")
    assert "--since" in said(served, "energy", "--since", "soon", code=2)


def test_what_was_deleted_keeps_its_account_without_its_name(served: Served) -> None:
    served.tx(book, int(time.time() // DAY))
    served.tx(lambda tx: tx.execute(t.node_types.delete()))
    served.tx(lambda tx: tx.execute(t.groups.delete()))
    assert [
        line["name"]
        for line in json.loads(said(served, "energy", "--by", "type", "--json"))["items"]
    ] == ["(deleted)"]
    assert [line.split()[0] for line in said(served, "energy").splitlines()[1:3]] == [
        "(reserve)",
        "(deleted)",
    ]


def test_a_bar_is_as_long_as_its_share_and_rounds_once() -> None:
    line = {"node_hours": 1.0, "kwh": 1.0, "kwh_saved": 1.0, "gco2": 1500.0}
    assert bar(line, 2.0).plain == "█" * 20 + "░" * 20
    assert len(bar({**line, "kwh": 1 / 3, "kwh_saved": 2 / 3}, 1.0).plain) == 40
    assert bar({**line, "kwh": 0.0, "kwh_saved": 0.0}, 0.0).plain == ""
    assert figures({**line, "kwh": 0.0, "kwh_saved": 0.0}) == ("1.0", "0.00", "0.00", "0")
    assert figures(line, carbon=True)[-1] == "1.50"


def test_nodes_before_a_deadline_on_the_command_line(served: Served) -> None:
    """The request is placed, and one that says too much or too little is refused before it is
    sent."""
    submit = ("request", "submit", "web", "1")
    for words in (
        ("--before", "2027-01-01"),
        ("--before", "2027-01-01", "--at", "2027-01-01", "--for", "1h"),
        ("--for", "1h"),
    ):
        assert "--before" in said(served, *submit, *words, code=2)
    sent = ("--before", "2027-01-01T00:00Z", "--for", "1h")
    assert "web" in said(served, *submit, *sent, code=1), "there is no such vcluster"


def test_the_curve_is_shown_with_its_age_and_its_fault(served: Served, site: Site) -> None:
    """In the API, on the command line and on the portal's page."""
    rules = Energy(curve_file="/curve", curve_of="price")
    content = "".join(f"{hour},0.25\n" for hour in range(24)).encode()
    assert served.local.get("/energy")["curve"] is None
    object.__setattr__(site, "energy", rules)  # as SIGHUP does
    served.tx(energy_curve.note, rules, content, "", NOW - 60)
    assert served.local.get("/energy")["curve"] == {
        "of": "price",
        "unit": "per kWh",
        "value": 0.25,
        "read_at": NOW - 60,
        "fault": "",
    }
    served.tx(energy_curve.note, rules, None, "the server answered 500", NOW)
    assert "price: now 0.25 per kWh, read " in said(served, "energy")
    assert "the last try failed: the server answered 500" in said(served, "energy")
    page = signed_in(served).get("/energy").words
    assert "The price of a kWh is 0.25 per kWh now, read 1 min ago" in page
    assert "failed: the server answered 500." in page
