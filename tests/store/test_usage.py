"""The pool over time in the database: counted once, forgotten in time, shown to those who may see
it."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import func, select

from cod.flows.scheduler import shares
from cod.flows.scheduler import usage as flow
from cod.model import Refused, Site
from cod.policy.usage_buckets import DAYS, HOURS, MINUTES
from cod.store import tables as t
from cod.store import watermarks
from cod.store.engine import Tx, new_id
from cod.store.nodes import types
from cod.store.people import groups
from tests.store.manager_world import add_node, add_template

NOON = 20_000 * DAYS + 12.0 * HOURS


def counted(tx: Tx, now: float) -> bool:
    found = flow.count(tx, now)
    return found is not None and flow.note(tx, found)


def minutes(tx: Tx, count: int, since: float = NOON) -> float:
    """So many minutes, each counted; until when."""
    counted(tx, since)
    for number in range(1, count + 1):
        counted(tx, since + 60.0 * number)
    return since + 60.0 * count


def held(
    tx: Tx,
    now: float,
    by: str = "vcluster",
    only: frozenset[int] | None = None,
    limit: int = 50,
    **rest: Any,
) -> dict[str | None, list[float]]:
    chart = flow.held(
        tx, since=NOON, until=NOON + 600, by=by, limit=limit, groups=only, now=now, **rest
    )
    assert (chart.span, chart.starts) == (MINUTES, (int(NOON), int(NOON) + 300))
    return {one.key: [pytest.approx(each) for each in one.nodes] for one in chart.series}


@pytest.fixture
def world(tx: Tx) -> dict[str, int]:
    """Groups red and blue; red's vclusters a (3 nodes) and b (1), blue's c (2); one node free."""
    template, kind = add_template(tx), types.of(tx, "<node/>", 0.0).id
    ids: dict[str, int] = {}
    for name, group, size in (("a", "red", 3), ("b", "red", 1), ("c", "blue", 2)):
        ids[group] = groups.ensure(tx, group, 0.0).id
        ids[name] = new_id(
            tx.execute(
                t.vclusters.insert().values(
                    name=name,
                    live_name=name,
                    group_id=ids[group],
                    state="active",
                    template_id=template,
                    size=size,
                    creation_size=size,
                    lease_time=1.0,
                    created_at=0.0,
                )
            )
        )
        for number in range(size):
            add_node(tx, 10 * ids[name] + number, "active", vcluster_id=ids[name], type_id=kind)
    add_node(tx, 99, "off", type_id=kind)
    return ids


def test_the_first_count_only_begins(tx: Tx, world: dict[str, int]) -> None:
    assert counted(tx, NOON)
    assert not counted(tx, NOON)
    assert held(tx, NOON) == {}


def test_who_held_what(tx: Tx, world: dict[str, int]) -> None:
    now = minutes(tx, 10)
    assert held(tx, now) == {"a": [3, 3], "c": [2, 2], "b": [1, 1]}
    assert list(held(tx, now)) == ["a", "c", "b"], "the largest first"
    assert held(tx, now, "group") == {"red": [4, 4], "blue": [2, 2]}
    assert held(tx, now, "type") == {"type1": [6, 6]}
    assert held(tx, now, limit=1) == {"a": [3, 3], None: [3, 3]}
    assert held(tx, now, group="red") == {"a": [3, 3], "b": [1, 1]}
    assert held(tx, now, vcluster="c") == {"c": [2, 2]}
    assert held(tx, now, type="none") == {}


def test_groups_see_their_own(tx: Tx, world: dict[str, int]) -> None:
    now = minutes(tx, 10)
    assert held(tx, now, only=frozenset({world["blue"]})) == {"c": [2, 2]}
    assert held(tx, now, "type", frozenset({world["blue"]})) == {"type1": [2, 2]}
    assert held(tx, now, only=frozenset()) == {}


def test_nodes_by_state(tx: Tx, world: dict[str, int]) -> None:
    now = minutes(tx, 10)
    chart = flow.states(tx, since=NOON, until=now, now=now)
    assert {one.key: list(one.nodes) for one in chart.series} == {
        "active": pytest.approx([6.0, 6.0]),
        "off": pytest.approx([1.0, 1.0]),
    }
    assert chart.counted_until == now
    assert flow.states(tx, since=NOON, until=now, type="none", now=now).series == ()
    day = flow.states(tx, since=NOON - 3 * DAYS, until=now, now=now)
    assert (day.span, len(day.starts)) == (DAYS, 4)
    assert day.series[0].nodes[-1] == pytest.approx(6 * 600 / DAYS)


def test_a_day_that_goes_on_has_the_nodes_of_its_counted_part(
    tx: Tx, world: dict[str, int]
) -> None:
    now = minutes(tx, 10)
    day = shares.used(tx, "red", site=Site("lab", "cod.test", ()), now=now).days[-1]
    part = 600 / (12 * HOURS + 600)  # nothing was counted before noon
    assert (day.own, day.equal, day.free) == pytest.approx((4 * part, 2 * part, 1 * part))


def test_a_gap_is_not_made_up(tx: Tx, world: dict[str, int]) -> None:
    minutes(tx, 2)
    assert counted(tx, NOON + 3 * HOURS)
    assert held(tx, NOON + 3 * HOURS)["a"] == [3 * 120 / 300, 0]
    assert not flow.note(tx, flow.Count(NOON, NOON + 9, ())), "somebody else was quicker"


def test_what_is_fine_is_forgotten_first(tx: Tx, world: dict[str, int]) -> None:
    minutes(tx, 1)
    spans = select(t.pool_held.c.span, func.count()).group_by(t.pool_held.c.span)

    def kept() -> dict[int, int]:
        return {row[0]: row[1] for row in tx.execute(spans)}

    assert kept() == {MINUTES: 3, HOURS: 3, DAYS: 3}
    counted(tx, NOON + 2 * DAYS)
    assert kept() == {HOURS: 3, DAYS: 3}
    counted(tx, NOON + 40 * DAYS)
    assert kept() == {DAYS: 3}


def test_old_answers_are_forgotten_too(tx: Tx) -> None:
    for key, at in (("old", NOON - 86_500), ("young", NOON - 5)):
        tx.execute(t.replies.insert().values(key=key, question="q", status=201, body="", at=at))
    minutes(tx, 1)
    assert list(tx.scalars(select(t.replies.c.key))) == ["young"]


@pytest.mark.parametrize(("since", "until"), [(NOON, NOON - 1), (NOON - 401 * DAYS, NOON)])
def test_what_cannot_be_asked(tx: Tx, since: float, until: float) -> None:
    with pytest.raises(Refused):
        flow.states(tx, since=since, until=until, now=NOON)
    assert watermarks.at(tx, watermarks.POOL) is None
