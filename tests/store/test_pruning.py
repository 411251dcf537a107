"""What is old and done goes, in batches; what is young, under way, or named by something that
lives, stays."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Table, func, insert, select, text

from cod.core import notices as core_notices
from cod.flows.pruning import TABLES, prune
from cod.store import tables as t
from cod.store.engine import Tx, new_id
from cod.store.nodes import nodes, types
from cod.store.notices import notices
from cod.store.people import groups
from tests.store.manager_world import add_node, add_template

OLD, LINE, YOUNG = 100.0, 1000.0, 5000.0


def ids(tx: Tx, table: Table) -> list[int]:
    return list(tx.scalars(select(table.c.id).order_by(table.c.id)))


def add(tx: Tx, table: Table, **values: Any) -> int:
    return new_id(tx.execute(insert(table).values(**values)))


@pytest.fixture
def world(tx: Tx) -> dict[str, int]:
    """A group, a template, a vcluster and a type; their ids."""
    group_id, template_id = groups.add(tx, "physics", 0.0).id, add_template(tx)
    vcluster_id = add(
        tx,
        t.vclusters,
        name="v",
        live_name="v",
        group_id=group_id,
        state="active",
        template_id=template_id,
        size=1,
        creation_size=1,
        lease_time=1.0,
        created_at=0.0,
    )
    return {
        "group_id": group_id,
        "template_id": template_id,
        "vcluster_id": vcluster_id,
        "type_id": types.of(tx, "<node/>", 0.0).id,
    }


def request(
    tx: Tx, world: dict[str, int], decided_at: float | None = OLD, state: str = "granted"
) -> int:
    number = add(
        tx,
        t.node_requests,
        vcluster_id=world["vcluster_id"],
        kind="grow",
        state=state,
        priority=0,
        submitted_at=0.0,
        decided_at=decided_at,
    )
    tx.execute(
        insert(t.request_tuples).values(
            request_id=number, position=0, count=1, attributes="", template_id=world["template_id"]
        )
    )
    return number


def reclaim(
    tx: Tx,
    world: dict[str, int],
    request_id: int,
    ended_at: float | None = OLD,
    state: str = "done",
) -> int:
    return add(
        tx,
        t.reclaims,
        vcluster_id=world["vcluster_id"],
        request_id=request_id,
        type_id=world["type_id"],
        count=1,
        deadline=0.0,
        state=state,
        created_at=0.0,
        ended_at=ended_at,
    )


def notice(tx: Tx, world: dict[str, int], at: float, *done: float | None) -> int:
    number = core_notices.add(
        tx, kind="ready", group_id=world["group_id"], subject="s", about="a", now=at
    ).id
    for done_at in done:
        add(
            tx,
            t.notice_sends,
            notice_id=number,
            channel="email",
            target="x",
            next_at=at,
            done_at=done_at,
        )
    return number


def pruned(tx: Tx, table: Table, limit: int = 500) -> int:
    return prune(tx, table.name, LINE, limit)


def test_of_the_history_each_nodes_last_word_stays(tx: Tx) -> None:
    quiet, busy = add_node(tx, 1), add_node(tx, 2)
    tx.execute(t.node_history.delete())
    rows = [(quiet.id, OLD), (quiet.id, OLD + 1), (busy.id, OLD), (busy.id, LINE), (busy.id, YOUNG)]
    kept = [
        add(
            tx,
            t.node_history,
            node_id=node_id,
            at=at,
            event="e",
            to_state="s",
            generation=0,
            cause="c",
            actor="a",
        )
        for node_id, at in rows
    ]
    assert pruned(tx, t.node_history) == 2
    assert ids(tx, t.node_history) == [kept[1], kept[3], kept[4]]
    assert [len(nodes.history(tx, each.id)) for each in (quiet, busy)] == [1, 2]
    assert pruned(tx, t.node_history) == 0


def test_decided_requests_go_with_their_tuples(tx: Tx, world: dict[str, int]) -> None:
    gone = [
        request(tx, world),
        request(tx, world, state="rejected"),
        request(tx, world, state="withdrawn"),
    ]
    kept = [
        request(tx, world, YOUNG),
        request(tx, world, LINE),
        request(tx, world, None, "pending"),
        request(tx, world),
    ]  # the newest id is never given again
    assert pruned(tx, t.node_requests) == len(gone)
    assert ids(tx, t.node_requests) == kept
    assert (
        list(
            tx.scalars(
                select(t.request_tuples.c.request_id).order_by(t.request_tuples.c.request_id)
            )
        )
        == kept
    )


def test_requests_that_something_names_stay(tx: Tx, world: dict[str, int]) -> None:
    held, promised, answered, newest = (request(tx, world) for _ in range(4))
    add_node(tx, 1, "active", request_id=held)
    reclaimed = reclaim(tx, world, answered)
    reclaim(tx, world, newest)
    tx.execute(
        insert(t.reservations).values(
            node_id=add_node(tx, 2).id, request_id=promised, reclaim_id=None, at=0.0
        )
    )
    assert pruned(tx, t.node_requests) == 0
    assert pruned(tx, t.reclaims) == 1
    assert reclaimed not in ids(tx, t.reclaims)
    assert pruned(tx, t.node_requests) == 1
    assert ids(tx, t.node_requests) == [held, promised, newest]


def test_reclaims_that_are_open_young_or_named_stay(tx: Tx, world: dict[str, int]) -> None:
    number = request(tx, world)
    gone = [reclaim(tx, world, number), reclaim(tx, world, number, state="cancelled")]
    named = reclaim(tx, world, number)
    kept = [
        named,
        reclaim(tx, world, number, YOUNG),
        reclaim(tx, world, number, None, "open"),
        reclaim(tx, world, number),
    ]
    node = add_node(tx, 1)
    tx.execute(
        insert(t.reservations).values(node_id=node.id, request_id=number, reclaim_id=named, at=0.0)
    )
    assert pruned(tx, t.reclaims) == len(gone)
    assert ids(tx, t.reclaims) == kept


def test_notices_go_with_their_deliveries_unless_one_is_under_way(
    tx: Tx, world: dict[str, int]
) -> None:
    notice(tx, world, OLD, OLD, OLD)
    notice(tx, world, OLD)
    kept = [
        notice(tx, world, OLD, OLD, None),
        notice(tx, world, YOUNG, YOUNG),
        notice(tx, world, OLD, OLD),
    ]
    assert pruned(tx, t.notices) == 2
    assert ids(tx, t.notices) == kept
    assert set(tx.scalars(select(t.notice_sends.c.notice_id))) == set(kept)


def test_old_conflicts_go(tx: Tx) -> None:
    kept = [
        add(tx, t.conflicts, at=at, kind="declined", about="a") for at in (OLD, OLD, YOUNG, OLD)
    ][2:]
    assert pruned(tx, t.conflicts) == 2
    assert ids(tx, t.conflicts) == kept


def test_old_histories_of_vclusters_go(tx: Tx, world: dict[str, int]) -> None:
    kept = [
        add(
            tx,
            t.vcluster_history,
            vcluster_id=world["vcluster_id"],
            at=at,
            event="size",
            state="active",
            size=1,
        )
        for at in (OLD, OLD, YOUNG, OLD)
    ][2:]
    assert pruned(tx, t.vcluster_history) == 2
    assert ids(tx, t.vcluster_history) == kept


def test_posts_of_events_go_sooner_than_notices(tx: Tx, world: dict[str, int]) -> None:
    group = groups.get(tx, world["group_id"])
    for at in (OLD, OLD, OLD, YOUNG):
        notices.add_events(tx, group, "node-events", "1 event", "[]", at)
    told = notice(tx, world, OLD, OLD)
    first, second, under_way, young = ids(tx, t.notices)[:4]
    tx.execute(
        t.notice_sends.update().where(t.notice_sends.c.notice_id != under_way).values(done_at=OLD)
    )
    notices.forget_events(tx, LINE, 1)
    assert ids(tx, t.notices) == [second, under_way, young, told]
    notices.forget_events(tx, LINE, 500)
    assert ids(tx, t.notices) == [under_way, young, told]
    assert first not in set(tx.scalars(select(t.notice_sends.c.notice_id)))


def test_windows_that_are_over_go(tx: Tx) -> None:
    def window(number: int, state: str, ends_at: float | None) -> int:
        said = {"reason": "power", "names": "", "filter": "", "created_by": "root"}
        flags = {"drain": False, "stay_out": False, "created_at": 0.0}
        values = said | flags | {"state": state, "ends_at": ends_at, "bit": -number}
        return add(tx, t.maintenance_windows, **values)

    for number, state in enumerate(("over", "cancelled")):
        window(number, state, OLD)
    kept = [
        window(3, "running", OLD),  # its nodes are still to come back
        window(4, "planned", None),
        window(5, "over", YOUNG),
    ]
    assert pruned(tx, t.maintenance_windows) == 2
    assert ids(tx, t.maintenance_windows) == kept


def test_a_batch_is_no_larger_than_asked_and_the_oldest_go_first(tx: Tx) -> None:
    kept = [
        add(tx, t.conflicts, at=OLD - number, kind="declined", about="a") for number in range(10)
    ]
    assert [pruned(tx, t.conflicts, 4) for _ in range(4)] == [4, 4, 1, 0]
    assert ids(tx, t.conflicts) == kept[-1:]
    more = [
        add(tx, t.conflicts, at=OLD - number, kind="declined", about="a") for number in (0, 2, 1, 0)
    ]
    pruned(tx, t.conflicts, 3)
    assert ids(tx, t.conflicts) == [more[0], more[3]]


def test_an_empty_database_has_nothing_to_prune(tx: Tx) -> None:
    assert [prune(tx, table, LINE) for table in TABLES] == [0] * len(TABLES)


def test_what_a_batch_deletes_is_looked_up_by_indexes(tx: Tx) -> None:
    """Deleting a row looks for those that name it. Without an index each such look would read a
    whole table."""
    if tx.dialect.name != "sqlite":
        return
    for name in TABLES:
        for table in t.metadata.sorted_tables:
            for column in table.columns:
                if any(key.column.table.name == name for key in column.foreign_keys):
                    plan = tx.execute(
                        text(
                            f"EXPLAIN QUERY PLAN SELECT 1 FROM {table.name} WHERE {column.name} = 1"
                        )
                    )
                    assert all("SEARCH" in row[-1] for row in plan), f"{table.name}.{column.name}"


def test_accounts_are_kept(tx: Tx) -> None:
    tx.execute(
        insert(t.energy_use).values(
            day=0, group_id=0, type_id=1, seconds=1.0, joules=1.0, always_on=1.0
        )
    )
    for table in TABLES:
        prune(tx, table, LINE)
    assert tx.scalar(select(func.count()).select_from(t.energy_use)) == 1


def test_old_changes_go_and_links_that_have_run_out(tx: Tx) -> None:
    kept = [add(tx, t.audit, at=at, actor="user:ann", action="x") for at in (OLD, YOUNG)][1:]
    assert pruned(tx, t.audit) == 1
    assert ids(tx, t.audit) == kept
    links = [
        add(tx, t.invitations, digest=str(at), invited_by="user:ann", created_at=OLD, expires_at=at)
        for at in (OLD, YOUNG)
    ]
    assert pruned(tx, t.invitations) == 1
    assert ids(tx, t.invitations) == links[1:]
