"""A reclaim's life: answered early, in part, with other nodes, or not at all; and what follows for
the request."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from sqlalchemy import Engine, select, update

from cod.core import preemption
from cod.flows.nodes import nodes as node_flows
from cod.flows.people import groups as group_flows
from cod.flows.scheduler import reclaims as flow
from cod.flows.scheduler import requests as request_flows
from cod.flows.scheduler import vclusters as owner_flows
from cod.model import AskedNodes, AskedTuple, Reclaim, Refused, Site
from cod.states import Disk
from cod.store import tables as t
from cod.store import vcms
from cod.store import views as view_rows
from cod.store.engine import Tx
from cod.store.nodes import nodes
from cod.store.scheduler import reclaims, requests, reservations, vclusters
from tests.contexts import flow_context
from tests.store.busy_site import answer, contended, grow, people, summary, want
from tests.store.manager_world import OWNER, add_node, arrive, check_world, rest, run_pass

pytestmark = pytest.mark.slow

DUE = 120.0  # the reclaim's deadline


def reclaim(tx: Tx, one: int) -> tuple[str, int, int]:
    """Return a reclaim's state, how many nodes it wants, and how many were given."""
    found = reclaims.get(tx, one)
    assert found is not None
    return found.state, found.count, found.given


def kept(tx: Tx) -> dict[str, int | None]:
    """Which nodes are kept, and by which reclaim they were taken, by name."""
    names = {node.id: node.name for node in nodes.every(tx)}
    return {names[one.node_id]: one.reclaim_id for one in reservations.every(tx)}


def test_exactly_what_is_short_is_taken(tx: Tx, quiet: Site) -> None:
    one = contended(tx, quiet)
    assert (one.count, one.given, one.deadline, one.created_at) == (2, 0, DUE, 100.0)
    # None is inside its inertia any more: the newest members go first, names settle what is left.
    assert kept(tx) == {"node1": one.id, "node2": one.id}
    assert requests.every(tx)[-1].reason.startswith("waits for 2 nodes")
    assert run_pass(tx, quiet, 101.0) == []
    view = flow.show(tx, one.id)
    assert (view.vcluster, view.wanted_by, view.block, view.chosen) == (
        "loser",
        "winner",
        "",
        ("node1", "node2"),
    )
    assert flow.every(tx, vcluster="loser", state="open") == [view]
    assert flow.every(tx, vcluster="winner") == []


def test_not_answered_it_is_seized_at_the_deadline_by_power(tx: Tx, quiet: Site) -> None:
    one = contended(tx, quiet)
    assert run_pass(tx, quiet, DUE - 0.1) == []
    assert run_pass(tx, quiet, DUE) == ["seize by reclaim"]
    assert reclaim(tx, one.id) == ("done", 2, 2)
    for name in ("node1", "node2"):
        node = nodes.by_name(tx, name)
        assert node is not None
        assert (node.state, node.power_wanted, node.disk, node.vcluster_id) == (
            "trampoline",
            "cycle",
            Disk.DIRTY,
            None,
        )
    check_world(tx)
    assert summary(tx)["loser"] == ("active", 2, 2)
    arrive(tx, 130.0)
    assert run_pass(tx, quiet, 130.0) == ["grant request"]
    assert {
        node.name for node in nodes.every(tx, vcluster_id=requests.every(tx)[-1].vcluster_id)
    } == {"node1", "node2"}
    assert kept(tx) == {}
    check_world(tx)


