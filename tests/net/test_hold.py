"""A restored site that is held: nothing is granted or erased until an administrator ends it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Engine

from cod.flows.nodes import hold
from cod.model import Site
from cod.states import NodeEvent, Step
from cod.store import schema
from cod.store.backup import backup, restore
from cod.store.engine import Tx
from cod.store.nodes import nodes
from tests.net.test_manager import House, create
from tests.store.agentlab import Lab
from tests.store.manager_world import arrive, furnish, in_tx, states

pytestmark = pytest.mark.slow


def wishes(tx: Tx) -> list[str | None]:
    return [node.power_wanted for node in nodes.every(tx)]


def test_a_node_granted_since_the_backup_runs_on_while_the_site_is_held(
    engine: Engine, site: Site, tmp_path: Path
) -> None:
    with engine.begin() as tx:
        tx.exec_driver_sql("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
        tx.exec_driver_sql(f"INSERT INTO alembic_version VALUES ('{schema.head()}')")
    in_tx(engine, furnish, 2)
    backup(engine, tmp_path / "backup")
    house = House(engine, site)
    create(engine, site, size=2)
    house.manager.startService()
    house.seconds(1)
    in_tx(engine, arrive, house.clock.seconds())
    in_tx(engine, arrive, house.clock.seconds())
    assert set(in_tx(engine, states).values()) == {"active"}
    house.manager.stopService()

    restore(engine, tmp_path / "backup", house.clock.seconds(), replace=True)
    held = in_tx(engine, hold.start, house.clock.seconds())
    assert held.silent == ("node0", "node1")
    before = in_tx(engine, states), in_tx(engine, wishes)
    again = House(engine, site, clock=house.clock)
    again.manager.startService()
    create(engine, site, "two", size=1)
    house.clock.advance(3600.0)  # past every deadline
    again.seconds(3)
    assert (in_tx(engine, states), in_tx(engine, wishes)) == before
    assert set(before[0].values()) == {"trampoline"}

    in_tx(engine, hold.end, house.clock.seconds())
    again.seconds(1)
    assert (in_tx(engine, states), in_tx(engine, wishes)) == before, "each has its deadline again"
    house.clock.advance(3600.0)
    again.seconds(1)
    assert in_tx(engine, wishes) != before[1]


def test_a_free_site_grants_nothing_while_it_is_held(engine: Engine, site: Site) -> None:
    in_tx(engine, furnish, 2)
    in_tx(engine, hold.start, 0.0)
    house = House(engine, site)
    house.manager.startService()
    create(engine, site, size=1)
    house.seconds(20)
    assert set(in_tx(engine, states).values()) == {"inactive"}
    in_tx(engine, hold.end, house.clock.seconds())
    house.seconds(1)
    assert in_tx(engine, states)["node0"] == "prime"


def test_a_node_that_reports_is_erased_only_after_the_hold(tx: Tx, site: Site) -> None:
    lab = Lab(tx, replace(site, policy=replace(site.policy, auto_approve=True)))
    lab.machine(1, "trampoline", disk="dirty")
    first = hold.start(tx, 0.0)
    assert hold.start(tx, 5.0).since == first.since == 0.0
    lab.boots(1)
    assert lab.node(1).state == "trampoline"
    assert lab.order(1).action == "wait"
    hold.end(tx, 10.0)
    hold.end(tx, 10.0)
    assert hold.show(tx) is None
    lab.boots(1)
    assert lab.order(1).action == "wipe"


def test_a_node_released_while_the_site_is_held_keeps_its_disk(tx: Tx, site: Site) -> None:
    lab = Lab(tx, site)
    lab.machine(1, "trampoline")
    vcluster = lab.vcluster(lab.template())
    peer = lab.boots(1)
    lab.assign(1, vcluster)
    lab.done(peer, lab.order(1).id)
    lab.apply(1, Step(NodeEvent.BOOTED, "its system runs"))
    hold.start(tx, lab.now)
    lab.release(1)
    lab.boots(1)
    assert (lab.node(1).state, lab.order(1).action) == ("trampoline", "wait")
    hold.end(tx, lab.now)
    lab.boots(1)
    assert lab.order(1).action == "wipe"


def test_a_machine_that_the_backup_does_not_know_is_not_erased(tx: Tx, site: Site) -> None:
    lab = Lab(tx, replace(site, policy=replace(site.policy, auto_approve=True)))
    lab.machine(1, "new", disk="dirty")
    hold.start(tx, lab.now)
    lab.boots(1)
    assert (lab.node(1).state, lab.order(1).action) == ("trampoline", "wait")
    hold.end(tx, lab.now)
    lab.boots(1)
    assert lab.order(1).action == "wipe"
