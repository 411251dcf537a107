"""Reserve marks by forecast, from the timeline in the database to nodes that are woken."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, insert, select

from cod.core import reserve_marks, snapshot
from cod.flows.scheduler import plan
from cod.model import Energy, Site
from cod.policy.energy.reserve_forecast import HOUR, WEEK
from cod.states import NodeState
from cod.store import tables as t
from cod.store.engine import Tx
from tests.store.manager_world import furnish, in_tx

pytestmark = pytest.mark.slow  # together with its like more than the quick run has time for

RULES = Energy(manage=True, warm_low=0, warm_high=3, forecast_weeks=3)
NOW = float(2000 * WEEK * HOUR + 8 * HOUR)


def remember(tx: Tx, weeks: int) -> None:
    """Two vclusters that together hold one node, and four from the ninth hour of a week to the
    tenth."""
    rows: list[dict[str, Any]] = []
    kind = tx.scalar(select(t.node_types.c.id))
    for hour in range(2000 * WEEK - weeks * WEEK, 2000 * WEEK):
        busy = hour % WEEK in (9, 10)
        for vcluster, held in ((1, 1), (2, 3 if busy else 0)):
            rows.append(
                {
                    "span": HOUR,
                    "start": hour * HOUR,
                    "vcluster_id": vcluster,
                    "type_id": kind,
                    "seconds": float(held * HOUR),
                }
            )
    tx.execute(insert(t.pool_held), rows)
    tx.execute(
        insert(t.pool_states).values(
            span=HOUR, start=rows[0]["start"], type_id=kind, state="active", seconds=HOUR
        )
    )


@pytest.fixture
def night(engine: Engine, site: Site) -> Site:
    """Six nodes that sleep."""
    in_tx(engine, furnish, 6)
    in_tx(engine, lambda tx: tx.execute(t.nodes.update().values(state=NodeState.OFF)))
    return replace(site, energy=RULES)


def test_nodes_are_awake_before_the_hour_in_which_they_were_taken(
    engine: Engine, night: Site
) -> None:
    in_tx(engine, remember, 3)
    [kind] = in_tx(engine, snapshot.snapshot, night, NOW).types
    assert in_tx(engine, reserve_marks.spare, RULES, [kind], NOW) == {kind: (3, 3)}
    assert in_tx(engine, reserve_marks.spare, RULES, [kind], NOW + 12 * HOUR) == {kind: (0, 0)}
    assert in_tx(engine, snapshot.snapshot, night, NOW).spare == {kind: (3, 3)}
    lines = in_tx(engine, plan.preview, site=night, now=NOW)
    assert [(one.kind, one.nodes) for one in lines] == [("wake", 3)]
    assert "by forecast the low mark is 3" in lines[0].about
    assert in_tx(engine, plan.preview, site=night, now=NOW + 12 * HOUR) == []


def test_there_is_none_of_a_timeline_that_is_short_or_of_a_site_that_wants_none(
    engine: Engine, night: Site
) -> None:
    types = list(in_tx(engine, snapshot.snapshot, night, NOW).types)
    assert in_tx(engine, reserve_marks.spare, RULES, types, NOW) == {}
    in_tx(engine, remember, 1)
    assert in_tx(engine, reserve_marks.spare, RULES, types, NOW) == {}, "one week is too little"
    for rules in (replace(RULES, forecast_weeks=0), replace(RULES, manage=False)):
        assert in_tx(engine, reserve_marks.spare, rules, types, NOW) == {}


def test_what_was_seen_stays_while_the_forecast_does(engine: Engine, night: Site) -> None:
    """A pass that finds nothing changed need not plan; with a new hour's forecast it does."""
    in_tx(engine, remember, 3)
    first = in_tx(engine, snapshot.look, night, NOW)
    assert in_tx(engine, snapshot.look, night, NOW + 10, first).site == first.site
    later = in_tx(engine, snapshot.look, night, NOW + 12 * HOUR, first)
    assert later.site != first.site