def test_answered_early_with_other_nodes(tx: Tx, quiet: Site) -> None:
    """The host names of a vcluster do, and the site's names; those that were chosen stay."""
    one = contended(tx, quiet)
    done = answer(tx, quiet, one.id, "n1", "node3")
    assert reclaim(tx, one.id) == ("done", 2, 2)
    assert vclusters.leaving_by_groups(tx, 101.0) == {}
    assert view_rows.holders(tx, ["node1", "node2", "node3", "none"]) == ["loser"]
    assert view_rows.holders(tx, ["node3"]) == []
    assert {effect.what for effect in done.effects} == {"manager", "orders", "power"}
    assert kept(tx) == {"node0": one.id, "node3": one.id}
    assert [node.name for node in nodes.every(tx, ["active"])] == ["node1", "node2"]
    check_world(tx)
    arrive(tx, 110.0)
    assert run_pass(tx, quiet, 111.0) == ["grant request"]
    assert summary(tx) == {"loser": ("active", 2, 2), "winner": ("active", 2, 2)}


def test_answered_in_part_the_rest_is_seized(tx: Tx, quiet: Site) -> None:
    one = contended(tx, quiet)
    loser = vclusters.named(tx, "loser").group_id
    assert vclusters.leaving_by_groups(tx, 101.0) == {loser: 2}
    answer(tx, quiet, one.id, "node3")
    assert reclaim(tx, one.id) == ("open", 2, 1)
    assert vclusters.leaving_by_groups(tx, 101.0) == {loser: 1}
    assert kept(tx) == {"node2": one.id, "node3": one.id}, "one of the chosen is spared for it"
    arrive(tx, 110.0)
    assert run_pass(tx, quiet, 111.0) == ["tell requests why not"], (
        "it keeps its node, and waits for the other"
    )
    assert run_pass(tx, quiet, 112.0) == []
    assert run_pass(tx, quiet, DUE) == ["seize by reclaim"]
    arrive(tx, 130.0)
    assert run_pass(tx, quiet, 130.0) == ["grant request"]
    check_world(tx)


def test_an_answer_repeated_changes_nothing(engine: Engine, quiet: Site) -> None:
    with engine.begin() as tx:
        one = contended(tx, quiet)
        first = answer(tx, quiet, one.id, "node3")
    with engine.begin() as tx:
        again = answer(tx, quiet, one.id, "node3", now=106.0)
        assert (again.value, again.effects) == (first.value, ())
        assert summary(tx)["loser"] == ("active", 3, 3)


@pytest.mark.parametrize("over", [False, True])
def test_an_answer_repeated_does_not_mean_the_node_that_has_got_the_name_since(
    tx: Tx, quiet: Site, over: bool
) -> None:
    """The VCM has not acknowledged the new one's grant, and cannot mean it."""
    one = contended(tx, quiet)
    vcms.enrol(tx, one.vcluster_id, serial="1", address="", head=None, now=100.0)
    if over:
        answer(tx, quiet, one.id, "node0", "node3")
    before = reclaim(tx, one.id)
    vcms.enqueue(tx, one.vcluster_id, "grant", {"members": [{"node": "node1"}]}, 104.0)
    for names, later in ((["n2"], {}), (["node1"], {}), ([], {"n2": 110.0, "node1": 110.0})):
        flow.answer(
            tx,
            flow_context(quiet, 105.0, "vcm:loser"),
            reclaim_id=one.id,
            nodes_=names,
            later=later,
            passing_over=True,
        )
    assert reclaim(tx, one.id) == before
    assert flow.show(tx, one.id).promised == {}
    node = nodes.by_name(tx, "node1")
    assert node is not None
    assert (node.hostname, node.state) == ("n2", "active")


@pytest.mark.parametrize(
    ("names", "code", "sentence"),
    [
        (["node9"], "not_found", "vcluster loser has no node 'node9'"),
        (["other"], "conflict", "node other is not of the type and block that reclaim"),
        (["node1", "other"], "conflict", "node other is not of the type and block that reclaim"),
        (["node1", "node2", "node3"], "conflict", "wants 2 more, not 3"),
    ],
)
def test_what_is_no_answer_is_refused_whole(
    engine: Engine, quiet: Site, names: list[str], code: str, sentence: str
) -> None:
    with engine.begin() as tx:
        one = contended(tx, quiet)
        node_flows.change(
            tx,
            flow_context(quiet, 1.0, "user:root"),
            name="node0",
            changes={"block": "elsewhere", "name": "other"},
        )
    with pytest.raises(Refused, match=sentence) as refused, engine.begin() as tx:
        answer(tx, quiet, one.id, *names)
    assert refused.value.code == code
    with engine.begin() as tx:
        assert reclaim(tx, one.id) == ("open", 2, 0)
        assert len(nodes.every(tx, ["active"])) == 4


