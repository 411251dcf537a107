"""What owners do with vclusters and requests, on a real database."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, select, update

from cod.core import requests as core_requests
from cod.core.networks import address_blocks as core_blocks
from cod.core.nodes import transitions
from cod.flows.nodes import nodes as node_flows
from cod.flows.scheduler import apply_plan, explain, plan
from cod.flows.scheduler import requests as request_flows
from cod.flows.scheduler import vclusters as flows
from cod.model import (
    AskedNodes,
    AskedTuple,
    AskedVcluster,
    Binding,
    Effect,
    Node,
    Refused,
    Request,
    Result,
    Site,
)
from cod.quantity import span
from cod.store import claims, views
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.nodes import bindings, holding, nodes
from cod.store.people import groups
from cod.store.scheduler import address_blocks, requests, vclusters
from tests.contexts import flow_context
from tests.store.manager_world import (
    OWNER,
    add_node,
    add_template,
    arrive,
    check_world,
    furnish,
    members,
    planned,
    run_pass,
)

MANAGER = Effect("wake", "manager")


def create(
    tx: Tx,
    site: Site,
    name: str = "one",
    size: int = 2,
    now: float = 1.0,
    key: str | None = None,
    **rest: Any,
) -> Result:
    """A vcluster that waits for its nodes."""
    return flows.create(
        tx,
        flow_context(site, now, key=key),
        AskedVcluster(name=name, size=size, **{"template": "debian", "group": "site"} | rest),
    )


def addressed(tx: Tx, site: Site, name: str = "one", size: int = 2) -> str:
    """A vcluster that has got its addresses, as at its grant; its subnet."""
    vcluster = create(tx, site, name, size).value[0].vcluster
    core_blocks.extend(tx, vcluster, size, site, now=1.0)
    return str(vcluster.subnet)


def running(tx: Tx, site: Site, size: int, **rest: Any) -> int:
    """A vcluster whose nodes are active; its id."""
    made = create(tx, site, size=size, **rest)
    run_pass(tx, site, 2.0)
    arrive(tx, 3.0)
    return int(made.value[0].vcluster.id)


def number(tx: Tx, template: str) -> int:
    """The template's id: MariaDB counts on from test to test."""
    return tx.scalars(
        select(t.config_templates.c.id).where(t.config_templates.c.name == template)
    ).one()


def pending(tx: Tx) -> list[tuple[str, int]]:
    """Kinds and counts of the pending requests."""
    return [(r.kind, one.count) for r in requests.every(tx, states=["pending"]) for one in r.tuples]


# ---------------------------------------------------------------- create


def test_create_makes_rows_and_wakes_the_manager(tx: Tx, site: Site) -> None:
    furnish(tx, 0)
    made = create(tx, site, attributes="<requires><memory/></requires>", template="debian@1")
    view, members_ = made.value
    vcluster = view.vcluster
    assert made.effects == (MANAGER,)
    assert (vcluster.name, vcluster.state, vcluster.size, vcluster.creation_size) == (
        "one",
        "pending",
        2,
        2,
    )
    assert (view.template, view.group, members_) == ("debian@1", "site", [])
    assert address_blocks.of(tx, vcluster.id) == [], "it gets addresses with its nodes"
    request = requests.every(tx)[0]
    assert (request.kind, request.state) == ("create", "pending")
    assert (request.tuples[0].count, request.tuples[0].attributes) == (
        2,
        "<requires><memory/></requires>",
    )


LARGE = '<requires><memory><mib min="64GiB"/></memory></requires>'


def test_a_new_one_of_several_kinds_is_granted_whole_and_keeps_them_all(tx: Tx, site: Site) -> None:
    furnish(tx, 2)
    also = [AskedTuple(1), AskedTuple(2, LARGE, "kept")]
    made = create(tx, site, size=1, also=also).value[0].vcluster
    assert (made.size, made.creation_size) == (4, 4), "all of them are below its floor"
    assert [(one.count, one.attributes) for one in requests.every(tx)[0].tuples] == [
        (1, ""),
        (1, ""),
        (2, LARGE),
    ]
    add_node(tx, 50, mib=65536)
    add_node(tx, 51, "quarantined", mib=65536)  # so that it waits: all or nothing
    run_pass(tx, site, 2.0)
    assert members(tx, made.id) == []
    add_node(tx, 52, mib=65536)
    run_pass(tx, site, 3.0)
    assert members(tx, made.id) == ["node0", "node1", "node50", "node52"]
    assert {node.name for node in nodes.every(tx) if node.template_id == number(tx, "kept")} == {
        "node50",
        "node52",
    }
    check_world(tx)


def test_what_is_left_out_of_further_kinds_is_as_for_the_first(tx: Tx, site: Site) -> None:
    furnish(tx, 0)
    create(
        tx,
        site,
        size=1,
        template="kept",
        attributes=LARGE,
        also=[AskedTuple(3), AskedTuple(1, "<requires/>")],
    )
    kept = number(tx, "kept")
    assert [
        (one.count, one.attributes, one.template_id) for one in requests.every(tx)[0].tuples
    ] == [(1, LARGE, kept), (3, LARGE, kept), (1, "<requires/>", kept)]


