"""Groups' shares in the database: how they are set and shown, how usage fades, and what passes make
of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import event, insert, select

from cod.core import entitlements, preemption
from cod.flows.nodes import energy
from cod.flows.people import groups as group_flows
from cod.flows.scheduler import plan, shares, vclusters
from cod.model import AskedVcluster, Policy, Refused
from cod.policy.scheduler.snapshot import Sharing
from cod.policy.sharing import turns
from cod.store import claims
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.nodes import types
from cod.store.people import groups
from cod.store.scheduler import node_counts, reclaims, requests
from cod.store.scheduler import vclusters as rows
from tests.contexts import flow_context
from tests.store.manager_world import OWNER, add_node, arrive, furnish, planned, rest, run_pass
from tests.store.test_manager_properties import SITE as WORLD

pytestmark = pytest.mark.slow  # together with its like more than the quick run has time for

HOUR, DAY = 3600.0, 86400.0
WEEK = 7 * DAY
NOW = 1_000_000.0
FAIR = replace(
    WORLD,
    policy=replace(
        WORLD.policy, fair_half_life=WEEK, inertia=5.0, reclaim_grace=20.0, age_step=1.0
    ),
)


def group(tx: Tx, name: str, usage: float = 0.0, **columns: Any) -> None:
    """A group that has used so many node-hours."""
    groups.add(tx, name, 0.0, faded_usage=usage * HOUR, faded_at=NOW, **columns)


def test_the_worked_example_is_shown(tx: Tx) -> None:
    for name, share, usage in (("a", 40, 600), ("b", 30, 300), ("c", 30, 100)):
        group(tx, name, usage, shares=share)
    found = {one.group: one for one in shares.every(tx, site=FAIR, now=NOW)}
    assert [found[name].ratio for name in "abc"] == pytest.approx([2 / 3, 1.0, 3.0], rel=1e-3)
    assert [found[name].rank for name in "abc"] == [3, 2, 1]
    assert [found[name].usage for name in "abc"] == pytest.approx([600.0, 300.0, 100.0])
    assert [one.group for one in shares.every(tx, site=FAIR, now=NOW)] == ["c", "b", "a"]


def test_usage_of_a_week_ago_is_half_of_it(tx: Tx) -> None:
    group(tx, "physics", 700)
    physics = groups.named(tx, "physics")
    node = add_node(tx, 1)
    tx.execute(
        insert(t.vclusters).values(
            id=1,
            name="v",
            live_name="v",
            group_id=physics.id,
            state="active",
            template_id=_template(tx),
            size=1,
            creation_size=1,
            lease_time=1.0,
            created_at=0.0,
            attributes="",
        )
    )
    tx.execute(
        t.nodes.update().where(t.nodes.c.id == node.id).values(vcluster_id=1, state="active")
    )
    energy.note(tx, energy.Reading(None, NOW), FAIR.policy)
    later = NOW + WEEK
    read = energy.Reading(NOW, later)
    assert energy.note(tx, read, FAIR.policy)
    assert groups.named(tx, "physics").faded_usage == pytest.approx(350 * HOUR)
    counted = energy.count(tx, FAIR.energy, later + 60.0)
    assert counted is not None
    energy.note(tx, counted, FAIR.policy)
    assert groups.named(tx, "physics").faded_usage == pytest.approx(
        350 * HOUR * 2 ** (-60 / WEEK) + 60.0
    )


def _template(tx: Tx) -> int:
    from tests.store.manager_world import add_template

    return add_template(tx)


def test_usage_is_made_out_of_the_accounts_when_shares_are_switched_on(tx: Tx) -> None:
    physics = groups.add(tx, "physics", 0.0)
    day = int(NOW // DAY)
    tx.execute(
        insert(t.energy_use).values(day=day - 7, group_id=physics.id, type_id=1, seconds=700 * HOUR)
    )
    energy.note(tx, energy.Reading(None, day * DAY + DAY / 2), FAIR.policy)
    assert groups.named(tx, "physics").faded_usage == pytest.approx(350 * HOUR)


def test_nothing_is_followed_while_shares_are_off(tx: Tx) -> None:
    groups.add(tx, "physics", 0.0)
    energy.note(tx, energy.Reading(None, NOW), Policy())
    assert groups.named(tx, "physics").faded_usage is None
    one = shares.one(tx, "physics", site=WORLD, now=NOW)
    assert (one.rank, one.ratio, one.share_nodes, one.usage) == (None, None, None, None)


def test_settings_are_checked(tx: Tx) -> None:
    furnish(tx, 4)
    for name in ("physics", "biology", "theory"):
        groups.add(tx, name, 0.0)

    def refused(name: str, field: str, **changes: object) -> str:
        with pytest.raises(Refused) as caught:
            shares.change(tx, name, changes, site=FAIR, now=NOW)
        assert caught.value.field == field
        return caught.value.sentence

    shares.change(tx, "physics", {"guarantee": 3}, site=FAIR, now=NOW)
    assert "1 are left" in refused("biology", "guarantee", guarantee=2)
    assert "no subgroup of itself" in refused("physics", "parent", parent="physics")
    shares.change(tx, "theory", {"parent": "physics"}, site=FAIR, now=NOW)
    assert "one level" in refused("biology", "parent", parent="theory")
    assert "has subgroups" in refused("physics", "parent", parent="biology")
    assert "no node type" in refused("physics", "type_limits", type_limits={"gpu": 1})
    [kind] = {row.name for row in tx.execute(t.node_types.select())}
    changed = shares.change(
        tx, "physics", {"type_limits": {kind: 2}, "node_limit": 9}, site=FAIR, now=NOW
    ).value
    assert (changed.node_limit, dict(changed.type_limits)) == (9, {kind: 2})
    group_flows.delete(tx, "physics")
    assert groups.named(tx, "theory").parent_id is None


def create(tx: Tx, name: str, size: int, group_name: str, now: float) -> None:
    vclusters.create(
        tx,
        flow_context(FAIR, now),
        AskedVcluster(
            name=name, size=size, template="debian", group=group_name, lease=1e6, spread=True
        ),
    )


@pytest.mark.parametrize("priority", [0, 5])
def test_a_guarantee_takes_from_others_and_leaves_them_theirs(tx: Tx, priority: int) -> None:
    furnish(tx, 10)
    groups.add(tx, "large", 0.0, guarantee=2, priority=priority)
    groups.add(tx, "sure", 0.0, guarantee=8)
    create(tx, "pool", 1, "large", NOW)
    now = rest(tx, FAIR, NOW)
    vclusters.resize(tx, flow_context(FAIR, now, OWNER), name="pool", size=10, spread=True)
    now = rest(tx, FAIR, now)
    assert _held(tx) == {"large": 10, "sure": 0}
    create(tx, "mine", 8, "sure", now)
    now = rest(tx, FAIR, now)
    assert _held(tx) == {"large": 2, "sure": 8}
    vclusters.resize(tx, flow_context(FAIR, now, OWNER), name="pool", size=3, spread=True)
    rest(tx, FAIR, now)
    assert _held(tx) == {"large": 2, "sure": 8}, "nothing is taken back and forth"


def test_the_odd_node_goes_to_the_other_group_in_the_next_turn(tx: Tx) -> None:
    furnish(tx, 3)
    for name in ("a", "b"):
        groups.add(tx, name, 0.0)
    parts = {one.group: one.share_nodes for one in shares.every(tx, site=FAIR, now=NOW)}
    first, second = ("a", "b") if parts["a"] == 2 else ("b", "a")
    assert (parts[first], parts[second]) == (2, 1)
    create(tx, first, 1, first, NOW)
    create(tx, second, 1, second, NOW)
    now = rest(tx, FAIR, NOW)
    for name in (first, second):
        vclusters.resize(tx, flow_context(FAIR, now, OWNER), name=name, size=2, spread=True)
        now = rest(tx, FAIR, now)
    assert _held(tx) == {first: 2, second: 1}
    later = turns.ends(FAIR.policy, now)
    assert plan.due(plan.snapshot(tx, FAIR, now), FAIR, later - 1.0) == later
    rest(tx, FAIR, later)
    assert _held(tx) == {first: 1, second: 2}


def test_what_is_being_taken_by_shares_may_still_be_taken(tx: Tx) -> None:
    """Else a reclaim would be given up at its deadline, and made again."""
    furnish(tx, 20)
    now = 25 * DAY
    names = [f"g{number}" for number in range(8)]
    for name in names:
        groups.add(tx, name, 0.0)
        create(tx, name, 1, name, now)
    now = rest(tx, FAIR, now)
    for name in names:
        size = 3 if name < "g4" else 2
        vclusters.resize(tx, flow_context(FAIR, now, OWNER), name=name, size=size, spread=True)
    now = rest(tx, FAIR, now)
    for name in names[4:]:
        vclusters.resize(tx, flow_context(FAIR, now, OWNER), name=name, size=3, spread=True)
    run_pass(tx, FAIR, now)
    there = reclaims.open_(tx)
    assert there
    for one in there:
        loser, asked = rows.get(tx, one.vcluster_id), requests.get(tx, one.request_id)
        assert loser is not None
        assert asked is not None
        planned = plan.decide(plan.snapshot(tx, FAIR, now), FAIR, now)
        may = preemption.takeable(
            tx, loser, asked, one.count, now, sharing=planned.sharing, open_=one.count
        )
        assert may == one.count


def test_a_turn_that_ends_is_a_change_of_the_site(tx: Tx) -> None:
    furnish(tx, 3)
    for name in ("a", "b"):
        groups.add(tx, name, 0.0)
    seen = plan.look(tx, FAIR, NOW)
    assert plan.look(tx, FAIR, seen.until - 1.0, seen).site is seen.site
    assert plan.look(tx, FAIR, seen.until, seen).site.turn == seen.site.turn + 1


def test_what_groups_used_in_fourteen_days_is_told_with_jains_index(tx: Tx) -> None:
    for name, hours in (("a", 30.0), ("b", 10.0)):
        group(tx, name)
        tx.execute(
            insert(t.energy_use).values(
                day=int(NOW // DAY), group_id=groups.named(tx, name).id, type_id=1, seconds=hours
            )
        )
    found = shares.every(tx, site=FAIR, now=NOW)
    assert [one.evenness for one in found] == [pytest.approx(0.8)] * len(found)
    assert sum(one.recent_hours for one in found) == pytest.approx(40.0 / HOUR)
    assert shares.every(tx, site=FAIR, now=NOW + 14 * DAY)[0].evenness is None


def test_what_others_are_guaranteed_is_given_as_growth(tx: Tx) -> None:
    """One vcluster that is created with all nodes keeps no guarantee from being called in."""
    furnish(tx, 12)
    groups.add(tx, "large", 0.0, priority=5)
    groups.add(tx, "sure", 0.0, guarantee=4)
    create(tx, "pool", 12, "large", NOW)
    now = rest(tx, FAIR, NOW)
    assert _held(tx) == {"large": 12, "sure": 0}
    (pool,) = list(tx.execute(t.vclusters.select()))
    assert pool.creation_size == 8
    (told,) = [each for each in tx.execute(t.notices.select()) if each.kind == "lease-began"]
    assert "4 of them are guaranteed to other groups" in told.about
    create(tx, "mine", 4, "sure", now)
    now = rest(tx, FAIR, now)
    assert _held(tx) == {"large": 8, "sure": 4}
    (mine,) = [each for each in tx.execute(t.vclusters.select()) if each.name == "mine"]
    assert mine.creation_size == 4


def test_setting_a_guarantee_says_when_it_can_be_called_in(tx: Tx) -> None:
    """A vcluster that was created before keeps its creation size until its lease ends."""
    furnish(tx, 12)
    for name in ("large", "sure"):
        groups.add(tx, name, 0.0)
    create(tx, "pool", 12, "large", NOW)
    now = rest(tx, FAIR, NOW)
    ends = tx.scalar(select(t.vclusters.c.expires_at))
    said = shares.change(tx, "sure", {"guarantee": 4}, site=FAIR, now=now).value
    assert (said.guarantee, said.guaranteed_from) == (4, ends)
    assert shares.one(tx, "large", site=FAIR, now=now).guaranteed_from == now


def test_idle_groups_keep_no_share_from_those_that_want_nodes(tx: Tx) -> None:
    """The act that takes nodes finds the same shares as the plan."""
    furnish(tx, 10)
    for name in ("large", "small", *(f"idle{number}" for number in range(8))):
        groups.add(tx, name, 0.0)
    create(tx, "pool", 1, "large", NOW)
    now = rest(tx, FAIR, NOW)
    vclusters.resize(tx, flow_context(FAIR, now, OWNER), name="pool", size=10, spread=True)
    now = rest(tx, FAIR, now)
    create(tx, "mine", 4, "small", now)
    now = rest(tx, FAIR, now)
    assert _held(tx) == {"large": 6, "small": 4} | {f"idle{one}": 0 for one in range(8)}


def test_a_request_beyond_its_limit_waits_until_there_is_room(tx: Tx) -> None:
    furnish(tx, 6)
    groups.add(tx, "physics", 0.0, node_limit=4)
    create(tx, "one", 3, "physics", NOW)
    now = rest(tx, FAIR, NOW)
    create(tx, "two", 2, "physics", now)
    run_pass(tx, FAIR, now)
    (waits,) = requests.every(tx, states=["pending"])
    assert waits.reason == "waits: its group may hold 4 nodes at once"
    vclusters.resize(tx, flow_context(FAIR, now, OWNER), name="one", size=2)
    rest(tx, FAIR, now)
    assert _held(tx) == {"physics": 4}


def test_hours_of_a_month_end_growth_until_the_next(tx: Tx) -> None:
    furnish(tx, 2)
    physics = groups.add(tx, "physics", 0.0, hours_limit=10.0)
    tx.execute(
        insert(t.energy_use).values(
            day=int(NOW // DAY), group_id=physics.id, type_id=1, seconds=11 * HOUR
        )
    )
    create(tx, "one", 1, "physics", NOW)
    run_pass(tx, FAIR, NOW)
    (waits,) = requests.every(tx, states=["pending"])
    assert waits.reason == "waits: its group has used its node-hours of this month"
    rest(tx, FAIR, NOW + 31 * DAY)
    assert _held(tx) == {"physics": 1}


def _held(tx: Tx) -> dict[str, int]:
    return {
        one.group: one.held for one in shares.every(tx, site=FAIR, now=NOW) if one.group != "site"
    }


def test_the_sites_longest_lease_bounds_groups_without_one(tx: Tx) -> None:
    furnish(tx, 2)
    groups.add(tx, "physics", 0.0)
    bounded = replace(FAIR, policy=replace(FAIR.policy, max_lease=DAY))
    with pytest.raises(Refused, match="at most, with all extensions"):
        vclusters.create(
            tx,
            flow_context(bounded, NOW),
            AskedVcluster(name="one", size=1, template="debian", group="physics", lease=2 * DAY),
        )
    vclusters.create(
        tx,
        flow_context(bounded, NOW),
        AskedVcluster(name="one", size=1, template="debian", group="physics", lease=DAY),
    )
    now = rest(tx, bounded, NOW, step=10.0)
    with pytest.raises(Refused):
        vclusters.extend(tx, flow_context(bounded, now + HOUR), name="one", lease=DAY)


def test_a_pass_is_due_when_a_month_ends_that_a_group_waits_for(tx: Tx) -> None:
    """The pass that found nothing to do need not be made again before: its request could wait for
    ever."""
    furnish(tx, 2)
    physics = groups.add(tx, "physics", 0.0, hours_limit=10.0)
    tx.execute(
        insert(t.energy_use).values(
            day=int(NOW // DAY), group_id=physics.id, type_id=1, seconds=11 * HOUR
        )
    )
    create(tx, "one", 1, "physics", NOW)
    run_pass(tx, FAIR, NOW)
    february = 31 * DAY  # NOW is in January 1970
    before = february - 1
    seen = plan.snapshot(tx, FAIR, before)
    assert plan.due(seen, FAIR, before) == february
    assert not plan.still(seen, FAIR, before).lasts(
        plan.snapshot(tx, FAIR, february), FAIR, february
    )


def test_administrators_machines_take_no_share_of_the_groups(tx: Tx) -> None:
    furnish(tx, 4)
    groups.ensure(tx, groups.SITE, 0.0)
    group(tx, "a")
    group(tx, "b")
    found = {
        one.group: (one.share, one.share_nodes) for one in shares.every(tx, site=FAIR, now=NOW)
    }
    assert found["a"] == found["b"] == (0.5, 2)


def test_an_act_asks_as_much_of_the_database_for_many_groups_as_for_two(tx: Tx) -> None:
    for name in ("a", "b"):
        group(tx, name, guarantee=1)
    ids = [one.id for one in groups.every(tx) if one.name in ("a", "b")]

    sharing = Sharing(shares={(one, 0): 1 for one in ids})

    def queries() -> int:
        asked: list[object] = []
        engine = tx.engine
        listener = lambda *args: asked.append(args[2])  # noqa: E731
        event.listen(engine, "before_cursor_execute", listener)
        there = {one.id: one for one in groups.every(tx)}
        entitlements.Kept(tx, there, set(ids), sharing, NOW).between(ids[0], ids[1], [(0, 1)], 1)
        event.remove(engine, "before_cursor_execute", listener)
        return len(asked)

    few = queries()
    for number in range(30):
        group(tx, f"g{number}", guarantee=1)
    assert queries() == few <= 6


def test_acts_do_not_count_the_site_anew(tx: Tx, monkeypatch: pytest.MonkeyPatch) -> None:
    """What depends on all nodes, holders and requests is counted once for a plan."""
    furnish(tx, 4)
    for name in ("a", "b"):
        groups.add(tx, name, 0.0, guarantee=1)
    create(tx, "a", 1, "a", NOW)
    now = rest(tx, FAIR, NOW)
    vclusters.resize(tx, flow_context(FAIR, now, OWNER), name="a", size=4, spread=True)
    now = rest(tx, FAIR, now)
    create(tx, "b", 2, "b", now)

    def counted(*_: Any) -> None:
        raise AssertionError("an act counts the site's nodes")

    for _ in range(3):  # taken, seized and granted
        acts = planned(tx, FAIR, now)
        claim = claims.hold(tx, "manager", "a", now, 10.0)
        assert claim is not None
        with monkeypatch.context() as patched:
            patched.setattr(node_counts, "by_type", counted)
            for act in acts:
                act.flow(tx, claim=claim, now=now)
        now += 400.0
        arrive(tx, now)
    assert _held(tx) == {"a": 2, "b": 2}


def test_administrators_are_told_when_nodes_that_are_guaranteed_leave(tx: Tx) -> None:
    furnish(tx, 4)
    groups.add(tx, "a", 0.0, guarantee=3)
    groups.add(tx, "b", 0.0, guarantee=1)

    def told(now: float) -> list[str]:
        entitlements.watch(tx, now)
        return [
            each.kind
            for each in tx.execute(select(t.notices).order_by(t.notices.c.id))
            if each.kind.startswith("guarantees") and each.group_id is None
        ]

    assert told(NOW) == []
    tx.execute(t.nodes.update().where(t.nodes.c.name == "node1").values(state="retired"))
    assert told(NOW + 60) == told(NOW + 120) == ["guarantees"]
    (first,) = [each for each in tx.execute(select(t.notices)) if each.kind == "guarantees"]
    assert "The site has 3 nodes, and 4 are guaranteed to groups: a 3, b 1." in first.about
    tx.execute(t.nodes.update().where(t.nodes.c.name == "node1").values(state="inactive"))
    assert told(NOW + 180) == told(NOW + 240) == ["guarantees", "guarantees-met"]


def test_a_cluster_that_others_are_guaranteed_all_of_says_that_it_can_lose_its_last_node(
    tx: Tx,
) -> None:
    furnish(tx, 4)
    groups.add(tx, "none", 0.0)
    groups.add(tx, "sure", 0.0, guarantee=4)
    create(tx, "guest", 2, "none", NOW)
    now = rest(tx, FAIR, NOW)
    (told,) = [each for each in tx.execute(t.notices.select()) if each.kind == "lease-began"]
    assert "can lose its last node" in told.about
    create(tx, "mine", 4, "sure", now)
    rest(tx, FAIR, now)
    assert _held(tx) == {"none": 0, "sure": 4}
    sizes = {each.name: each.creation_size for each in tx.execute(t.vclusters.select())}
    assert sizes == {"guest": 0, "mine": 4}, "what is within a guarantee begins with all of it"


def test_ranks_by_dominant_shares_are_shown(tx: Tx) -> None:
    furnish(tx, 4)
    site = replace(FAIR, policy=replace(FAIR.policy, fair="dominant"))
    for name in ("a", "b", "c"):
        groups.add(tx, name, 0.0)
    create(tx, "a", 2, "a", NOW)
    create(tx, "c", 1, "c", NOW)
    tx.execute(t.vclusters.update().where(t.vclusters.c.name == "c").values(preemptible=True))
    rest(tx, site, NOW)
    found = {one.group: one for one in shares.every(tx, site=site, now=NOW)}
    assert {name: one.rank for name, one in found.items() if one.share} == {"a": 3, "b": 1, "c": 1}
    assert found["a"].ratio == pytest.approx(2 / 3)
    assert found["b"].ratio is None


def test_a_guarantee_of_a_type_is_kept_from_creation_sizes_and_called_in(tx: Tx) -> None:
    furnish(tx, 4)
    for number in range(11, 14):
        add_node(tx, number, "inactive", 8192)
    large = min(types.every(tx), key=lambda one: node_counts.by_type(tx)[one.id])
    groups.add(tx, "a", 0.0, priority=5)
    groups.add(tx, "b", 0.0)
    changed = shares.change(tx, "b", {"type_guarantees": {large.name: 2}}, site=FAIR, now=NOW)
    (own,) = changed.value.types
    assert (own.type, own.guarantee, own.guaranteed_from) == (large.name, 2, NOW)
    with pytest.raises(Refused, match=f"3 nodes of type {large.name}, and 2 .*: 1 are left"):
        shares.change(tx, "a", {"type_guarantees": {large.name: 2}}, site=FAIR, now=NOW)
    groups.give_types(tx, groups.named(tx, "a").id, {})  # what a refused change leaves, rolled back
    create(tx, "all", 7, "a", NOW)
    now = rest(tx, FAIR, NOW)
    sizes = {each.name: each.creation_size for each in tx.execute(t.vclusters.select())}
    assert sizes == {"all": 5}, "two are guaranteed to the other group"
    (told,) = [each for each in tx.execute(t.notices.select()) if each.kind == "lease-began"]
    assert "2 of them are guaranteed to other groups" in told.about
    vclusters.create(
        tx,
        flow_context(FAIR, now),
        AskedVcluster(
            name="mine",
            size=2,
            template="debian",
            group="b",
            lease=1e6,
            attributes='<requires><memory><mib min="8000"/></memory></requires>',
        ),
    )
    now = rest(tx, FAIR, now)
    assert _held(tx) == {"a": 5, "b": 2}
    found = {one.group: one.types[0] for one in shares.every(tx, site=FAIR, now=now) if one.types}
    assert (found["a"].held, found["b"].held) == (1, 2)
    tx.execute(t.nodes.update().where(t.nodes.c.name == "node11").values(state="retired"))
    tx.execute(t.nodes.update().where(t.nodes.c.name == "node12").values(state="retired"))
    entitlements.watch(tx, now)
    (told,) = [each for each in tx.execute(t.notices.select()) if each.kind == "guarantees"]
    assert f"The site has 1 nodes of type {large.name}, and 2 are guaranteed to groups: b 2." in (
        told.about
    )
    shares.change(tx, "b", {"type_guarantees": {}}, site=FAIR, now=now)
    assert not shares.one(tx, "b", site=FAIR, now=now).types
    with pytest.raises(Refused, match="no node type"):
        shares.change(tx, "b", {"type_shares": {"quantum": 1.0}}, site=FAIR, now=now)


def test_shares_of_a_type_are_shown_and_left_alone_by_guarantees(tx: Tx) -> None:
    furnish(tx, 4)
    (kind,) = types.every(tx)
    groups.add(tx, "a", 0.0)
    groups.add(tx, "b", 0.0)
    shares.change(tx, "a", {"type_shares": {kind.name: 3.0}}, site=FAIR, now=NOW)
    shares.change(tx, "a", {"type_guarantees": {kind.name: 1}}, site=FAIR, now=NOW)
    found = {one.group: one for one in shares.every(tx, site=FAIR, now=NOW) if one.share}
    assert [(one.types[0].shares, one.types[0].share_nodes) for one in found.values()] == [
        (3.0, 3),
        (None, 1),
    ]
    assert found["a"].share_nodes == 0, "the site has no other nodes"
