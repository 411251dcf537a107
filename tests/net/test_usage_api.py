"""The pool over time over the API: as JSON and as a table, by rights; counted by the accountant's
clockwork."""

from __future__ import annotations

import csv
import http.client
from io import StringIO
from typing import Any

import pytest
from sqlalchemy import insert
from twisted.internet.task import Clock

from cod.client import ApiError
from cod.model import Role, Site, SiteRef
from cod.pool import Pool
from cod.store import tables as t
from cod.store.people import groups
from cod.workers.energy import Accountant
from tests.net.apiserver import ADMIN, NOW, Served, add_node
from tests.net.credentials import as_user
from tests.store.manager_world import add_template
from tests.waiting import until

START = int(NOW // 300) * 300


def book(tx: Any) -> None:
    """Vclusters 'web' of site and 'dark' of other, four nodes and one; two are off."""
    template = add_template(tx)
    for number, (name, group) in enumerate((("web", "site"), ("dark", "other")), 1):
        tx.execute(
            insert(t.vclusters).values(
                id=number,
                name=name,
                live_name=name,
                group_id=groups.ensure(tx, group, 0.0).id,
                state="active",
                template_id=template,
                size=1,
                creation_size=1,
                lease_time=1.0,
                created_at=0.0,
            )
        )
    tx.execute(
        insert(t.pool_held),
        [
            {
                "span": 300,
                "start": START,
                "vcluster_id": number,
                "type_id": 0,
                "seconds": nodes * 300.0,
            }
            for number, nodes in ((1, 4), (2, 1))
        ],
    )
    tx.execute(
        insert(t.pool_states),
        [
            {"span": 300, "start": START, "type_id": 0, "state": state, "seconds": nodes * 300.0}
            for state, nodes in (("active", 5), ("off", 2))
        ],
    )


def series(chart: Any) -> dict[str, float]:
    return {one["name"]: one["nodes"][-1] for one in chart["series"]}


def test_who_held_what_when(served: Served) -> None:
    served.tx(book)
    window = {"from": START, "to": START + 1}
    chart = served.local.get("/timeline", **window)
    assert (chart["by"], chart["span"], chart["starts"], series(chart)) == (
        "vcluster",
        300,
        [START],
        {"web": 4.0, "dark": 1.0},
    )
    assert series(served.local.get("/timeline", by="group", **window)) == {
        "site": 4.0,
        "other": 1.0,
    }
    assert series(served.local.get("/timeline", vcluster="dark", **window)) == {"dark": 1.0}
    ann = as_user(served, "ann", "other", Role.VIEWER)
    assert series(ann.get("/timeline", **window)) == {"dark": 1.0}
    assert series(ann.get("/timeline", group="other", **window)) == {"dark": 1.0}
    for query in ({"group": "site"}, {"vcluster": "web"}):
        with pytest.raises(ApiError) as caught:
            ann.get("/timeline", **query)
        assert caught.value.status == 404
    assert series(ann.get("/pool/history", **window)) == {"active": 5.0, "off": 2.0}


@pytest.mark.parametrize(
    ("query", "accept", "is_csv"),
    [
        ("&format=csv", "application/json", True),
        ("", "text/csv", True),
        ("", "text/csv, application/json", False),
        ("", "*/*", False),
        ("&format=json", "text/csv", False),
    ],
)
def test_numbers_as_a_table(served: Served, query: str, accept: str, is_csv: bool) -> None:
    served.tx(book)
    connection = http.client.HTTPConnection("127.0.0.1", served.server.ports[0], timeout=60)
    connection.request(
        "GET",
        f"/api/v1/timeline?from={START}&to={START + 1}{query}",
        headers={"Authorization": f"Bearer {ADMIN}", "Accept": accept},
    )
    reply = connection.getresponse()
    text = reply.read().decode()
    connection.close()
    assert (reply.getheader("Content-Type") or "").startswith(
        "text/csv" if is_csv else "application/json"
    )
    if is_csv:
        assert list(csv.reader(StringIO(text))) == [
            ["start", "seconds", "vcluster", "nodes"],
            [str(START), "300", "web", "4.0"],
            [str(START), "300", "dark", "1.0"],
        ]


def test_energy_as_a_table(served: Served) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", served.server.ports[0], timeout=60)
    connection.request(
        "GET", "/api/v1/energy?format=csv", headers={"Authorization": f"Bearer {ADMIN}"}
    )
    assert connection.getresponse().read() == b"group,node_hours,kwh,kwh_saved,gco2,cost\r\n"
    connection.close()


def test_the_accountant_counts_once_a_minute(
    pool: Pool, served: Served, site: Site, in_reactor: Any
) -> None:
    add_node(served, "n1", 1)
    clock, time = Clock(), [float(START)]
    accountant = Accountant(clock, pool, SiteRef(site), lambda: time[0])
    in_reactor(accountant.startService)
    until(lambda: served.local.get("/pool/history")["counted_until"] == START, "the first count")
    time[0] += 60
    in_reactor(lambda: clock.advance(60))
    until(
        lambda: served.local.get("/pool/history")["counted_until"] == START + 60, "the second count"
    )
    in_reactor(accountant.stopService)
    chart = served.local.get("/pool/history", **{"from": START, "to": START + 60})
    assert series(chart) == {"new": pytest.approx(60 / 300)}


def test_a_groups_use_of_the_site_beside_the_others(served: Served) -> None:
    day = int(NOW // 86400) * 86400
    served.tx(book)

    def days(tx: Any) -> None:
        groups.change(tx, groups.named(tx, "other").id, priority=5)
        held, states = ((1, 2.0), (2, 5.0)), (("active", 7.0), ("inactive", 3.0), ("new", 9.0))
        common = {"span": 86400, "start": day - 86400, "type_id": 0}
        tx.execute(
            insert(t.pool_held),
            [common | {"vcluster_id": one, "seconds": n * 86400} for one, n in held],
        )
        tx.execute(
            insert(t.pool_states),
            [common | {"state": one, "seconds": n * 86400} for one, n in states],
        )

    served.tx(days)
    use = served.local.get("/shares/site/use")
    assert (use["own"], use["free"]) == (pytest.approx(0.2), pytest.approx(0.3))
    assert {one["priority"]: (one["groups"], one["part"]) for one in use["others"]} == {
        "higher": (1, pytest.approx(0.5)),
        "equal": (0, 0.0),
        "lower": (0, 0.0),
    }
    assert "1 group of higher priority used 50 %; 30 % were free." in use["sentence"]
    [full] = [one for one in use["days"] if one["own"]]
    assert (full["at"], full["own"], full["higher"], full["free"]) == (day - 86400, 2.0, 5.0, 3.0)
