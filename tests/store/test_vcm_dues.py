"""What COD owes a VCM while its vcluster lives its life: every message that docs/nmp promises,
by the flows that cause it, and each of them fit to be said."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select

from cod.flows.nodes import nodes as node_flows
from cod.flows.scheduler import requests, vclusters
from cod.flows.vcms import vcms
from cod.model import AskedNodes, AskedTuple, AskedVcluster, OutboxMessage, Site
from cod.net.nmp import verbs
from cod.store import tables as t
from cod.store import vcms as store
from cod.store.engine import Tx
from cod.store.people import groups
from cod.wire.nmp import bodies, xml
from cod.wire.nmp.frames import Message
from tests.contexts import flow_context
from tests.store import manager_world as world

pytestmark = pytest.mark.slow

NOW = 1_000_000.0


@pytest.fixture
def pool(tx: Tx, site: Site) -> int:
    """The vcluster 'pool' of two of three nodes, with a VCM that has heard of all that was before;
    its id."""
    world.furnish(tx, 3)
    vclusters.create(
        tx,
        flow_context(site, NOW),
        AskedVcluster(name="pool", size=2, template="debian", group="site"),
    )
    vcms.enrol(tx, vcluster="pool", serial="a1", address="", now=NOW)
    world.run_pass(tx, site, NOW)
    world.arrive(tx, NOW)
    found: int = tx.scalars(select(t.vclusters.c.id)).one()
    heard(tx, found)
    return found


def heard(tx: Tx, pool: int) -> list[OutboxMessage]:
    """What it is owed, each checked as it would be said; acknowledged."""
    rows = store.unacknowledged(tx, {pool: 0}, limit=1000)
    for row in rows:
        said = xml.write(verbs.outbox_body(row))
        assert xml.write(xml.read(Message(row.verb, "1", said, sequence=row.sequence))) == said
    if rows:
        store.acknowledge(tx, pool, rows[-1].sequence)
    return rows


def told(tx: Tx, pool: int, verb: str, *names: str) -> list[tuple[Any, ...]]:
    """Return these fields of the messages of that verb that the VCM is owed."""
    return [tuple(row.body[name] for name in names) for row in heard(tx, pool) if row.verb == verb]


def ask(tx: Tx, key: str, count: int, site: Site, *, wait: bool = True) -> Any:
    return requests.submit(
        tx,
        flow_context(site, NOW, key=vcms.request_key(1, key)),
        vcluster="pool",
        asked=AskedNodes([AskedTuple(count)], wait=wait),
    ).value


def test_a_lease_is_warned_of_extended_drained_and_ended(tx: Tx, site: Site, pool: int) -> None:
    end = NOW + site.policy.default_lease
    steps = [(end - 3599.0, [("warning", end)]), (end - 3000.0, []), (end, [("draining", end)])]
    for now, says in steps:
        world.run_pass(tx, site, now)
        assert told(tx, pool, "lease", "event", "expires")[-1:] == says
    vclusters.extend(tx, flow_context(site, end + 10), name="pool", lease=7200.0)
    assert told(tx, pool, "lease", "event", "expires") == [("extended", end + 7210)]
    vclusters.extend(tx, flow_context(site, end + 20), name="pool", lease=60.0)
    assert told(tx, pool, "lease", "event") == [], "it never becomes shorter: nothing has happened"
    for now in (end + 7211, end + 7212 + site.policy.drain_grace):
        world.run_pass(tx, site, now)
    rows = heard(tx, pool)
    assert [row.body["event"] for row in rows if row.verb == "lease"] == ["draining", "ended"]
    assert sorted(row.body["hostname"] for row in rows if row.body.get("state") == "lost") == [
        "n1",
        "n2",
    ]


def test_a_node_that_breaks_is_lost_and_its_replacement_has_no_key(
    tx: Tx, site: Site, pool: int
) -> None:
    node = world.members(tx, pool)[0]
    node_flows.quarantine(
        tx, flow_context(site, NOW, "user:ann"), name=node, reason="its fan is loud"
    )
    world.run_pass(tx, site, NOW + 1)
    rows = heard(tx, pool)
    (lost,) = [row.body for row in rows if row.body.get("state") == "lost"]
    assert (lost["node"], "its fan is loud" in lost["reason"]) == (node, True)
    (grant,) = [row.body for row in rows if row.verb == "grant"]
    assert (grant["key"], len(grant["members"])) == ("", 1)
    world.arrive(tx, NOW + 2)
    assert ("active",) in told(tx, pool, "node-state", "state")


def test_a_request_that_cannot_wait_is_refused_with_its_key(tx: Tx, site: Site, pool: int) -> None:
    asked = ask(tx, "now", 2, site, wait=False)
    world.run_pass(tx, site, NOW + 1)
    ((number, key, reason),) = told(tx, pool, "refusal", "request", "key", "reason")
    assert (number, key) == (asked.request.id, "now")
    assert reason
    assert ask(tx, "now", 2, site, wait=False).request.state == "rejected", (
        "the same key again is the same request"
    )


@pytest.mark.parametrize(
    "who", ["an owner withdraws it", "the vcluster is resized", "the VCM withdraws it"]
)
def test_a_request_that_is_withdrawn_by_whomever_is_told(
    tx: Tx, site: Site, pool: int, who: str
) -> None:
    asked = ask(tx, "k", 2, site)
    if who == "the vcluster is resized":
        vclusters.resize(tx, flow_context(site, NOW, "user:ann"), name="pool", size=3)
    elif who == "an owner withdraws it":
        requests.withdraw(tx, request_id=asked.request.id, reason="not today", now=NOW)
    else:
        peer = verbs.VcmPeer("pool", pool)
        answer = verbs.answer(tx, bodies.Withdraw(asked.request.id), peer, site, NOW).value
        assert (answer.key, answer.state) == ("k", "withdrawn")
    assert told(tx, pool, "refusal", "request", "key") == [(asked.request.id, "k")]


def test_a_grant_says_until_when_and_names_its_request(tx: Tx, site: Site, pool: int) -> None:
    asked = ask(tx, "one-more", 1, site)
    world.run_pass(tx, site, NOW + 1)
    ((number, key, expires, members),) = told(
        tx, pool, "grant", "request", "key", "expires", "members"
    )
    assert (number, key, expires) == (asked.request.id, "one-more", NOW + site.policy.default_lease)
    assert [(one["hostname"], one["state"], one["template"]) for one in members] == [
        ("n3", "prime", "debian@1")
    ]
    assert members[0]["attributes"].startswith("<node")


def test_a_reclaim_runs_from_its_beginning_to_its_end(tx: Tx, site: Site, pool: int) -> None:
    """Want what the vcluster has beyond its creation size; end when that was given, or is not
    wanted."""
    groups.add(tx, name="top", priority=9, default_lease=None, max_lease=None, now=NOW)
    ask(tx, "more", 1, site)
    world.run_pass(tx, site, NOW)
    world.arrive(tx, NOW)
    heard(tx, pool)
    late = NOW + site.policy.inertia + 1
    for name, ends in (("web", "cancelled"), ("farm", "done")):
        vclusters.create(
            tx,
            flow_context(site, late),
            AskedVcluster(name=name, size=1, template="debian", group="top"),
        )
        world.run_pass(tx, site, late)
        ((number, count, deadline, reason, nodes),) = told(
            tx, pool, "reclaim", "reclaim", "count", "deadline", "reason", "nodes"
        )
        assert (count, deadline, len(nodes)) == (1, late + site.policy.reclaim_grace, 3)
        assert "has priority 9" in reason
        if ends == "cancelled":
            vclusters.delete(tx, flow_context(site, late, "user:ann"), name=name)
        else:
            vclusters.release(tx, flow_context(site, late, "vcm:pool"), name="pool", nodes_=["n3"])
        assert told(tx, pool, "reclaim-over", "reclaim", "state") == [(number, ends)]


def test_a_vcluster_that_is_deleted_tells_of_its_nodes_and_then_nobody_speaks_for_it(
    tx: Tx, site: Site, pool: int
) -> None:
    vclusters.delete(tx, flow_context(site, NOW, "user:ann"), name="pool")
    assert told(tx, pool, "node-state", "state") == [("lost",), ("lost",)]
    world.rest(tx, site, NOW + 10)
    assert vcms.find(tx, "pool") is None
    assert tx.execute(select(t.outbox)).all() == []
