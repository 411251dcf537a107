"""Series: each start is decided once, with the same admission as any reservation; what is refused
is told once, tried again until its start, and told once if it is reserved after all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import update

from cod.flows.people import groups
from cod.flows.scheduler import series as flows
from cod.flows.scheduler import vclusters as vcluster_flows
from cod.model import AskedTuple, AskedVcluster, Refused, SeriesView, Site
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.notices import notices
from cod.store.scheduler import vclusters
from tests.contexts import flow_context
from tests.store.manager_world import furnish

pytestmark = pytest.mark.slow  # together with its like more than the quick run has time for

HOUR, DAY = 3600.0, 86400.0
WEEK = 7 * DAY
NAMES = ["course-1970-01-02", "course-1970-01-09", "course-1970-01-16", "course-1970-01-23"]
ASKED = AskedVcluster(
    "course", 2, "debian", "site", also=[AskedTuple(1)], lease=10 * HOUR, starts_at=DAY
)


def create(tx: Tx, site: Site, **columns: Any) -> SeriesView:
    values: dict[str, Any] = {"zone": "UTC", "days": [], "count": None, "last": None}
    own = {key: columns.pop(key) for key in list(columns) if key not in values}
    asked = replace(ASKED, **own)
    made = flows.create(
        tx, flow_context(site, 1.0), asked, **values | columns, create=vcluster_flows.create
    )
    return made.value


def stand_in_the_way(tx: Tx, site: Site) -> None:
    """Reserve nodes from the second start on, so that there is no room for its cluster."""
    vcluster_flows.create(
        tx,
        flow_context(site, 1.0),
        AskedVcluster(
            name="in-the-way",
            size=2,
            template="debian",
            group="site",
            starts_at=DAY + WEEK,
            lease=HOUR,
        ),
    )


def keep(tx: Tx, site: Site, now: float, again: bool = False) -> int:
    """What the manager's part does once a minute; return how many starts were due."""
    due = flows.due(tx, now, again)
    for series_id, start in due:
        reserve(tx, site, series_id, start, now)
    return len(due)


def reserve(tx: Tx, site: Site, series_id: int, start: float, now: float) -> None:
    create = vcluster_flows.create
    flows.reserve(tx, series_id=series_id, start=start, create=create, site=site, now=now)


def live(tx: Tx) -> list[str]:
    return [name for name in NAMES if vclusters.by_name(tx, name) is not None]


def told(tx: Tx) -> list[str]:
    found = [one.notice for one in notices.every(tx, limit=100)]
    return [one.about for one in found if one.kind.startswith("series")]


def test_the_starts_of_four_weeks_are_reserved_each_once(tx: Tx, site: Site) -> None:
    furnish(tx, 3)
    made = create(tx, site)
    assert [one.vcluster for one in made.occurrences] == live(tx) == NAMES[:1]
    due = flows.due(tx, 2.0)
    assert [start for _, start in due] == [DAY + WEEK, DAY + 2 * WEEK, DAY + 3 * WEEK]
    assert keep(tx, site, 2.0) == 3
    reserve(tx, site, *due[0], 3.0)  # by another server, which saw the same
    assert live(tx) == NAMES
    held = vclusters.by_name(tx, NAMES[3])
    assert held is not None
    assert (held.state, held.size) == ("pending", 3)
    assert keep(tx, site, 4.0) == 0
    vcluster_flows.delete(tx, flow_context(site, 5.0, "t"), name=NAMES[1])
    assert (keep(tx, site, 6.0), live(tx)) == (0, [NAMES[0], *NAMES[2:]]), "one is left out"
    assert keep(tx, site, DAY + 1) == 1
    assert [one.starts_at for one in flows.show(tx, name="course", now=DAY + 1).occurrences] == [
        DAY + number * WEEK for number in (1, 2, 3, 4)
    ]
    assert told(tx) == []


def test_a_start_that_is_refused_is_told_once_and_the_others_stay(tx: Tx, site: Site) -> None:
    furnish(tx, 3)
    create(tx, site)
    stand_in_the_way(tx, site)
    assert keep(tx, site, 2.0) == 3
    assert keep(tx, site, 3.0) == 0
    assert live(tx) == [NAMES[0], *NAMES[2:]]
    [about] = told(tx)
    assert "course-1970-01-09" in about
    shown = flows.show(tx, name="course", now=4.0).occurrences
    assert [bool(one.refused) for one in shown] == [False, True, False, False]
    assert [one.state for one in shown] == ["reserved", "refused", "reserved", "reserved"]
    assert shown[1].refused in about
    assert (keep(tx, site, 5.0, again=True), told(tx)) == (1, [about]), "there is no room yet"
    vcluster_flows.delete(tx, flow_context(site, 6.0, "t"), name="in-the-way")
    assert (keep(tx, site, 7.0, again=True), live(tx)) == (1, NAMES)
    assert keep(tx, site, 8.0, again=True) == 0
    assert [one.refused for one in flows.show(tx, name="course", now=9.0).occurrences] == [""] * 4
    [_, reserved] = sorted(told(tx), key=lambda text: text != about)
    assert "course-1970-01-09 of series course, which could not be reserved before" in reserved