def test_there_is_no_such_reclaim_or_it_is_over(tx: Tx, quiet: Site) -> None:
    one = contended(tx, quiet)
    with pytest.raises(Refused, match="there is no reclaim 77"):
        answer(tx, quiet, 77, "node1")
    with pytest.raises(Refused, match="there is no reclaim 77"):
        flow.show(tx, 77)
    answer(tx, quiet, one.id, "node1", "node2")
    with pytest.raises(Refused, match=f"reclaim {one.id} is done"):
        answer(tx, quiet, one.id, "node0")


def test_giving_back_and_shrinking_are_answers(tx: Tx, quiet: Site) -> None:
    one = contended(tx, quiet)
    owner_flows.release(tx, flow_context(quiet, 105.0, OWNER), name="loser", nodes_=["node0"])
    assert reclaim(tx, one.id) == ("open", 2, 1)
    assert sorted(kept(tx)) == ["node0", "node2"]
    owner_flows.resize(tx, flow_context(quiet, 106.0, OWNER), name="loser", size=2)
    assert reclaim(tx, one.id) == ("done", 2, 2)
    assert sorted(kept(tx)) == ["node0", "node2"], "what was chosen goes first"
    check_world(tx)
    arrive(tx, 110.0)
    assert run_pass(tx, quiet, 111.0) == ["grant request"]
    assert summary(tx) == {"loser": ("active", 2, 2), "winner": ("active", 2, 2)}


def test_a_vcluster_that_is_deleted_gives_what_was_wanted_of_it(tx: Tx, quiet: Site) -> None:
    one = contended(tx, quiet)
    owner_flows.delete(tx, flow_context(quiet, 105.0, OWNER), name="loser")
    assert reclaim(tx, one.id) == ("done", 2, 2)
    assert kept(tx) == {"node1": one.id, "node2": one.id}
    arrive(tx, 110.0)
    assert "grant request" in run_pass(tx, quiet, 111.0)
    check_world(tx)


def test_a_chosen_node_that_breaks_on_its_way_is_made_good(tx: Tx, quiet: Site) -> None:
    """Take one more when a node breaks that counted as given: the request is short of one again."""
    one = contended(tx, quiet)
    run_pass(tx, quiet, DUE)
    node_flows.quarantine(tx, flow_context(quiet, 121.0, OWNER), name="node1", reason="smoke")
    assert kept(tx) == {"node2": one.id}
    assert "take for request" in run_pass(tx, quiet, 122.0)
    assert [(each.count, each.given) for each in reclaims.open_(tx)] == [(1, 0)]
    rest(tx, quiet, 130.0, step=40.0)
    assert summary(tx) == {"loser": ("active", 1, 1), "winner": ("active", 2, 2)}


def test_withdrawn_midway_nothing_is_seized(tx: Tx, quiet: Site) -> None:
    one = contended(tx, quiet)
    answer(tx, quiet, one.id, "node3")
    owner_flows.delete(tx, flow_context(quiet, 106.0, OWNER), name="winner")
    assert reclaim(tx, one.id) == ("cancelled", 2, 1)
    assert kept(tx) == {}
    rest(tx, quiet, 107.0, step=40.0)
    assert summary(tx)["loser"] == ("active", 3, 3)


def test_granted_otherwise_nothing_is_seized(tx: Tx, quiet: Site) -> None:
    one = contended(tx, quiet)
    for number in (20, 21):
        add_node(tx, number)
    assert run_pass(tx, quiet, 105.0) == ["grant request"]
    assert (reclaim(tx, one.id), kept(tx)) == (("cancelled", 2, 0), {})
    rest(tx, quiet, 107.0, step=40.0)
    assert summary(tx)["loser"] == ("active", 4, 4)