@pytest.mark.slow
@pytest.mark.parametrize(("lost", "attributes"), [("node0", ""), ("node50", LARGE)])
def test_in_the_place_of_a_lost_node_comes_one_of_its_own_kind(
    tx: Tx, site: Site, lost: str, attributes: str
) -> None:
    """Also where both kinds run one template: a large one is not replaced by whatever is there, nor
    the other way."""
    furnish(tx, 2)
    for number in (50, 51):
        add_node(tx, number, mib=65536)
    made = create(tx, site, size=1, also=[AskedTuple(1, LARGE)]).value[0].vcluster
    run_pass(tx, site, 2.0)
    arrive(tx, 3.0)
    assert members(tx, made.id) == ["node0", "node50"]
    before = nodes.by_name(tx, lost)
    assert before is not None
    wanted = holding.assignment(tx, before)
    assert wanted is not None
    assert wanted.requires == (attributes,), "what it is held against when its hardware changes"
    node_flows.quarantine(tx, flow_context(site, 4.0, OWNER), name=lost, reason="broken")
    assert [one.attributes for one in requests.every(tx)[-1].tuples] == [attributes]
    run_pass(tx, site, 5.0)
    assert "node51" in members(tx, made.id), "the largest block of those that would do"
    gone = nodes.by_name(tx, lost)
    assert gone is not None
    assert (gone.request_id, gone.position) == (None, None)
    check_world(tx)


@pytest.mark.parametrize(
    ("also", "code", "field"),
    [
        (AskedTuple(1, "<requires><memmory/></requires>"), "invalid", "also.1.attributes"),
        (AskedTuple(1, "", "nosuch"), "not_found", "also.1.template"),
        (AskedTuple(1, "", "other/theirs"), "not_found", "also.1.template"),
        (AskedTuple(99_999), "invalid", "size"),
    ],
)
def test_a_kind_that_cannot_be_is_refused_and_nothing_is_stored(
    tx: Tx, site: Site, also: AskedTuple, code: str, field: str
) -> None:
    furnish(tx, 0)
    theirs = add_template(tx, "theirs")
    other = groups.add(tx, "other", 0.0).id
    tx.execute(
        update(t.config_templates)
        .where(t.config_templates.c.id == theirs)
        .values(group_id=other, name="other/theirs")
    )
    with pytest.raises(Refused) as refused:
        create(tx, site, size=1, also=[AskedTuple(1), also])
    assert (refused.value.code, refused.value.field) == (code, field)
    assert requests.every(tx) == []
    assert vclusters.by_name(tx, "one") is None


def test_blocks_of_addresses_do_not_overlap_and_are_used_again(tx: Tx, site: Site) -> None:
    small = replace(
        site, subnets=(replace(site.subnets[0], block_pool=("10.77.128.0", "10.77.128.191")),)
    )
    furnish(tx, 0)
    for name in ("a", "b", "c"):
        addressed(tx, small, name)
    assert [ranges(tx, name) for name in ("a", "b", "c")] == [
        ["10.77.128.0 - 10.77.128.63"],
        ["10.77.128.64 - 10.77.128.127"],
        ["10.77.128.128 - 10.77.128.191"],
    ]
    waiting = create(tx, small, "d").value[0].vcluster
    with pytest.raises(Refused, match="have addresses for 0 more, not for 2: delete a vcluster"):
        core_blocks.extend(tx, waiting, 2, small, now=1.0)
    flows.delete(tx, flow_context(small, 2.0, OWNER), name="b")
    core_blocks.extend(tx, waiting, 2, small, now=1.0)
    assert ranges(tx, "d") == ["10.77.128.64 - 10.77.128.127"]


@pytest.mark.slow
def test_what_waits_takes_no_addresses_from_others(tx: Tx, site: Site) -> None:
    """One group asks for more vclusters than the site has blocks, and another is still served."""
    small = pools(site, "10.77.128.127")
    furnish(tx, 1)
    for number in range(10):
        create(tx, small, f"much{number}", 2)  # more nodes than there are
    running(tx, small, 1)
    assert ranges(tx) == ["10.77.128.0 - 10.77.128.63"]


@pytest.mark.slow
def test_a_grant_without_addresses_is_refused_and_the_request_says_why(
    engine: Engine, site: Site
) -> None:
    small = pools(site, "10.77.128.63")
    with engine.begin() as tx:
        furnish(tx, 2)
        running(tx, small, 1)
        for name, wait in (("waits", True), ("not", False)):
            create(tx, small, name, 1, wait=wait)
    for name, state in (("waits", "pending"), ("not", "rejected")):
        with engine.begin() as tx:
            [act] = [
                act
                for act in planned(tx, small, 4.0)
                if act.request_id is not None and _vcluster(tx, act.request_id) == name
            ]
            claim = claims.hold(tx, "manager", "a", 4.0, 10.0)
        with pytest.raises(Refused) as refused, engine.begin() as tx:
            act.flow(tx, claim=claim, now=4.0)
        with engine.begin() as tx:
            apply_plan.waits(tx, act.request_id or 0, refused.value, 4.0)
            request = requests.get(tx, act.request_id or 0)
            assert request is not None
            assert (request.state, "addresses for 0 more" in request.reason) == (state, True)
            if name == "waits":  # so that the other is planned
                flows.delete(tx, flow_context(small, 4.0, OWNER), name=name)


