"""Long lists out of the database: in parts, in every order, filtered, searched, counted; for those
who may see it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, get_args

import pytest
from sqlalchemy import event, insert, select, text, update

from cod.flows import views
from cod.flows.notices import notices
from cod.flows.scheduler import reclaims
from cod.model import Listed, Page, Refused
from cod.model.paging import COUNTED, cursor
from cod.store import lists
from cod.store import tables as t
from cod.store.engine import Tx
from cod.web.api.resources.nodes import HistoryQuery, NodeQuery
from cod.web.api.resources.notices import NoticeQuery
from cod.web.api.resources.reclaims import ReclaimQuery
from cod.web.api.resources.requests import RequestQuery
from cod.web.api.resources.server import ConflictQuery
from cod.web.api.resources.vclusters import VclusterQuery
from tests import portal_site

pytestmark = pytest.mark.slow

NOW = 1_800_000_000.0
LISTS: dict[str, tuple[Callable[..., Listed[Any]], Any, Callable[[Any], Any]]] = {
    "nodes": (views.node_list, NodeQuery, lambda one: one.node.id),
    "vclusters": (views.vcluster_list, VclusterQuery, lambda one: one.vcluster.id),
    "requests": (views.request_list, RequestQuery, lambda one: one.request.id),
    "reclaims": (reclaims.every, ReclaimQuery, lambda one: one.reclaim.id),
    "notices": (notices.every, NoticeQuery, lambda one: one.notice.id),
    "conflicts": (
        lambda tx, groups=None, **rest: views.conflict_list(tx, **rest),
        ConflictQuery,
        lambda one: one["id"],
    ),
    "history": (
        lambda tx, groups=None, **rest: lists.history(tx, groups=groups, **rest),
        HistoryQuery,
        lambda one: one["id"],
    ),
}


def sorts(query: Any) -> tuple[str, ...]:
    """What a list can be ordered by."""
    return get_args(query.model_fields["sort"].annotation)


@pytest.fixture
def site(tx: Tx) -> Tx:
    """A site with something of everything."""
    portal_site.furnish(tx, NOW)
    return tx


def walk(tx: Tx, name: str, sort: str, limit: int) -> list[int]:
    """All of the list, part by part."""
    flow, _, unique = LISTS[name]
    found: list[int] = []
    after: str | None = ""
    while after is not None:
        shown = flow(tx, page=Page(limit, sort, after))
        assert len(shown) <= limit
        found += map(unique, shown)
        after = shown.next
    return found


def test_parts_together_are_the_list_in_every_order(site: Tx) -> None:
    for name, (flow, query, unique) in LISTS.items():
        for sort in sorts(query):
            part = flow(site, page=Page(100_000, sort))
            whole = [unique(one) for one in part]
            assert walk(site, name, sort, 7) == whole, (name, sort)
            assert part.total in (None, len(whole))
            assert len(set(whole)) == len(whole)
            if sort.startswith("-"):
                assert [unique(one) for one in flow(site, page=Page(100_000, sort[1:]))] == whole[
                    ::-1
                ], (name, sort)
        assert whole or name == "conflicts"


def test_groups_see_their_own(site: Tx) -> None:
    ids = list(site.scalars(select(t.groups.c.id)))
    for name in ("nodes", "vclusters", "requests", "reclaims", "notices", "history"):
        flow, _, unique = LISTS[name]
        whole = {unique(one) for one in flow(site, page=Page(100_000))}
        seen = [
            {unique(one) for one in flow(site, page=Page(100_000), groups=frozenset({each}))}
            for each in ids
        ]
        assert sum(map(len, seen)) == len(set().union(*seen)), name
        assert set().union(*seen) <= whole
        assert flow(site, page=Page(), groups=frozenset()) == []


def test_filters_narrow(site: Tx) -> None:
    everything = views.node_list(site)
    for state in ("active", "off"):
        assert {one.node.state for one in views.node_list(site, state=state)} == {state}
    both = views.node_list(site, state="active,off")
    assert {one.node.state for one in both} == {"active", "off"}
    assert len(views.node_list(site, group="physics")) < len(everything)
    assert {one.group for one in views.vcluster_list(site, group="physics", ended=True)} == {
        "physics"
    }
    assert {one.request.state for one in views.request_list(site, state="pending")} == {"pending"}
    assert len(views.request_list(site, group="physics")) < len(views.request_list(site))
    assert views.request_list(site, group="none") == []
    view = everything[0]
    assert [
        one.node.id for one in views.node_list(site, page=Page(q=view.node.boot_mac.upper()))
    ] == [view.node.id]
    assert views.node_list(site, page=Page(q="100%")) == []
    assert views.node_list(site, page=Page(q="_")) == []


def test_a_history_of_one_node_and_of_one_vcluster(site: Tx) -> None:
    one = lists.history(site, Page(5), None, node="node01")
    assert {row["node"] for row in one} <= {"node01"}
    held = lists.history(site, Page(5), None, vcluster="batch")
    assert {row["vcluster"] for row in held} <= {"batch"}
    assert held.total is None


def _share(tx: Tx) -> None:
    """Give the name batch to a cluster that has ended, too, and every third transition of batch."""
    called = tx.scalar(select(t.vclusters.c.id).where(t.vclusters.c.name == "batch"))
    former = tx.scalar(select(t.vclusters.c.id).where(t.vclusters.c.name == "summer-school"))
    tx.execute(update(t.vclusters).where(t.vclusters.c.id == former).values(name="batch"))
    h = t.node_history.c
    third = (h.vcluster_id == called) & (h.id % 3 == 0)
    tx.execute(update(t.node_history).where(third).values(vcluster_id=former))


@pytest.mark.parametrize("sort", ["", "id"])
def test_a_history_of_a_name_is_that_of_all_who_had_it(site: Tx, sort: str) -> None:
    before = lists.history(site, Page(1000, sort), None, vcluster="batch")
    _share(site)
    whole = lists.history(site, Page(1000, sort), None, vcluster="batch")
    assert [row["id"] for row in whole] == [row["id"] for row in before]
    found: list[dict[str, Any]] = []
    after: str | None = ""
    while after is not None:
        part = lists.history(site, Page(7, sort, after), None, vcluster="batch")
        found += part
        after = part.next
    assert found == whole


@pytest.mark.parametrize("of", [{"node": "node01"}, {"vcluster": "batch"}])
def test_a_page_of_a_history_does_not_sort_all_of_it(site: Tx, of: dict[str, str]) -> None:
    """A cluster of 800 nodes has 100,000 transitions after some months."""
    if site.dialect.name != "sqlite":
        pytest.skip("SQLite tells it in words")
    _share(site)
    plans = []

    def explain(tx: Tx, _cursor: Any, statement: str, values: Any, *_: Any) -> None:
        if "FROM node_history" in statement and not statement.startswith("EXPLAIN"):
            plans.append(tx.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values).all())

    event.listen(site, "before_cursor_execute", explain)
    assert lists.history(site, Page(5), None, **of)
    event.remove(site, "before_cursor_execute", explain)
    assert len(plans) == (2 if "vcluster" in of else 1)
    assert [row.detail for plan in plans for row in plan if "ORDER BY" in row.detail] == []


def test_a_long_list_is_not_counted_to_its_end(tx: Tx) -> None:
    tx.execute(
        insert(t.conflicts),
        [{"at": 1.0, "kind": "declined", "about": "a"} for _ in range(COUNTED + 1)],
    )
    assert views.conflict_list(tx, page=Page(1)).total is None
    assert views.conflict_list(tx, page=Page(1), kind="none").total == 0


def test_rows_that_come_and_go_make_no_part_skip_one(tx: Tx) -> None:
    dice = random.Random(3)
    for number in dice.sample(range(100), 60):
        tx.execute(insert(t.conflicts).values(id=number + 1, at=1.0, kind="declined", about="a"))
    stays = {number for number in range(1, 101) if number % 3 == 0}
    there = {row["id"] for row in views.conflict_list(tx)} & stays
    seen: set[int] = set()
    after: str | None = ""
    while after is not None:
        shown = views.conflict_list(tx, page=Page(5, after=after))
        seen |= {row["id"] for row in shown}
        after = shown.next
        tx.execute(t.conflicts.delete().where(t.conflicts.c.id % 3 != 0, t.conflicts.c.id < 50))
    assert there <= seen


def test_a_wrong_cursor_is_refused(tx: Tx) -> None:
    for flow, _, _ in LISTS.values():
        for after in ("x", "bnVsbA"):
            with pytest.raises(Refused, match="no cursor"):
                flow(tx, page=Page(2, after=after))
    assert views.request_list(tx, page=Page(2, after=cursor("-id", "a", "b"))) == [], (
        "of another sort of values"
    )


@pytest.mark.parametrize(
    ("statement", "index"),
    [
        (
            "select id from node_history where node_id = 7 order by id desc limit 101",
            "ix_node_history_node_id_id",
        ),
        (
            "select id from node_history where vcluster_id = 7 order by id desc limit 101",
            "ix_node_history_vcluster_id_id",
        ),
        (
            (
                "select state, count(*) from nodes where vcluster_id in (1, 2, 3) group by"
                " vcluster_id, state"
            ),
            "ix_nodes_counts",
        ),
        (  # never their wide rows
            "select vcluster_id, group_concat(hostname) from nodes where vcluster_id in (1, 2, 3)"
            " group by vcluster_id",
            "COVERING INDEX ix_nodes_counts",
        ),
        (
            "select id from notices where group_id = 3 order by id desc limit 101",
            "ix_notices_group_id",
        ),
        (
            "select id from node_requests where vcluster_id = 3 order by id desc limit 101",
            "ix_node_requests_vcluster_id",
        ),
    ],
)
def test_long_tables_are_read_by_an_index(tx: Tx, statement: str, index: str) -> None:
    if tx.dialect.name != "sqlite":
        pytest.skip("SQLite's words")
    plan = " ".join(row[3] for row in tx.execute(text(f"explain query plan {statement}")))
    assert index in plan
    assert "TEMP B-TREE FOR ORDER BY" not in plan
