"""The energy accounts in the database: counted once, whoever counts, whatever the clock does; what
is told of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, select, update

from cod.flows.nodes import energy as flow
from cod.flows.people import groups as group_flow
from cod.model import Energy, EnergyUse, Node, Policy, Refused
from cod.policy.nodes.energy_accounting import DAY
from cod.states import Disk
from cod.store import tables as t
from cod.store import watermarks
from cod.store.engine import Tx, new_id
from cod.store.nodes import energy, nodes, types
from cod.store.people import audit, groups
from cod.store.scheduler import vclusters
from tests.store.manager_world import add_node, add_template

pytestmark = pytest.mark.slow  # together with its like more than the quick run has time for

POLICY = Policy()
RULES = Energy(watts_off=5.0, watts_idle=80.0, watts_busy=200.0)
NOON = 20_000 * DAY + DAY / 2
KWH = 3.6e6


def counted(tx: Tx, now: float, rules: Energy = RULES) -> bool:
    """One minute's work in one transaction; whether there was anything to put down."""
    reading = flow.count(tx, rules, now)
    return reading is not None and flow.note(tx, reading, POLICY)


def accounts(tx: Tx) -> dict[tuple[int, int], tuple[float, float, float]]:
    """(seconds, joules, always on) by day after NOON's and group."""
    e = t.energy_use.c
    return {
        (row.day - 20_000, row.group_id): (row.seconds, row.joules, row.always_on)
        for row in tx.execute(select(e.day, e.group_id, e.seconds, e.joules, e.always_on))
    }


def vcluster(tx: Tx, name: str) -> tuple[int, int]:
    """A group and its vcluster; their ids."""
    group = groups.add(tx, name, 0.0)
    inserted = tx.execute(
        t.vclusters.insert().values(
            name=name,
            live_name=name,
            group_id=group.id,
            state="active",
            template_id=add_template(tx, name),
            size=1,
            creation_size=1,
            lease_time=1.0,
            created_at=0.0,
        )
    )
    return group.id, new_id(inserted)


def by_state(tx: Tx, **states: int) -> list[Node]:
    """So many nodes in each state."""
    each = [state for state, count in states.items() for _ in range(count)]
    return [add_node(tx, number, state) for number, state in enumerate(each)]


def test_the_first_count_only_begins(tx: Tx) -> None:
    by_state(tx, inactive=1)
    assert counted(tx, NOON)
    assert (accounts(tx), watermarks.at(tx, watermarks.ENERGY)) == ({}, NOON)


def test_a_minute_of_every_holder(tx: Tx) -> None:
    physics, own = vcluster(tx, "physics")
    biology, other = vcluster(tx, "biology")
    add_node(tx, 0, "active", vcluster_id=own)
    add_node(tx, 1, "prime", vcluster_id=own)
    add_node(tx, 2, "active", vcluster_id=other)
    add_node(tx, 3, "inactive")
    add_node(tx, 4, "off")
    add_node(tx, 5, "retired")
    add_node(tx, 6, "new", type_id=None)
    counted(tx, NOON)
    assert counted(tx, NOON + 60)
    assert accounts(tx) == {
        (0, physics): (120.0, 24_000.0, 24_000.0),
        (0, biology): (60.0, 12_000.0, 12_000.0),
        (0, 0): (120.0, 60 * 85.0, 60 * 160.0),
    }


def test_one_group_with_two_vclusters_has_one_account(tx: Tx) -> None:
    group, own = vcluster(tx, "physics")
    _, other = vcluster(tx, "more")
    tx.execute(update(t.vclusters).values(group_id=group))
    for number, holder in enumerate((own, other)):
        add_node(tx, number, "active", vcluster_id=holder)
    counted(tx, NOON)
    counted(tx, NOON + 1)
    assert accounts(tx) == {(0, group): (2.0, 400.0, 400.0)}