def _vcluster(tx: Tx, request_id: int) -> str:
    request = requests.get(tx, request_id)
    vcluster = vclusters.get(tx, request.vcluster_id) if request else None
    return vcluster.name if vcluster else ""


def pools(site: Site, *last: str) -> Site:
    """A site whose subnets have block pools of 10.77.128.0 (10.78.128.0 …) up to those
    addresses."""
    return replace(
        site,
        subnets=tuple(
            replace(
                site.subnets[0],
                name=f"lab{number}",
                block_pool=(f"10.{77 + number}.128.0", address),
            )
            for number, address in enumerate(last)
        ),
    )


def ranges(tx: Tx, name: str = "one") -> list[str]:
    """Ranges of addresses of a vcluster, as people are shown them."""
    [view] = views.vclusters(tx, name=name)
    return [str(one) for one in view.addresses]


def test_a_large_one_gets_several_blocks_that_are_shown_as_one_range(tx: Tx, site: Site) -> None:
    furnish(tx, 0)
    addressed(tx, pools(site, "10.77.129.255"), size=128)
    assert ranges(tx) == ["10.77.128.0 - 10.77.128.191"], (
        "two blocks are for 127 nodes: .0 is given to none"
    )
    assert len(address_blocks.of(tx, vclusters.every(tx)[0].id)) == 3


def test_growth_takes_further_blocks_and_gives_them_back_when_it_is_not_wanted(
    tx: Tx, site: Site
) -> None:
    small = pools(site, "10.77.128.255")
    furnish(tx, 3)
    one = running(tx, small, 2)
    addressed(tx, small, "two")
    flows.resize(tx, flow_context(small, 4.0, OWNER), name="one", size=100)
    assert ranges(tx) == ["10.77.128.0 - 10.77.128.63"], "the rest comes with the nodes"
    vcluster = vclusters.get(tx, one)
    assert vcluster is not None
    core_blocks.extend(tx, vcluster, 100, small, now=4.0)
    assert ranges(tx) == ["10.77.128.0 - 10.77.128.63", "10.77.128.128 - 10.77.128.191"]
    flows.resize(tx, flow_context(small, 5.0, OWNER), name="one", size=3)
    assert ranges(tx) == ["10.77.128.0 - 10.77.128.63"]
    with pytest.raises(Refused, match="has addresses for 254 nodes of vclusters, not for 303"):
        request_flows.submit(
            tx, flow_context(small, 7.0), vcluster="one", asked=AskedNodes([AskedTuple(300)])
        )


@pytest.mark.slow
def test_nodes_of_the_second_block_get_addresses_and_the_block_stays_while_one_is_bound(
    tx: Tx, site: Site
) -> None:
    small = pools(replace(site, subnets=(replace(site.subnets[0], block_size=4),)), "10.77.128.15")
    furnish(tx, 5)
    one = running(tx, small, 5)
    found = [
        each.address & 0xFF
        for node in nodes.every(tx, vcluster_id=one)
        for each in bindings.of_node(tx, node.id)
    ]
    assert sorted(found) == [1, 2, 3, 4, 5]
    flows.release(tx, flow_context(small, 4.0, OWNER), name="one", nodes_=["n1", "n2", "n3"])
    assert ranges(tx) == ["10.77.128.0 - 10.77.128.7"], (
        "two nodes have addresses in the second block"
    )
    flows.release(tx, flow_context(small, 5.0, OWNER), name="one", nodes_=["n4"])
    assert ranges(tx) == ["10.77.128.0 - 10.77.128.7"]
    flows.delete(tx, flow_context(small, 6.0, OWNER), name="one")
    arrive(tx, 7.0)
    run_pass(tx, small, 8.0)
    assert address_blocks.of(tx, one) == []


def test_a_new_one_is_put_where_blocks_are_free_for_all_of_it(tx: Tx, site: Site) -> None:
    two = pools(site, "10.77.128.63", "10.78.128.255")
    furnish(tx, 0)
    assert addressed(tx, two, size=64) == "lab1"
    with pytest.raises(Refused, match="addresses for 254 nodes at most"):
        create(tx, two, "big", size=255)
    assert addressed(tx, two, "last", size=127) == "lab1"
    assert addressed(tx, two, "small", size=60) == "lab0", "nothing is free on the other"


def test_blocks_of_another_size_are_not_overlapped(tx: Tx, site: Site) -> None:
    """The site changes block_size while vclusters have blocks of the old size."""
    small = pools(
        replace(site, subnets=(replace(site.subnets[0], block_size=32),)), "10.77.128.255"
    )
    furnish(tx, 0)
    for name in ("a", "b", "c"):
        addressed(tx, small, name)
    flows.delete(tx, flow_context(small, 2.0, OWNER), name="a")
    addressed(tx, pools(site, "10.77.128.255"), "large")
    assert ranges(tx, "large") == ["10.77.128.128 - 10.77.128.191"]
    assert address_blocks.free_room(tx, pools(site, "10.77.128.255").subnets[0]) == 63


