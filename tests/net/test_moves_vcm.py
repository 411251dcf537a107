"""A move between two vclusters, and the VCM of the one that gives nodes: its real service against
the real server."""

from __future__ import annotations

from typing import Any

import pytest

from cod.flows.scheduler import moves
from cod.model import RequestView
from cod.pool import in_transaction
from cod.store import views
from tests.contexts import flow_context
from tests.net.test_vcm_service import Make
from tests.net.test_vcm_service import lab as lab
from tests.net.vcmlab import Lab

pytestmark = pytest.mark.slow


def moving(lab: Lab, within: float) -> RequestView:
    """The pool has three nodes, of which two are to go to 'web', which has one."""
    lab.start_cod()
    lab.start_vcm()
    lab.books.want = 3
    lab.until(lambda: len(lab.books.members) == 3, "the pool has three nodes")
    lab.create("web", 1, "site")
    lab.until(lambda: len(lab.held("web")) == 1, "the other has one")
    made: Any = in_transaction(
        lab.engine,
        moves.start,
        flow_context(lab.site, lab.now(), "user:ann"),
        source="pool",
        target="web",
        count=2,
        within=within,
    )
    return made.value


def seen(lab: Lab, asked: RequestView) -> tuple[str, int, int]:
    view = in_transaction(lab.engine, views.request, asked.request.id)
    return view.request.state, view.request.granted, view.leaving


def test_a_vcm_that_drains_gives_the_nodes_long_before_the_deadline(lab: Make) -> None:
    there = lab()
    asked = moving(there, 3600.0)
    there.until(lambda: len(there.held("web")) == 3, "web has them")
    assert there.now() < (asked.request.deadline or 0.0) - 3000.0
    assert seen(there, asked) == ("granted", 2, 0)
    there.until(
        lambda: there.books.members.keys() <= there.held("pool"), "the pool uses none of them"
    )


def test_a_vcm_that_is_away_loses_them_at_the_deadline(lab: Make) -> None:
    there = lab()
    asked = moving(there, 40.0)
    there.away = True
    there.cut()
    there.ticks(35.0)
    assert seen(there, asked) == ("pending", 0, 2)
    there.until(lambda: len(there.held("web")) == 3, "web has them")
    assert there.now() >= (asked.request.deadline or 0.0)
    assert seen(there, asked) == ("granted", 2, 0)
