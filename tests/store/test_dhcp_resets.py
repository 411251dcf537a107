"""Inactive machines that are reset, and ask in one batch of DHCP messages, are moved together, and
come to the same rows and answers as one by one."""

from __future__ import annotations

import random
from typing import Any

import pytest
from sqlalchemy import event, insert

from cod.flows.boot import dhcp as flow
from cod.model import DhcpQuery, Site
from cod.policy.nodes.newcomers import Newcomers
from cod.states import CaptureState
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.nodes import burnins, nodes, sessions
from tests.store.test_dhcp_enrolment import NOW, discover, mac, told

STATES = ("inactive", "inactive", "inactive", "off", "wipe", "trampoline", "quarantined", "retired")


def resting(tx: Tx, dice: random.Random, count: int) -> None:
    """Add machines that COD knows, most of them inactive; some are heard, or are at home elsewhere,
    have a second NIC or a switch port in another VLAN, or are to be captured or tested."""
    for number in range(count):
        away = dict(home_at=1.0, home_subnet="lab", home_circuit="07")
        columns: dict[str, Any] = dice.choice([{}, {}, {}, away])
        node = nodes.add(
            tx,
            name=f"n{number}",
            boot_mac=mac(number),
            now=NOW - 900.0,
            cause="t",
            actor="t",
            state=dice.choice(STATES),
            **columns,
        )
        if dice.random() < 0.2:
            nodes.add_mac(tx, node.id, mac(1000 + number))
        if dice.random() < 0.5:
            last = NOW - dice.choice([1.0, 800.0])
            sessions.open(tx, node.id, "a", "10.77.1.1", last)
            tx.execute(t.sessions.update().values(reported=True))
        if dice.random() < 0.3:
            port = dict(switch="s", port=str(number), source="lldp", seen_at=0.0, wanted_vlan=7)
            tx.execute(insert(t.switch_ports).values(node_id=node.id, mac=node.boot_mac, **port))
        work = dict(node_id=node.id, actor="t", asked_at=0.0)
        if number % 3 == 1:
            tx.execute(insert(t.captures).values(image="i", state=CaptureState.WANTED, **work))
        if number % 2:
            burnins.add(tx, cause="t", tests="memory", seconds=60, erase=False, **work)


def asked(dice: random.Random, count: int) -> list[DhcpQuery]:
    """Messages of such machines, in any order: of some several, by either NIC."""
    found = []
    for number in range(count):
        for _ in range(dice.choice([1, 1, 1, 2, 3])):
            by = dice.choice([number, number, number, 1000 + number])
            kind, stage = (
                dice.choice(["DISCOVER", "DISCOVER", "REQUEST"]),
                dice.choice(["ipxe", "os"]),
            )
            found.append(discover(by, kind=kind, stage=stage, xid=dice.choice([number, 9000])))
    dice.shuffle(found)
    return found


@pytest.mark.parametrize("seed", range(10))
def test_machines_reset_together_are_moved_as_one_by_one(
    tx: Tx, site: Site, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(seed)
    count = dice.randint(2, 20)
    resting(tx, dice, count)
    batches = [asked(dice, count), asked(dice, count)]
    together = told(tx, batches, site)
    assert any(row["event"] == "asked" for row in map(dict, together[1]["node_history"]))
    monkeypatch.setattr(flow, "_move_ahead", lambda batch, asked: None)
    assert told(tx, batches, site) == together


def test_resets_cost_no_statement_for_each_machine(tx: Tx, site: Site) -> None:
    seen: list[str] = []
    for number in range(110):
        nodes.add(
            tx,
            name=f"n{number}",
            boot_mac=mac(number),
            now=NOW,
            cause="t",
            actor="t",
            state="inactive",
        )
    event.listen(tx, "before_cursor_execute", lambda *said: seen.append(said[2]))
    for count, start in ((10, 0), (100, 10)):
        before = len(seen)
        queries = [discover(start + number) for number in range(count)]
        assert all(flow.answer(tx, queries, site, Newcomers(), NOW))
        assert len(seen) - before <= 11, seen[before:]
    assert all(node.state == "trampoline" for node in nodes.lock(tx, range(1, 111)))