@pytest.mark.parametrize(
    ("change", "code", "sentence"),
    [
        ({"name": "Bad"}, "invalid", "no DNS label"),
        ({"name": "-a"}, "invalid", "no DNS label"),
        ({"name": "a" * 64}, "invalid", "no DNS label"),
        ({"name": "a.b"}, "invalid", "no DNS label"),
        ({"name": "there"}, "conflict", "the name 'there' is not free"),
        ({"name": "localhost"}, "invalid", "every machine's own name"),
        ({"name": "ns"}, "invalid", "name of a name server"),
        ({"size": 0}, "invalid", "at least one node"),
        ({"size": 100_000}, "invalid", "addresses for [0-9]+ nodes at most"),
        ({"template": "nothing"}, "not_found", "no template 'nothing'"),
        ({"template": "debian@7"}, "not_found", "no template 'debian@7'"),
        ({"template": "debian@99999999999999999999"}, "not_found", "no template"),
        ({"template": "debian@x"}, "not_found", "no template"),
        ({"group": "nobody"}, "not_found", "no group 'nobody'"),
        ({"attributes": "<requires>"}, "invalid", "no XML"),
    ],
)
def test_create_refuses(
    tx: Tx, site: Site, change: dict[str, Any], code: str, sentence: str
) -> None:
    furnish(tx, 0)
    create(tx, site, "there")
    with pytest.raises(Refused, match=sentence) as refused:
        create(tx, site, **{"name": "one"} | change)
    assert refused.value.code == code
    assert len(vclusters.every(tx)) == 1


def test_the_newest_revision_that_is_in_use_is_taken(tx: Tx, site: Site) -> None:
    furnish(tx, 0)
    add_template(tx, "debian", revision=2)
    third = add_template(tx, "debian", revision=3)
    tx.execute(
        update(t.config_templates).where(t.config_templates.c.id == third).values(retired_at=0.5)
    )
    assert create(tx, site).value[0].template == "debian@2"
    assert create(tx, site, "two", template="debian@1").value[0].template == "debian@1"
    with pytest.raises(Refused):
        create(tx, site, "three", template="debian@3")


@pytest.mark.parametrize(
    ("default", "longest", "asked", "granted"),
    [
        (None, None, None, 86400.0),
        (None, None, 50.0, 50.0),
        (None, None, 1e6, 1e6),
        (None, 60.0, None, 60.0),
        (100.0, None, None, 100.0),
        (100.0, None, 200.0, 200.0),
        (100.0, 60.0, None, 60.0),
        (100.0, 60.0, 60.0, 60.0),
    ],
)
def test_the_leases_length(
    tx: Tx,
    site: Site,
    default: float | None,
    longest: float | None,
    asked: float | None,
    granted: float,
) -> None:
    furnish(tx, 0)
    groups.add(tx, "lab", 0.0, default_lease=default, max_lease=longest)
    assert create(tx, site, group="lab", lease=asked).value[0].vcluster.lease_time == granted


def test_a_lease_beyond_the_groups_maximum_is_refused(tx: Tx, site: Site) -> None:
    """Refuse what was cut to the default in silence: owners learned of it when the nodes went."""
    furnish(tx, 0)
    groups.add(tx, "lab", 0.0, max_lease=7 * 86400.0)
    with pytest.raises(
        Refused, match="lasts 7 d at most, with all extensions; 30 d were asked for"
    ) as refused:
        create(tx, site, group="lab", lease=30 * 86400.0)
    assert (refused.value.code, refused.value.field) == ("invalid", "lease")


def test_a_repeated_key_changes_nothing(engine: Engine, site: Site) -> None:
    with engine.begin() as tx:
        furnish(tx, 1)
        first = create(tx, site, key="k1")
    with engine.begin() as tx:
        again = create(tx, site, key="k1", now=9.0)
        assert again.value == first.value
        assert again.effects == ()
        assert len(requests.every(tx)) == 1
        with pytest.raises(Refused, match="that key was used before, for vcluster one"):
            create(tx, site, "two", key="k1")


def test_a_key_that_is_repeated_late_shows_nothing_of_whoever_has_the_name_now(
    tx: Tx, site: Site
) -> None:
    furnish(tx, 1)
    groups.add(tx, "lab", 0.0)
    first = create(tx, site, key="k1", size=1).value[0].vcluster
    flows.delete(tx, flow_context(site, 5.0, OWNER), name="one")
    create(tx, site, group="lab", size=1, now=6.0)
    run_pass(tx, site, 7.0)
    view, held = create(tx, site, key="k1", now=9.0).value
    assert (view.vcluster.id, view.vcluster.state, held) == (first.id, "ended", [])


def test_priority_is_the_groups(tx: Tx, site: Site) -> None:
    furnish(tx, 0)
    groups.add(tx, "lab", 0.0, priority=7)
    create(tx, site, group="lab")
    assert requests.every(tx)[0].priority == 7


