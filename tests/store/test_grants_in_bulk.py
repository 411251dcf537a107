"""Grants of many requests in one transaction come to the same rows as the same grants one by one,
on random sites, whatever has changed since the plan was made."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, insert, select, update

from cod.flows.scheduler import apply_plan
from cod.flows.scheduler import plan as plan_flow
from cod.flows.scheduler import vclusters as owner_flows
from cod.model import AskedTuple, AskedVcluster, Refused, Site, TypeTerms
from cod.states import Disk
from cod.store import claims, vcms
from cod.store import tables as t
from cod.store.engine import Tx, new_id
from cod.store.nodes import nodes, sessions, types
from cod.store.people import groups
from cod.store.scheduler import requests, vclusters
from tests.contexts import flow_context
from tests.store.busy_site import GIB, everything, killed_at
from tests.store.manager_world import (
    OWNER,
    add_node,
    add_template,
    arrive,
    check_world,
    run_pass,
)

pytestmark = pytest.mark.slow

NOW = 1000.0
MIBS = (4096, 8192)
DISKLESS = (
    '<template><boot mode="diskless"><kernel url="http://h/k"/><ramdisk url="http://h/r"/></boot>'
    "</template>"
)
# Numbered in the order of writing; a zone's serial and a claim's acts grow by one a transaction.
UNTOLD = {
    "node_history": {"id"},
    "vcluster_history": {"id"},
    "power_actions": {"id"},
    "notices": {"id"},
    "notice_sends": {"id", "notice_id"},
    "outbox": {"id"},
    "dns_zones": {"serial"},
    "claims": {"acts"},
    "marks": {"at"},  # how often transactions have waited for each other
}


class RandomSite:
    """Nodes of two types in all states in which they are free, and vclusters that want some."""

    def __init__(self, tx: Tx, site: Site, seed: int) -> None:
        self.tx, self.site, self.dice = tx, site, random.Random(seed)
        self.templates = [add_template(tx, "debian"), add_template(tx, "kept", cache=True)]
        self.templates.append(
            new_id(
                tx.execute(
                    insert(t.config_templates).values(
                        name="diskless",
                        revision=1,
                        document=DISKLESS,
                        digest="0" * 64,
                        created_at=0.0,
                    )
                )
            )
        )
        self.groups = [groups.add(tx, f"group{n}", 0.0, priority=n % 2).id for n in range(4)]
        groups.change(
            tx, self.groups[1], email="a@b.test", webhook_events="notices", webhook="http://h/"
        )
        groups.change(tx, self.groups[2], wipe="purge")
        if self.dice.random() < 0.3:
            groups.change(tx, self.groups[2], guarantee=3)
        if self.dice.random() < 0.5:
            groups.change(tx, self.groups[3], hours_limit=40.0)
        for number in range(self.dice.randint(10, 40)):
            self._node(number)
        for number in range(3):  # they run, and will want to grow
            self._create(f"old{number}", 1, 1.0)
        run_pass(tx, site, 2.0)
        arrive(tx, 3.0)
        active = vclusters.every(tx, ["active"])
        if active and self.dice.random() < 0.5:
            vcms.enrol(tx, active[0].id, serial="1", address="10.77.0.9", head=None, now=4.0)
        for number in range(self.dice.randint(2, 10)):
            if active and self.dice.random() < 0.4:
                self._grow(self.dice.choice(active).name, NOW - 50.0 + number)
            else:
                self._create(f"new{number}", self.dice.randint(1, 4), NOW - 50.0 + number)

    def _node(self, number: int) -> None:
        dice, columns = self.dice, {}
        disk = dice.choice([Disk.CLEAN, Disk.CLEAN, Disk.FOREIGN, Disk.CACHED, Disk.TABLES])
        if disk == Disk.TABLES and dice.random() < 0.6:
            disk = Disk.CLEAN
        if disk in (Disk.CACHED, Disk.TABLES):
            columns["cached_group_id"] = dice.choice(self.groups)
        if disk == Disk.CACHED:
            columns["cached_template_id"] = dice.choice(self.templates[:2])
        node = add_node(
            self.tx,
            number,
            dice.choice(["inactive", "inactive", "off"]),
            mib=dice.choice(MIBS),
            disk=disk,
            power_driver=dice.choice(["lab", "lab", "none"]),
            wipe=dice.choice(["", "", "purge"]),
            attempts=dice.choice([0, 2]),
            **columns,
        )
        if dice.random() < 0.2:
            sessions.open(self.tx, node.id, "a", "10.77.1.1", 1.0)
        if dice.random() < 0.2:
            key = dict(algorithm="ssh-ed25519", key="k", order_id="1.1", salt="s", made_at=0.0)
            self.tx.execute(insert(t.host_keys).values(node_id=node.id, **key))
        if dice.random() < 0.2:
            port = dict(switch="s", port=str(number), source="lldp", seen_at=0.0, wanted_vlan=7)
            self.tx.execute(
                insert(t.switch_ports).values(node_id=node.id, mac=node.boot_mac, **port)
            )
        if dice.random() < 0.1:
            capture = dict(image="saved", state=dice.choice(["wanted", "done"]), secret="x")
            row = dict(node_id=node.id, actor="ann", asked_at=1.0, **capture)
            self.tx.execute(insert(t.captures).values(**row))

    def _create(self, name: str, size: int, now: float) -> None:
        dice = self.dice
        kinds = ["", *(GIB.format(mib) for mib in MIBS)]
        asked = AskedVcluster(
            name=name,
            size=size,
            template=dice.choice(["debian", "kept", "diskless"]),
            group=f"group{dice.randrange(4)}",
            attributes=dice.choice(kinds),
            also=[AskedTuple(1, dice.choice(kinds), "kept")] if dice.random() < 0.3 else [],
            lease=dice.choice([None, 36000.0]),
            spread=dice.random() < 0.5,
            preemptible=dice.random() < 0.2,
        )
        self._ask(owner_flows.create, now, asked)

    def _grow(self, name: str, now: float) -> None:
        vcluster = vclusters.named(self.tx, name)
        size = vcluster.size + self.dice.randint(1, 3)
        self._ask(owner_flows.resize, now, name=name, size=size, spread=True)

    def _ask(self, flow: Callable[..., Any], now: float, *asked: Any, **arguments: Any) -> None:
        try:
            with self.tx.begin_nested():
                flow(self.tx, flow_context(self.site, now, OWNER), *asked, **arguments)
        except Refused:
            pass

    def disturb(self) -> None:
        """Change what a plan may have counted on: nodes and requests go, addresses are taken."""
        dice, n = self.dice, t.nodes.c
        free = list(self.tx.scalars(select(n.id).where(n.vcluster_id.is_(None))))
        for node_id in dice.sample(free, min(len(free), dice.choice([0, 0, 2]))):
            gone = dice.choice([{"state": "retired"}, {"waits_for": "power"}, {"disk": "dirty"}])
            self.tx.execute(update(t.nodes).where(n.id == node_id).values(**gone))
        pending = requests.every(self.tx, states=["pending"])
        for one in dice.sample(pending, min(len(pending), dice.choice([0, 1]))):
            requests.end(self.tx, one.id, "withdrawn", "", NOW)
        for active in vclusters.every(self.tx, ["active"])[: dice.choice([0, 0, 1])]:
            vclusters.change(self.tx, active, NOW, drain_until=NOW + 60.0)


def carry_out(
    tx: Tx, acts: Sequence[apply_plan.Act], claim: Any
) -> tuple[list[int | None], list[int | None]]:
    """Run acts as the manager does; the requests of grants in the order in which they were decided,
    and those that were left to be granted one by one."""
    todo, order, alone = deque(acts), list[int | None](), list[int | None]()
    while todo:
        act, done = todo.popleft(), None
        try:
            with tx.begin_nested():
                done = act.flow(tx, claim=claim, now=NOW)
        except (apply_plan.Stale, Refused):
            pass
        left = act.left(done)
        order += [one.request_id for one in act.parts or (act,) if one not in left]
        alone += [one.request_id for one in left]
        todo.extendleft(reversed(left))
    return order, alone


def written(tx: Tx) -> dict[str, list[Any]]:
    """All rows, without what depends on the order in which they were written."""
    return {
        table.name: sorted(
            map(tuple, tx.execute(select(*(c for c in table.c if c.name not in hidden)))), key=repr
        )
        for table in t.metadata.sorted_tables
        for hidden in [UNTOLD.get(table.name, set())]
    }


@pytest.fixture
def world(site: Site) -> Site:
    """A site where all kinds of disks are free, and little room for addresses."""
    [subnet] = site.subnets
    small = replace(subnet, block_pool=("10.77.128.0", "10.77.128.31"), block_size=4)
    return replace(site, subnets=(small,), policy=replace(site.policy, wipe="tables"))


@pytest.mark.parametrize("seed", range(12))
def test_bulk_writes_what_single_grants_write(
    engine: Engine, world: Site, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply_plan, "GRANTED", 3 + seed % 3 * 10)
    with engine.begin() as tx:
        made = RandomSite(tx, world, seed)
        claim = claims.hold(tx, "manager", "a", NOW, 60.0)
        planned = plan_flow.decide(plan_flow.snapshot(tx, world, NOW), world, NOW)
        made.disturb()
        bulk = [act for act in apply_plan.acts(planned, world, bulk=True) if "grant" in act.name]
        with tx.begin_nested() as part:
            order, _ = carry_out(tx, bulk, claim)
            ours = written(tx)
            part.rollback()
        single = {
            act.request_id: act
            for act in apply_plan.acts(planned, world)
            if act.name.startswith("grant request")
        }
        assert {*single} == {*order}
        assert len(single) == len(order)
        carry_out(tx, [single[one] for one in order], claim)
        assert written(tx) == ours


def wanted(tx: Tx, site: Site, **limits: Any) -> tuple[Any, Any, apply_plan.Act]:
    """Three vclusters that want two nodes each, the second's group with `limits`; the plan, the
    claim and the act that grants all."""
    add_template(tx, "debian")
    for number in range(6):
        add_node(tx, number)
    groups.add(tx, "plain", 0.0)
    groups.add(tx, "bound", 0.0)
    for name, group in (("a", "plain"), ("b", "bound"), ("c", "plain")):
        asked = AskedVcluster(name=name, size=2, template="debian", group=group, lease=36000.0)
        owner_flows.create(tx, flow_context(site, NOW - 9.0, OWNER), asked)
    claim = claims.hold(tx, "manager", "a", NOW, 60.0)
    planned = plan_flow.decide(plan_flow.snapshot(tx, site, NOW), site, NOW)
    if limits:
        groups.change(tx, groups.named(tx, "bound").id, **limits)
    [act] = apply_plan.acts(planned, site, bulk=True)
    return planned, claim, act


def test_nodes_of_a_transaction_that_failed_are_given_when_it_runs_again(
    tx: Tx, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned, claim, _ = wanted(tx, site)
    monkeypatch.setattr(apply_plan, "GRANTED", 3)
    first, second = apply_plan.acts(planned, site, bulk=True)
    with tx.begin_nested() as part:
        assert first.flow(tx, claim=claim, now=NOW).value == []
        part.rollback()
    assert carry_out(tx, [first, second], claim)[1] == []
    assert {request.state for request in requests.every(tx)} == {"granted"}
    check_world(tx)


def test_creation_sizes_count_what_was_just_granted_of_a_type(tx: Tx, site: Site) -> None:
    """Show that a guarantee of one type counts the nodes of it that others hold, and not their
    vclusters' rows alone."""
    _, claim, _ = wanted(tx, site)
    [kind] = types.every(tx)
    groups.give_types(tx, groups.add(tx, "sure", 0.0).id, {kind.id: TypeTerms(guarantee=3)})
    planned = plan_flow.decide(plan_flow.snapshot(tx, site, NOW), site, NOW)
    [act] = apply_plan.acts(planned, site, bulk=True)
    found = []
    for acts in ([act], act.parts):
        with tx.begin_nested() as part:
            carry_out(tx, acts, claim)
            found.append([one.creation_size for one in vclusters.every(tx)])
            part.rollback()
    assert found == [[2, 1, 0], [2, 1, 0]]


