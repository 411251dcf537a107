"""Series in the portal: an owner makes one, sees what becomes of its starts, and ends it."""
# ruff: noqa: F401, F811 (fixtures)

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import update

from cod.store import tables as t
from cod.store.scheduler import series
from tests.net.apiserver import NOW, Served, as_json
from tests.net.ownersite import browse, engine, furnished_sqlite, there

pytestmark = pytest.mark.slow

COURSE = "/series/course"
DAY = 86400.0


def started(served: Served, days: float) -> None:
    """Move the starts of the series, so that its first one was so many days ago."""
    [(found, _)] = served.tx(series.of_groups, None)
    o, s = t.series_occurrences, t.reservation_series
    by = found.starts_at - NOW + days * DAY
    for table in (o, s):
        moved = update(table).values(starts_at=table.c.starts_at - by)
        served.tx(lambda tx, moved=moved: tx.execute(moved))


def decided(served: Served, at: float, name: str, refused: str) -> None:
    """Decide a further start of the series."""
    [(found, _)] = served.tx(series.of_groups, None)
    row = t.series_occurrences.insert().values(
        series_id=found.id, starts_at=at, vcluster=name, refused=refused
    )
    served.tx(lambda tx: tx.execute(row))


def test_an_owner_makes_a_series_and_ends_it(there: Served) -> None:
    browser = browse(there)
    for path in ("/vclusters", "/calendar"):
        assert browser.get(path).tree.xpath("//main//a[@href='/series']"), path
    assert "No series yet." in browser.get("/series").words
    page = browser.get("/series/new")
    assert dict(page.fields("/series"))["starts_at"].endswith("T08:00")
    page = page.send("/series", name="course", size="1", lease="long", zone="Mars/Base")
    assert page.tree.xpath("//*[@id='lease-wrong']"), page.words
    page = page.send("/series", lease="10h")
    assert "there is no time zone 'Mars/Base'" in page.words
    page = page.send("/series", zone="Europe/Berlin", size="9999")
    assert page.tree.xpath("//*[@role='alert']"), "the site has fewer nodes"
    page = page.send("/series", size="1", count="4", days="mon")
    assert page.path == COURSE, page.words
    name = page.words.partition("The series is made: ")[2].split()[0]
    assert f"{name} is reserved." in page.words
    [(made, group)] = there.tx(series.of_groups, None)
    assert (group, made.zone, made.days, made.count) == ("physics", "Europe/Berlin", ("mon",), 4)
    first = datetime.fromtimestamp(made.starts_at, UTC)
    assert (f"{first:%a %H:%M}", made.duration) in (("Mon 06:00", 36e3), ("Mon 07:00", 36e3))
    assert "Every Monday at 08:00 for 10 h." in page.words
    assert page.tree.xpath(f"//main//a[@href='/vclusters/{name}']")
    listed = browser.get("/series")
    assert "Every Monday at 08:00 for 10 h Europe/Berlin" in listed.words
    assert "1 reserved" in listed.words
    page = page.send(f"{COURSE}/end")
    assert page.path == "/series"
    assert "Series course has ended. Reserved clusters stay." in page.words
    assert there.local.get(f"/vclusters/{name}")["state"] == "pending"


def test_what_became_of_starts_is_shown(there: Served) -> None:
    browser = browse(there)
    browser.get("/series/new").send("/series", name="course", size="1", days="mon")
    started(there, 2.0)
    decided(there, NOW - DAY, "course-b", "4 of 8 nodes are not free")
    decided(there, NOW + 5 * DAY, "course-c", "the limit of physics is 2 nodes")
    page = browser.get(COURSE)
    tables = page.tree.xpath("//main//tbody")
    coming, past = [[row.text_content().split() for row in each.iter("tr")] for each in tables]
    [refused] = [" ".join(row) for row in coming]
    assert refused.endswith("course-c refused the limit of physics is 2 nodes")
    assert [("refused" in row, "late" in row) for row in past] == [(True, False), (False, True)]
    assert "A refused start is tried again" in page.words
    assert "1 refused" in browser.get("/series").words


def test_a_viewer_sees_and_changes_nothing(there: Served) -> None:
    browse(there).get("/series/new").send("/series", name="course", size="1")
    viewer = browse(there, "viewer")
    assert not viewer.get(COURSE).tree.xpath("//main//form")
    assert "You may not reserve nodes." in viewer.get("/series/new").words
    stranger = browse(there, "owner", "web")
    assert stranger.get(COURSE).status == 404
    assert "course" not in stranger.get("/series").words