# ---------------------------------------------------------------- resize


def test_growing(tx: Tx, site: Site) -> None:
    furnish(tx, 4)
    one = running(tx, site, 1)
    grown = flows.resize(tx, flow_context(site, 4.0, OWNER), name="one", size=3)
    assert (grown.value[0].vcluster.size, grown.effects) == (1, (MANAGER,))
    assert pending(tx) == [("grow", 2)]
    run_pass(tx, site, 5.0)
    vcluster = vclusters.get(tx, one)
    assert vcluster is not None
    assert (vcluster.size, vcluster.creation_size) == (3, 1)
    assert sorted(n.hostname or "" for n in nodes.every(tx, vcluster_id=one)) == ["n1", "n2", "n3"]
    check_world(tx)


def test_the_newest_size_counts(tx: Tx, site: Site) -> None:
    furnish(tx, 4)
    running(tx, site, 1)
    flows.resize(tx, flow_context(site, 4.0, OWNER), name="one", size=3)
    flows.resize(tx, flow_context(site, 5.0, OWNER, key="k"), name="one", size=4)
    flows.resize(tx, flow_context(site, 5.5, OWNER, key="k"), name="one", size=4)
    assert pending(tx) == [("grow", 3)]
    flows.resize(tx, flow_context(site, 6.0, OWNER), name="one", size=1)
    assert pending(tx) == []


def test_shrinking_takes_the_newest_and_leaves_the_running(tx: Tx, site: Site) -> None:
    furnish(tx, 4)
    one = running(tx, site, 2)
    flows.resize(tx, flow_context(site, 4.0, OWNER), name="one", size=4)
    run_pass(tx, site, 5.0)
    arrive(tx, 6.0, "node2")
    shrunk = flows.resize(tx, flow_context(site, 7.0, OWNER), name="one", size=3)
    assert {effect.what for effect in shrunk.effects} == {"manager", "orders", "power"}
    assert members(tx, one) == ["node0", "node1", "node2"]
    flows.resize(tx, flow_context(site, 8.0, OWNER), name="one", size=2)
    assert members(tx, one) == ["node0", "node1"]
    history = nodes.history(tx, nodes.by_name(tx, "node3").id)[-1]
    assert (history["event"], history["actor"], history["cause"]) == (
        "released",
        OWNER,
        "the vcluster shrank to 3",
    )
    check_world(tx)


@pytest.mark.parametrize(
    ("size", "sentence"), [(0, "at least one node"), (100_000, "not for 100000")]
)
def test_resize_refuses(tx: Tx, site: Site, size: int, sentence: str) -> None:
    furnish(tx, 1)
    running(tx, site, 1)
    with pytest.raises(Refused, match=sentence):
        flows.resize(tx, flow_context(site, 4.0, OWNER), name="one", size=size)


def test_a_vcluster_that_waits_or_ends_is_not_resized(tx: Tx, site: Site) -> None:
    furnish(tx, 1)
    create(tx, site, size=1)
    with pytest.raises(Refused, match="still waiting"):
        flows.resize(tx, flow_context(site, 2.0, OWNER), name="one", size=2)
    run_pass(tx, site, 3.0)
    flows.delete(tx, flow_context(site, 4.0, OWNER), name="one")
    with pytest.raises(Refused, match="is ending"):
        flows.extend(tx, flow_context(site, 5.0), name="one", lease=5.0)
    with pytest.raises(Refused, match="there is no vcluster 'none'"):
        flows.extend(tx, flow_context(site, 5.0), name="none", lease=5.0)


def test_shrinking_withdraws_replacements_that_are_not_needed_any_more(tx: Tx, site: Site) -> None:
    furnish(tx, 3)
    one = running(tx, site, 3)
    for name in ("node0", "node1"):
        node = nodes.by_name(tx, name)
        assert node is not None
        runs = holding.assignment(tx, node)
        core_requests.replace(tx, node, runs, 4.0)
        core_requests.replace(tx, node, runs, 4.0)
        holding.give_back(tx, node, up_until=0.0)
    assert pending(tx) == [("replace", 1), ("replace", 1)]
    flows.resize(tx, flow_context(site, 5.0, OWNER), name="one", size=2)
    assert pending(tx) == [("replace", 1)]
    flows.resize(tx, flow_context(site, 6.0, OWNER), name="one", size=1)
    assert pending(tx) == []
    assert members(tx, one) == ["node2"]


def test_the_replacement_of_the_only_node_is_not_withdrawn(tx: Tx, site: Site) -> None:
    """The vcluster would go on with no node, which nothing else allows."""
    furnish(tx, 1)
    one = running(tx, site, 1)
    [held] = nodes.every(tx, vcluster_id=one)
    request = core_requests.replace(tx, held, holding.assignment(tx, held), 4.0)
    assert request is not None
    holding.give_back(tx, held, up_until=0.0)
    with pytest.raises(Refused, match="would have no node left; delete it instead"):
        request_flows.withdraw(tx, request_id=request.id, reason="not needed", now=5.0)
    assert pending(tx) == [("replace", 1)]


# ---------------------------------------------------------------- release, extend, delete


