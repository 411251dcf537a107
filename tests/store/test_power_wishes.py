"""Power wishes in the database: who may carry out what, when, and what is left of it."""

from __future__ import annotations

from sqlalchemy import Engine, func, select

from cod.flows import power as flows
from cod.flows.power import PowerTask
from cod.model import Node
from cod.policy.power import BUDGET, FIRST_PAUSE, LONGEST_PAUSE, retry_after
from cod.pool import in_transaction
from cod.states import NodeEvent, NodeState
from cod.store import nodes, tables
from cod.store.engine import Tx

LEASE = 45.0
ROOM = {"lab": 10, "ipmi": 10}


def machine(tx: Tx, name: str = "n1", driver: str = "lab", state: NodeState = NodeState.INACTIVE) -> Node:
    mac = "52:54:00:00:00:" + name[1:].zfill(2)
    return nodes.add(tx, name=name, boot_mac=mac, now=0.0, cause="seen", actor="dhcp", state=state,
                     power_driver=driver, power_address=f"at-{name}")


def wish(tx: Tx, node: Node, desired: str, now: float = 0.0) -> Node:
    assert nodes.wish_power(tx, node, desired, now)
    return again(tx, node)


def again(tx: Tx, node: Node) -> Node:
    found = nodes.get(tx, node.id)
    assert found is not None
    return found


def claim(tx: Tx, now: float, server: str = "s1", **room: int) -> list[PowerTask]:
    return flows.claim(tx, server, room or ROOM, now, LEASE)


def rows(tx: Tx) -> list[tuple[str, bool, str]]:
    a = tables.power_actions.c
    return [tuple(row) for row in tx.execute(select(a.desired, a.done_at.is_not(None), a.error).order_by(a.id))]


def test_a_wish_is_claimed_once_carried_out_and_shown(tx: Tx) -> None:
    node = wish(tx, machine(tx), "on")
    assert (node.power_wanted, node.power_seq, node.power) == ("on", 1, "unknown")
    (task,) = claim(tx, 1.0)
    assert (task.node, task.driver, task.address, task.action.desired) == ("n1", "lab", "at-n1", "on")
    assert claim(tx, 2.0, "s2") == []
    flows.succeeded(tx, task, "on", 3.0)
    assert again(tx, node).power == "on"
    assert rows(tx) == [("on", True, "")]
    assert claim(tx, 1000.0) == []


def test_nothing_is_wished_of_a_machine_without_power_control(tx: Tx) -> None:
    assert nodes.wish_power(tx, machine(tx, driver="none"), "off", 0.0) is None


def test_a_late_power_off_never_hits_a_new_holder(tx: Tx) -> None:
    node = wish(tx, machine(tx), "off")
    taken = nodes.move(tx, node, NodeEvent.PRIME_ORDERED, now=1.0, cause="wanted", actor="manager")
    assert claim(tx, 2.0) == []
    assert rows(tx) == [("off", True, "dropped: the node has moved on")]
    assert again(tx, taken).reason == ""


def test_a_retry_is_dropped_too_when_the_node_has_moved_on(tx: Tx) -> None:
    node = wish(tx, machine(tx), "off")
    (task,) = claim(tx, 1.0)
    nodes.move(tx, node, NodeEvent.PRIME_ORDERED, now=2.0, cause="wanted", actor="manager")
    due = flows.failed(tx, task, "no answer", False, 3.0)
    assert due is not None
    assert claim(tx, due) == []
    assert rows(tx) == [("off", True, "dropped: the node has moved on")]


def test_the_newest_wish_counts(tx: Tx) -> None:
    node = wish(tx, machine(tx), "off")
    wish(tx, node, "on", 0.5)
    (task,) = claim(tx, 1.0)
    assert task.action.desired == "on"
    assert rows(tx) == [("off", True, "dropped: a newer wish replaces it"), ("on", False, "")]


def test_a_newer_wish_waits_until_the_older_command_has_ended(tx: Tx) -> None:
    """Two commands to one switch at once would end in whichever order they like."""
    node = wish(tx, machine(tx), "off")
    (off,) = claim(tx, 1.0)
    woken = nodes.move(tx, node, NodeEvent.POWERED_DOWN, now=2.0, cause="idle", actor="manager")
    woken = nodes.move(tx, woken, NodeEvent.WOKEN, now=3.0, cause="wanted", actor="manager")
    wish(tx, woken, "on", 3.0)
    assert claim(tx, 4.0) == [], "the off is still being carried out"
    flows.succeeded(tx, off, "off", 5.0)
    (on,) = claim(tx, 6.0)
    assert on.action.desired == "on"


