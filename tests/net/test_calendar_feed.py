"""The calendar feed: its entries, who may read it, and that its token is good for nothing else."""

# ruff: noqa: F401, F811 (fixtures)

from __future__ import annotations

from typing import Any

import icalendar
import pytest

from cod.client import ApiError
from cod.model import Role
from tests.net.apiserver import NOW, Served
from tests.net.credentials import as_user
from tests.net.ownersite import browse, engine, furnished_sqlite, there
from tests.net.portalclient import Browser, Shown

pytestmark = pytest.mark.slow

DAY = 86400.0


def subscribed(there: Served, token: str, **headers: str) -> Shown:
    """What a calendar program gets, which has no cookies."""
    browser = browse(there)
    browser.cookies.clear()
    return browser.ask("GET", f"/calendar.ics?token={token}", headers=headers)


def events(there: Served, token: str) -> dict[str, Any]:
    found = subscribed(there, token)
    assert (found.status, found.headers["Content-Type"]) == (200, "text/calendar; charset=utf-8")
    return {str(one["UID"]): one for one in icalendar.Calendar.from_ical(found.text).walk("VEVENT")}


def token_of(there: Served, name: str, of: str, role: Role = Role.MEMBER, **body: str) -> str:
    user = as_user(there, name, of, role)
    made = user.post("/me/tokens", {"name": "phone", "scope": "calendar"} | body)
    return str(made["token"])


def reserve(there: Served, name: str = "course") -> None:
    there.local.post(
        "/vclusters",
        {"name": name, "size": 2, "template": "debian", "group": "physics"}
        | {"starts_at": NOW + DAY, "lease": 3600},
    )


def test_leases_and_reservations_of_ones_groups_alone(there: Served) -> None:
    reserve(there)
    seen = events(there, token_of(there, "vera", "physics", Role.VIEWER))
    titles = sorted(str(one["SUMMARY"]) for one in seen.values())
    assert titles == ["batch: 9 nodes", "course: 2 nodes reserved", "notebooks: 4 nodes"]
    course = next(one for one in seen.values() if "course" in one["SUMMARY"])
    assert course.start.timestamp() == NOW + DAY
    assert course.end.timestamp() == NOW + DAY + 3600
    assert str(course["URL"]).startswith("https://")
    others = events(there, token_of(there, "will", "web"))
    assert [str(one["SUMMARY"]).partition(":")[0] for one in others.values()] == ["farm"]


def test_a_token_of_one_group_and_the_sites(there: Served) -> None:
    token = token_of(there, "olga", "physics", group="physics")
    assert "test: physics" in subscribed(there, token).text
    site = there.local.post("/tokens", {"name": "wall", "scope": "calendar"})["token"]
    assert len(events(there, site)) == 3


def test_a_longer_lease_and_a_withdrawn_reservation_have_a_higher_sequence(there: Served) -> None:
    token = token_of(there, "olga", "physics", Role.OWNER)
    reserve(there)
    before = events(there, token)
    there.local.post("/vclusters/batch/extend", {"lease": 6 * DAY})
    there.local.delete("/vclusters/course")
    after = events(there, token)
    assert before.keys() == after.keys(), "identifiers stay"
    for title, status in (("batch", "CONFIRMED"), ("course", "CANCELLED")):
        uid = next(uid for uid, one in before.items() if title in one["SUMMARY"])
        assert after[uid]["SEQUENCE"] > before[uid]["SEQUENCE"]
        assert after[uid]["STATUS"] == status
    assert subscribed(there, token).text == subscribed(there, token).text


def test_a_calendar_that_has_not_changed_is_not_sent_again(there: Served) -> None:
    token = token_of(there, "olga", "physics")
    tag = subscribed(there, token).headers["ETag"]
    assert subscribed(there, token, **{"If-None-Match": tag}).status == 304


def test_the_token_reads_the_feed_and_nothing_else_and_can_be_revoked(there: Served) -> None:
    user = as_user(there, "olga", "physics", Role.OWNER)
    token = str(user.post("/me/tokens", {"name": "phone", "scope": "calendar"})["token"])
    for path in ("/me", "/calendar", "/vclusters", "/nodes"):
        with pytest.raises(ApiError) as refused:
            there.remote(token).get(path)
        assert refused.value.status == 401
    plain = str(user.post("/me/tokens", {"name": "ci", "scope": "read"})["token"])
    for wrong in (plain, "", "cod_nonsense", "%00", "cod_olga"):
        assert subscribed(there, wrong).status == 404
    assert subscribed(there, token).status == 200
    user.delete("/me/tokens/phone")
    assert subscribed(there, token).status == 404


def test_the_portal_makes_the_address(there: Served) -> None:
    as_user(there, "olga", "physics")  # makes the account
    browser = browse(there)
    page = browser.get("/account")
    assert "Calendar feeds" in page.words


def test_maintenance_of_ones_nodes_and_of_the_site(there: Served) -> None:
    """batch of physics has nodes in rack1; node19 is free."""
    for names, begin in (("@rack1", 1), ("node19", 2), ("", 3)):
        there.local.post(
            "/maintenance",
            {"names": names, "site": not names, "reason": "work", "begins_at": NOW + begin * DAY},
        )
    token = token_of(there, "olga", "physics", group="physics")
    own = {uid: one for uid, one in events(there, token).items() if uid.startswith("maint")}
    assert sorted(str(one["SUMMARY"]) for one in own.values()) == [
        "Maintenance: @rack1",
        "Maintenance: the whole site",
    ]
    (rack,) = (one for one in own.values() if "rack1" in one["SUMMARY"])
    assert rack.start.timestamp() == NOW + DAY
    assert "DTEND" not in rack
    assert rack["SEQUENCE"] == 0
    number = str(rack["UID"]).partition("@")[0].partition("-")[2]
    there.local.patch(f"/maintenance/{number}", {"begins_at": NOW + DAY - 3600.0})
    moved = events(there, token)[rack["UID"]]
    assert (moved.start.timestamp(), moved["SEQUENCE"]) == (NOW + DAY - 3600.0, 1)
    site = there.local.post("/tokens", {"name": "wall", "scope": "calendar"})["token"]
    assert sum(uid.startswith("maint") for uid in events(there, site)) == 3
    there.local.delete(f"/maintenance/{number}")
    assert events(there, site)[rack["UID"]]["STATUS"] == "CANCELLED"
    assert rack["UID"] not in events(there, token)