def test_free_nodes_are_counted_in(tx: Tx, quiet: Site) -> None:
    """Two of three are free: one is taken."""
    people(tx)
    for number in range(5):
        add_node(tx, number)
    want(tx, quiet, "loser", 1, 4096, 1.0)
    run_pass(tx, quiet, 2.0)
    arrive(tx, 3.0)
    grow(tx, quiet, "loser", 3, 4.0)
    want(tx, quiet, "winner", 3, 4096, 99.0, "high")
    run_pass(tx, quiet, 100.0)
    assert [each.count for each in reclaims.open_(tx)] == [1]
    want(tx, quiet, "late", 1, 4096, 101.0)
    run_pass(tx, quiet, 101.0)
    assert summary(tx)["late"][2] == 0, "the free ones are kept for whoever waits for the rest"
    rest(tx, quiet, 102.0, step=40.0)
    assert summary(tx)["winner"] == ("active", 3, 3)


def test_what_is_promised_is_seized_in_the_place_of_what_was_chosen(tx: Tx, quiet: Site) -> None:
    one = contended(tx, quiet)
    for names, expected in (
        (["node3"], {"node3", "node1"}),
        (["node3", "n1", "node2"], {"node3", "node0"}),
        (["nobody", "node3"], {"node3", "node0"}),
    ):
        later = dict.fromkeys(names, 110.0)
        done = flow.answer(
            tx, flow_context(quiet, 101.0, OWNER), reclaim_id=one.id, nodes_=[], later=later
        )
        assert (set(kept(tx)), done.effects) == (expected, ())
        check_world(tx)
    done = flow.answer(
        tx,
        flow_context(quiet, 102.0, OWNER),
        reclaim_id=one.id,
        nodes_=["node3"],
        later={"node2": 109.0},
    )
    assert (reclaim(tx, one.id), set(kept(tx))) == (("open", 2, 1), {"node3", "node2"})
    assert run_pass(tx, quiet, DUE)[0] == "seize by reclaim"
    assert {node.name for node in nodes.every(tx, vcluster_id=one.vcluster_id)} == {
        "node0",
        "node1",
    }
    check_world(tx)


def test_by_when_nodes_are_promised_is_shown_until_they_are_given_or_promised_no_more(
    tx: Tx, quiet: Site
) -> None:
    one = contended(tx, quiet)

    def said(later: dict[str, float] | None, *now: str) -> dict[str, float]:
        done = flow.answer(
            tx, flow_context(quiet, 101.0, OWNER), reclaim_id=one.id, nodes_=now, later=later
        )
        return dict(done.value.promised)

    def promised() -> dict[int, tuple[int, float]]:
        return reservations.promised(tx, one.request_id)

    assert said(None) == {}
    assert promised() == {}
    assert said({"node3": 110.0, "n1": 115.0}) == {"node0": 115.0, "node3": 110.0}
    assert promised() == {one.id: (2, 115.0)}
    assert said(None) == {
        "node0": 115.0,
        "node3": 110.0,
    }, "an answer by hand leaves what the VCM has said"
    assert said({"node3": 118.0}) == {"node3": 118.0}, "its last answer counts"
    assert said({"node3": 1e12}) == {"node3": DUE}, (
        "at the deadline it is taken, whatever was promised"
    )
    assert (said({}, "node3"), promised()) == ({}, {})
    said({"node2": 111.0})
    assert promised() == {one.id: (1, 111.0)}
    run_pass(tx, quiet, DUE)
    assert promised() == {}, "what was seized is promised by nobody"