def test_a_new_group_inherits_nothing_of_one_that_was_deleted(tx: Tx) -> None:
    """SQLite gives a new group the id of the last one, if that was deleted."""
    site, gone = groups.ensure(tx, groups.SITE, NOON), groups.add(tx, "gone", NOON)
    audit.add(tx, actor="user:eve", action="group change", thing="gone", group_id=gone.id, now=NOON)
    energy.add(
        tx,
        [
            EnergyUse(20_000, gone.id, 1, 1.0, 2.0, 3.0),
            EnergyUse(20_000, site.id, 1, 10.0, 20.0, 30.0),
            EnergyUse(20_001, gone.id, 1, 4.0, 5.0, 6.0),
            EnergyUse(20_001, 0, 1, 7.0, 7.0, 7.0),
        ],
    )
    group_flow.delete(tx, "gone")
    new = groups.add(tx, "new", NOON)
    assert accounts(tx) == {
        (0, site.id): (11.0, 22.0, 33.0),
        (1, site.id): (4.0, 5.0, 6.0),
        (1, 0): (7.0, 7.0, 7.0),
    }
    assert audit.every(tx, groups=frozenset({new.id, gone.id, site.id})) == []
    assert [(row.thing, row.group) for row in audit.every(tx)] == [("gone", None)], (
        "administrators still see it"
    )


def test_what_a_group_used_that_is_deleted_while_it_is_counted_is_the_sites(tx: Tx) -> None:
    """Counting reads in one transaction and writes in another; SQLite gives the id to the next
    group."""
    site, gone = groups.ensure(tx, groups.SITE, NOON), groups.add(tx, "gone", NOON)
    flow.note(tx, flow.Reading(None, NOON), POLICY)
    uses = tuple(
        EnergyUse(20_000, group_id, 1, 60.0, 6000.0, 9000.0) for group_id in (0, site.id, gone.id)
    )
    reading = flow.Reading(NOON, NOON + 60, uses)
    group_flow.delete(tx, "gone")
    groups.add(tx, "new", NOON + 61)
    assert flow.note(tx, reading, POLICY)
    assert accounts(tx) == {(0, 0): (60.0, 6000.0, 9000.0), (0, site.id): (120.0, 12000.0, 18000.0)}


def test_minutes_add_up_and_other_rows_of_the_day_stay(tx: Tx) -> None:
    [node] = by_state(tx, inactive=1)
    _, own = vcluster(tx, "physics")
    counted(tx, NOON)
    counted(tx, NOON + 60)
    nodes.change(tx, node, vcluster_id=own)
    tx.execute(update(t.nodes).values(state="active"))
    counted(tx, NOON + 120)
    counted(tx, NOON + 180)
    found = accounts(tx)
    assert found[0, 0] == (60.0, 4800.0, 4800.0)
    assert sorted(found.values()) == [(60.0, 4800.0, 4800.0), (120.0, 24_000.0, 24_000.0)]


def test_a_night_without_a_server_is_put_down_by_the_next_and_midnight_divides_it(tx: Tx) -> None:
    by_state(tx, off=2)
    counted(tx, NOON)
    counted(tx, NOON + DAY)
    half = (DAY, DAY * 5, DAY * 80)
    assert accounts(tx) == {(0, 0): half, (1, 0): half}


def test_what_bmcs_measure_goes_before_what_is_said(tx: Tx) -> None:
    found = by_state(tx, inactive=2, off=1)
    nodes.change(tx, found[0], watts=60.0)
    nodes.change(tx, found[2], watts=2.0)
    counted(tx, NOON)
    counted(tx, NOON + 10)
    assert accounts(tx) == {(0, 0): (30.0, 1220.0, 1800.0)}


def test_what_was_measured_before_the_node_came_into_its_state_does_not_count(tx: Tx) -> None:
    [node] = by_state(tx, inactive=1)
    nodes.change(tx, node, watts=600.0)
    tx.execute(update(t.nodes).values(since=NOON))
    counted(tx, NOON)
    counted(tx, NOON + 10)
    assert accounts(tx) == {(0, 0): (10.0, 800.0, 800.0)}
    tx.execute(update(t.nodes).values(since=NOON + 20 - flow.STEADY))
    counted(tx, NOON + 20)
    assert accounts(tx) == {(0, 0): (20.0, 6800.0, 6800.0)}


def test_a_type_may_have_its_own_watts(tx: Tx) -> None:
    by_state(tx, inactive=1)
    tx.execute(update(t.node_types).values(watts_idle=10.0))
    counted(tx, NOON)
    counted(tx, NOON + 10)
    assert accounts(tx) == {(0, 0): (10.0, 100.0, 100.0)}