def test_releasing_named_nodes(tx: Tx, site: Site) -> None:
    furnish(tx, 3)
    one = running(tx, site, 3)
    done = flows.release(
        tx, flow_context(site, 4.0, OWNER), name="one", nodes_=["n2", "node1", "node2"]
    )
    assert members(tx, one) == ["node0"]
    assert done.value[0].vcluster.size == 1
    assert tx.scalars(select(t.power_actions.c.desired)).all() == ["cycle", "cycle"]
    with pytest.raises(Refused, match="delete it instead"):
        flows.release(tx, flow_context(site, 5.0, OWNER), name="one", nodes_=["n1"])
    with pytest.raises(Refused, match="has no node 'n9'"):
        flows.release(tx, flow_context(site, 5.0, OWNER), name="one", nodes_=["n9"])
    check_world(tx)


@pytest.mark.parametrize("driver", ["none", "wol"])
def test_a_released_node_that_nothing_switches_off_says_that_somebody_must_reboot_it(
    tx: Tx, site: Site, driver: str
) -> None:
    furnish(tx, 2)
    running(tx, site, 2)
    tx.execute(update(t.nodes).where(t.nodes.c.name == "node0").values(power_driver=driver))
    flows.delete(tx, flow_context(site, 5.0, OWNER), name="one")
    reasons = {node.name: node.reason for node in nodes.every(tx)}
    assert "until somebody reboots it" in reasons["node0"]
    assert reasons["node1"] == ""


def test_an_address_rests_until_the_node_that_left_it_has_reported(tx: Tx, site: Site) -> None:
    """Nobody can switch the node off: its system runs on, at its address."""
    furnish(tx, 4)
    one = running(tx, site, 2)
    tx.execute(update(t.nodes).values(power_driver="none"))
    up = {row.node_id: row.address for row in _addresses(tx, one)}
    tx.execute(update(t.bindings).values(state="bound"))  # both systems are up
    flows.release(tx, flow_context(site, 4.0, OWNER), name="one", nodes_=["n2"])
    (node_id, resting) = next(
        (node.id, up[node.id]) for node in nodes.every(tx) if node.released == one
    )
    flows.resize(tx, flow_context(site, 5.0, OWNER), name="one", size=2)
    run_pass(tx, site, 6.0)
    assert bindings.of_node(tx, node_id) == [], "it is not the node's any more"
    held = {row.address for row in _addresses(tx, one)}
    assert len(held) == 2
    assert resting not in held
    check_world(tx)

    transitions.settle(tx, _node(tx, node_id), now=7.0, policy=site.policy)
    flows.resize(tx, flow_context(site, 8.0, OWNER), name="one", size=3)
    run_pass(tx, site, 9.0)
    assert resting in {row.address for row in _addresses(tx, one)}
    check_world(tx)


def test_a_resting_address_is_given_where_a_cluster_has_just_enough(tx: Tx, site: Site) -> None:
    """Nothing waits for an address: a resting one is better than none, the one that has rested
    longest first."""
    furnish(tx, 3)
    one = running(tx, site, 2)
    addresses = sorted(row.address for row in _addresses(tx, one))
    tx.execute(update(t.nodes).values(power_driver="none"))
    block = t.vcluster_blocks
    tx.execute(update(block).values(first_address=addresses[0], last_address=addresses[-1]))
    tx.execute(update(t.bindings).values(state="bound"))
    flows.release(tx, flow_context(site, 4.0, OWNER), name="one", nodes_=["n2"])
    flows.resize(tx, flow_context(site, 5.0, OWNER), name="one", size=2)
    run_pass(tx, site, 6.0)
    assert sorted(row.address for row in _addresses(tx, one)) == addresses
    check_world(tx)


def _node(tx: Tx, node_id: int) -> Node:
    node = nodes.get(tx, node_id)
    assert node is not None
    return node


def _addresses(tx: Tx, vcluster_id: int) -> list[Binding]:
    """Return the bindings of the systems of a vcluster's nodes."""
    return bindings.of_systems(tx, [node.id for node in nodes.every(tx, vcluster_id=vcluster_id)])


def test_extending(tx: Tx, site: Site) -> None:
    furnish(tx, 1)
    groups.add(tx, "lab", 0.0, max_lease=500.0)
    running(tx, site, 1, group="lab", lease=100.0)
    began = vclusters.every(tx)[0].leased_at
    assert began is not None
    ends = [
        flows.extend(tx, flow_context(site, now), name="one", lease=lease)
        .value[0]
        .vcluster.expires_at
        for now, lease in ((10.0, 200.0), (20.0, 50.0))
    ]
    assert ends == [210.0, 210.0]
    with pytest.raises(Refused, match=r"500 s|8 min 20 s") as refused:
        flows.extend(tx, flow_context(site, 30.0), name="one", lease=1e6)
    assert (refused.value.code, refused.value.field) == ("invalid", "lease")
    left = began + 500.0 - 30.0
    assert f"can last {span(left)} from now at most" in str(refused.value)
    assert (
        flows.extend(tx, flow_context(site, 30.0), name="one", lease=left)
        .value[0]
        .vcluster.expires_at
        == began + 500.0
    )
    with pytest.raises(Refused, match="cannot be extended any more"):
        flows.extend(tx, flow_context(site, 400.0), name="one", lease=490.0)


