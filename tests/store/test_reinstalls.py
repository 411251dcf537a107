"""Nodes are installed anew in the hands of their holder: all at once or a few at a time, with the
template that they have or another; the rest stays as it is where one is lost."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select

from cod.core.nodes.reinstalls import advance
from cod.flows.nodes import deadlines
from cod.flows.scheduler import reinstalls
from cod.model import Node, Peer, Refused
from cod.states import Disk, NodeEvent, Step
from cod.store import claims
from cod.store import tables as t
from cod.store.engine import Tx, savepoint
from cod.store.scheduler import reinstalls as rows
from cod.store.scheduler import vclusters
from tests.contexts import flow_context
from tests.rows import add_template
from tests.store.agentlab import TEMPLATE, Lab

pytestmark = pytest.mark.slow


@pytest.fixture
def lab(tx: Tx, site: Any) -> Lab:
    return Lab(tx, site)


def cluster(lab: Lab, size: int = 1, **columns: Any) -> dict[int, Peer]:
    """Nodes 1 to `size` run the system of their vcluster `vc`; the connections that they were
    primed by."""
    template = lab.template()
    holder = lab.vcluster(template)
    vclusters.change(lab.tx, holder, lab.now, state="active", size=size)
    peers = {}
    for number in range(1, size + 1):
        lab.machine(number, "trampoline", **columns)
        peers[number] = lab.boots(number)
        lab.assign(number, holder)
        lab.done(peers[number], lab.order(number).id)
        lab.apply(number, Step(NodeEvent.BOOTED, "x"))
        n = t.nodes
        lab.tx.execute(
            n.update().values(hostname=f"n{number}").where(n.c.id == lab.node(number).id)
        )
    return peers


def want(lab: Lab, **asked: Any) -> Any:
    return reinstalls.want(
        lab.tx, flow_context(lab.site, lab.now, "user:ann"), name="vc", **asked
    ).value


def install(lab: Lab, number: int) -> None:
    """The node goes its way through the trampoline, and is active again."""
    peer = lab.boots(number)
    order = lab.order(number)
    assert order.action == "prime"
    lab.done(peer, order.id)
    assert lab.node(number).state == "boot"
    lab.apply(number, Step(NodeEvent.BOOTED, "x"))


def kinds(lab: Lab) -> list[str]:
    return list(lab.tx.scalars(select(t.notices.c.kind).order_by(t.notices.c.id)))


def test_only_the_manager_that_has_the_claim_ends_a_reinstall(lab: Lab) -> None:
    """One that was stopped meanwhile would tell the group a second time."""
    cluster(lab)
    want(lab)
    lab.tick()
    install(lab, 1)
    claim = claims.hold(lab.tx, claims.MANAGER, "stopped", lab.now, 15.0)
    claims.hold(lab.tx, claims.MANAGER, "other", lab.now + 16.0, 15.0, over=claim)
    with pytest.raises(claims.Lost), savepoint(lab.tx):
        deadlines.run(lab.tx, lab.site, lab.now, claim=claim)
    assert rows.every(lab.tx)
    assert not kinds(lab)
    lab.tick()
    assert not rows.every(lab.tx)


def test_a_node_is_written_anew_and_keeps_its_name_and_address(lab: Lab) -> None:
    cluster(lab)
    before = lab.node(1)
    address = select(t.bindings.c.address).where(t.bindings.c.node_id == before.id)
    was = lab.tx.scalar(address)
    assert [one.hostname for one in want(lab)] == ["n1"]
    assert lab.node(1).state == "active"  # the manager begins with it
    lab.tick()
    node = lab.node(1)
    assert (node.state, node.disk, node.vcluster_id) == (
        "trampoline",
        Disk.DIRTY,
        before.vcluster_id,
    )
    assert lab.wishes(1)[-1:] == ["cycle"]
    install(lab, 1)
    lab.tick()
    after = lab.node(1)
    assert (after.state, after.hostname, after.template_id) == (
        "active",
        before.hostname,
        before.template_id,
    )
    assert lab.tx.scalar(address) == was
    assert not reinstalls.under_way(lab.tx, "vc")
    assert kinds(lab)[-1] == "reinstalled"


def test_another_template_is_the_clusters_where_all_nodes_get_it(lab: Lab) -> None:
    cluster(lab)
    other = add_template(lab.tx, "other", TEMPLATE.format(cache="no", more=""), now=lab.now)
    want(lab, template="other")
    lab.tick()
    assert lab.node(1).template_id == other.id
    holder = vclusters.by_name(lab.tx, "vc")
    assert holder is not None
    assert holder.template_id == other.id
    install(lab, 1)
    assert lab.node(1).template_id == other.id


def test_a_few_at_a_time(lab: Lab) -> None:
    cluster(lab, 3)
    assert len(want(lab, at_once=1)) == 3
    lab.tick()
    lab.tick()
    assert [lab.node(one).state for one in (1, 2, 3)] == ["trampoline", "active", "active"]
    install(lab, 1)
    lab.tick()
    assert [lab.node(one).state for one in (1, 2, 3)] == ["active", "trampoline", "active"]
    left = reinstalls.withdraw(lab.tx, name="vc").value
    assert [one.hostname for one in left] == ["n2"]
    install(lab, 2)
    lab.tick()
    assert [lab.node(one).state for one in (1, 2, 3)] == ["active", "active", "active"]


def test_the_rest_stays_where_one_is_lost(lab: Lab) -> None:
    cluster(lab, 3)
    want(lab, at_once=1)
    lab.tick()
    lab.apply(1, Step(NodeEvent.QUARANTINED, "its disk is broken", {"reason": "broken"}))
    lab.tick()
    assert [lab.node(one).state for one in (1, 2, 3)] == ["quarantined", "active", "active"]
    assert not reinstalls.under_way(lab.tx, "vc")
    assert "reinstall-halt" in kinds(lab)


def test_nodes_that_are_done_are_not_compared_with_each_other(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster(lab)
    want(lab)
    [(node, row)] = rows.every(lab.tx)
    done = [(replace(node, id=number, vcluster_id=None), row) for number in range(900, 1100)]
    monkeypatch.setattr(rows, "every", lambda _: done)
    compared = Counter[str]()

    def equal(self: Node, other: object) -> bool:
        compared["nodes"] += 1
        return isinstance(other, Node) and self.id == other.id

    monkeypatch.setattr(Node, "__eq__", equal)
    advance(lab.tx, now=lab.now, policy=lab.site.policy)
    assert compared["nodes"] < len(done)


def test_the_answer_has_the_nodes_that_were_meant_alone(lab: Lab) -> None:
    cluster(lab, 3)
    want(lab, nodes_=["n1"], at_once=1)
    assert [one.hostname for one in want(lab, nodes_=["n3"], at_once=1)] == ["n3"]
    context = flow_context(lab.site, lab.now)
    look = reinstalls.check(lab.tx, context, name="vc", nodes_=["n2"])
    assert [one.hostname for one in look] == ["n2"]
    assert [one.hostname for one in reinstalls.under_way(lab.tx, "vc")] == ["n1", "n3"]


def test_a_node_on_its_way_begins_anew_with_the_other_template(lab: Lab) -> None:
    cluster(lab)
    lab.apply(1, Step(NodeEvent.REINSTALL_WANTED, "x", {"disk": Disk.DIRTY}))
    other = add_template(lab.tx, "other", TEMPLATE.format(cache="no", more=""), now=lab.now)
    want(lab, template="other")
    lab.tick()
    node = lab.node(1)
    assert (node.state, node.template_id, node.disk) == ("trampoline", other.id, Disk.DIRTY)
    install(lab, 1)


def test_nodes_by_name_range_and_filter(lab: Lab) -> None:
    cluster(lab, 3)
    context = flow_context(lab.site, lab.now)

    def meant(**asked: Any) -> list[str]:
        return [one.hostname for one in reinstalls.check(lab.tx, context, name="vc", **asked)]

    assert meant(nodes_=["n[2-3]"]) == ["n2", "n3"]
    assert meant(nodes_=["node1, n3"]) == ["n1", "n3"]
    assert meant(where="host = n2") == ["n2"]
    assert not reinstalls.under_way(lab.tx, "vc")  # it was a look
    with pytest.raises(Refused, match="has no node 'n9'"):
        meant(nodes_=["n9"])
    with pytest.raises(Refused, match="no node of vc matches"):
        meant(where="state = erasing")
    with pytest.raises(Refused, match="at character 3"):
        meant(nodes_=["n[x]"])


def test_what_cannot_be_restarted_is_refused(lab: Lab) -> None:
    cluster(lab)
    n = t.nodes
    lab.tx.execute(n.update().values(power_driver="none"))
    with pytest.raises(Refused, match="no power driver can restart node node1"):
        want(lab)


def test_a_template_that_needs_more_is_refused(lab: Lab) -> None:
    cluster(lab)
    document = TEMPLATE.replace(
        "<image", '<requires><memory><mib min="1TiB"/></memory></requires><image', 1
    )
    add_template(lab.tx, "huge", document.format(cache="no", more=""), now=lab.now)
    kind = lab.node(1).type_id
    assert kind is not None
    with pytest.raises(Refused, match="lacks what template huge needs"):
        want(lab, template="huge")
