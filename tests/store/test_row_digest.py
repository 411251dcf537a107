"""Rows are known to be the same without being read: every change of any of them shows."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product
from typing import Any
from zlib import crc32

import pytest
from sqlalchemy import Engine, Select, exc, func, insert, literal, select, union_all, update

from cod.core.nodes import transitions
from cod.flows.scheduler import plan as flow
from cod.policy.scheduler.preemption import assigned_by
from cod.states import NodeEvent
from cod.store import tables as t
from cod.store.engine import Tx, savepoint, snapshot
from cod.store.nodes import nodes
from cod.store.scheduler import (
    node_counts,
    node_kinds,
    pass_rows,
    reclaims,
    reservations,
    vclusters,
)
from cod.store.scheduler import requests as request_rows
from cod.store.scheduler.row_digest import digest
from tests.bench.pass_world import DAY, NOW, SITE, Size, fill
from tests.store.manager_world import in_tx

pytestmark = [pytest.mark.slow, pytest.mark.mariadb_always]

SIZE = Size(200, 30)
BY = node_counts.AssignedBy(*assigned_by(SITE.policy, NOW))
ROWS = {
    "live": vclusters.live_rows(),
    "pending": request_rows.pending_rows(),
    "held": node_counts.held_nodes(BY),
    "free": node_counts.reserve_nodes(NOW - 60.0),
    "reserved": node_counts.reserved(),
    "reclaims": reclaims.open_rows(),
}
CHANGES: list[tuple[str, Any, dict[str, Any]]] = [
    *(
        ("live", t.vclusters, {column: value})
        for column, value in {
            "name": "another",
            "group_id": 7,
            "state": "draining",
            "creation_size": 99,
            "subnet": None,
            "expires_at": NOW + 0.001,
            "drain_until": 5.0,
            "warned": 3600.0,
            "lease_time": 61.0,
        }.items()
    ),
    *(
        ("pending", t.node_requests, {column: value})
        for column, value in {
            "priority": 77,
            "submitted_at": 0.5,
            "may_wait": False,
            "may_spread": True,
            "reason": "another",
            "state": "granted",
        }.items()
    ),
    *(
        ("held", t.nodes, {column: value})
        for column, value in {
            "vcluster_id": 2,
            "type_id": 40,
            "block_id": None,
            "assigned_at": NOW - 1.0,
        }.items()
    ),
    *(
        ("free", t.nodes, {column: value})
        for column, value in {
            "state": "off",
            "type_id": 40,
            "block_id": None,
            "power_driver": "none",
            "released": 5,
        }.items()
    ),
]


def one_of(tx: Tx, name: str) -> int:
    """A row that is in those of that name, and is not as any of the changes makes it."""
    tables: dict[str, Select[Any]] = {
        "live": (
            select(t.vclusters.c.id).where(
                t.vclusters.c.live_name.is_not(None), t.vclusters.c.group_id != 7
            )
        ),
        "pending": (
            select(t.node_requests.c.id).where(
                t.node_requests.c.state == "pending", t.node_requests.c.may_spread.is_(False)
            )
        ),
        "held": (
            select(t.nodes.c.id).where(
                t.nodes.c.vcluster_id > 2, t.nodes.c.assigned_at < NOW - 9e3, t.nodes.c.type_id < 40
            )
        ),
        "free": (
            select(t.nodes.c.id).where(
                t.nodes.c.state == "inactive", t.nodes.c.disk != "cached", t.nodes.c.type_id < 40
            )
        ),
    }
    found = tx.scalars(tables[name].limit(1)).one()
    assert isinstance(found, int)
    return found


def bare(seen: flow.Observed) -> pass_rows.PassRows:
    """All of a scene that a plan is made of."""
    return seen.scene._replace(digests=pass_rows.Digests())


def test_every_column_counts(engine: Engine) -> None:
    """Each change by itself, undone again; where the database has no digests nothing is known."""
    fill(engine, SIZE)
    with engine.connect() as tx:
        if engine.dialect.name == "sqlite":
            assert {digest(tx, query) for query in ROWS.values()} == {None}
            return
        before = {name: digest(tx, query) for name, query in ROWS.items()}
        assert all(before.values())
        tx.rollback()
        for name, table, values in CHANGES:
            tx.execute(update(table).where(table.c.id == one_of(tx, name)).values(values))
            assert digest(tx, ROWS[name]) != before[name], values
            tx.rollback()
        assert {name: digest(tx, query) for name, query in ROWS.items()} == before


def test_two_changes_do_not_hide_each_other(engine: Engine) -> None:
    """Two rows that change places, a null that becomes a text, a comma that moves."""
    if engine.dialect.name == "sqlite":
        return
    fill(engine, SIZE)
    r = t.node_requests.c
    with engine.connect() as tx:
        first, second = tx.scalars(select(r.id).where(r.state == "pending").order_by(r.id).limit(2))

        def said(one: str, other: str) -> object:
            for number, reason in ((first, one), (second, other)):
                tx.execute(update(t.node_requests).where(r.id == number).values(reason=reason))
            return digest(tx, request_rows.pending_rows())

        assert (
            len(
                {
                    said("a", "b"),
                    said("b", "a"),
                    said("a", "a"),
                    said("b", "b"),
                    said("a,", "b"),
                    said("a", ",b"),
                    said("a'", "b"),
                    said("NULL", "b"),
                }
            )
            == 8
        )
        live = digest(tx, vclusters.live_rows())
        tx.execute(update(t.vclusters).where(t.vclusters.c.id == 1).values(subnet=None))
        nothing = digest(tx, vclusters.live_rows())
        tx.execute(update(t.vclusters).where(t.vclusters.c.id == 1).values(subnet="NULL"))
        assert len({live, nothing, digest(tx, vclusters.live_rows())}) == 3
        tx.rollback()


def test_what_is_seen_is_what_is_there(engine: Engine) -> None:
    """One change after the other: with what was seen before it is the same as without; and if
    nothing has changed it is the very same lists."""
    fill(engine, SIZE)
    before = in_tx(engine, flow.look, SITE, NOW)
    for name, table, values in CHANGES:
        before = in_tx(engine, flow.look, SITE, NOW, before)  # now there are digests
        assert in_tx(engine, flow.look, SITE, NOW, before) is before
        with engine.begin() as tx:
            tx.execute(update(table).where(table.c.id == one_of(tx, name)).values(values))
        after = in_tx(engine, flow.look, SITE, NOW, before)
        assert after is not before, values
        assert bare(after) == bare(in_tx(engine, flow.look, SITE, NOW))
        before = after
    read = in_tx(
        engine,
        pass_rows.read,
        BY,
        many=False,
        idle_since=NOW - SITE.energy.idle_time,
        month=0,
        before=before.scene,
    )
    same = (
        read.live is before.scene.live,
        read.pending is before.scene.pending,
        read.held is before.scene.held,
        read.free is before.scene.free,
    )
    assert same == (engine.dialect.name != "sqlite",) * 4


def test_only_what_changed_is_read_again(engine: Engine) -> None:
    """Show that digests count in every round of one that looks again, also in that of a change:
    requests are not read again because of a node, nor nodes because of a request."""
    if engine.dialect.name == "sqlite":
        return
    fill(engine, SIZE)
    first = in_tx(engine, flow.look, SITE, NOW, again=True)
    second = in_tx(engine, flow.look, SITE, NOW, first)
    assert second is first
    with engine.begin() as tx:
        node = nodes.ROWS.known(tx, one_of(tx, "held"))
        transitions.move(tx, node, NodeEvent.RELEASED, now=NOW, cause="", actor="a")
    third = in_tx(engine, flow.look, SITE, NOW, second)
    assert third.scene.pending is second.scene.pending
    assert third.scene.reclaims is second.scene.reclaims
    assert third.scene.held is not second.scene.held
    assert in_tx(engine, flow.look, SITE, NOW, third) is third
    with engine.begin() as tx:
        tx.execute(
            update(t.node_requests)
            .where(t.node_requests.c.id == one_of(tx, "pending"))
            .values(reason="another")
        )
    fourth = in_tx(engine, flow.look, SITE, NOW, third)
    assert fourth.scene.pending is not third.scene.pending
    assert fourth.scene.held is third.scene.held


def test_a_change_that_is_undone_while_rows_are_read_is_not_seen(engine: Engine) -> None:
    """Show that a digest and its rows are of one moment: a request that came and went in between
    would be remembered with a digest without it."""
    fill(engine, SIZE)

    def came(tx: Tx) -> int:
        with engine.begin() as other:
            wanted = update(t.node_requests).where(t.node_requests.c.state == "pending")
            other.execute(wanted.values(state="withdrawn"))
        return len(request_rows.pending(tx, {}))

    with snapshot(engine) as tx:
        there = len(request_rows.pending(tx, {}))
        assert came(tx) == there > 0


def test_rows_that_are_alike_do_not_cancel_each_other(engine: Engine) -> None:
    """Two nodes of one vcluster, alike but for their state, leave their inertia at the same
    moment."""
    fill(engine, SIZE)
    n, site = (
        t.nodes.c,
        replace(SITE, policy=replace(SITE.policy, inertia=300.0, inertia_by_priority={})),
    )
    with engine.begin() as tx:
        first, second = tx.scalars(select(n.id).where(n.vcluster_id == 1).order_by(n.id).limit(2))
        alike = (
            tx.execute(select(n.type_id, n.block_id, n.subnet).where(n.id == first)).one()._asdict()
        )
        tx.execute(
            update(t.nodes)
            .where(n.vcluster_id == 1, n.id.not_in([first, second]))
            .values(vcluster_id=2)
        )
        for number, state in ((first, "active"), (second, "boot")):
            tx.execute(
                update(t.nodes)
                .where(n.id == number)
                .values(**alike, state=state, assigned_at=NOW - 100)
            )
        tx.execute(
            update(t.nodes).where(n.id.not_in([first, second])).values(assigned_at=NOW - 9e3)
        )
    before: flow.Observed | None = None
    for _ in range(3):
        before = in_tx(engine, flow.look, site, NOW, before)
    assert before is not None
    assert [one.mobile for one in before.scene.held if one.vcluster_id == 1] == [0]
    after = in_tx(engine, flow.look, site, NOW + 250, before)
    assert [one.mobile for one in after.scene.held if one.vcluster_id == 1] == [2]


def test_a_reclaim_that_takes_one_node_in_place_of_another_counts(engine: Engine) -> None:
    """A VCM answers so: no node moves, and what is left was assigned at another time."""
    fill(engine, SIZE)
    n, v = t.nodes.c, t.vclusters.c
    with engine.begin() as tx:
        request_id = one_of(tx, "pending")
        first = one_of(tx, "held")
        kind = n.vcluster_id, n.type_id, n.block_id, n.subnet
        alike = tx.execute(select(*kind).where(n.id == first)).one()._asdict()
        second = tx.scalars(select(n.id).where(n.vcluster_id > 2, n.id != first).limit(1)).one()
        tx.execute(update(t.nodes).where(n.id == second).values(**alike, assigned_at=NOW - 50.0))
        tx.execute(update(t.vclusters).where(v.id == alike["vcluster_id"]).values(preemptible=True))
        reservations.add(tx, [first], request_id, None, NOW)
    before = in_tx(engine, flow.look, SITE, NOW, in_tx(engine, flow.look, SITE, NOW))
    with engine.begin() as tx:
        reservations.drop(tx, [first])
        reservations.add(tx, [second], request_id, None, NOW)
    after = in_tx(engine, flow.look, SITE, NOW, before)
    assert bare(after) == bare(in_tx(engine, flow.look, SITE, NOW))
    assert after.scene.held != before.scene.held


def test_a_chosen_node_that_exchanges_its_kind_with_another_counts(engine: Engine) -> None:
    """Two nodes of one vcluster exchange racks: the counts are what they were, but a node of
    another kind is chosen by a reclaim."""
    fill(engine, SIZE)
    n = t.nodes.c
    with engine.begin() as tx:
        first = one_of(tx, "held")
        own = tx.execute(select(n.vcluster_id, n.type_id).where(n.id == first)).one()._asdict()
        other = tx.scalars(select(n.id).where(n.vcluster_id > 2, n.id != first).limit(1)).one()
        tx.execute(update(t.nodes).where(n.id == other).values(**own, assigned_at=NOW - DAY))
        for node, block in ((first, 1), (other, 2)):
            tx.execute(update(t.nodes).where(n.id == node).values(block_id=block))
        reservations.add(tx, [first], one_of(tx, "pending"), None, NOW)
    before = in_tx(engine, flow.look, SITE, NOW, again=True)
    with engine.begin() as tx:
        for node, block in ((first, 2), (other, 1)):
            tx.execute(update(t.nodes).where(n.id == node).values(block_id=block))
    after = in_tx(engine, flow.look, SITE, NOW, before)
    assert bare(after) == bare(in_tx(engine, flow.look, SITE, NOW))
    assert after.scene.held != before.scene.held


def test_an_exchange_that_a_plain_sum_would_miss_is_seen(engine: Engine) -> None:
    """Show that a row counts by its id: the CRC32 of two rows that exchange a value change by the
    same bits, and their sum stays where each of these bits is set in one of them alone."""
    if engine.dialect.name == "sqlite":
        return

    def rows(values: dict[int, int]) -> Select[Any]:
        parts = (
            select(literal(row).label("id"), literal(value).label("value"))
            for row, value in values.items()
        )
        return select(union_all(*parts).subquery())

    def plain(values: dict[int, int]) -> int:
        return sum(crc32(f"{row},{value}".encode()) for row, value in values.items())

    there, exchanged = next(
        (there, exchanged)
        for row, first, second in product(range(1001, 2000), range(10, 100), range(10, 100))
        if first != second
        for there, exchanged in [({1000: first, row: second}, {1000: second, row: first})]
        if plain(there) == plain(exchanged)
    )
    with engine.connect() as tx:
        assert digest(tx, rows(there)) != digest(tx, rows(exchanged))


def test_a_digest_that_never_changes_is_caught(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pass_rows, "digest", lambda tx, query: (1, 1))
    with pytest.raises(AssertionError):
        test_what_is_seen_is_what_is_there(engine)


def test_a_reservation_and_a_second_subnet_count_too(engine: Engine) -> None:
    """Count what is not in the rows of what is held, but in what is made of them."""
    fill(engine, SIZE)
    before = in_tx(engine, flow.look, SITE, NOW, in_tx(engine, flow.look, SITE, NOW))
    with engine.begin() as tx:
        request_id = one_of(tx, "pending")
        reservations.add(tx, [one_of(tx, "held")], request_id, None, NOW)
    two = replace(SITE, subnets=(*SITE.subnets, replace(SITE.subnets[0], name="far")))
    for site in (SITE, two):
        after = in_tx(engine, flow.look, site, NOW, before)
        assert bare(after) == bare(in_tx(engine, flow.look, site, NOW))
        assert after.scene.held != before.scene.held


def entangle(tx: Tx) -> None:
    """Add reclaims, preemptible vclusters, maintenance windows, and switch ports."""
    n, r = t.nodes.c, t.node_requests.c
    asking = list(tx.scalars(select(r.id).where(r.state == "pending").limit(12)))
    held = tx.execute(select(n.id, n.vcluster_id, n.type_id).where(n.vcluster_id.is_not(None)))
    taken = held.all()[::6][: len(asking)]
    for number, (request_id, (node_id, vcluster_id, type_id)) in enumerate(
        zip(asking, taken, strict=True)
    ):
        key = reclaims.ReclaimKey(request_id, vcluster_id, type_id, None, "")
        reclaims.add_all(tx, [reclaims.Opening(key, "", [node_id], NOW + number)], NOW)
    free = tx.scalars(select(n.id).where(n.vcluster_id.is_(None)).limit(20))
    reservations.add(tx, list(free)[::3], asking[0], None, NOW)
    tx.execute(update(t.vclusters).where(t.vclusters.c.id % 5 == 0).values(preemptible=True))
    window = {"state": "open", "reason": "", "names": "", "filter": "", "drain": False}
    window |= {"stay_out": False, "created_at": NOW, "created_by": "a"}
    tx.execute(insert(t.maintenance_windows), [window | {"id": n, "bit": n} for n in (1, 2)])
    there = {"bit": 1, "taken": False}
    tx.execute(
        insert(t.maintenance_nodes),
        [there | {"node_id": n, "window_id": 1 + n % 2} for n in range(1, 200, 7)],
    )
    tx.execute(insert(t.switches), [{"name": "a", "failures": 0}, {"name": "b", "failures": 1}])
    port = {"source": "lldp", "seen_at": NOW}
    macs = tx.execute(select(n.id, n.boot_mac).where(n.id % 2 == 0)).all()
    tx.execute(
        insert(t.switch_ports),
        [port | {"switch": "ab"[n % 3 % 2], "port": str(n), "mac": mac} for n, mac in macs],
    )


ENTANGLED = {
    t.nodes: "vcluster_id released state type_id block_id subnet disk cached_template_id"
    " cached_group_id power_driver since assigned_at waits_for boot_mac",
    t.vclusters: "state live_name group_id subnet preemptible isolated user_id warned drain_until",
    t.node_requests: "state vcluster_id source_id starts_at duration reason priority",
    t.reclaims: "state vcluster_id request_id type_id block_id count given deadline",
    t.reservations: "node_id request_id reclaim_id",
    t.maintenance_nodes: "node_id window_id bit",
    t.switches: "failures",
    t.switch_ports: "mac given_up switch",
    t.groups: "priority",
}
OTHERS = {  # values that no row of the world has
    "subnet": ("lab", "Lab", ""),
    "released": (0.0, 1.0),
    "waits_for": ("power control", "power", None),
    "since": (NOW - 1.0, NOW - 1e-6, 0.1 + 0.2),
    "assigned_at": (None, NOW - 299.999, NOW - 300.001),
    "block_id": (None,),
    "starts_at": (None, NOW + 60.0),
    "reclaim_id": (None,),
    "preemptible": (True, False),
    "isolated": (True, False),
    "failures": (0, 1),
    "given_up": (True, False),
}


@pytest.mark.parametrize("seed", range(2))
def test_random_changes_are_seen_as_by_one_who_reads_all(engine: Engine, seed: int) -> None:
    """Whatever column of a row gets the value of another row, or one that none has, and whatever
    the nodes are told apart by: with what was read before it comes to the same."""
    if engine.dialect.name == "sqlite":
        return
    fill(engine, SIZE)
    dice = random.Random(seed)
    before: pass_rows.PassRows | None = None
    seen = 0
    with engine.connect() as tx:
        entangle(tx)
        for step in range(100):
            if step % 10 == 0:
                ports, windows, times, many = dice.choices((False, True), k=4)
                now = NOW + dice.choice((0.0, 250.0))
                by = node_counts.AssignedBy(now - 300.0, dice.choice(({}, {5: now - 9e3})))
                how: dict[str, Any] = {"many": many, "idle_since": now - 60.0, "month": 0}
                how |= {"apart": node_kinds.Apart(ports, windows), "times": times}
            table = dice.choices(list(ENTANGLED), [8, 3, 3, 3, 3, 2, 1, 2, 1])[0]
            column = table.c[dice.choice(ENTANGLED[table].split())]
            [key] = list(table.primary_key)[:1]
            value = tx.scalars(select(column).order_by(func.rand(dice.random())).limit(1)).one()
            value = dice.choice((value, *OTHERS.get(column.name, ())))
            row = tx.scalars(select(key).order_by(func.rand(dice.random())).limit(1)).one()
            try:
                with savepoint(tx):
                    tx.execute(update(table).where(key == row).values({column: value}))
            except exc.IntegrityError:
                continue
            after = pass_rows.read(tx, by, before=before, again=True, **how)
            full = pass_rows.read(tx, by, **how)
            assert after._replace(digests=full.digests) == full, (table.name, column, value)
            seen += before is not None and after.held is before.held
            before = after
    assert seen
