"""Reclaims over the API and for people; and requests that may be spread, or would not wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cod.client import ApiError
from cod.flows.scheduler import reclaims as flow
from cod.model import Site
from cod.pool import Pool
from cod.store import tables as t
from tests.contexts import flow_context
from tests.net.apiserver import NOW, READER, Served, as_json, said, serving
from tests.store.busy_site import calm, contended, ruled

pytestmark = pytest.mark.slow


@pytest.fixture
def served(
    pool: Pool, reactor: Any, in_reactor: Callable[..., Any], site: Site
) -> Iterator[Served]:
    """vcluster loser is to give two of its four nodes to winner: node1 and node2, unless it names
    others."""
    with serving(pool, reactor, in_reactor, calm(ruled(site))) as served:
        served.tx(contended, calm(ruled(site)))
        yield served


def test_listed_and_shown(served: Served) -> None:
    listed = served.local.get("/reclaims", state="open")["items"]
    assert [
        (one["vcluster"], one["wanted_by"], one["count"], one["given"], one["chosen"])
        for one in listed
    ] == [("loser", "winner", 2, 0, ["node1", "node2"])]
    assert served.local.get(f"/reclaims/{listed[0]['id']}") == listed[0]
    assert (listed[0]["deadline"], listed[0]["block"], listed[0]["request"]) == (120.0, "", 3)
    assert served.local.get("/reclaims", vcluster="winner")["items"] == []
    assert served.remote(READER).get("/reclaims")["items"] == listed
    for number in ("99", "none"):
        with pytest.raises(ApiError, match="there is no reclaim") as missing:
            served.local.get(f"/reclaims/{number}")
        assert missing.value.status == 404


def test_answered(served: Served) -> None:
    number = served.local.get("/reclaims")["items"][0]["id"]
    done = served.local.post(f"/reclaims/{number}/answer", {"nodes": ["node0", "node3"]})
    assert (done["state"], done["given"], done["chosen"]) == ("done", 2, [])
    assert served.local.post(f"/reclaims/{number}/answer", {"nodes": ["node3"]}) == done
    assert {effect.what for effect in served.effects} >= {"manager", "power"}
    assert served.local.get("/vclusters/loser")["size"] == 2


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"nodes": []}, 422, "nodes"),
        ({"nodes": ["node9"]}, 404, "nodes"),
        ({}, 422, "nodes"),
        ({"nodes": ["node0", "node1", "node2"]}, 409, "nodes"),
        ({"nodes": ["node1"], "more": 1}, 422, "more"),
    ],
)
def test_no_answer(served: Served, body: Any, status: int, field: str) -> None:
    number = served.local.get("/reclaims")["items"][0]["id"]
    with pytest.raises(ApiError) as refused:
        served.local.post(f"/reclaims/{number}/answer", body)
    assert (refused.value.status, refused.value.field) == (status, field)
    with pytest.raises(ApiError, match="only read"):
        served.remote(READER).post(f"/reclaims/{number}/answer", {"nodes": ["node1"]})
    assert served.local.get(f"/reclaims/{number}")["given"] == 0


def test_on_the_command_line(served: Served) -> None:
    lines = said(served, "reclaim", "list", "--state", "open").splitlines()
    assert lines[0].split()[:4] == ["ID", "VCLUSTER", "FOR", "REQUEST"]
    assert lines[1].split()[1:3] == ["loser", "winner"]
    number = lines[1].split()[0]
    assert as_json(served, "reclaim", "list")[0]["count"] == 2
    assert "node1 node2" in said(served, "reclaim", "show", number)
    assert "has no node 'n9'" in said(served, "reclaim", "answer", number, "n9", code=1)
    assert as_json(served, "reclaim", "answer", number, "n1")["given"] == 1
    assert "done" in said(served, "reclaim", "answer", number, "node3")
    said(served, "reclaim", "show", "none", code=2)


def test_when_a_vcm_gives_back_what_it_has_promised(served: Served, site: Site) -> None:
    """To those who wait, and to those who lose: over the API and on the command line."""
    number = served.local.get("/reclaims")["items"][0]["id"]
    served.tx(
        flow.answer,
        flow_context(site, NOW, "vcm:x"),
        reclaim_id=number,
        nodes_=[],
        later={"node3": 119.0},
    )
    shown = served.local.get(f"/reclaims/{number}")
    assert (shown["chosen"], shown["promised"]) == (["node1", "node3"], {"node3": 119.0})
    assert "node1 node3 (any moment)" in said(served, "reclaim", "show", number)
    why = served.local.get(f"/requests/{shown['request']}/explain")
    assert ("the VCM of loser gives nodes back", 1) in [
        (one["sentence"], one["count"]) for one in why["chances"]
    ]


def test_requests_say_whether_they_wait_and_spread(served: Served) -> None:
    new = {"name": "new", "boot_mac": "52:54:00:00:00:99", "since": NOW, "generation": 1}
    served.tx(
        lambda tx: tx.execute(t.nodes.insert().values(state="new", disk="dirty", **new))
    )  # is expected
    said(
        served,
        "vcluster",
        "create",
        "a",
        "--size",
        "1",
        "--template",
        "debian",
        "--spread",
        "--no-wait",
    )
    said(served, "vcluster", "create", "b", "--size", "1", "--template", "debian")
    said(served, "vcluster", "resize", "loser", "5", "--spread")
    served.local.post("/vclusters/loser/requests", {"tuples": [{"count": 1}], "wait": False})
    asked = served.local.get("/requests")["items"][3::-1]
    assert [(one["vcluster"], one["may_wait"], one["may_spread"]) for one in asked] == [
        ("a", False, True),
        ("b", True, False),
        ("loser", True, True),
        ("loser", False, False),
    ]


def test_a_vcluster_shows_that_it_drains(served: Served) -> None:
    shown = served.local.get("/vclusters/loser")
    assert (shown["drain_until"], shown["ready_at"]) == (None, None)
    with pytest.raises(ApiError) as refused:
        served.local.post("/vclusters/loser/extend", {"lease": -5})
    assert refused.value.status == 422
