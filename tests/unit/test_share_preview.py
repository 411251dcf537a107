"""What other shares would have made of recorded requests: their scenario, the answer, its
sentence."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cod.model import Group, MaintenanceWindow, NodeType, RecordedRequest, RecordedWindow, Site
from cod.policy.sharing import recorded_demand
from cod.policy.sharing.share_preview import GroupWait, sentence
from cod.service.share_preview import answer
from tests.store.test_manager_properties import SITE

NOW, HOUR, DAY = 1_000_000.0, 3600.0, 86400.0
TYPE = NodeType(1, "node", "", '<node><memory mib="4096" /></node>', 1.0, 0.0)
SETTINGS: dict[str, Any] = {
    "shares": 1.0,
    "guarantee": 0,
    "node_limit": None,
    "type_limits": {"gone": 3},
    "type_guarantees": {},
    "type_shares": {},
    "hours_limit": None,
    "parent": None,
}
ONE = RecordedRequest(
    "chem", "granted", NOW - DAY, NOW - DAY, 4, "", True, False, False, DAY, None, NOW - DAY / 2
)


def question(
    requests: list[RecordedRequest],
    site: Site = SITE,
    windows: Sequence[RecordedWindow] = (),
    **changed: Any,
) -> dict[str, Any]:
    """The question for a day on four nodes, with other settings for chem; through JSON."""
    groups = [Group(1, "chem"), Group(2, "bio")]
    own = recorded_demand.group_tables(groups, {"chem": SETTINGS, "bio": SETTINGS}, ["node"])
    others = recorded_demand.group_tables(
        groups, {"chem": {**SETTINGS, **changed}, "bio": SETTINGS}, ["node"]
    )
    scenario = recorded_demand.scenario(
        [TYPE], {1: {None: 4}}, requests, own, site, 1, NOW, windows
    )
    found: dict[str, Any] = json.loads(json.dumps({"scenario": scenario, "groups": others}))
    return found


def test_a_limit_makes_its_group_wait_and_the_others_not() -> None:
    """Two requests of chem for two nodes each have all four; with a limit of two the second waits
    until the first has ended, four hours later."""
    both = [
        replace(ONE, wanted_at=at, decided_at=at, nodes=2, ended_at=at + 4 * HOUR)
        for at in (NOW - DAY + HOUR, NOW - DAY + HOUR + 60)
    ]
    late = replace(both[0], group="bio", wanted_at=NOW - HOUR, decided_at=NOW - HOUR, ended_at=NOW)
    found = answer(question([*both, late], node_limit=2))
    waits = {one["group"]: one for one in found["groups"]}
    assert waits["chem"]["requests"] == 2
    assert 1.8 * HOUR < waits["chem"]["after"] - waits["chem"]["before"] < 2.5 * HOUR
    assert abs(waits["bio"]["after"] - waits["bio"]["before"]) < 300
    assert found["sentence"].startswith("With these shares chem would have waited ")
    assert " more" in found["sentence"]


def test_nothing_changes_with_the_same_settings() -> None:
    found = answer(question([ONE]))
    assert found["idle_before"] == found["idle_after"]
    assert found["sentence"] == "With these shares no group would have waited longer or less."


def test_requests_from_before_hold_their_nodes_and_do_not_count_as_waiting() -> None:
    early = replace(ONE, wanted_at=NOW - 3 * DAY, decided_at=NOW - 3 * DAY, ended_at=NOW - DAY / 2)
    (demand,) = question([early])["scenario"]["demand"]
    (one,) = demand["requests"]
    assert (one["at"], one["runtime"], one["under"]) == (0.0, DAY / 2, recorded_demand.BEFORE)
    waiting = replace(early, state="pending", decided_at=None, ended_at=None)
    (demand,) = question([waiting])["scenario"]["demand"]
    assert demand["requests"][0]["under"] == "chem"


def window(begins: float, ends: float | None, nodes: int, **more: Any) -> RecordedWindow:
    """A window of so many of the four nodes, planned a day before."""
    values: dict[str, Any] = {
        "id": 3,
        "state": "over",
        "begins_at": begins,
        "ends_at": ends,
        "reason": "power feed",
        "names": "n[1-4]",
        "filter": "",
        "drain": False,
        "stay_out": False,
        "bit": -3,
        "warned": None,
        "created_at": begins - DAY,
        "created_by": "user:root",
    }
    return RecordedWindow(MaintenanceWindow(**values | more), {(1, None): nodes})


def waited(windows: Sequence[RecordedWindow], nodes: int = 2) -> float:
    """Return how long chem's request of an hour at 02:00 would have waited, in hours."""
    at = NOW - DAY + 2 * HOUR
    one = replace(ONE, wanted_at=at, decided_at=at, nodes=nodes, ended_at=at + HOUR)
    (chem,) = answer(question([one], windows=windows))["groups"]
    return float(chem["before"]) / HOUR