def test_a_vcm_extends_as_far_as_the_maximum_allows(tx: Tx, site: Site) -> None:
    furnish(tx, 1)
    groups.add(tx, "lab", 0.0, max_lease=500.0)
    running(tx, site, 1, group="lab", lease=100.0)
    began = vclusters.every(tx)[0].leased_at or 0.0
    one = (
        flows.extend(tx, flow_context(site, 10.0), name="one", lease=1e6, clip=True)
        .value[0]
        .vcluster
    )
    assert one.expires_at == began + 500.0
    with pytest.raises(Refused, match="cannot be extended any more"):
        flows.extend(tx, flow_context(site, 20.0), name="one", lease=1e6, clip=True)


def test_deleting_a_vcluster_that_waits_ends_it_at_once(tx: Tx, site: Site) -> None:
    furnish(tx, 0)
    create(tx, site)
    done = flows.delete(tx, flow_context(site, 2.0, OWNER), name="one")
    assert (done.value[0].vcluster.state, done.value[0].vcluster.ended_at) == ("ended", 2.0)
    assert [r.state for r in requests.every(tx)] == ["withdrawn"]
    create(tx, site)


def test_deleting_a_running_one(tx: Tx, site: Site) -> None:
    furnish(tx, 2)
    running(tx, site, 2)
    flows.resize(tx, flow_context(site, 4.0, OWNER), name="one", size=3)
    done = flows.delete(tx, flow_context(site, 5.0, OWNER), name="one")
    assert done.value[0].vcluster.state == "releasing"
    assert done.value[1] == []
    assert pending(tx) == []
    with pytest.raises(Refused, match="not free"):
        create(tx, site, now=6.0)
    flows.delete(tx, flow_context(site, 6.0, OWNER), name="one")
    arrive(tx, 7.0)
    run_pass(tx, site, 8.0)
    with pytest.raises(Refused, match="there is no vcluster"):
        flows.delete(tx, flow_context(site, 9.0, OWNER), name="one")
    create(tx, site, now=10.0)


# ---------------------------------------------------------------- requests


def test_submitting_tuples(tx: Tx, site: Site) -> None:
    furnish(tx, 4)
    one = running(tx, site, 1, attributes="<requires><memory/></requires>")
    wanted = [AskedTuple(1), AskedTuple(2, "<requires/>", "kept@1")]
    done = request_flows.submit(
        tx, flow_context(site, 4.0, key="k"), vcluster="one", asked=AskedNodes(wanted)
    )
    view = done.value
    assert (view.vcluster, view.templates, done.effects) == (
        "one",
        ("debian@1", "kept@1"),
        (MANAGER,),
    )
    assert [(each.count, each.attributes) for each in view.request.tuples] == [
        (1, "<requires><memory/></requires>"),
        (2, "<requires/>"),
    ]
    assert request_flows.submit(
        tx, flow_context(site, 5.0, key="k"), vcluster="one", asked=AskedNodes(wanted)
    ) == Result(view)
    run_pass(tx, site, 6.0)
    assert len(members(tx, one)) == 4
    check_world(tx)


def test_a_key_that_another_vcluster_used_is_refused(tx: Tx, site: Site) -> None:
    furnish(tx, 2)
    running(tx, site, 1)
    create(tx, site, "two", size=1)
    run_pass(tx, site, 5.0)
    request_flows.submit(
        tx, flow_context(site, 6.0, key="k"), vcluster="one", asked=AskedNodes([AskedTuple(1)])
    )
    with pytest.raises(Refused, match="that key was used before, for vcluster one"):
        request_flows.submit(
            tx, flow_context(site, 7.0, key="k"), vcluster="two", asked=AskedNodes([AskedTuple(1)])
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        ([], "one node at least"),
        ([AskedTuple(0)], "one node at least"),
        ([AskedTuple(-1), AskedTuple(3)], "one node at least"),
        ([AskedTuple(1, "<a/>")], "in an element requires"),
        ([AskedTuple(1, "", "no")], "no template 'no'"),
        ([AskedTuple(40), AskedTuple(23)], "addresses for 63 nodes, and no subnet"),
    ],
)
def test_submit_refuses(tx: Tx, site: Site, wanted: list[AskedTuple], sentence: str) -> None:
    furnish(tx, 1)
    running(tx, site, 1)
    # the site's subnet has another name now
    context = flow_context(pools(site, "10.77.255.255"), 4.0)
    with pytest.raises(Refused, match=sentence):
        request_flows.submit(tx, context, vcluster="one", asked=AskedNodes(wanted))
    assert pending(tx) == []


