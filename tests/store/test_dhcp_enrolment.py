"""Machines never seen before that ask in one batch of DHCP messages are enrolled together, and come
to the same rows and answers as one by one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import event, select

from cod.core.nodes import enrolment, transitions
from cod.flows.boot import dhcp as flow
from cod.model import DhcpAnswer, DhcpQuery, Policy, Site
from cod.policy.nodes.newcomers import Newcomers
from cod.states import NodeEvent, Step
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.nodes import nodes

pytestmark = pytest.mark.slow

NOW = 1_000_000.0


TABLES = (
    t.nodes,
    t.nics,
    t.bindings,
    t.node_history,
    t.conflicts,
    t.notices,
    t.sessions,
    t.switch_ports,
    t.captures,
    t.burnins,
)


def mac(number: int) -> str:
    return f"52:54:00:00:{number >> 8:02x}:{number & 255:02x}"


def discover(number: int, **more: Any) -> DhcpQuery:
    return replace(DhcpQuery("DISCOVER", mac(number), number, "lab", "ipxe"), **more)


def asked(dice: random.Random) -> list[DhcpQuery]:
    """Messages of a batch: some are repeated, some machines have two NICs or another's UUID."""
    found = []
    for number in range(dice.randint(2, 30)):
        uuid = f"{dice.randrange(20):08x}-0000-4000-8000-000000000001"
        circuit = dice.choice([None, None, "01"])
        stage = dice.choice(["ipxe", "pxe-bios", "os"])
        query = discover(number, stage=stage, uuid=dice.choice([None, uuid]), circuit=circuit)
        found += [query] * dice.choice([1, 1, 1, 2])
    dice.shuffle(found)
    return found


def small(site: Site, dice: random.Random) -> Site:
    """The site with limits that such a batch meets now and then."""
    limits = dict(new_machines=dice.choice([5, 1000]), new_burst=dice.choice([10, 600]))
    return replace(site, policy=replace(site.policy, **limits))


def told(
    tx: Tx, batches: Sequence[Sequence[DhcpQuery]], site: Site
) -> tuple[list[list[DhcpAnswer | None]], dict[str, list[Any]]]:
    """Answer batches, and undo it; the answers, and all rows without what numbers them."""
    with tx.begin_nested() as part:
        newcomers = Newcomers()
        answers = [
            flow.answer(tx, batch, site, newcomers, NOW + number * 400.0)
            for number, batch in enumerate(batches)
        ]
        names = {row[0]: row[1] for row in tx.execute(select(t.nodes.c.id, t.nodes.c.name))}
        rows = {
            table.name: sorted(
                (
                    {
                        column: names[value] if column == "node_id" and value else value
                        for column, value in row._mapping.items()
                        if column != "id"
                    }.items()
                    for row in tx.execute(select(table))
                ),
                key=repr,
            )
            for table in TABLES
        }
        part.rollback()
    return answers, rows


@pytest.mark.parametrize("seed", range(10))
def test_machines_enrolled_together_are_enrolled_as_one_by_one(
    tx: Tx, site: Site, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(seed)
    site, batches = small(site, dice), [asked(dice), asked(dice)]
    together = told(tx, batches, site)
    monkeypatch.setattr(enrolment, "ahead", lambda batch, asked: None)
    assert told(tx, batches, site) == together


def test_an_address_that_gives_way_makes_room_for_one_machine(
    tx: Tx, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    [subnet] = site.subnets
    crowded = replace(subnet, boot_pool=("10.77.0.16", "10.77.0.23"))
    site = replace(site, subnets=(crowded,), policy=replace(site.policy, approved_share=0.0))
    lent = [discover(number) for number in range(8)]
    new = [discover(number) for number in range(8, 20)]
    together = told(tx, [lent, new], site)
    monkeypatch.setattr(enrolment, "ahead", lambda batch, asked: None)
    assert told(tx, [lent, new], site) == together
    assert len(together[1]["nodes"]) == 16


def test_enrolment_costs_no_statement_for_each_machine(tx: Tx, site: Site) -> None:
    site = replace(site, policy=Policy(new_burst=1000))
    seen = []
    event.listen(tx, "before_cursor_execute", lambda *said: seen.append(said[2]))
    for count, start in ((10, 0), (100, 1000)):
        before = len(seen)
        queries = [discover(start + number) for number in range(count)]
        assert all(flow.answer(tx, queries, site, Newcomers(), NOW))
        assert len(seen) - before < 15, seen[before:]


def test_the_first_steps_of_a_machine_are_written_at_once_as_one_by_one(tx: Tx, site: Site) -> None:
    flow.answer(tx, [discover(1)], site, Newcomers(), NOW)
    node = nodes.by_mac(tx, mac(1))
    assert node is not None
    steps = [Step(event, event.value) for event in (NodeEvent.REGISTERED, NodeEvent.APPROVED)]
    steps.append(Step(NodeEvent.IDLED, "free", {"reason": "", "released": 0}))
    rules: dict[str, Any] = {"now": NOW + 5.0, "actor": "agent", "policy": site.policy}
    found = []
    for at_once in (True, False):
        with tx.begin_nested() as part:
            moved = node
            if at_once:
                moved = transitions.register(tx, node, steps, **rules)
            for step in () if at_once else steps:
                moved = transitions.apply(tx, moved, step, **rules)
            history = [{**row, "id": 0} for row in nodes.history(tx, node.id)]
            found.append((moved, nodes.get(tx, node.id), history))
            part.rollback()
    assert found[0] == found[1]
    assert found[0][0] == found[0][1]
    stale = replace(node, generation=7)
    with pytest.raises(nodes.Stale):
        transitions.register(tx, stale, steps, **rules)
