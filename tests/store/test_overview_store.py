"""What is seen at a glance and what is told of what happens, on both databases."""

from __future__ import annotations

from sqlalchemy import insert

from cod.core.nodes import transitions
from cod.states import NodeEvent
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.nodes import nodes
from cod.store.notices import events
from cod.store.people import groups
from cod.store.scheduler import overview

NOW = 1000.0


def _vcluster(tx: Tx, name: str) -> tuple[int, int]:
    """(id of a new vcluster, id of its group)."""
    group = groups.ensure(tx, f"of-{name}", NOW)
    template = tx.execute(
        insert(t.config_templates).values(
            name=name, revision=1, document="<x/>", digest=name, created_at=NOW
        )
    ).inserted_primary_key
    assert template is not None
    made = tx.execute(
        insert(t.vclusters).values(
            name=name,
            live_name=name,
            group_id=group.id,
            state="active",
            template_id=template[0],
            size=1,
            creation_size=1,
            attributes="",
            lease_time=60.0,
            created_at=NOW,
        )
    ).inserted_primary_key
    assert made is not None
    return int(made[0]), group.id


def test_who_had_a_node_before_is_told_with_each_transition(tx: Tx) -> None:
    one, other = _vcluster(tx, "one"), _vcluster(tx, "two")
    node = nodes.add(tx, name="n1", boot_mac="52:54:00:00:00:01", now=NOW, cause="seen", actor="x")
    for holder in (one[0], one[0], other[0], None, None):
        tx.execute(
            insert(t.node_history).values(
                node_id=node.id,
                at=NOW,
                event="primed",
                from_state="prime",
                to_state="boot",
                generation=1,
                cause="",
                actor="x",
                vcluster_id=holder,
            )
        )
    told = events.after(tx, 0)
    assert [(row["group_id"], row["left_group_id"]) for row in told] == [
        (None, None),
        (one[1], None),
        (one[1], one[1]),
        (other[1], one[1]),
        (None, other[1]),
        (None, None),
    ]


def test_at_a_glance(tx: Tx) -> None:
    vcluster, group = _vcluster(tx, "one")
    for number, name in enumerate(("n1", "n2", "n3")):
        nodes.add(
            tx, name=name, boot_mac=f"52:54:00:00:00:0{number}", now=NOW, cause="seen", actor="x"
        )
    nodes.change(
        tx, nodes.by_name(tx, "n1"), vcluster_id=vcluster, progress_done=1, progress_total=4
    )
    tx.execute(t.nodes.update().where(t.nodes.c.name == "n1").values(state="prime"))
    transitions.move(
        tx,
        nodes.by_name(tx, "n2"),
        NodeEvent.QUARANTINED,
        now=NOW + 5,
        cause="odd",
        actor="x",
        reason="odd",
    )
    assert overview.pool(tx) == {"prime": 1, "quarantined": 1, "new": 1}
    assert overview.set_aside(tx, "quarantined", 5) == [
        {"name": "n2", "since": NOW + 5, "reason": "odd"}
    ]
    for groups_ in (None, frozenset({group})):
        assert [
            (row["node"], row["vcluster"], row["done"])
            for row in overview.under_way(tx, groups_, 9)
        ] == [("n1", "one", 1)]
    assert overview.under_way(tx, frozenset({group + 1}), 9) == []
    assert [row["group_id"] for row in events.progress(tx)] == [group]
    assert overview.claim(tx, "manager") is None