def test_withdrawing(tx: Tx, site: Site) -> None:
    furnish(tx, 1)
    running(tx, site, 1)
    asked = request_flows.submit(
        tx, flow_context(site, 4.0), vcluster="one", asked=AskedNodes([AskedTuple(1)])
    ).value.request
    done = request_flows.withdraw(tx, request_id=asked.id, reason="not needed", now=5.0)
    assert (done.value.request.state, done.value.request.reason) == ("withdrawn", "not needed")
    with pytest.raises(Refused, match="does not wait"):
        request_flows.withdraw(tx, request_id=asked.id, reason="", now=6.0)
    with pytest.raises(Refused, match="delete the vcluster"):
        request_flows.withdraw(tx, request_id=requests.every(tx)[0].id, reason="", now=6.0)
    with pytest.raises(Refused, match="no request 0"):
        request_flows.withdraw(tx, request_id=0, reason="", now=6.0)


def test_a_vcluster_that_waits_can_begin_with_fewer_nodes(tx: Tx, site: Site) -> None:
    furnish(tx, 2)
    made = create(tx, site, size=3).value[0].vcluster
    (first,) = requests.every(tx, states=["pending"])

    def change(request_id: int, count: int) -> Request:
        return request_flows.change(
            tx, request_id=request_id, count=count, spread=True, now=9.0
        ).value.request

    for count in (0, 4):
        with pytest.raises(Refused, match="is for 3 nodes"):
            change(first.id, count)
    now = change(first.id, 2)
    assert (now.tuples[0].count, now.may_spread, now.submitted_at) == (2, True, first.submitted_at)
    with pytest.raises(Refused, match="it is withdrawn"):
        change(first.id, 2)
    run_pass(tx, site, 10.0)
    begun = vclusters.get(tx, made.id)
    assert begun is not None
    assert (begun.state, begun.size, begun.creation_size) == ("active", 2, 2)
    grown = request_flows.submit(
        tx, flow_context(site, 11.0), vcluster="one", asked=AskedNodes([AskedTuple(2)])
    ).value.request
    with pytest.raises(Refused, match="only the first request"):
        change(grown.id, 1)
    with pytest.raises(Refused, match="no request 0"):
        change(0, 1)


def test_a_changed_request_may_spread_as_it_might_before(tx: Tx, site: Site) -> None:
    """In one block there might be too few, and it would be rejected, and its vcluster end."""
    furnish(tx, 2)
    create(tx, site, size=3, spread=True)
    (first,) = requests.every(tx, states=["pending"])
    kept = request_flows.change(tx, request_id=first.id, count=2, now=9.0).value.request
    assert kept.may_spread
    narrower = request_flows.change(tx, request_id=kept.id, count=2, spread=False, now=9.0)
    assert not narrower.value.request.may_spread


def test_submit_wants_an_active_vcluster(tx: Tx, site: Site) -> None:
    furnish(tx, 1)
    with pytest.raises(Refused, match="no vcluster 'one'"):
        request_flows.submit(
            tx, flow_context(site, 1.0), vcluster="one", asked=AskedNodes([AskedTuple(1)])
        )
    create(tx, site)
    with pytest.raises(Refused, match="is pending, not active"):
        request_flows.submit(
            tx, flow_context(site, 1.0), vcluster="one", asked=AskedNodes([AskedTuple(1)])
        )


# ---------------------------------------------------------------- whose templates


@pytest.mark.slow
def test_nodes_run_templates_of_their_own_group_and_of_the_site(tx: Tx, site: Site) -> None:
    """Otherwise a viewer of one group who works in another would have root on what the first
    one's images hold."""
    furnish(tx, 2)
    ours, theirs = (groups.add(tx, name, 0.0) for name in ("ours", "theirs"))
    for name, group in (("own", ours), ("other", theirs)):
        tx.execute(
            update(t.config_templates)
            .where(t.config_templates.c.id == add_template(tx, name))
            .values(group_id=group.id, name=f"{group.name}/{name}")
        )
    # in the same words, there or not
    for name in ("other", "theirs/other", "theirs/nothing", "nobody/other"):
        with pytest.raises(Refused) as refused:
            create(tx, site, group="ours", template=name)
        assert (refused.value.code, refused.value.field, refused.value.sentence) == (
            "not_found",
            "template",
            (
                f"there is no template {name!r} for group ours: its nodes run its own templates "
                "that are not retired, and the site's"
            ),
        )
    create(tx, site, "of-the-site", group="ours", template="debian@1", size=1)
    running(tx, site, 1, group="ours", template="own")
    with pytest.raises(Refused, match="no template 'theirs/other'") as refused:
        request_flows.submit(
            tx,
            flow_context(site, 6.0),
            vcluster="one",
            asked=AskedNodes([AskedTuple(1), AskedTuple(1, "", "theirs/other")]),
        )
    assert refused.value.field == "tuples.1.template"
    request_flows.submit(
        tx,
        flow_context(site, 6.0),
        vcluster="one",
        asked=AskedNodes([AskedTuple(1, "", "debian"), AskedTuple(1, "", "own")]),
    )
    asked = explain.HypotheticalRequest(count=1, group="ours", template="theirs/other")
    seen = plan.look(tx, site, 7.0)
    with pytest.raises(Refused, match="no template 'theirs/other'"):
        explain.match_(
            tx, asked=asked, scene=seen.scene, snapshot=seen.site, site=site, groups=None, now=7.0
        )
