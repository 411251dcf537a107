"""The next pass, and why a request waits, over the API and for people: nothing of it is done."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from cod.cli.nodes.node import immunity
from cod.cli.scheduler.plan import print_explanation
from cod.client import ApiError
from cod.flows.scheduler import apply_plan as acting
from cod.flows.scheduler import plan as flow
from cod.flows.scheduler.explain import OTHERS
from cod.model import Role, Site
from cod.pool import Pool
from cod.store import claims
from cod.store import tables as t
from tests.net.apiserver import NOW, READER, Served, said, serving
from tests.net.credentials import as_user

pytestmark = pytest.mark.slow

KINDS = (
    "warn",
    "drain",
    "expire",
    "end",
    "seize",
    "grant",
    "ease",
    "take",
    "hold",
    "reserve",
    "reject",
    "wait",
    "wake",
    "sleep",
)
WANTS = '<requires><memory><mib min="{}GiB"/></memory></requires>'
TYPE = '<node><memory mib="{}" /></node>'


@pytest.fixture
def served(
    pool: Pool, reactor: Any, in_reactor: Callable[..., Any], site: Site
) -> Iterator[Served]:
    with serving(pool, reactor, in_reactor, site) as served:
        served.tx(furnish)
        yield served


def furnish(tx: Any) -> None:
    """Two types. Vcluster 'low' holds four large nodes, two of them beyond its creation size, one
    of those immune; one large node and two small ones are free. Three requests of 'high', which
    goes before, and one that is behind it."""
    _put(
        tx,
        t.groups,
        {"id": 7, "name": "poor", "priority": 1, "created_at": 0.0},
        {"id": 8, "name": "rich", "priority": 5, "created_at": 0.0},
    )
    _put(
        tx,
        t.node_types,
        *(
            {
                "id": n,
                "name": name,
                "digest": name,
                "cost": cost,
                "created_at": 0.0,
                "attributes": TYPE.format(gib * 1024),
            }
            for n, name, gib, cost in ((1, "small", 16, 1.0), (2, "large", 64, 4.0))
        ),
    )
    _put(tx, t.node_blocks, {"id": 1, "name": "rack1"})
    _put(
        tx,
        t.config_templates,
        {
            "id": 1,
            "name": "web",
            "revision": 1,
            "digest": "",
            "created_at": 0.0,
            "document": '<template name="web"><image target="disk" name="red"/></template>',
        },
    )
    _put(
        tx,
        t.vclusters,
        *(
            {
                "id": n,
                "name": name,
                "live_name": name,
                "group_id": group,
                "state": state,
                "template_id": 1,
                "size": 4,
                "creation_size": 2,
                "lease_time": 9e4,
                "created_at": 0.0,
                "subnet": "lab",
                "expires_at": ends,
            }
            for n, name, group, state, ends in (
                (1, "low", 7, "active", NOW + 9e4),
                (2, "high", 8, "active", NOW + 9e4),
                (3, "next", 7, "pending", None),
            )
        ),
    )
    _put(
        tx,
        t.vcluster_blocks,
        *(
            {
                "vcluster_id": n,
                "subnet": "lab",
                "first_address": 0x0A4D8000 + 64 * n,
                "last_address": 0x0A4D803F + 64 * n,
            }
            for n in (1, 2, 3)
        ),
    )
    held = {"state": "active", "disk": "dirty", "vcluster_id": 1, "template_id": 1, "type_id": 2}
    free = {
        "state": "inactive",
        "disk": "clean",
        "vcluster_id": None,
        "template_id": None,
        "assigned_at": None,
    }
    rows: list[dict[str, Any]] = [
        held | {"assigned_at": NOW - 60 if n == 3 else NOW - 9e3} for n in range(4)
    ]
    rows += [free | {"type_id": 2}, free | {"type_id": 1}, free | {"type_id": 1}]
    _put(
        tx,
        t.nodes,
        *(
            {
                "id": n,
                "name": f"n{n}",
                "since": 0.0,
                "generation": 1,
                "boot_mac": f"52:54:00:00:00:{n:02}",
                "block_id": 1,
                "power_driver": "lab",
                "hostname": f"h{n}" if row["vcluster_id"] else None,
                **row,
            }
            for n, row in enumerate(rows, 1)
        ),
    )
    wanted = (
        (11, 2, 5, 1, ""),
        (12, 2, 5, 2, WANTS.format(32)),
        (13, 3, 1, 2, WANTS.format(32)),
        (14, 2, 5, 1, WANTS.format(512)),
    )
    _put(
        tx,
        t.node_requests,
        *(
            {
                "id": n,
                "vcluster_id": owner,
                "kind": "grow" if owner == 2 else "create",
                "state": "pending",
                "priority": priority,
                "submitted_at": NOW - 9e3 + n,
            }
            for n, owner, priority, _, _ in wanted
        ),
    )
    _put(
        tx,
        t.request_tuples,
        *(
            {"request_id": n, "position": 0, "count": count, "attributes": wants, "template_id": 1}
            for n, _, _, count, wants in wanted
        ),
    )


def _put(tx: Any, table: Any, *rows: dict[str, Any]) -> None:
    tx.execute(table.insert(), list(rows))


def rows(served: Served) -> dict[str, int]:
    """How many rows the tables have that a pass writes to, and what it would change of requests."""
    tables = (t.node_history, t.reservations, t.reclaims, t.power_actions, t.notices)

    def count(tx: Any) -> dict[str, int]:
        found = {table.name: tx.scalar(select(func.count()).select_from(table)) for table in tables}
        told = select(func.count()).where(
            (t.node_requests.c.state != "pending") | (t.node_requests.c.reason != "")
        )
        return found | {"told": tx.scalar(told)}

    return served.tx(count)


# ---------------------------------------------------------------- the next pass


def test_the_plan_says_what_a_pass_would_do_and_does_nothing(served: Served) -> None:
    items = served.local.get("/plan")["items"]
    printed = [
        (one["kind"], one["vcluster"], one["request"], one["nodes"], one["type"], one["block"])
        for one in items
    ]
    assert printed == [
        ("grant", "high", 11, 1, "small", "rack1"),
        ("take", "low", 12, 1, "large", "rack1"),
        ("reject", "high", 14, 0, None, None),
        ("wait", "high", 12, 0, None, None),
        ("wait", "next", 13, 0, None, None),
    ]
    assert "512GiB wanted" in items[2]["about"]
    assert all(one["kind"] in KINDS for one in items)
    assert not any(rows(served).values())


def test_a_pass_does_what_the_plan_said(served: Served, site: Site) -> None:
    def run_pass(tx: Any) -> list[str]:
        claim = claims.hold(tx, "manager", "a", NOW, 10.0)
        done = [*acting.acts(flow.decide(flow.snapshot(tx, site, NOW), site, NOW), site)]
        for act in done:
            act.flow(tx, claim=claim, now=NOW)
        return [act.name for act in done]

    assert served.tx(run_pass) == [
        "grant request 11",
        "take for request 12",
        "tell requests why not",
    ]
    again = served.local.get("/plan")["items"]
    assert [(one["kind"], one["request"]) for one in again] == [
        ("wait", 12),
        ("wait", 13),
    ], "told, and still shown"


def test_the_plan_for_people(served: Served) -> None:
    lines = said(served, "plan").splitlines()
    assert lines[0].split() == [
        "WHAT",
        "NODES",
        "TYPE",
        "BLOCK",
        "SUBNET",
        "VCLUSTER",
        "REQUEST",
        "WHY",
    ]
    assert lines[2].split()[:7] == ["take", "1", "large", "rack1", "-", "low", "12"]
    assert [line.split()[0] for line in said(served, "plan", "--no-waits").splitlines()[1:]] == [
        "grant",
        "take",
        "reject",
    ]
    assert json.loads(said(served, "plan", "--json"))["items"][0]["about"] == "awake"
    for number in (11, 12, 13, 14):
        said(served, "request", "withdraw", str(number), code=1 if number == 13 else 0)
    said(served, "vcluster", "delete", "next")
    assert said(served, "plan") == "nothing to do\n"


# ---------------------------------------------------------------- why a request waits


def test_why_a_request_waits(served: Served) -> None:
    why = served.local.get("/requests/13/explain")
    assert (why["request"], why["vcluster"], why["state"], why["code"]) == (
        13,
        "next",
        "pending",
        "busy",
    )
    assert (why["wanted"], why["fitting"], why["free"], why["coming"]) == (2, 5, 1, 0)
    ahead = {
        one["request"]: (one["vcluster"], one["priority"], one["wanted"]) for one in why["ahead"]
    }
    assert ahead == {12: ("high", 5, 2), 11: ("high", 5, 1)}
    assert why["position"] == 3, "among those that want the same types"
    assert why["sentence"].startswith(why["reason"])
    small, large = why["types"]
    (lacks,) = small["lacks"]
    assert (small["name"], small["site"], lacks["position"]) == ("small", 2, 0)
    assert "32GiB wanted" in lacks["phrases"][0]
    assert (large["name"], large["free"], large["held"], large["lacks"]) == ("large", 1, 4, [])
    (held,) = why["holders"]
    assert (held["vcluster"], held["count"], held["takeable"], held["protected"]) == (
        "low",
        4,
        0,
        "priority",
    )
    assert any(one["count"] == 4 and one["at"] > NOW for one in why["chances"])
    assert not any(rows(served).values())


def test_what_may_be_taken_and_what_protects_the_rest(served: Served) -> None:
    (held,) = served.local.get("/requests/12/explain")["holders"]
    assert (held["takeable"], held["protected"]) == (2, "floor")


def test_names_of_other_groups_are_not_told(served: Served) -> None:
    poor, rich = as_user(served, "ann", "poor", Role.VIEWER), as_user(served, "bob", "rich")
    why = poor.get("/requests/13/explain")
    assert [(one["request"], one["vcluster"]) for one in why["ahead"]] == [
        (None, OTHERS),
        (None, OTHERS),
    ]
    assert why["holders"][0]["vcluster"] == "low"
    assert "high" not in json.dumps(why)
    why = rich.get("/requests/12/explain")
    assert (why["holders"][0]["vcluster"], why["holders"][0]["takeable"]) == (OTHERS, 2)
    assert "low" not in json.dumps(why).replace("lower", "")
    with pytest.raises(ApiError) as caught:
        rich.get("/requests/13/explain")
    assert caught.value.status == 404
    with pytest.raises(ApiError) as caught:
        rich.get("/plan")
    assert caught.value.status == 403


# ---------------------------------------------------------------- a request that nobody has made


def test_what_would_come_of_a_request(served: Served) -> None:
    before = served.tx(counts)
    found = served.local.post("/match", {"count": 1, "group": "rich", "template": "web"})
    assert (found["granted"], found["code"], found["matching"], found["expected_at"]) == (
        True,
        "granted",
        7,
        NOW,
    )
    assert {fit["name"]: (fit["site"], fit["free"], fit["lacks"]) for fit in found["types"]} == {
        "small": (2, 2, []),
        "large": (5, 1, []),
    }
    large = served.local.post(
        "/match", {"count": 2, "group": "poor", "attributes": WANTS.format(32)}
    )
    assert (large["granted"], large["code"], large["matching"]) == (False, "busy", 5)
    assert large["expected_at"] > NOW + 9e4
    assert "32GiB wanted" in large["types"][0]["lacks"][0]["phrases"][0]
    assert served.local.post("/match", {"count": 9, "group": "poor"})["code"] == "impossible"
    more = served.local.post("/match", {"count": 1, "vcluster": "low"})
    assert (more["room"], more["wanted"]) == (32_381, 1)
    assert served.tx(counts) == before


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"count": 0}, 422, "count"),
        ({"count": 1, "group": "none"}, 404, "group"),
        ({"count": 1, "vcluster": "none"}, 404, "vcluster"),
        ({"count": 1, "vcluster": "next"}, 409, "vcluster"),
        ({"count": 1, "template": "none"}, 404, "template"),
        ({"count": 1, "attributes": "<requires>"}, 422, "attributes"),
        ({"count": 1, "attributes": "<requires><colour/></requires>"}, 422, "attributes"),
    ],
)
def test_what_cannot_be_asked_for(
    served: Served, body: dict[str, Any], status: int, field: str
) -> None:
    with pytest.raises(ApiError) as caught:
        served.local.post("/match", body)
    assert (caught.value.status, caught.value.field) == (status, field)


def test_others_ask_for_their_own_groups(served: Served) -> None:
    ann = as_user(served, "ann", "rich", Role.VIEWER)
    found = ann.post("/match", {"count": 5, "group": "rich", "attributes": WANTS.format(32)})
    assert not found["granted"]
    assert OTHERS in json.dumps(found["chances"])
    assert "low" not in json.dumps(found).replace("lower", "")
    for body in ({"count": 1, "group": "poor"}, {"count": 1, "vcluster": "low"}):
        with pytest.raises(ApiError) as caught:
            ann.post("/match", body)
        assert caught.value.status == 404


def test_on_the_command_line(served: Served, tmp_path: Path) -> None:
    printed = said(
        served, "request", "match", "--count", "1", "--group", "rich", "--template", "web"
    )
    assert printed.startswith("It is granted in the next pass.")
    assert "7 of the site match: 3 free" in printed
    wants = tmp_path / "wants.xml"
    wants.write_text(WANTS.format(32))
    printed = said(
        served,
        "request",
        "match",
        "--count",
        "2",
        "--group",
        "poor",
        "--attributes",
        str(wants),
        code=1,
    )
    assert "as far as leases tell there are enough" in printed
    assert re.search(r"^small +1 +2 +2 +0 +0 +memory/mib", printed, re.MULTILINE)
    assert (
        json.loads(said(served, "request", "match", "--count", "9", "--json", code=1))["code"]
        == "impossible"
    )


IMPOSSIBLE = {"template": "web", "group": "rich"}


@pytest.mark.parametrize(
    ("path", "body", "detail", "remedies"),
    [
        ("/vclusters", {"size": 9}, "9 nodes wanted", [(7, True), (5, False)]),
        ("/vclusters", {"size": 7}, "in one block, the largest", [(7, True), (5, False)]),
        ("/vclusters/low/resize", {"size": 8, "spread": True}, "besides its own", [(3, True)]),
        ("/vclusters/low/requests", {"count": 2, "gib": 32}, "has 1 matching", [(1, False)]),
        ("/vclusters/high/requests", {"count": 1, "gib": 512}, "large lacks memory/mib", []),
    ],
)
def test_what_no_machines_could_ever_meet_is_not_accepted(
    served: Served,
    path: str,
    body: dict[str, Any],
    detail: str,
    remedies: list[tuple[int, bool]],
) -> None:
    field = "size"
    if path == "/vclusters":
        body = {"name": "new", **IMPOSSIBLE, **body}
    elif "gib" in body:
        field = "tuples.0.count"
        wants = {"count": body["count"], "attributes": WANTS.format(body["gib"])}
        body = {"tuples": [wants]}
    before = served.tx(counts)
    with pytest.raises(ApiError) as caught:
        served.local.post(path, body)
    refused = caught.value
    assert (refused.status, refused.code, refused.field) == (422, "impossible", field)
    assert detail in refused.detail
    assert [(one["count"], one["spread"]) for one in refused.remedies] == remedies
    assert ("Possible: " in refused.detail) == bool(remedies)
    assert served.tx(counts) == before


def test_what_could_be_met_later_waits(served: Served) -> None:
    """Nodes that are out of service may return, and expected ones may be of any type."""
    served.tx(
        lambda tx: tx.execute(t.nodes.update().where(t.nodes.c.id > 4).values(state="quarantined"))
    )
    wanted = {"size": 7, "spread": True, **IMPOSSIBLE}
    assert served.local.post("/vclusters", {"name": "later", **wanted})["state"] == "pending"
    served.tx(lambda tx: tx.execute(t.nodes.update().where(t.nodes.c.id > 6).values(type_id=None)))
    assert served.local.post("/vclusters", {"name": "expected", **wanted})["state"] == "pending"
    found = served.local.post("/match", {"count": 7, "group": "rich", "spread": True})
    assert (found["code"], found["remedies"]) == ("busy", [])
    assert "1 node of the site has not reported yet" in found["sentence"]
    with pytest.raises(ApiError):
        served.local.post("/vclusters", {"name": "never", **wanted, "size": 8})


def counts(tx: Any) -> dict[str, int]:
    """Rows of every table."""
    return {
        table.name: tx.scalar(select(func.count()).select_from(table))
        for table in t.metadata.sorted_tables
    }


# ---------------------------------------------------------------- of requests that do not wait; for
# people


def test_one_that_does_not_wait_is_explained_by_its_reason(served: Served) -> None:
    served.local.delete("/requests/12")
    why = served.local.get("/requests/12/explain")
    assert (why["state"], why["code"], why["position"], why["types"]) == (
        "withdrawn",
        "withdrawn",
        0,
        [],
    )
    assert "withdrawn by" in why["sentence"]
    assert said(served, "request", "explain", "12").startswith(
        "request 12 of vcluster high, withdrawn: withdrawn by"
    )


def test_no_such_request(served: Served) -> None:
    for wrong in ("99", "-1", "x"):
        with pytest.raises(ApiError, match="there is no request") as caught:
            served.local.get(f"/requests/{wrong}/explain")
        assert caught.value.status == 404
    assert said(served, "request", "explain", "99", code=1) == "Error: there is no request 99\n"


def test_a_reader_may_ask(served: Served) -> None:
    reader = served.remote(READER)
    assert reader.get("/plan")["items"]
    assert reader.get("/requests/13/explain")["code"] == "busy"
    reader.close()


def test_the_explanation_for_people(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    printed = said(served, "request", "explain", "13")
    titles = ["ahead of it", "types of nodes", "who holds what matches", "what would free it"]
    assert [line for line in printed.splitlines() if line in titles] == titles
    assert re.search(
        r"^small +1 +2 +2 +0 +0 +memory/mib: at least 32GiB wanted", printed, re.MULTILINE
    )
    assert re.search(r"^low +1 +4 +0 +priority +", printed, re.MULTILINE)
    assert "place 3 in the queue for these types" in printed
    assert json.loads(said(served, "request", "explain", "13", "--json"))["position"] == 3
    why = served.local.get("/requests/13/explain") | {"ahead": [], "holders": [], "chances": []}
    why["types"][0]["lacks"] = [{"position": at, "phrases": ["a", "b"]} for at in (0, 2)]
    print_explanation(why)
    printed = capsys.readouterr().out
    assert [line for line in printed.splitlines() if line in titles] == ["types of nodes"]
    assert "tuple 1: a; b; tuple 3: a; b" in printed


def test_long_parts_are_cut_unless_all_is_wanted(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    why = served.local.get("/requests/13/explain")
    why["ahead"] = [why["ahead"][0] | {"request": number} for number in range(100, 150)]
    print_explanation(why)
    printed = capsys.readouterr().out
    assert ("119 " in printed, "120 " in printed, "… and 30 more: see --all" in printed) == (
        True,
        False,
        True,
    )
    print_explanation(why, None)
    printed = capsys.readouterr().out
    assert ("149 " in printed, "more" in printed) == (True, False)
    assert "ahead of it" in said(served, "request", "explain", "13", "--all")


# ---------------------------------------------------------------- immunity


def test_every_node_says_until_when_it_is_immune(served: Served, site: Site) -> None:
    inertia = site.policy.inertia
    nodes = {one["name"]: one["immune_until"] for one in served.local.get("/nodes")["items"]}
    assert nodes == {
        "n1": NOW - 9e3 + inertia,
        "n2": NOW - 9e3 + inertia,
        "n3": NOW - 9e3 + inertia,
        "n4": NOW - 60 + inertia,
        "n5": None,
        "n6": None,
        "n7": None,
    }
    assert served.local.get("/nodes/n4")["immune_until"] == nodes["n4"]
    members = {
        one["name"]: one["immune_until"] for one in served.local.get("/vclusters/low")["nodes"]
    }
    assert members == {name: until for name, until in nodes.items() if until is not None}
    assert served.local.patch("/nodes/n4", {"name": "n44"})["immune_until"] == nodes["n4"]


def test_immunity_follows_the_holders_priority(served: Served, site: Site) -> None:
    object.__setattr__(
        site, "policy", replace(site.policy, inertia_by_priority={1: 7200.0, 5: 1.0})
    )
    assert served.local.get("/nodes/n4")["immune_until"] == NOW - 60 + 7200.0


def test_immunity_for_people(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    assert immunity(NOW + 240.0, NOW) == "4 min"
    assert immunity(NOW, NOW) is None
    assert immunity(None, NOW) is None
    monkeypatch.setattr("cod.cli.nodes.node.time.time", lambda: NOW)
    lines = {line.split()[0]: line.split() for line in said(served, "node", "list").splitlines()}
    column = lines["NODE"].index("IMMUNE")
    assert lines["n4"][column : column + 3] != lines["n3"][column : column + 3]
    assert "4 min" in " ".join(lines["n4"])
    assert re.search(r"^Immune until +\d{4}-", said(served, "node", "show", "n4"), re.MULTILINE)
    assert re.search(r"^Immune until +- *$", said(served, "node", "show", "n3"), re.MULTILINE)


def test_replies_to_changes_say_it_too(served: Served) -> None:
    extended = served.local.post("/vclusters/low/extend", {"lease": 9e4})
    shown = {
        one["name"]: one["immune_until"] for one in served.local.get("/vclusters/low")["nodes"]
    }
    assert {one["name"]: one["immune_until"] for one in extended["nodes"]} == shown
    assert None not in shown.values()
    large = served.local.get("/types/large")["members"]
    assert {one["name"]: one["immune_until"] for one in large} == shown | {"n5": None}
