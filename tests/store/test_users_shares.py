"""Users' shares inside groups, in the database: what is counted, and whose request goes first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from sqlalchemy import event, select

from cod.flows.nodes import energy
from cod.flows.people import people as people_flows
from cod.flows.scheduler import plan, shares, vclusters
from cod.model import AskedVcluster, Role
from cod.policy.scheduler import priority
from cod.policy.scheduler.feasibility import Feasibility
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.people import groups, people
from cod.store.scheduler import vclusters as rows
from tests.contexts import flow_context
from tests.store.manager_world import OWNER, furnish, rest
from tests.store.test_shares import FAIR, HOUR, NOW, WEEK

pytestmark = pytest.mark.slow


def member(tx: Tx, name: str, group: str, **columns: float) -> int:
    """Return the id of a new user, a member of the group."""
    user = people.add(tx, name, 0.0)
    people.set_role(tx, groups.named(tx, group).id, user.id, Role.MEMBER, **columns)
    return user.id


def create(tx: Tx, name: str, size: int, group: str, now: float, user_id: int | None) -> None:
    vclusters.create(
        tx,
        flow_context(FAIR, now, user_id=user_id),
        AskedVcluster(name=name, size=size, template="debian", group=group, lease=1e6, spread=True),
    )


def count(tx: Tx, now: float) -> None:
    """Count what was used until now."""
    reading = energy.count(tx, FAIR.energy, now)
    assert reading is not None
    energy.note(tx, reading, FAIR.policy)


def queue(tx: Tx, now: float) -> list[str]:
    """Return the vclusters whose requests wait, the one that is looked at first in front."""
    seen = plan.look(tx, FAIR, now).site
    waiting = priority.ordered(seen, FAIR.policy, Feasibility(seen, now), now)
    names = {one.id: one.name for one in rows.live(tx)}
    return [names[one.vcluster_id] for one in waiting]


def usage(tx: Tx, name: str = "physics") -> dict[str, float]:
    return {one.user: one.usage for one in shares.of_users(tx, name, site=FAIR, now=NOW)}


def test_heavy_use_puts_the_next_request_behind_a_colleagues(tx: Tx) -> None:
    """The other group keeps its place, and without users' shares age decides."""
    furnish(tx, 4)
    for name in ("physics", "biology"):
        groups.add(tx, name, 0.0, priority=1)
    shares.change(tx, "physics", {"user_shares": True}, site=FAIR, now=NOW)
    ann, bob = member(tx, "ann", "physics"), member(tx, "bob", "physics")
    create(tx, "heavy", 4, "physics", NOW, ann)
    now = rest(tx, FAIR, NOW)
    count(tx, now)
    count(tx, now + 60.0)
    found = shares.of_users(tx, "physics", site=FAIR, now=now + 60.0)
    assert [(one.user, one.rank) for one in found] == [("bob", 1), ("ann", 2)]
    assert [one.usage for one in found] == pytest.approx([0.0, 4 / 60], rel=1e-3)
    now += 70.0
    create(tx, "anns", 4, "physics", now, ann)
    create(tx, "theirs", 4, "biology", now + 10.0, None)
    create(tx, "bobs", 4, "physics", now + 20.0, bob)
    now += 30.0
    assert queue(tx, now) == ["theirs", "bobs", "anns"]
    shares.change(tx, "biology", {"shares": 0.0}, site=FAIR, now=now)
    assert queue(tx, now) == ["bobs", "anns", "theirs"]
    tx.execute(t.groups.update().values(user_shares=False))
    assert queue(tx, now) == ["anns", "bobs", "theirs"]
    tx.execute(t.groups.update().where(t.groups.c.name == "physics").values(user_shares=True))
    vclusters.delete(tx, flow_context(FAIR, now, OWNER), name="heavy")
    rest(tx, FAIR, now, step=100.0)
    states = {one.name: one.state for one in rows.live(tx)}
    assert (states["bobs"], states["anns"]) == ("active", "pending")


def test_shares_of_a_member_count_and_stay_with_a_new_role(tx: Tx) -> None:
    groups.add(tx, "physics", 0.0, user_shares=True)
    physics = groups.named(tx, "physics").id
    for name, number in (("ann", 3.0), ("bob", 1.0)):
        user = member(tx, name, "physics", shares=number)
        tx.execute(
            t.user_usage.insert().values(
                group_id=physics, user_id=user, faded_usage=2 * HOUR, faded_at=NOW - WEEK
            )
        )
    people_flows.set_role(tx, group="physics", user="ann", role="owner")
    ann, bob = shares.of_users(tx, "physics", site=FAIR, now=NOW)
    assert (ann.user, ann.shares, ann.share, ann.rank, ann.usage) == ("ann", 3.0, 0.75, 1, 1.0)
    assert (bob.ratio, bob.rank) == (0.5, 2)


def test_usage_is_forgotten_with_the_user_and_when_it_is_switched_off(tx: Tx) -> None:
    furnish(tx, 2)
    groups.add(tx, "physics", 0.0, user_shares=True)
    ann = member(tx, "ann", "physics")
    create(tx, "one", 1, "physics", NOW, ann)
    create(tx, "two", 1, "physics", NOW, None)
    now = rest(tx, FAIR, NOW)
    count(tx, now)
    count(tx, now + 60.0)
    assert usage(tx).keys() == {"ann", ""}
    people.remove(tx, ann)
    assert usage(tx).keys() == {""}
    assert tx.scalars(select(t.vclusters.c.user_id)).all() == [None, None]
    shares.change(tx, "physics", {"user_shares": False}, site=FAIR, now=now)
    assert tx.execute(select(t.user_usage)).all() == []


@contextmanager
def statements(tx: Tx) -> Iterator[list[str]]:
    """Collect what the database is asked."""
    found: list[str] = []

    def note(_conn: object, _cursor: object, statement: str, *_rest: object) -> None:
        found.append(statement)

    event.listen(tx, "before_cursor_execute", note)
    yield found
    event.remove(tx, "before_cursor_execute", note)


def test_a_site_without_users_shares_is_not_asked_for_users(tx: Tx) -> None:
    furnish(tx, 1)
    physics = groups.add(tx, "physics", 0.0)
    create(tx, "one", 1, "physics", NOW, None)
    with statements(tx) as asked:
        plan.look(tx, FAIR, NOW)
        energy.note(tx, energy.Reading(None, NOW), FAIR.policy)
        count(tx, NOW + 60.0)
    assert not [one for one in asked if "user_usage" in one or "group_permissions" in one]
    groups.change(tx, physics.id, user_shares=True)
    with statements(tx) as asked:
        plan.look(tx, replace(FAIR), NOW)
    assert [one for one in asked if "user_usage" in one]
