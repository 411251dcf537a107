"""`move` is the only way a node changes state, and keeps the history, the deadline, the budget and
the generation."""

from __future__ import annotations

import pytest

from cod.core.nodes import transitions
from cod.model import Node
from cod.states import NODE_RULES, NodeEvent, NodeState, WrongEvent
from cod.store import views
from cod.store.engine import Tx
from cod.store.nodes import nodes


def seen(tx: Tx, name: str = "n1", **columns: object) -> Node:
    return nodes.add(
        tx,
        name=name,
        boot_mac=f"52:54:00:00:00:{len(name):02x}",
        now=1.0,
        cause="seen",
        actor="dhcp",
        **columns,
    )


def test_a_transition_is_written_down(tx: Tx) -> None:
    node = seen(tx, state=NodeState.TRAMPOLINE, attempts=2)
    primed = transitions.move(
        tx,
        node,
        NodeEvent.PRIME_ORDERED,
        now=10.0,
        cause="wanted",
        actor="manager",
        patience=2.0,
        hostname="n1",
    )
    assert primed == nodes.get(tx, node.id)
    rule = NODE_RULES[NodeState.PRIME].deadline
    assert rule is not None
    assert (primed.state, primed.generation, primed.deadline, primed.attempts, primed.hostname) == (
        "prime",
        1,
        10.0 + 2 * rule,
        2,
        "n1",
    )
    seen_first, moved = nodes.history(tx, node.id)
    assert (seen_first["event"], seen_first["to_state"]) == ("seen", "trampoline")
    assert (
        moved["from_state"],
        moved["to_state"],
        moved["cause"],
        moved["actor"],
        moved["at"],
    ) == ("trampoline", "prime", "wanted", "manager", 10.0)


def test_arrival_gives_the_budget_back_and_clears_the_deadline(tx: Tx) -> None:
    node = seen(tx, state=NodeState.TRAMPOLINE, attempts=2)
    idle = transitions.move(tx, node, NodeEvent.IDLED, now=10.0, cause="", actor="agent")
    assert (idle.attempts, idle.deadline) == (0, None)


def test_what_was_read_before_a_transition_is_stale(tx: Tx) -> None:
    node = seen(tx, state=NodeState.TRAMPOLINE)
    transitions.move(tx, node, NodeEvent.IDLED, now=10.0, cause="", actor="agent")
    with pytest.raises(nodes.Stale):
        transitions.move(tx, node, NodeEvent.PRIME_ORDERED, now=11.0, cause="", actor="manager")
    assert len(nodes.history(tx, node.id)) == 2


def test_an_event_without_meaning_changes_nothing(tx: Tx) -> None:
    node = seen(tx, state=NodeState.ACTIVE)
    with pytest.raises(WrongEvent, match="active takes no event wiped"):
        transitions.move(tx, node, NodeEvent.WIPED, now=10.0, cause="", actor="agent")
    assert nodes.get(tx, node.id) == node


def test_leaving_prime_records_what_was_written(tx: Tx) -> None:
    node = seen(tx, state=NodeState.PRIME)
    node = nodes.change(tx, node, progress_done=1000)
    transitions.move(tx, node, NodeEvent.PRIMED, now=11.0, cause="", actor="agent")
    last = nodes.history(tx, node.id)[-1]
    assert (last["bytes_written"], last["rate"]) == (1000, 100.0)


def test_nodes_are_found_by_any_of_their_macs(tx: Tx) -> None:
    node = seen(tx)
    nodes.set_macs(tx, node.id, ["52:54:00:00:00:aa", "52:54:00:00:00:ab"])
    found = nodes.by_macs(tx, ["52:54:00:00:00:ab", "52:54:00:00:00:ff"])
    assert found == {"52:54:00:00:00:ab": nodes.get(tx, node.id)}
    assert views.nodes(tx, name=node.name)[0].macs == ("52:54:00:00:00:aa", "52:54:00:00:00:ab")


def test_a_power_wish_carries_the_generation(tx: Tx) -> None:
    assert nodes.wish_power(tx, seen(tx), "on", 5.0) is None
    node = seen(tx, "n22", power_driver="lab", state=NodeState.OFF)
    node = transitions.move(tx, node, NodeEvent.WOKEN, now=5.0, cause="", actor="manager")
    action = nodes.wish_power(tx, node, "on", 5.0)
    assert action is not None
    assert (action.generation, action.desired) == (1, "on")
    woken = nodes.get(tx, node.id)
    assert woken is not None
    assert (woken.power_wanted, woken.power_seq) == ("on", 1)


def test_overdue_nodes_come_oldest_first(tx: Tx) -> None:
    for name, deadline in (("a", 30.0), ("bb", 10.0), ("ccc", None), ("dddd", 99.0)):
        seen(tx, name, state=NodeState.PRIME, deadline=deadline)
    assert [node.name for node in nodes.overdue(tx, 50.0)] == ["bb", "a"]
