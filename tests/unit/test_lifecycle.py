"""Where a node goes next: every decision is an arrow of the table, and budgets are what the table
says."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from cod.model import Assignment, Node, Policy
from cod.policy.nodes import lifecycle
from cod.states import NODE_RULES, NODE_TRANSITIONS, Disk, NodeEvent, NodeState

BLANK = Node(
    **{field.name: None for field in fields(Node)}
    | {
        "id": 1,
        "name": "n",
        "state": "trampoline",
        "since": 100.0,
        "attempts": 0,
        "disk": Disk.CLEAN,
    }
)
LOCAL = Assignment(7, '<template cache="yes"><image target="disk" name="a"/></template>', 3)
DISKLESS = Assignment(
    7, '<template><boot mode="diskless"><kernel url="http://x/k"/></boot></template>', 3
)
TROUBLE = (
    NodeEvent.FAILED,
    NodeEvent.LOST,
    NodeEvent.TIMED_OUT,
    NodeEvent.ASKED,
    NodeEvent.BOOT_FAILED,
)


@pytest.mark.parametrize("disk", Disk)
@pytest.mark.parametrize("wanted", [None, LOCAL, DISKLESS])
def test_the_crossroads_always_leads_on(disk: Disk, wanted: Assignment | None) -> None:
    step = lifecycle.settle(replace(BLANK, disk=disk, vcluster_id=5 if wanted else None), wanted)
    assert (NodeState.TRAMPOLINE, step.event) in NODE_TRANSITIONS
    if wanted is not None and disk is Disk.SYSTEM:
        # whatever it is to run: its owner's data is on that disk
        assert step.event is NodeEvent.BOOT_ORDERED
    elif wanted is None:
        # tables alone were erased, and the disks are kept for no group
        assert (step.event is NodeEvent.WIPE_ORDERED) == (disk in (Disk.DIRTY, Disk.TABLES))
    elif wanted is DISKLESS:
        # an earlier holder's data, which no prime is going to overwrite
        others = disk in (Disk.DIRTY, Disk.CACHED, Disk.TABLES)
        assert step.event is (NodeEvent.WIPE_ORDERED if others else NodeEvent.BOOT_ORDERED)
    else:
        assert step.event is NodeEvent.PRIME_ORDERED
        inactive = lifecycle.assign(replace(BLANK, state="inactive", disk=disk), wanted)
        assert (NodeState.INACTIVE, inactive.event) in NODE_TRANSITIONS


@pytest.mark.parametrize("disk", Disk)
@pytest.mark.parametrize("wanted", [None, LOCAL, DISKLESS])
def test_a_capture_comes_before_anything_that_writes(disk: Disk, wanted: Assignment | None) -> None:
    node = replace(BLANK, disk=disk, vcluster_id=5 if wanted else None)
    assert lifecycle.settle(node, wanted, True).event is NodeEvent.CAPTURE_ORDERED


@pytest.mark.parametrize(
    ("template", "group", "disk", "fits"),
    [
        (7, 3, Disk.CACHED, True),
        (8, 3, Disk.CACHED, False),
        (7, 4, Disk.CACHED, False),
        (7, 3, Disk.DIRTY, False),
        (7, 3, Disk.CLEAN, False),
    ],
)
def test_a_kept_disk(template: int, group: int, disk: Disk, fits: bool) -> None:
    node = replace(BLANK, disk=disk, cached_template_id=template, cached_group_id=group)
    assert lifecycle.cached_fits(node, LOCAL) is fits


@pytest.mark.parametrize(
    "state", [state for state, rule in NODE_RULES.items() if rule.kind == "motion"]
)
def test_trouble_is_a_retry_until_the_budget_is_spent(state: NodeState) -> None:
    events = [event for event in TROUBLE if (state, event) in NODE_TRANSITIONS]
    assert NodeEvent.TIMED_OUT in events
    for event in events:
        for attempts in range(NODE_RULES[state].retries + 2):
            step = lifecycle.on_trouble(
                replace(BLANK, state=state, attempts=attempts), event, "why", Policy()
            )
            spent = attempts >= NODE_RULES[state].retries
            assert step.event is (NodeEvent.EXHAUSTED if spent else event)
            gone_on = spent and state is NodeState.CAPTURE  # the capture has failed, not the node
            assert step.columns["attempts"] == (0 if gone_on else attempts + 1)
            assert str(step.columns["reason"]).endswith("why")
            assert step.power == (
                "cycle" if event is NodeEvent.TIMED_OUT and (gone_on or not spent) else None
            )
            assert (NODE_TRANSITIONS[state, step.event] is NodeState.QUARANTINED) == (
                spent and not gone_on
            )
            assert (state, step.event) in NODE_TRANSITIONS


def test_rests_grow_and_end_before_the_deadline() -> None:
    rests = [lifecycle.rest(attempts) for attempts in range(6)]
    assert rests == [0, 5, 20, 80, 120, 120]
    assert max(rests) < (NODE_RULES[NodeState.TRAMPOLINE].deadline or 0)
    tired = replace(BLANK, attempts=2)
    assert not lifecycle.rested(tired, Policy(), 119.9)
    assert lifecycle.rested(tired, Policy(), 120.0)
    assert lifecycle.rested(tired, Policy(patience=0.1), 102.0)


@pytest.mark.parametrize(
    ("state", "cache", "may"),
    [
        ("active", "yes", True),
        ("active", "no", False),
        ("boot", "yes", False),
        ("prime", "yes", False),
    ],
)
def test_only_a_disk_that_ran_is_kept(state: str, cache: str, may: bool) -> None:
    document = LOCAL.document.replace('"yes"', f'"{cache}"')
    assert lifecycle.may_keep_disk(replace(BLANK, state=state, disk=Disk.DIRTY), document) is may
    assert lifecycle.may_keep_disk(replace(BLANK, state=state, disk=Disk.CACHED), document) is may
    for disk in (Disk.FOREIGN, Disk.CLEAN, Disk.SYSTEM):
        assert not lifecycle.may_keep_disk(replace(BLANK, state=state, disk=disk), document)