def test_what_is_promised_goes_before_what_was_only_chosen(tx: Tx, quiet: Site) -> None:
    """Where others are given, or fewer are wanted, that may stay which nobody has spoken of."""
    one = contended(tx, quiet)
    assert set(kept(tx)) == {"node1", "node2"}
    flow.answer(
        tx, flow_context(quiet, 101.0, OWNER), reclaim_id=one.id, nodes_=[], later={"node1": 110.0}
    )
    flow.answer(tx, flow_context(quiet, 102.0, "user:ann"), reclaim_id=one.id, nodes_=["node3"])
    assert set(kept(tx)) == {"node1", "node3"}
    check_world(tx)


def test_where_fewer_are_wanted_what_is_promised_is_still_taken(tx: Tx, quiet: Site) -> None:
    one = contended(tx, quiet)
    flow.answer(
        tx, flow_context(quiet, 101.0, OWNER), reclaim_id=one.id, nodes_=[], later={"node2": 110.0}
    )
    add_node(tx, 20)
    assert run_pass(tx, quiet, 105.0)[0] == "ease reclaim"
    assert kept(tx) == {"node2": one.id}
    check_world(tx)


# ---------------------------------------------------------------- eased


def owed(tx: Tx, one: Reclaim) -> list[tuple[str, int | str]]:
    """What the loser's VCM is told of the reclaim: how many are open, or how it ended."""
    query = select(t.outbox.c.verb, t.outbox.c.body).where(
        t.outbox.c.vcluster_id == one.vcluster_id
    )
    bodies = [
        (verb, json.loads(body)) for verb, body in tx.execute(query.order_by(t.outbox.c.sequence))
    ]
    return [
        (verb, body.get("count", body.get("state")))
        for verb, body in bodies
        if verb.startswith("reclaim")
    ]


def told(tx: Tx, kind: str) -> list[str]:
    """The subjects of those notices."""
    return list(
        tx.scalars(
            select(t.notices.c.subject).where(t.notices.c.kind == kind).order_by(t.notices.c.id)
        )
    )


def test_when_a_node_comes_free_one_less_is_taken(tx: Tx, quiet: Site) -> None:
    one = contended(tx, quiet)
    vcms.enrol(tx, one.vcluster_id, serial="1", address="", head=None, now=100.0)
    add_node(tx, 20)
    assert run_pass(tx, quiet, 105.0) == ["ease reclaim", "tell requests why not"]
    assert (reclaim(tx, one.id), kept(tx)) == (
        ("open", 1, 0),
        {"node1": one.id},
    ), "the last that was chosen may stay"
    assert requests.every(tx)[-1].reason.startswith("waits for 1 node ")
    assert (told(tx, "reclaim-dropped"), owed(tx, one)) == (
        ["loser: 1 node may stay"],
        [("reclaim", 1)],
    )
    check_world(tx)
    assert run_pass(tx, quiet, 106.0) == []
    assert run_pass(tx, quiet, DUE) == ["seize by reclaim"]
    arrive(tx, 130.0)
    assert run_pass(tx, quiet, 130.0) == ["grant request"]
    assert (summary(tx)["loser"], summary(tx)["winner"]) == (("active", 3, 3), ("active", 2, 2))
    check_world(tx)


def test_at_the_deadline_itself_no_more_is_seized_than_is_short(tx: Tx, quiet: Site) -> None:
    one = contended(tx, quiet)
    add_node(tx, 20)
    assert run_pass(tx, quiet, DUE) == ["ease reclaim", "seize by reclaim", "tell requests why not"]
    assert (reclaim(tx, one.id), summary(tx)["loser"]) == (("done", 1, 1), ("active", 3, 3))
    check_world(tx)


