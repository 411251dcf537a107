"""Nodes that are out of service until a moment, and what a hold of the site means for them."""

from __future__ import annotations

from typing import Any

import pytest

from cod.flows.nodes import deadlines, hold
from cod.flows.nodes import nodes as flow
from cod.flows.scheduler import maintenance
from cod.model import AskedWindow, Refused, Site
from cod.states import Disk, NodeState
from cod.store import claims
from cod.store.engine import Tx
from cod.store.nodes import nodes
from tests.contexts import flow_context
from tests.store.manager_world import add_node

pytestmark = pytest.mark.slow

NOW, UNTIL, ENDS = 10.0, 20_000.0, 30_000.0
ADMIN = "user:root"


@pytest.fixture
def aside(tx: Tx, site: Site) -> Site:
    """Node node0, out of service until `UNTIL`, and node1, which is free."""
    add_node(tx, 0)
    add_node(tx, 1)
    set_aside(tx, site, until=UNTIL)
    return site


def set_aside(tx: Tx, site: Site, now: float = NOW, **said: Any) -> None:
    values = {"name": "node0", "reason": "fan"} | said
    flow.quarantine(tx, flow_context(site, now, ADMIN), **values)


def state(tx: Tx, name: str = "node0") -> tuple[str, str, float | None]:
    node = nodes.by_name(tx, name)
    assert node is not None
    return node.state, node.reason, node.deadline


def carry_on(tx: Tx, site: Site, now: float) -> None:
    """What the manager does about windows."""
    claim = claims.hold(tx, "manager", "a", now, 10.0)
    assert claim is not None
    maintenance.run(tx, claim=claim, site=site, now=now)


def taken(tx: Tx, site: Site) -> None:
    """A window from now to `ENDS` that has taken both nodes."""
    asked = AskedWindow(reason="power", site=True, begins_at=NOW, ends_at=ENDS)
    maintenance.plan(tx, flow_context(site, NOW, ADMIN), asked=asked)
    carry_on(tx, site, NOW)


def test_a_node_comes_back_by_itself_and_is_erased(tx: Tx, aside: Site) -> None:
    deadlines.run(tx, aside, UNTIL - 1)
    assert state(tx) == ("quarantined", "fan", UNTIL)
    deadlines.run(tx, aside, UNTIL)
    assert state(tx)[:2] == ("trampoline", "")
    node = nodes.by_name(tx, "node0")
    assert node is not None
    assert (node.disk, node.power_wanted) == (Disk.DIRTY, "cycle")
    newest = nodes.history(tx, node.id)[-1]
    assert (newest["actor"], newest["cause"]) == (
        "deadline",
        "its time out of service is over: fan",
    )


def test_reason_and_moment_are_replaced(tx: Tx, aside: Site) -> None:
    set_aside(tx, aside, reason="fan and disk", until=ENDS)
    deadlines.run(tx, aside, UNTIL)
    assert state(tx) == ("quarantined", "fan and disk", ENDS)
    set_aside(tx, aside)
    deadlines.run(tx, aside, ENDS)
    assert state(tx) == ("quarantined", "fan", None)


def test_a_moment_that_is_put_off_as_it_comes_is_the_later_one(
    tx: Tx, aside: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = nodes.overdue(tx, UNTIL)
    set_aside(tx, aside, until=ENDS)
    monkeypatch.setattr(nodes, "overdue", lambda *_: before)  # read before that was committed
    deadlines.run(tx, aside, UNTIL)
    assert state(tx) == ("quarantined", "fan", ENDS)


@pytest.mark.parametrize(
    ("before", "until", "sentence"),
    [("inactive", NOW, "that time is over"), ("registering", UNTIL, "is not approved")],
)
def test_what_cannot_come_back_by_itself(
    tx: Tx, site: Site, before: str, until: float, sentence: str
) -> None:
    add_node(tx, 0, state=before)
    with pytest.raises(Refused, match=sentence):
        set_aside(tx, site, until=until)


def test_a_window_brings_no_node_back_that_was_set_aside_by_hand(tx: Tx, aside: Site) -> None:
    taken(tx, aside)
    set_aside(tx, aside, name="node1", reason="maintenance of its fan")
    carry_on(tx, aside, ENDS)
    assert state(tx, "node1") == ("quarantined", "maintenance of its fan", None)


def test_a_node_that_comes_back_in_a_window_goes_out_with_it(tx: Tx, aside: Site) -> None:
    taken(tx, aside)
    deadlines.run(tx, aside, UNTIL)
    carry_on(tx, aside, UNTIL)
    assert state(tx)[0] == "quarantined"
    carry_on(tx, aside, ENDS)
    assert state(tx)[0] == "trampoline"


def test_nothing_comes_back_by_itself_that_was_out_when_the_site_was_held(
    tx: Tx, aside: Site
) -> None:
    """A database that was restored may be older than the return of a node, which somebody has
    installed since: to bring it back once more would erase it."""
    taken(tx, aside)
    hold.start(tx, NOW + 1)
    hold.end(tx, NOW + 2)
    deadlines.run(tx, aside, ENDS)
    carry_on(tx, aside, ENDS)
    assert state(tx)[0] == state(tx, "node1")[0] == NodeState.QUARANTINED


def test_a_moment_that_was_named_during_a_hold_stays(tx: Tx, aside: Site) -> None:
    hold.start(tx, NOW + 1)
    set_aside(tx, aside, NOW + 2, until=ENDS)
    hold.end(tx, NOW + 1_000)
    assert state(tx)[2] == ENDS


def test_no_window_takes_a_node_that_is_held_for_its_story(tx: Tx, aside: Site) -> None:
    hold.start(tx, NOW)
    hold.end(tx, NOW + 1)
    taken(tx, aside)
    assert state(tx, "node1")[0] == NodeState.TRAMPOLINE