def test_a_refused_grant_stops_no_other(tx: Tx, site: Site) -> None:
    _, claim, act = wanted(tx, site, hours_limit=0.01)
    done = act.flow(tx, claim=claim, now=NOW)
    assert act.name == "grant 3 requests"
    assert [request.state for request in requests.every(tx)] == ["granted", "pending", "granted"]
    [left] = act.left(done)
    with pytest.raises(Refused, match="node-hours"):
        left.flow(tx, claim=claim, now=NOW)
    check_world(tx)


def test_a_node_that_has_gone_costs_one_grant(tx: Tx, site: Site) -> None:
    _, claim, act = wanted(tx, site)
    tx.execute(update(t.nodes).where(t.nodes.c.name == "node1").values(state="retired"))
    [left] = act.left(act.flow(tx, claim=claim, now=NOW))
    assert [request.state for request in requests.every(tx)] == ["granted", "granted", "pending"]
    with pytest.raises(apply_plan.Stale):
        left.flow(tx, claim=claim, now=NOW)
    check_world(tx)


def test_a_node_that_goes_before_it_is_locked_is_not_given(
    tx: Tx, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On MariaDB others may be quicker than who has just picked it."""
    _, claim, act = wanted(tx, site)
    lock = nodes.lock

    def quicker(tx: Tx, ids: Sequence[int]) -> Any:
        tx.execute(update(t.nodes).where(t.nodes.c.name == "node1").values(released=1))
        return lock(tx, ids)

    monkeypatch.setattr(nodes, "lock", quicker)
    [_] = act.left(act.flow(tx, claim=claim, now=NOW))
    assert [request.state for request in requests.every(tx)] == ["granted", "granted", "pending"]


def test_grants_that_are_run_again_or_late_change_nothing(tx: Tx, site: Site) -> None:
    planned, claim, act = wanted(tx, site)
    assert act.flow(tx, claim=claim, now=NOW).value == []
    once = written(tx)
    assert act.left(act.flow(tx, claim=claim, now=NOW)) == ()
    assert written(tx) == once
    with pytest.raises(apply_plan.Lost):
        act.flow(tx, claim=replace(claim, generation=claim.generation + 1), now=NOW)
    older = next(apply_plan.acts(replace(planned, version=planned.version + 1), site, bulk=True))
    with pytest.raises(apply_plan.Stale, match="reservations in advance"):
        older.flow(tx, claim=claim, now=NOW)
    assert older.left(None) == older.parts
    assert written(tx) == once


def test_grants_killed_between_any_two_statements_have_done_nothing(
    engine: Engine, site: Site
) -> None:
    with engine.begin() as tx:
        _, claim, act = wanted(tx, site)
    before = everything(engine)
    statement = 0
    while killed_at(engine, act.flow, statement, claim=claim, now=NOW):
        assert everything(engine) == before, statement
        statement += 1
    assert 20 < statement < 80  # one by one it takes some 150
    with engine.begin() as tx:
        assert {request.state for request in requests.every(tx)} == {"granted"}
