"""The checker of nodes' histories finds each violation that is planted, and none in a node's usual
way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from cod.policy.histories import (
    Histories,
    NodeRow,
    NodeTransition,
    Owner,
    ViolationKind,
    violations,
)

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


def history(way: list[tuple[str, str, int | None]] = WAY, node: int = 1) -> list[NodeTransition]:
    """A node's history; its ids leave room for another's."""
    states: list[str | None] = [None, *(to for _, to, _ in way)]
    return [
        NodeTransition(10 * number + node, node, event, states[number], to, number, holder)
        for number, (event, to, holder) in enumerate(way)
    ]


def changed(number: int, **values: object) -> list[NodeTransition]:
    rows = history()
    rows[number] = replace(rows[number], **values)
    return rows


def spliced(start: int, end: int) -> list[NodeTransition]:
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
        (changed(6, generation=5), "generation 5 was written twice"),
        ([*history()[:4], history()[3], *history()[4:]], "generation 3 was written twice"),
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
def test_what_may_never_be_is_found(rows: list[NodeTransition], said: str) -> None:
    found = list(map(str, violations(rows)))
    assert any(said in one for one in found), found


HELD = NodeRow(1, "active", 8, "dirty", 7, "active", "ann", ("ann",), 1, own_vlan=12)
IDLE = NodeRow(1, "inactive", 14, "clean")


def compared(upto: int, row: NodeRow) -> list[str]:
    histories = Histories()
    assert [one for each in history()[: upto + 1] for one in histories.add(each)] == []
    return list(map(str, histories.compare([row])))


def test_rows_that_agree_with_the_history_show_nothing() -> None:
    assert compared(8, HELD) == []
    mounts = replace(HELD, vlan=12, template_group="ann", volumes=(("ann/data", "ann"),))
    assert compared(8, mounts) == []
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
        (8, replace(HELD, users=("ann", "bob")), "may be used by ann, bob"),
        (8, replace(HELD, users=()), "may be used by nobody"),
        (8, replace(HELD, addresses=2), "has 2 addresses of a vcluster"),
        (8, replace(HELD, strange=("10.9.0.7",)), "has the address 10.9.0.7"),
        (8, replace(HELD, template_group="bob"), "runs a template of bob"),
        (8, replace(HELD, vlan=13), "is wanted in VLAN 13; its holder's is 12"),
        (14, replace(IDLE, vlan=13), "is wanted in VLAN 13; its holder's is none"),
        (8, replace(HELD, volumes=(("bob/data", "bob"),)), "mounts bob/data of bob"),
        (14, replace(IDLE, disk="system"), "is inactive with a disk that is system"),
        (14, replace(IDLE, holder=7), "is inactive and held by 7"),
        (14, replace(IDLE, users=("ann",)), "may be used by ann"),
        (14, replace(IDLE, addresses=1), "has 1 addresses of a vcluster"),
    ],
)
def test_rows_that_contradict_are_found(upto: int, row: NodeRow, said: str) -> None:
    assert any(said in one for one in compared(upto, row)), compared(upto, row)


@pytest.mark.parametrize("way", [lambda: history([]), lambda: history(WAY[:1])])
def test_no_history_and_a_short_one_are_read(way: Callable[[], list[NodeTransition]]) -> None:
    assert violations(way()) == []


def test_a_free_node_has_a_dirty_disk_only_where_nobody_has_written_to_it() -> None:
    assert compared(14, replace(IDLE, disk="dirty")) == []
    keeping = Histories({7: OWNERS[7]})
    rows = kept(8)[:-2]
    assert [one for row in rows for one in keeping.add(row)] == []
    now = replace(IDLE, generation=rows[-1].generation)
    assert keeping.compare([replace(now, disk="cached")]) == []
    said = [one.about for one in keeping.compare([replace(now, disk="dirty")])]
    assert said == ["is inactive with a disk that is dirty"]


def kept(second: int, *middle: tuple[str, str, int | None]) -> list[NodeTransition]:
    """The history of a node that vcluster 7 gives back, and that `second` then gets."""
    free: tuple[str, str, int | None] = ("idled", "inactive", None)
    return history([*WAY[:9], ("released", "trampoline", None), *middle, free, *BOOTED[second]])


BOOTED = {
    holder: [("boot_ordered", "boot", holder), ("booted", "active", holder)] for holder in (8, 9)
}
OWNERS = {7: Owner("red", "ann", True), 8: Owner("blue", "ann", True), 9: Owner("x", "bob")}


def found_in(rows: list[NodeTransition]) -> list[tuple[ViolationKind, str]]:
    histories = Histories(OWNERS)
    return [(one.kind, one.about) for row in rows for one in histories.add(row)]


def test_a_kept_disk_goes_to_its_group_alone() -> None:
    assert found_in(kept(8)) == []
    said = "boots for bob/x with data of ann on disk"
    assert found_in(kept(9)) == [(ViolationKind.IMAGE, said)]


def test_erased_tables_leave_the_data_to_its_group() -> None:
    wiped = [
        replace(row, erased="tables") if row.event == "wiped" else row
        for row in kept(9, ("wipe_ordered", "wipe", None), ("wiped", "trampoline", None))
    ]
    assert [kind for kind, _ in found_in(wiped)] == [ViolationKind.IMAGE]
    assert found_in([replace(row, erased="") for row in wiped]) == []
    two_groups = [*WAY[:6], ("prime_ordered", "prime", 9)]
    found = found_in(history([*two_groups, ("primed", "boot", 9)]))
    assert ViolationKind.HANDED_ON in [kind for kind, _ in found]


def test_a_prime_that_erases_hands_on_a_clean_disk() -> None:
    primed = [("prime_ordered", "prime", 9), ("primed", "boot", 9), ("booted", "active", 9)]
    rows = history([*WAY[:9], ("released", "trampoline", None), WAY[14], *primed])
    assert [kind for kind, _ in found_in(rows)] == [ViolationKind.HANDED_ON]
    assert found_in([replace(row, erased="whole") for row in rows]) == []


def test_a_restored_database_leaves_a_history_without_violations() -> None:
    rows = history([*WAY[:8], ("restored", "trampoline", 7), *WAY[6:9]])
    assert violations(rows) == []
    pruned = rows[4:]
    assert violations(pruned, whole=False) == []
    assert len(violations(pruned)) == 1


def test_owners_over_time_and_erasures_between_them() -> None:
    histories = Histories(OWNERS)
    for number, row in enumerate(history()):
        histories.add(replace(row, at=float(number)))
    spans = histories.spans(1)
    assert [
        "erased" if span.erased else histories.name(span.holder)
        for span in spans
        if span.holder is not None or span.erased
    ] == ["ann/red", "erased", "ann/blue", "erased"]
    assert [(span.since, span.until) for span in spans[1:3]] == [(4.0, 9.0), (9.0, 16.0)]
    assert histories.spans(2) == []