@pytest.mark.parametrize(
    ("given", "coming", "expected"), [(0, 2, ("cancelled", 0, 0)), (1, 1, ("done", 1, 1))]
)
def test_where_enough_is_on_its_way_nothing_more_is_taken(
    tx: Tx, quiet: Site, given: int, coming: int, expected: tuple[str, int, int]
) -> None:
    one = contended(tx, quiet)
    vcms.enrol(tx, one.vcluster_id, serial="1", address="", head=None, now=100.0)
    if given:
        answer(tx, quiet, one.id, "node3")
    for number in range(coming):
        add_node(tx, 20 + number, "wipe", disk=Disk.DIRTY)
    assert run_pass(tx, quiet, 105.0)[0] == "ease reclaim"
    assert (reclaim(tx, one.id), set(kept(tx))) == (expected, {"node3"} if given else set())
    assert owed(tx, one) == [("reclaim-over", "cancelled")], (
        "what has not been given may be used again"
    )
    rest(tx, quiet, 107.0, step=40.0)
    assert (summary(tx)["loser"], summary(tx)["winner"]) == (
        ("active", 4 - given, 4 - given),
        ("active", 2, 2),
    )


def test_what_would_be_taken_in_vain_stays_and_is_taken_anew(tx: Tx, quiet: Site) -> None:
    """Break the one free node of the four that are wanted, and bring it back."""
    people(tx)
    for number in range(5):
        add_node(tx, number)
    want(tx, quiet, "loser", 1, 4096, 1.0)
    run_pass(tx, quiet, 2.0)
    arrive(tx, 3.0)
    grow(tx, quiet, "loser", 4, 4.0)
    want(tx, quiet, "winner", 4, 4096, 99.0, "high")
    run_pass(tx, quiet, 100.0)
    node_flows.quarantine(tx, flow_context(quiet, 104.0, OWNER), name="node4", reason="smoke")
    assert run_pass(tx, quiet, 105.0) == ["ease reclaim", "tell requests why not"]
    assert (reclaims.open_(tx), kept(tx)) == ([], {})
    assert run_pass(tx, quiet, 130.0) == []
    assert summary(tx)["loser"] == ("active", 4, 4)
    node_flows.restore(tx, flow_context(quiet, 131.0, OWNER), name="node4")
    assert run_pass(tx, quiet, 132.0) == ["take for request", "tell requests why not"]
    assert [one.count for one in reclaims.open_(tx)] == [3]
    check_world(tx)


def test_what_has_been_answered_in_part_is_not_eased_by_an_old_plan(tx: Tx, quiet: Site) -> None:
    one = contended(tx, quiet, 3)
    answer(tx, quiet, one.id, "node3")
    with pytest.raises(nodes.Stale):
        preemption.ease(tx, one.id, 2, 1, 106.0)
    assert preemption.ease(tx, one.id, 1, 1, 106.0) == 1
    assert preemption.ease(tx, one.id, 1, 1, 106.0) == 0, "it was done before"
    assert (reclaim(tx, one.id), len(kept(tx))) == (("open", 2, 1), 2)
    check_world(tx)


@pytest.mark.parametrize(
    ("priority", "inertia", "expected"), [(0, 200.0, "busy"), (9, 10.0, "busy"), (0, 10.0, "taken")]
)
def test_inertia_and_priority_protect(
    tx: Tx, quiet: Site, priority: int, inertia: float, expected: str
) -> None:
    site = replace(
        quiet, policy=replace(quiet.policy, inertia=1.0, inertia_by_priority={priority: inertia})
    )
    people(tx)
    tx.execute(update(t.groups).where(t.groups.c.name == "low").values(priority=priority))
    for number in range(2):
        add_node(tx, number)
    want(tx, site, "loser", 1, 4096, 1.0)
    run_pass(tx, site, 2.0)
    arrive(tx, 3.0)
    grow(tx, site, "loser", 2, 4.0)
    want(tx, site, "winner", 1, 4096, 99.0, "high")
    acts = run_pass(tx, site, 100.0)
    assert ("take for request" in acts) == (expected == "taken")
    if expected == "busy":
        assert requests.every(tx)[-1].reason
        later = run_pass(tx, site, 205.0)
        assert ("take for request" in later) == (priority == 0), (
            "its inertia is over; its priority is not"
        )


