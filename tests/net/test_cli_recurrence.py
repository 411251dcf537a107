"""Clusters that are reserved for each week from the command line."""
# ruff: noqa: F401, F811 (fixtures)

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from cod.store.scheduler import node_counts
from tests.net.apiserver import NOW, Served, as_json, run
from tests.net.ownersite import engine, furnished_sqlite, there


def test_a_cluster_is_reserved_for_each_week(
    there: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tell of each whether it is accepted; those that are there already stay."""
    monkeypatch.setattr("cod.cli.scheduler.vcluster.time.time", lambda: NOW)
    size = sum(one.nodes for one in there.tx(node_counts.free, [], False, NOW))
    start = datetime.fromtimestamp(NOW + 86400, UTC).isoformat()
    weekly = ("--size", size, "--template", "debian", "--from", start, "--for", "10h", "--spread")
    weekly = (*weekly, "--repeat", "weekly", "--zone", "Europe/Berlin", "--count")
    made = as_json(there, "vcluster", "create", "course", *weekly, 3)
    assert [one["state"] for one in made] == ["pending"] * 3
    again = as_json(there, "vcluster", "create", "course", *weekly, 4)
    assert again[:3] == made
    refused = run(there, "vcluster", "create", "other", *weekly, 2, "--json", code=1)
    first, second = json.loads(refused.stdout)
    assert (first["state"], second["state"]) == (None, "pending"), "a lease ends in between"
    assert "not free from" in first["detail"]
    assert (
        "--repeat goes with --from"
        in run(
            there,
            "vcluster",
            "create",
            "x",
            "--size",
            1,
            "--template",
            "d",
            "--repeat",
            "daily",
            code=2,
        ).stderr
    )
