"""Power wishes in the database: who may carry out what, when, and what is left of it."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, func, select

from cod.core.nodes import transitions
from cod.flows.nodes import power as flows
from cod.flows.nodes.power import PowerTask
from cod.model import Node
from cod.policy.nodes.power import BUDGET, FIRST_PAUSE, LONGEST_PAUSE, retry_after
from cod.pool import in_transaction
from cod.states import POWER_CONTROL, NodeEvent, NodeState
from cod.store import tables
from cod.store.engine import Tx
from cod.store.nodes import nodes
from cod.store.nodes import power as store

LEASE = 45.0
ROOM = {"lab": 10, "ipmi": 10}


def machine(
    tx: Tx, name: str = "n1", driver: str = "lab", state: NodeState = NodeState.INACTIVE
) -> Node:
    mac = "52:54:00:00:00:" + name[1:].zfill(2)
    return nodes.add(
        tx,
        name=name,
        boot_mac=mac,
        now=0.0,
        cause="seen",
        actor="dhcp",
        state=state,
        power_driver=driver,
        power_address=f"at-{name}",
    )


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
    return [
        tuple(row)
        for row in tx.execute(select(a.desired, a.done_at.is_not(None), a.error).order_by(a.id))
    ]


def test_a_server_that_begins_anew_has_no_claims_but_for_a_moment(tx: Tx) -> None:
    wish(tx, machine(tx), "cycle")
    assert claim(tx, 1.0, "s1")
    flows.began(tx, "s2", 2.0)
    assert claim(tx, 2.0 + flows.LINGERS, "s2") == [], "another's claim is left alone"
    flows.began(tx, "s1", 2.0)
    assert claim(tx, 2.0 + flows.LINGERS - 0.1, "s2") == []
    (again,) = claim(tx, 2.0 + flows.LINGERS, "s2")
    assert again.action.attempts == 2


def test_a_wish_is_claimed_once_carried_out_and_shown(tx: Tx) -> None:
    node = wish(tx, machine(tx), "on")
    assert (node.power_wanted, node.power_seq, node.power) == ("on", 1, "unknown")
    (task,) = claim(tx, 1.0)
    assert (task.node, task.driver, task.address, task.action.desired) == (
        "n1",
        "lab",
        "at-n1",
        "on",
    )
    assert claim(tx, 2.0, "s2") == []
    flows.succeeded(tx, task, "on", 3.0)
    assert again(tx, node).power == "on"
    assert rows(tx) == [("on", True, "")]
    assert claim(tx, 1000.0) == []


def test_nothing_is_wished_of_a_machine_without_power_control(tx: Tx) -> None:
    assert nodes.wish_power(tx, machine(tx, driver="none"), "off", 0.0) is None


def test_a_late_power_off_never_hits_a_new_holder(tx: Tx) -> None:
    node = wish(tx, machine(tx), "off")
    taken = transitions.move(
        tx, node, NodeEvent.PRIME_ORDERED, now=1.0, cause="wanted", actor="manager"
    )
    assert claim(tx, 2.0) == []
    assert rows(tx) == [("off", True, "dropped: the node has moved on")]
    assert again(tx, taken).reason == ""


def test_a_retry_is_dropped_too_when_the_node_has_moved_on(tx: Tx) -> None:
    node = wish(tx, machine(tx), "off")
    (task,) = claim(tx, 1.0)
    transitions.move(tx, node, NodeEvent.PRIME_ORDERED, now=2.0, cause="wanted", actor="manager")
    due = flows.failed(tx, task, "no answer", 3.0)
    assert due is not None
    assert again(tx, node).reason == ""
    assert claim(tx, due) == []
    assert rows(tx) == [("off", True, "dropped: the node has moved on")]


def test_an_error_of_a_wish_that_is_dropped_is_shown_no_longer(tx: Tx) -> None:
    node = wish(tx, machine(tx), "off")
    (task,) = claim(tx, 1.0)
    due = flows.failed(tx, task, "no answer", 1.0)
    assert due is not None
    transitions.move(tx, node, NodeEvent.PRIME_ORDERED, now=2.0, cause="wanted", actor="manager")
    assert claim(tx, due) == []
    assert again(tx, node).reason == ""


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
    woken = transitions.move(
        tx, node, NodeEvent.POWERED_DOWN, now=2.0, cause="idle", actor="manager"
    )
    woken = transitions.move(tx, woken, NodeEvent.WOKEN, now=3.0, cause="wanted", actor="manager")
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
    flows.failed(tx, first, "late", 60.0, lasting=True)
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


def test_failures_are_tried_again_for_half_an_hour_then_given_up_with_the_reason_on_the_node(
    tx: Tx,
) -> None:
    node, now, pauses = wish(tx, machine(tx), "on", 100.0), 100.0, []
    while True:
        (task,) = claim(tx, now)
        due = flows.failed(tx, task, "BMC does not answer", now)
        if due is None:
            break
        assert claim(tx, due - 0.1) == []
        assert again(tx, node).reason == "power: BMC does not answer; it is tried again"
        pauses.append(due - now)
        now = due
    assert pauses[:7] == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert BUDGET - LONGEST_PAUSE < now - 100.0 <= BUDGET
    assert again(tx, node).reason == "power: BMC does not answer"
    assert rows(tx) == [("on", True, "BMC does not answer")]
    assert claim(tx, 10_000.0) == []


def test_another_trouble_is_not_written_over(tx: Tx) -> None:
    node = nodes.change(tx, wish(tx, machine(tx), "on"), reason="loud fan")
    (task,) = claim(tx, 0.0)
    due = flows.failed(tx, task, "BMC does not answer", 0.0)
    assert again(tx, node).reason == "loud fan"
    assert due is not None
    (task,) = claim(tx, due)
    flows.succeeded(tx, task, "on", due)
    assert again(tx, node).reason == "loud fan"


def test_a_bmc_that_is_away_for_ten_minutes_is_asked_within_a_minute_of_its_return(tx: Tx) -> None:
    node, now = wish(tx, machine(tx), "on"), 0.0
    while now < 600.0:
        (task,) = claim(tx, now)
        due = flows.failed(tx, task, "BMC does not answer", now)
        assert due is not None
        now = due
    assert again(tx, node).reason == "power: BMC does not answer; it is tried again"
    assert now <= 660.0
    (task,) = claim(tx, now)
    assert flows.command(task, "off") == "on", "no answer is no refusal: nothing stronger is tried"
    flows.succeeded(tx, task, "on", now)
    assert (again(tx, node).power, again(tx, node).reason) == ("on", "")


def test_pauses_grow_to_a_limit() -> None:
    assert retry_after(1, 0.0) == FIRST_PAUSE
    assert retry_after(10_000, 0.0) == LONGEST_PAUSE
    assert retry_after(1, BUDGET) is None


def test_what_was_accepted_and_did_not_show_is_followed_by_something_stronger(tx: Tx) -> None:
    wish(tx, machine(tx), "on")
    said, now = [], 0.0
    for _ in range(4):
        (task,) = claim(tx, now)
        said.append(flows.command(task, "off"))
        due = flows.failed(tx, task, "still off", now, ignored=True)
        assert due is not None
        now = due
    assert said == ["on", "on", "cycle", "cycle"]


def test_the_wish_that_wrote_the_trouble_is_of_the_nodes_generation(tx: Tx) -> None:
    node = wish(tx, machine(tx), "on")
    assert store.trouble(tx, node) == ""
    (task,) = claim(tx, 0.0)
    flows.failed(tx, task, "no answer", 1.0)
    assert store.trouble(tx, again(tx, node)) == "no answer"
    moved = transitions.move(
        tx, again(tx, node), NodeEvent.PRIME_ORDERED, now=2.0, cause="wanted", actor="manager"
    )
    assert store.trouble(tx, moved) == ""


def test_whether_an_agent_was_told_and_which_account_travel_with_the_task(tx: Tx) -> None:
    node = nodes.change(tx, machine(tx), power_account="rack")
    node = transitions.move(
        tx, node, NodeEvent.POWERED_DOWN, now=0.0, cause="idle", actor="manager"
    )
    wish(tx, node, "off")
    wish(tx, machine(tx, "n2"), "off")
    first, second = claim(tx, 1.0)
    assert (first.account, first.agent, flows.command(first, "on")) == ("rack", True, "soft")
    assert (second.account, second.agent, flows.command(second, "on")) == (None, False, "off")


def test_finished_wishes_are_forgotten_in_small_batches_open_ones_never(tx: Tx) -> None:
    for number in range(1, 6):
        wish(tx, machine(tx, f"n{number}"), "on", float(number))
    for task in claim(tx, 10.0):
        if task.node != "n5":
            flows.succeeded(tx, task, "on", 10.0 + int(task.node[1]))
    assert flows.prune(tx, 14.0, 2) == 2
    assert flows.prune(tx, 14.0, 2) == 1
    assert flows.prune(tx, 14.0, 2) == 0
    assert rows(tx) == [("on", True, ""), ("on", False, "")]


# ---------------------------------------------------------------- measuring


def meter(tx: Tx, after: int, share: float = 0.5, most: int = 10) -> list[str]:
    return [each.node for each in flows.meters(tx, ["ipmi"], after, share, most)]


def test_meters_come_round_by_their_share(tx: Tx) -> None:
    ids = [machine(tx, f"n{number}", "ipmi").id for number in range(1, 6)]
    machine(tx, "n6", "lab")
    machine(tx, "n7", "ipmi", NodeState.RETIRED)
    assert meter(tx, 0) == ["n1", "n2", "n3"]
    assert meter(tx, ids[2]) == ["n4", "n5"]
    assert meter(tx, 0, most=2) == ["n1", "n2"]
    assert meter(tx, ids[4]) == []


def test_what_was_measured_is_of_the_driver_that_measured_it(tx: Tx) -> None:
    node = machine(tx, "n1", "ipmi")
    (found,) = flows.meters(tx, ["ipmi"], 0, 1.0, 10)
    flows.measured(tx, found, 212.0)
    assert again(tx, node).watts == 212.0
    nodes.change(tx, node, power_driver="lab", watts=None)
    flows.measured(tx, found, 213.0)
    assert again(tx, node).watts is None
    nodes.change(tx, node, power_driver="ipmi", watts=1.0)
    flows.measured(tx, found, None)
    assert again(tx, node).watts is None


def test_what_cannot_succeed_is_not_tried_again(tx: Tx) -> None:
    node = wish(tx, machine(tx), "off")
    (task,) = claim(tx, 0.0)
    assert flows.failed(tx, task, "an operator must switch it off", 1.0, lasting=True) is None
    assert again(tx, node).reason == "power: an operator must switch it off"
    assert claim(tx, 1000.0) == []


def test_a_given_up_wish_of_a_past_generation_does_not_touch_the_new_reason(tx: Tx) -> None:
    node = wish(tx, machine(tx), "off")
    (task,) = claim(tx, 0.0)
    moved = transitions.move(
        tx, node, NodeEvent.PRIME_ORDERED, now=1.0, cause="wanted", actor="manager"
    )
    flows.failed(tx, task, "no such machine", 2.0, lasting=True)
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


@pytest.mark.slow
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
        count = (
            select(func.count())
            .select_from(tables.power_actions)
            .where(tables.power_actions.c.done_at.is_(None))
        )
        assert connection.scalar(count) == 2


def silence(tx: Tx, now: float) -> float | None:
    """Nothing answers the one wish that is due; when it is tried again."""
    (task,) = claim(tx, now)
    return flows.failed(tx, task, "the BMC does not answer", now, silent=True)


def test_a_sleeping_node_waits_for_its_driver_as_long_as_it_takes(tx: Tx) -> None:
    node = wish(tx, machine(tx, state=NodeState.OFF), "off")
    due: float | None = 1.0
    while due is not None and due < 10 * BUDGET:
        due = silence(tx, due)
        assert again(tx, node).waits_for == POWER_CONTROL
    assert due is not None
    (task,) = claim(tx, due)
    flows.succeeded(tx, task, "off", due)
    assert (again(tx, node).waits_for, again(tx, node).power) == ("", "off")


def test_an_answer_of_any_kind_ends_the_wait(tx: Tx) -> None:
    node = wish(tx, machine(tx, state=NodeState.TRAMPOLINE), "on")
    due = silence(tx, 1.0)
    assert due is not None
    assert again(tx, node).waits_for == POWER_CONTROL
    (task,) = claim(tx, due)
    flows.failed(tx, task, "asked to be on, it is still off", due, ignored=True)
    assert again(tx, node).waits_for == ""


def test_nobody_waits_for_a_driver_that_is_not_asked_any_more(tx: Tx) -> None:
    node = wish(tx, machine(tx, state=NodeState.TRAMPOLINE), "on")
    due = silence(tx, 1.0)
    assert due is not None
    transitions.move(tx, again(tx, node), NodeEvent.TIMED_OUT, now=2.0, cause="test", actor="test")
    assert again(tx, node).waits_for == POWER_CONTROL
    assert claim(tx, due) == []
    assert again(tx, node).waits_for == ""


def test_a_command_for_a_node_in_use_is_not_kept_for_hours(tx: Tx) -> None:
    node = wish(tx, machine(tx, state=NodeState.ACTIVE), "cycle")
    due: float | None = 1.0
    while due is not None:
        assert due < 2 * BUDGET
        due = silence(tx, due)
    assert again(tx, node).waits_for == ""
    assert "does not answer" in again(tx, node).reason


def test_a_node_that_comes_by_itself_waits_for_no_driver(tx: Tx) -> None:
    node = wish(tx, machine(tx, state=NodeState.TRAMPOLINE), "on")
    silence(tx, 1.0)
    event = NodeEvent.PRIME_ORDERED
    moved = transitions.move(tx, again(tx, node), event, now=2.0, cause="test", actor="test")
    assert (moved.state, moved.waits_for, moved.waits_since) == ("prime", "", None)