def test_a_refused_start_is_not_tried_after_its_time(tx: Tx, site: Site) -> None:
    furnish(tx, 3)
    create(tx, site)
    stand_in_the_way(tx, site)
    keep(tx, site, 2.0)
    vcluster_flows.delete(tx, flow_context(site, 3.0, "t"), name="in-the-way")
    late = [at for _, at in flows.due(tx, DAY + WEEK, again=True)]
    assert DAY + WEEK not in late
    reserve(tx, site, flows.due(tx, 4.0, again=True)[0][0], DAY + WEEK, DAY + WEEK)
    shown = flows.show(tx, name="course", now=DAY + WEEK)
    assert [(one.vcluster, one.state) for one in shown.past] == [
        (NAMES[0], "late"),
        (NAMES[1], "refused"),
    ]
    assert flows.show(tx, name="course", now=DAY + 8 * WEEK).past == (), "for four weeks"


def test_what_became_of_a_start_is_shown(tx: Tx, site: Site) -> None:
    furnish(tx, 3)
    create(tx, site)
    keep(tx, site, 2.0)

    def states() -> list[str]:
        shown = flows.show(tx, name="course", now=DAY + WEEK - 1)
        return [one.state for one in (*shown.past, *shown.occurrences)]

    held = vclusters.by_name(tx, NAMES[0])
    assert held is not None
    vcluster_flows.delete(tx, flow_context(site, 5.0, "t"), name=NAMES[1])
    began = update(t.vclusters).where(t.vclusters.c.id == held.id)
    tx.execute(began.values(state="active", leased_at=DAY))
    assert states() == ["running", "cancelled", "reserved", "reserved"]
    tx.execute(began.values(state="ended", live_name=None))
    assert states()[0] == "ended"


def test_a_series_that_has_ended_makes_no_more_and_keeps_what_there_is(tx: Tx, site: Site) -> None:
    furnish(tx, 3)
    create(tx, site)
    seen = flows.due(tx, 2.0)
    flows.end(tx, name="course", now=3.0)
    reserve(tx, site, *seen[0], 4.0)
    assert (keep(tx, site, 5.0), live(tx)) == (0, NAMES[:1])
    with pytest.raises(Refused, match="no series"):
        flows.show(tx, name="course", now=6.0)


def test_a_counted_series_ends_by_itself_after_its_last_start(tx: Tx, site: Site) -> None:
    furnish(tx, 3)
    create(tx, site, count=2)
    assert keep(tx, site, 2.0) == 1
    assert keep(tx, site, DAY + WEEK - 1) == 0
    assert keep(tx, site, DAY + WEEK) == 1
    assert flows.every(tx, groups=None, now=DAY + WEEK) == []
    assert live(tx) == NAMES[:2]


def test_a_series_is_refused_where_its_first_start_is(tx: Tx, site: Site) -> None:
    furnish(tx, 3)
    for columns, why in (
        ({"size": 3}, "node"),
        ({"template": "none"}, "none"),
        ({"starts_at": 0.5}, "no start"),
        ({"lease": None}, "length"),
        ({"last": DAY - 1}, "no start"),
        ({"zone": "Mars"}, "no time zone"),
    ):
        with tx.begin_nested() as part:
            with pytest.raises(Refused, match=why):
                create(tx, site, **columns)
            part.rollback()
    create(tx, site)
    with pytest.raises(Refused, match="already"):
        create(tx, site)


def test_a_group_with_a_series_is_not_deleted(tx: Tx, site: Site) -> None:
    furnish(tx, 3)
    groups.create(tx, "physics", now=0.0)
    create(tx, site, group="physics")
    flows.end(tx, name="course", now=2.0)
    vcluster_flows.delete(tx, flow_context(site, 2.0, "t"), name=NAMES[0])
    create(tx, site, group="physics", name="other")
    vcluster_flows.delete(tx, flow_context(site, 3.0, "t"), name="other-1970-01-02")
    with pytest.raises(Refused, match="1 series of reservations"):
        groups.delete(tx, "physics")
    flows.end(tx, name="other", now=4.0)
    groups.delete(tx, "physics")