def test_of_two_servers_that_count_one_puts_it_down(engine: Engine) -> None:
    with engine.begin() as tx:
        by_state(tx, inactive=1)
        counted(tx, NOON)
    with engine.begin() as tx:
        here = flow.count(tx, RULES, NOON + 60)
        there = flow.count(tx, RULES, NOON + 61)
    assert here is not None
    assert there is not None
    with engine.begin() as tx:
        assert flow.note(tx, here, POLICY)
    for late in (there, here):  # the other server; and this one, unsure whether its commit was lost
        with engine.begin() as tx:
            assert not flow.note(tx, late, POLICY)
    with engine.begin() as tx:
        assert accounts(tx) == {(0, 0): (60.0, 4800.0, 4800.0)}
        assert counted(tx, NOON + 120)
        assert accounts(tx) == {(0, 0): (120.0, 9600.0, 9600.0)}


def test_of_two_servers_that_begin_one_sets_the_mark(engine: Engine) -> None:
    with engine.begin() as tx:
        first = flow.count(tx, RULES, NOON)
        assert first is not None
        assert flow.note(tx, first, POLICY)
    with engine.begin() as tx:
        assert not flow.note(tx, replace(first, now=NOON + 1), POLICY)
        assert watermarks.at(tx, watermarks.ENERGY) == NOON


def test_a_clock_set_back_is_waited_for_and_one_that_was_far_off_begins_anew(tx: Tx) -> None:
    by_state(tx, inactive=1)
    counted(tx, NOON)
    assert not counted(tx, NOON - 3600)
    assert not counted(tx, NOON)
    assert watermarks.at(tx, watermarks.ENERGY) == NOON
    assert counted(tx, NOON - 2 * DAY)
    assert (accounts(tx), watermarks.at(tx, watermarks.ENERGY)) == ({}, NOON - 2 * DAY)
    reading = flow.count(tx, RULES, NOON + 40 * DAY)
    assert reading is not None
    assert (reading.clock_reset, reading.uses) == (True, ())


def test_a_mark_comes_back_from_the_database_to_the_bit(tx: Tx) -> None:
    at = NOON + 1 / 3
    assert watermarks.move(tx, watermarks.ENERGY, None, at)
    assert watermarks.at(tx, watermarks.ENERGY) == at
    assert watermarks.move(tx, watermarks.ENERGY, at, at + 0.1)
    assert not watermarks.move(tx, watermarks.ENERGY, at, at + 0.2)


# ---------------------------------------------------------------- what is told


def told(tx: Tx, by: str, since: float | None = None, until: float | None = None) -> list[Any]:
    found = flow.report(tx, since=since, until=until, by=by, now=NOON + DAY)
    return [
        (line.key, line.seconds / 3600, line.joules / KWH, (line.always_on - line.joules) / KWH)
        for line in found.lines
    ]


@pytest.fixture
def year(tx: Tx) -> Tx:
    """Two days: ten machines in use by physics, ten asleep."""
    _, own = vcluster(tx, "physics")
    for number in range(20):
        add_node(
            tx,
            number,
            "active" if number < 10 else "off",
            mib=4096 if number < 15 else 8192,
            vcluster_id=own if number < 10 else None,
        )
    for each, name in zip(types.every(tx), ("small", "large"), strict=True):
        types.change(tx, each.id, name=name)
    counted(tx, NOON)
    counted(tx, NOON + DAY)
    return tx


def test_by_group(year: Tx) -> None:
    assert told(year, "group") == [
        (None, 240.0, pytest.approx(1.2), pytest.approx(18.0)),
        ("physics", 240.0, pytest.approx(48.0), 0.0),
    ]


def test_by_type(year: Tx) -> None:
    assert told(year, "type") == [
        ("large", 120.0, pytest.approx(0.6), pytest.approx(9.0)),
        ("small", 360.0, pytest.approx(48.6), pytest.approx(9.0)),
    ]


def test_by_day(year: Tx) -> None:
    half = (240.0, pytest.approx(24.6), pytest.approx(9.0))
    assert told(year, "day") == [(20_000 * DAY, *half), (20_001 * DAY, *half)]