def test_requests_wait_for_the_maintenance_that_the_site_had() -> None:
    begins, ends = NOW - DAY + HOUR, NOW - DAY + 9 * HOUR
    assert waited([]) < 1
    assert 7 <= waited([window(begins, ends, 4)]) < 8
    assert waited([window(begins, ends, 2)]) < 1, "two nodes were left"
    assert 7 <= waited([window(begins, ends, 2)], nodes=3) < 8
    before = window(NOW - 3 * DAY, ends, 4)
    assert 7 <= waited([before]) < 8, "it had begun before the first day"


def test_maintenance_that_is_planned_keeps_leases_off_its_nodes() -> None:
    soon = window(NOW - DAY + 2.5 * HOUR, NOW - DAY + 5 * HOUR, 4, state="planned", bit=1)
    assert 3 <= waited([soon]) < 4
    later = window(NOW + HOUR, None, 4, state="planned", bit=1)
    assert waited([later]) < 1
    runs = window(NOW - HOUR, None, 4, state="running", bit=1)
    assert waited([runs]) < 1


def test_a_window_that_was_ended_before_it_began_took_nothing() -> None:
    """One that drains is over then, not cancelled."""
    begins = NOW - DAY + 3 * HOUR
    drained = window(begins, begins - 2 * HOUR, 4, drain=True)
    assert question([ONE], windows=[drained])["scenario"]["window"] == []


def test_a_window_names_the_blocks_of_the_scenario() -> None:
    other = replace(TYPE, id=2, name="other")
    gone = replace(TYPE, id=3, name="gone")
    had = RecordedWindow(window(NOW - HOUR, NOW, 1).window, {(2, 7): 1, (1, 8): 2, (3, 9): 5})
    nodes = {1: {None: 4, 8: 2}, 2: {7: 3}}
    found = recorded_demand.scenario([TYPE, other, gone], nodes, [], [], SITE, 1, NOW, [had])
    (one,) = found["window"]
    assert (one["blocks"], one["counts"]) == ([2, 3], [2, 1])
    none = RecordedWindow(had.window, {(3, 9): 5})
    assert (
        recorded_demand.scenario([TYPE, other], nodes, [], [], SITE, 1, NOW, [none])["window"] == []
    )


def test_types_without_nodes_are_left_out() -> None:
    assert question([ONE])["scenario"]["group"][0]["limit_of"] == {}


def test_the_sentence_names_the_largest_differences_first() -> None:
    waits = [
        GroupWait("bio", 10, 0.0, 1200.0),
        GroupWait("chem", 10, 14400.0, 3600.0),
        GroupWait("math", 10, 100.0, 110.0),
    ]
    assert sentence(waits, 0.30, 0.26) == (
        "With these shares chem would have waited 3 h less, bio 20 min more; 4 % fewer nodes idle."
    )
    assert "10 % more nodes idle" in sentence([], 0.2, 0.3)