def test_a_claim_that_runs_out_is_taken_over_and_its_owner_comes_too_late(tx: Tx) -> None:
    node = wish(tx, machine(tx), "on")
    (first,) = claim(tx, 1.0, "dead")
    assert claim(tx, 1.0 + LEASE - 0.1, "s2") == []
    (second,) = claim(tx, 1.0 + LEASE, "s2")
    assert second.action.attempts == first.action.attempts + 1
    flows.succeeded(tx, first, "off", 60.0)
    flows.failed(tx, first, "late", True, 60.0)
    assert rows(tx) == [("on", False, "")]
    assert again(tx, node).power == "unknown"
    flows.succeeded(tx, second, "on", 61.0)
    assert again(tx, node).power == "on"


def test_the_same_server_too_comes_too_late(tx: Tx) -> None:
    wish(tx, machine(tx), "on")
    (first,) = claim(tx, 1.0)
    (second,) = claim(tx, 1.0 + LEASE)
    flows.succeeded(tx, first, "on", 60.0)
    assert rows(tx) == [("on", False, "")]
    flows.succeeded(tx, second, "on", 61.0)
    assert rows(tx) == [("on", True, "")]


def test_failures_are_tried_again_later_and_later_then_given_up_with_the_reason_on_the_node(tx: Tx) -> None:
    node, now, pauses = wish(tx, machine(tx), "on"), 0.0, []
    while True:
        (task,) = claim(tx, now)
        due = flows.failed(tx, task, "BMC does not answer", False, now)
        if due is None:
            break
        assert claim(tx, due - 0.1) == []
        pauses.append(due - now)
        now = due
    assert pauses == [2.0, 4.0, 8.0, 16.0, 32.0]
    assert len(pauses) == BUDGET - 1
    assert again(tx, node).reason == "power: BMC does not answer"
    assert rows(tx) == [("on", True, "BMC does not answer")]
    assert claim(tx, 10_000.0) == []


def test_pauses_grow_to_a_limit() -> None:
    assert retry_after(1) == FIRST_PAUSE
    assert retry_after(BUDGET) is None
    assert all((retry_after(n) or 0) <= LONGEST_PAUSE for n in range(1, BUDGET))


def test_what_cannot_succeed_is_not_tried_again(tx: Tx) -> None:
    node = wish(tx, machine(tx), "off")
    (task,) = claim(tx, 0.0)
    assert flows.failed(tx, task, "an operator must switch it off", True, 1.0) is None
    assert again(tx, node).reason == "power: an operator must switch it off"
    assert claim(tx, 1000.0) == []


def test_a_given_up_wish_of_a_past_generation_does_not_touch_the_new_reason(tx: Tx) -> None:
    node = wish(tx, machine(tx), "off")
    (task,) = claim(tx, 0.0)
    moved = nodes.move(tx, node, NodeEvent.PRIME_ORDERED, now=1.0, cause="wanted", actor="manager")
    flows.failed(tx, task, "no such machine", True, 2.0)
    assert again(tx, moved).reason == ""


def test_a_driver_that_the_site_does_not_have(tx: Tx) -> None:
    node = wish(tx, machine(tx, driver="wol"), "on")
    assert claim(tx, 0.0) == []
    assert again(tx, node).reason == "power: this site has no power driver 'wol'"
    assert rows(tx) == [("on", True, "this site has no power driver 'wol'")]


def test_each_driver_has_its_room_and_a_full_one_does_not_hold_up_others(tx: Tx) -> None:
    for number in range(1, 8):
        wish(tx, machine(tx, f"n{number}", "ipmi" if number <= 5 else "lab"), "on", float(number))
    assert [task.node for task in claim(tx, 10.0, ipmi=2, lab=1)] == ["n1", "n2", "n6"]
    assert [task.node for task in claim(tx, 10.0, ipmi=0, lab=9)] == ["n7"]
    assert claim(tx, 10.0, ipmi=0, lab=0) == []
    assert [task.node for task in claim(tx, 10.0, ipmi=9, lab=0)] == ["n3", "n4", "n5"]


def test_many_dead_wishes_do_not_hide_a_live_one(engine: Engine) -> None:
    def fill(tx: Tx) -> None:
        node = machine(tx)
        for number in range(300):
            wish(tx, node, "off", number / 1000)
        wish(tx, machine(tx, "n2"), "on", 1.0)

    in_transaction(engine, fill)
    found: list[PowerTask] = []
    for _look in range(4):
        found += in_transaction(engine, flows.claim, "s1", {"lab": 1}, 2.0, LEASE)
    assert {task.node for task in found} == {"n1", "n2"}
    with engine.connect() as connection:
        count = select(func.count()).select_from(tables.power_actions).where(tables.power_actions.c.done_at.is_(None))
        assert connection.scalar(count) == 2