def test_a_draining_vcluster_gets_nothing_more_and_takes_nothing_more(tx: Tx, quiet: Site) -> None:
    one = contended(tx, quiet)
    tx.execute(
        update(t.vclusters)
        .where(t.vclusters.c.name == "winner")
        .values(state="active", expires_at=110.0, warned=0.0)
    )
    assert run_pass(tx, quiet, 111.0)[:1] == ["drain vcluster"]
    assert (reclaim(tx, one.id)[0], kept(tx)) == ("cancelled", {})
    assert "seize by reclaim" not in run_pass(tx, quiet, 125.0)
    winner = vclusters.by_name(tx, "winner")
    assert winner is not None
    assert winner.drain_until == 141.0
    assert "lease" in requests.every(tx)[-1].reason
    owner_flows.extend(tx, flow_context(quiet, 126.0), name="winner", lease=500.0)
    assert run_pass(tx, quiet, 127.0)[0] == "take for request"
    assert (
        tx.scalar(select(t.vclusters.c.drain_until).where(t.vclusters.c.name == "winner")) is None
    )


def test_who_would_not_wait_is_rejected_and_takes_nothing(tx: Tx, quiet: Site) -> None:
    people(tx)
    for number in range(2):
        add_node(tx, number)
    want(tx, quiet, "loser", 1, 4096, 1.0)
    run_pass(tx, quiet, 2.0)
    arrive(tx, 3.0)
    grow(tx, quiet, "loser", 2, 4.0)
    want(tx, quiet, "winner", 1, 4096, 99.0, "high", wait=False)
    assert run_pass(tx, quiet, 100.0) == ["tell requests why not"]
    assert requests.every(tx)[-1].state == "rejected"
    assert summary(tx)["winner"][0] == "ended"
    asked = request_flows.submit(
        tx,
        flow_context(quiet, 101.0),
        vcluster="loser",
        asked=AskedNodes([AskedTuple(1)], wait=False),
    ).value
    run_pass(tx, quiet, 102.0)
    assert requests.get(tx, asked.request.id).state == "rejected"


def test_a_group_has_a_grace_of_its_own_as_far_as_the_site_allows(tx: Tx, quiet: Site) -> None:
    """The one that loses nodes; a bound that is lowered holds for the next reclaim, one that is
    shorter is shorter."""
    longer = replace(quiet, policy=replace(quiet.policy, max_grace=7200.0))
    people(tx)
    for number in range(4):
        add_node(tx, number)
    want(tx, longer, "loser", 1, 4096, 1.0)
    run_pass(tx, longer, 2.0)
    arrive(tx, 3.0)
    grow(tx, longer, "loser", 4, 4.0)
    with pytest.raises(Refused, match="a grace of 2 h at most, and 3 h were asked for") as refused:
        group_flows.change(tx, "low", {"grace": 10800.0}, policy=longer.policy, now=50.0)
    assert (refused.value.code, refused.value.field) == ("invalid", "grace")
    with pytest.raises(Refused, match="a grace of 20 s at most"):
        group_flows.change(tx, "low", {"grace": 7200.0}, policy=quiet.policy, now=50.0)
    group_flows.change(tx, "low", {"grace": 7200.0}, policy=longer.policy, now=50.0)
    for number, (site, grace) in enumerate([(longer, 7200.0), (quiet, 20.0)]):
        want(tx, site, f"winner{number}", 1, 4096, 99.0 + number, "high")
        run_pass(tx, site, 100.0 + number)
        assert reclaims.open_(tx)[-1 if grace > 20.0 else 0].deadline == 100.0 + number + grace
    group_flows.change(tx, "low", {"grace": 0.0}, policy=longer.policy, now=110.0)
    want(tx, longer, "winner2", 1, 4096, 111.0, "high")
    run_pass(tx, longer, 112.0)
    assert min(one.deadline for one in reclaims.open_(tx)) == 112.0
    group_flows.change(tx, "low", {"grace": None}, policy=longer.policy, now=113.0)
    assert preemption.deadline(tx, vclusters.by_name(tx, "loser"), longer.policy, 200.0) == 220.0
