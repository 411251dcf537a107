"""Clusters that are reserved for each week, from the command line."""
# ruff: noqa: F401, F811 (fixtures)

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from cod.client import ApiError
from cod.model import Site, SiteRef
from cod.store import tables as t
from cod.store.scheduler import node_counts
from cod.workers.series import SeriesKeeper
from tests.net.apiserver import NOW, Served, as_json, run
from tests.net.handpool import HandPool
from tests.net.ownersite import engine, furnished_sqlite, there

pytestmark = pytest.mark.slow


def test_a_cluster_is_reserved_for_each_week(
    there: Served, site: Site, engine: Any, reactor: Any, in_reactor: Any
) -> None:
    size = sum(one.nodes for one in there.tx(node_counts.free, [], False, NOW))
    start = datetime.fromtimestamp(NOW + 86400, UTC)
    names = [
        f"course-{datetime.fromtimestamp(NOW + 86400 * day, UTC):%Y-%m-%d}" for day in (1, 8, 15)
    ]
    create = ("vcluster", "create", "course", "--size", size, "--template", "debian", "--spread")
    times = ("--from", start.isoformat(), "--for", "10h", "--repeat", "weekly")
    weekly = (*create, *times, "--zone", "UTC", "--count", 3)
    made = as_json(there, *weekly)
    assert [one["vcluster"] for one in made["occurrences"]] == names[:1]
    assert as_json(there, *weekly, "--if-missing") == made
    assert "already" in run(there, *weekly, code=1).stderr
    assert "--from" in run(there, *create, "--repeat", "daily", code=2).stderr
    for idle in (("--count", 3), ("--zone", "UTC"), ("--last", start.isoformat())):
        assert "go with --repeat" in run(there, *create, *idle, code=2).stderr
    pool = HandPool(engine)
    clock = [NOW]
    keeper = SeriesKeeper(reactor, pool, SiteRef(site), lambda: clock[0])
    keeper.running = True
    failures = [ValueError("a bug")]

    def fail_once(flow: str) -> None:
        if flow == "reserve" and failures:
            raise failures.pop()

    pool.before = fail_once
    in_reactor(lambda: Deferred.fromCoroutine(keeper.look()))
    shown = as_json(there, "series", "show", "course")
    assert [one["vcluster"] for one in shown["occurrences"]] == [names[0], names[2]]
    in_reactor(lambda: Deferred.fromCoroutine(keeper.look()))
    shown = as_json(there, "series", "show", "course")
    assert [one["vcluster"] for one in shown["occurrences"]] == names
    assert "reserved" in run(there, "series", "show", "course").stdout
    run(there, "vcluster", "delete", names[2], "--yes")
    refused = t.series_occurrences.update().where(t.series_occurrences.c.vcluster == names[2])
    there.tx(lambda tx: tx.execute(refused.values(refused="No room.")))
    states = []
    for clock[0] in (NOW + 540.0, NOW + 600.0):
        in_reactor(lambda: Deferred.fromCoroutine(keeper.look()))
        shown = as_json(there, "series", "show", "course")
        states.append([one["state"] for one in shown["occurrences"]])
    assert states == [["reserved", "reserved", state] for state in ("refused", "reserved")]
    run(there, "vcluster", "delete", names[2], "--yes")
    there.tx(lambda tx: tx.execute(refused.values(refused="No room.")))
    clock[0] = NOW - 3600.0  # it was wrong, and is set: nothing waits until it is that time again
    in_reactor(lambda: Deferred.fromCoroutine(keeper.look()))
    shown = as_json(there, "series", "show", "course")
    assert shown["occurrences"][2]["state"] == "reserved"
    clock[0] = NOW + 600.0
    assert [one["name"] for one in as_json(there, "series", "list")] == ["course"]
    body = {"name": "x", "size": 1, "template": "debian", "zone": "UTC", "lease": 60.0}
    for more, why in (
        ({"vcm_inside": True}, "without a VCM"),
        ({"volumes": [{"volume": "physics/scratch"}]}, "volumes of their group"),
    ):
        with pytest.raises(ApiError, match=why):
            there.local.post("/series", {**body, "starts_at": NOW + 9.0, **more})
    as_json(there, "series", "end", "course")
    assert as_json(there, "series", "list") == []
    assert there.local.get(f"/vclusters/{names[2]}")["state"] == "pending"
