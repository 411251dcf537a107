"""The checker of nodes' histories finds each violation that is planted, and none in a node's usual
way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.node_history import HistoryChecker, NodeRow, Transition, violations

WAY: list[tuple[str, str, int | None]] = [
    ("seen", "new", None),
    ("registered", "registering", None),
    ("approved", "trampoline", None),
    ("idled", "inactive", None),
    ("prime_ordered", "prime", 7),
    ("failed", "trampoline", 7),
    ("prime_ordered", "prime", 7),
    ("primed", "boot", 7),
    ("booted", "active", 7),
    ("released", "trampoline", None),
    ("wipe_ordered", "wipe", None),
    ("lost", "trampoline", None),
    ("wipe_ordered", "wipe", None),
    ("wiped", "trampoline", None),
    ("idled", "inactive", None),
    ("powered_down", "off", None),
    ("woken", "trampoline", 8),
    ("prime_ordered", "prime", 8),
    ("asked", "trampoline", 8),
    ("wipe_ordered", "wipe", None),
    ("wiped", "trampoline", None),
    ("idled", "inactive", None),
]


def history(way: list[tuple[str, str, int | None]] = WAY, node: int = 1) -> list[Transition]:
    """A node's history; its ids leave room for another's."""
    states: list[str | None] = [None, *(to for _, to, _ in way)]
    return [
        Transition(10 * number + node, node, event, states[number], to, number, holder)
        for number, (event, to, holder) in enumerate(way)
    ]


def changed(number: int, **values: object) -> list[Transition]:
    rows = history()
    rows[number] = replace(rows[number], **values)  # type: ignore[arg-type]
    return rows


def spliced(start: int, end: int) -> list[Transition]:
    """The usual way without rows `start` to `end`, numbered without a gap."""
    return history([*WAY[:start], *WAY[end:]])


def test_the_usual_way_of_two_nodes_shows_nothing() -> None:
    both = sorted([*history(), *history(node=2)], key=lambda row: row.id)
    assert violations(both) == []


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (history()[1:], "its history begins with generation 1, from new"),
        ([*history()[:5], *history()[6:]], "generation 6 comes after 4"),
        (changed(6, generation=5), "generation 5 comes after 5"),
        ([*history()[:4], history()[3], *history()[4:]], "row 31 comes after row 31"),
        (changed(9, from_state="boot"), "comes from boot, and was active"),
        (changed(3, to_state="off"), "idled leads from trampoline to inactive, not to off"),
        (changed(10, event="failed"), "failed leads from trampoline to None, not to wipe"),
        (changed(6, holder=8), "goes from 7 to 8 without having been free"),
        (changed(13, holder=8), "goes from 7 to 8 without having been free"),
        (changed(2, holder=8), "is taken by 8 while it is registering"),
        (changed(14, holder=8), "is inactive and held by 8"),
        (spliced(10, 14), "is inactive, and was not wiped since its disks were written"),
        (spliced(12, 14), "is inactive, and was not wiped since its disks were written"),
        (spliced(6, 14), "is inactive, and was not wiped since its disks were written"),
    ],
)
def test_what_may_never_be_is_found(rows: list[Transition], said: str) -> None:
    assert any(said in one for one in violations(rows)), violations(rows)


HELD = NodeRow(1, "active", 8, "dirty", 7, "active", 3, (3,), 1)
IDLE = NodeRow(1, "inactive", 14, "clean")


def compared(upto: int, row: NodeRow) -> list[str]:
    checker = HistoryChecker()
    assert [one for each in history()[: upto + 1] for one in checker.add(each)] == []
    return checker.compare([row])


def test_rows_that_agree_with_the_history_show_nothing() -> None:
    assert compared(8, HELD) == []
    assert compared(14, IDLE) == []
    given_back = NodeRow(1, "trampoline", 16, "dirty")  # which is no transition there
    assert compared(16, given_back) == []


@pytest.mark.parametrize(
    ("upto", "row", "said"),
    [
        (8, replace(HELD, node=2), "has no history"),
        (7, HELD, "its history ends with boot of 7"),
        (9, HELD, "its history ends with trampoline of 9"),
        (8, replace(HELD, holder=9), "is held by 9, and its history ends with 7"),
        (8, replace(HELD, holder_state="ended"), "which has ended"),
        (8, replace(HELD, users=(3, 4)), "may be used by (3, 4)"),
        (8, replace(HELD, users=()), "may be used by ()"),
        (8, replace(HELD, addresses=2), "has 2 addresses of a vcluster"),
        (14, replace(IDLE, disk="dirty"), "is inactive with a disk that is dirty"),
        (14, replace(IDLE, disk="cached"), "is inactive with a disk that is cached"),
        (14, replace(IDLE, holder=7), "is inactive and held by 7"),
        (14, replace(IDLE, users=(3,)), "may be used by (3,)"),
        (14, replace(IDLE, addresses=1), "has 1 addresses of a vcluster"),
    ],
)
def test_rows_that_contradict_are_found(upto: int, row: NodeRow, said: str) -> None:
    assert any(said in one for one in compared(upto, row)), compared(upto, row)


@pytest.mark.parametrize("way", [lambda: history([]), lambda: history(WAY[:1])])
def test_no_history_and_a_short_one_are_read(way: Callable[[], list[Transition]]) -> None:
    assert violations(way()) == []
