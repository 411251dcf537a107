"""Moves of nodes between vclusters: over the API, on the command line and in the portal, by whoever
works with both."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from cod.client import ApiError
from cod.flows.scheduler import moves as flow
from cod.model import Role, Site, Who
from cod.pool import Pool
from cod.store.people import groups
from tests.contexts import flow_context
from tests.net.apiserver import NOW, READER, Served, as_json, said, serving
from tests.net.portalclient import signed_in
from tests.store.busy_site import calm, people, ruled, want
from tests.store.manager_world import add_node, arrive, run_pass

pytestmark = pytest.mark.slow


def furnish(tx: Any, site: Site) -> None:
    """'old' of group low and 'fresh' of group high, of three nodes each."""
    people(tx)
    for number in range(6):
        add_node(tx, number)
    want(tx, site, "old", 3, 4096, NOW)
    want(tx, site, "fresh", 3, 4096, NOW, "high")
    run_pass(tx, site, NOW)
    arrive(tx, NOW)


@pytest.fixture
def served(
    pool: Pool, reactor: Any, in_reactor: Callable[..., Any], site: Site
) -> Iterator[Served]:
    quiet = calm(ruled(site))
    quiet = replace(quiet, policy=replace(quiet.policy, default_lease=9e8))
    with serving(pool, reactor, in_reactor, quiet) as served:
        served.tx(furnish, quiet)
        yield served


def member(served: Served, *names: str) -> Any:
    """The browser of a member of those groups."""
    roles = {served.tx(groups.by_name, name).id: Role.MEMBER for name in names}
    return signed_in(served, Who(f"user:{'-'.join(names)}", user_id=0, roles=roles))


def test_asked_for_listed_and_withdrawn(served: Served) -> None:
    made = served.local.post("/vclusters/old/moves", {"to": "fresh", "nodes": 2, "within": 3600})
    assert (made["kind"], made["vcluster"], made["state"]) == ("move", "fresh", "pending")
    assert made["move"] == {"source": "old", "deadline": NOW + 3600, "leaving": 2, "granted": 0}
    assert served.local.get("/requests", kind="move")["items"] == [made]
    assert served.remote(READER).get(f"/requests/{made['id']}") == made
    (taken,) = served.local.get("/reclaims", vcluster="old")["items"]
    assert (taken["wanted_by"], taken["moves"], taken["count"]) == ("fresh", True, 2)
    assert [
        one["kind"] for one in served.local.get("/requests")["items"] if one["move"] is None
    ] == ["create"] * 2
    assert (
        "old gives nodes back at the latest"
        in served.local.get(f"/requests/{made['id']}/explain")["sentence"]
    )
    assert served.local.delete(f"/requests/{made['id']}")["state"] == "withdrawn"
    assert served.local.get("/reclaims", state="open")["items"] == []


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"to": "fresh", "nodes": 3}, 409, "nodes"),
        ({"to": "old", "nodes": 1}, 422, "to"),
        ({"to": "none", "nodes": 1}, 404, "to"),
        ({"nodes": 1}, 422, "to"),
        ({"to": "fresh", "nodes": 0}, 422, "nodes"),
        ({"to": "fresh", "nodes": 1, "within": -1}, 422, "within"),
        ({"to": "fresh", "nodes": 1, "types": ["vax"]}, 404, "types"),
    ],
)
def test_refused_by_field(served: Served, body: Any, status: int, field: str) -> None:
    with pytest.raises(ApiError) as refused:
        served.local.post("/vclusters/old/moves", body)
    assert (refused.value.status, refused.value.field) == (status, field)
    with pytest.raises(ApiError, match="only read"):
        served.remote(READER).post("/vclusters/old/moves", {"to": "fresh", "nodes": 1})
    assert served.local.get("/requests", kind="move")["items"] == []


def test_on_the_command_line(served: Served) -> None:
    said(served, "vcluster", "move", "old", "fresh", "1", "--within", "6h", "--key", "k")
    said(served, "vcluster", "move", "old", "fresh", "1", "--within", "6h", "--key", "k")
    lines = said(served, "vcluster", "moves").splitlines()
    assert lines[0].split()[:4] == ["REQUEST", "FROM", "TO", "NODES"]
    assert lines[1].split()[1:8] == ["old", "fresh", "1", "1", "0", "0", "waiting"]
    (one,) = as_json(served, "vcluster", "moves", "--to", "fresh")
    assert one["move"]["deadline"] == NOW + 6 * 3600
    assert (
        as_json(served, "vcluster", "move", "old", "fresh", "1", "--within", "0")["move"][
            "deadline"
        ]
        == NOW
    )
    assert "one stays: 0 can move at most" in said(
        served, "vcluster", "move", "old", "fresh", "1", code=1
    )
    said(served, "vcluster", "move", "old", "fresh", "1", "--within", "soon", code=2)
    said(served, "request", "withdraw", str(one["id"]))
    assert [each["id"] for each in as_json(served, "vcluster", "moves")] == [one["id"] + 1]
    assert len(as_json(served, "vcluster", "moves", "--all")) == 2


def test_only_who_works_with_both_may(served: Served) -> None:
    """A person who has one of them alone does not learn whether the other is there."""
    for one, own, source, to in (
        ("low", "old", "old", "fresh"),
        ("high", "fresh", "old", "fresh"),
        ("low", "old", "old", "none"),
    ):
        browser = member(served, one)
        csrf = dict(browser.get(f"/vclusters/{own}").fields(f"/vclusters/{own}/resize"))["csrf"]
        answer = browser.post(
            f"/vclusters/{source}/moves", {"csrf": csrf, "to": to, "nodes": 1, "within": "1h"}
        )
        assert answer.status == 404, (one, source, to)
    assert served.local.get("/requests", kind="move")["items"] == []


def test_in_the_portal(served: Served) -> None:
    ann = member(served, "low", "high")
    shown = ann.get("/vclusters/old")
    assert re.findall(r'<option\s+value="(\w+)"', shown.text[shown.text.index('id="move"') :]) == [
        "fresh"
    ]
    done = shown.send("/vclusters/old/moves", nodes=2, within="6h")
    assert "2 nodes of old will move to fresh." in done.words
    page = done.words
    assert "2 nodes will move" in page
    assert "has a higher priority" not in page
    assert "from old" in ann.get("/vclusters/fresh").text
    assert "0 moved, 2 still held until" in ann.get("/vclusters/fresh").words
    assert "from old" in ann.get("/requests").text
    wrong = done.send("/vclusters/old/moves", nodes=2, within="0")
    assert (wrong.status, "one stays: 0 can move at most" in wrong.words) == (409, True)


def test_others_do_not_learn_the_other_vclusters_name(served: Served, site: Site) -> None:
    made = served.tx(
        flow.start,
        flow_context(site, NOW, "user:x"),
        source="old",
        target="fresh",
        count=1,
        within=60.0,
    )
    high = member(served, "high")
    assert "from a cluster of another group" in high.get("/vclusters/fresh").text
    assert "old" not in re.sub(
        "hold|older|bold|fold|told", "", high.get(f"/requests/{made.value.request.id}").text
    )
    assert (
        "A virtual cluster of another group gets 1 node"
        in member(served, "low").get("/vclusters/old").words
    )
    assert 'id="move"' not in member(served, "low").get("/vclusters/old").text, (
        "there is no other to move to"
    )