def test_days_are_whole(year: Tx) -> None:
    assert [line[0] for line in told(year, "day", NOON + 1, NOON + 2)] == [20_000 * DAY]
    assert [line[0] for line in told(year, "day", NOON, 20_001 * DAY)] == [20_000 * DAY]
    assert [line[0] for line in told(year, "day", NOON, 20_001 * DAY + 1)] == [
        20_000 * DAY,
        20_001 * DAY,
    ]
    assert [line[0] for line in told(year, "day", 20_001 * DAY)] == [20_001 * DAY]
    assert told(year, "day", NOON + 3 * DAY, NOON + 4 * DAY) == []
    found = flow.report(year, since=NOON, until=NOON, by="day", now=NOON)
    assert (found.since, found.until, found.counted_until) == (
        20_000 * DAY,
        20_001 * DAY,
        NOON + DAY,
    )
    with pytest.raises(Refused, match="should not be after"):
        told(year, "day", NOON, NOON - 1)


def test_an_empty_site_has_an_empty_account(tx: Tx) -> None:
    assert flow.report(tx, since=None, until=None, by="group", now=NOON).lines == ()


def test_the_gauges(year: Tx) -> None:
    add_node(year, 30, "inactive")
    add_node(year, 31, "trampoline")
    add_node(year, 32, "trampoline", disk=Disk.DIRTY)
    add_node(year, 33, "off", released=1)
    found = {(what, label): value for what, label, value in flow.gauges(year, RULES, NOON + DAY)}
    assert found.pop(("used", "physics")) == pytest.approx(48 * KWH)
    assert found.pop(("saved", "")) == pytest.approx(18 * KWH)
    assert found.pop(("used", "")) == pytest.approx(1.2 * KWH)
    assert found == {
        ("saved", "physics"): 0.0,
        ("emitted", ""): 0.0,
        ("emitted", "physics"): 0.0,
        ("watts", "small"): 2000 + 25 + 240 + 5,
        ("watts", "large"): 25.0,
        ("warm", "small"): 1.0,
        ("cold", "small"): 5.0,
        ("waking", "small"): 1.0,
        ("warm", "large"): 0.0,
        ("cold", "large"): 5.0,
        ("waking", "large"): 0.0,
    }


def test_a_vcluster_that_has_ended_leaves_its_account_with_its_group(year: Tx) -> None:
    own = vclusters.every(year)[0]
    year.execute(update(t.nodes).values(vcluster_id=None, state="inactive"))
    vclusters.end(year, own, NOON + DAY)
    counted(year, NOON + DAY + 3600)
    assert {line[0]: line[1] for line in told(year, "group")} == {None: 260.0, "physics": 240.0}


def test_vclusters_have_accounts_that_outlive_them(tx: Tx) -> None:
    """What a vcluster used is summed over its days, and with its group's it agrees."""
    rules = replace(RULES, carbon=500.0)
    physics, own = vcluster(tx, "physics")
    _, other = vcluster(tx, "more")
    tx.execute(update(t.vclusters).values(group_id=physics))
    for number, holder in enumerate((own, own, other)):
        add_node(tx, number, "active", vcluster_id=holder)
    tx.execute(update(t.nodes).where(t.nodes.c.vcluster_id == other).values(watts=100.0, since=0.0))
    counted(tx, NOON, rules)
    counted(tx, NOON + 3600, rules)
    counted(tx, NOON + 7200, rules)
    tx.execute(update(t.nodes).values(vcluster_id=None))
    report = flow.report(tx, since=NOON, until=NOON, by="vcluster", now=NOON + 7200)
    assert [(line.key, line.seconds, line.joules) for line in report.lines] == [
        ("more", 7200.0, pytest.approx(0.2 * KWH)),
        ("physics", 14400.0, pytest.approx(0.4 * KWH)),
    ]
    assert [line.grams for line in report.lines] == pytest.approx([100.0, 200.0])
    assert flow.of_vcluster(tx, "more", other, RULES) == report.lines[0]
    [group] = flow.report(tx, since=NOON, until=NOON, by="group", now=NOON + 7200).lines
    assert (group.joules, group.grams) == pytest.approx((0.6 * KWH, 300.0))
    others = flow.report(
        tx, since=NOON, until=NOON, by="vcluster", groups=frozenset({physics + 1}), now=NOON
    )
    assert others.lines == (), "only who sees the group sees its vclusters"
    assert flow.of_vcluster(tx, "new", other + 1, RULES).joules == 0.0
