"""What people have read of notices: counted in the header, marked by page, API and command."""

from __future__ import annotations

from typing import Any

import pytest

from cod.client import ApiError
from cod.core import notices as core_notices
from cod.model import Role
from cod.store.engine import Tx
from cod.store.people import groups, people
from tests.net.apiserver import NOW, Served, said
from tests.net.credentials import as_user
from tests.net.portalclient import member, signed_in

pytestmark = pytest.mark.slow  # together with its like more than the quick run has time for


def tell(served: Served, group: str | None, at: float = NOW + 1) -> int:
    def step(tx: Tx) -> int:
        found = groups.ensure(tx, group, NOW).id if group else None
        return core_notices.add(
            tx, kind="test", subject=f"to {group}", about="About it.", group_id=found, now=at
        ).id

    number: int = served.tx(step)
    return number


def test_a_person_reads_single_notices_and_all_up_to_one(served: Served) -> None:
    olga = as_user(served, "olga", "physics")
    paul = as_user(served, "paul", "physics")
    tell(served, "physics", at=NOW - 1)  # before they had accounts
    assert olga.get("/me/notices") == {"unread": 0}
    first, second, _ = (tell(served, "physics") for _ in range(3))
    tell(served, "web")
    tell(served, None)
    assert olga.get("/me/notices") == {"unread": 3}
    assert olga.post("/me/notices/read", {"ids": [second, second]}) == {"unread": 2}
    assert olga.post("/me/notices/read", {"ids": [second, 10**9]}) == {"unread": 2}
    assert olga.post("/me/notices/read", {"until": first}) == {"unread": 1}
    assert olga.post("/me/notices/read", {"until": 10**9}) == {"unread": 0}
    fourth = tell(served, "physics")  # an id from the future hides nothing
    assert olga.get("/me/notices") == {"unread": 1}
    assert olga.post("/me/notices/read", {"ids": [fourth]}) == {"unread": 0}
    assert paul.get("/me/notices") == {"unread": 4}
    with pytest.raises(ApiError, match="name ids or until"):
        olga.post("/me/notices/read", {})
    actions = {one["action"] for one in served.local.get("/audit")["items"]}
    assert not {one for one in actions if "notice" in one}


def test_what_is_no_person_has_nothing_to_read(served: Served) -> None:
    tell(served, None)
    assert said(served, "notice", "read") == "0 unread\n"
    assert "only people have an account" in said(served, "notice", "read", "--all", code=1)
    assert "name notices, or --all" in said(served, "notice", "read", "1", "--all", code=2)


def test_the_header_counts_and_pages_mark(served: Served) -> None:
    group = served.tx(lambda tx: groups.ensure(tx, "physics", NOW).id)
    numbers = [tell(served, "physics") for _ in range(3)]
    browser = signed_in(served, member("olga", **{f"g{group}": "viewer"}))
    page = browser.get("/")
    assert page.tree.xpath("//header//a[@href='/notices']/span[@class='badge']/text()") == ["3"]
    one = browser.get(f"/notices/{numbers[1]}")
    read = one.send(f"/notices/{numbers[1]}/read")
    assert "The notice is read." in read.words
    assert "Mark as read" not in read.words
    listed = browser.get("/notices")
    assert listed.words.count("unread") >= 2
    assert listed.tree.xpath("//header//a[@href='/notices']/span[@class='badge']/text()") == ["2"]
    tell(served, "physics")  # while the page is looked at
    done = listed.send("/notices/read")
    assert done.tree.xpath("//header//a[@href='/notices']/span[@class='badge']/text()") == ["1"]
    assert len(done.tree.xpath("//ul[contains(@class, 'news')]//span[@class='badge']")) == 1


def test_a_group_whose_notices_were_read_can_be_removed(served: Served) -> None:
    olga = as_user(served, "olga", "physics")
    olga.post("/me/notices/read", {"ids": [tell(served, "physics"), tell(served, "physics")]})
    served.local.delete("/groups/physics")
    assert olga.get("/me/notices") == {"unread": 0}


def test_an_administrator_reads_those_to_the_site(served: Served) -> None:
    browser = signed_in(served)
    tell(served, None)
    tell(served, "physics")  # of a group that is not the administrator's
    page = browser.get("/notices")
    assert page.tree.xpath("//header//a[@href='/notices']/span[@class='badge']/text()") == ["1"]


def kinds_of(values: Any) -> dict[str, str]:
    return {one["kind"]: one["mail"] for one in values["items"]}


def test_a_person_chooses_the_mail_by_kind_at_every_door(served: Served) -> None:
    group = served.tx(lambda tx: groups.ensure(tx, "physics", NOW).id)
    browser = signed_in(served, member("olga", **{f"g{group}": "member"}))
    page = browser.get("/account")
    assert "No address yet." in page.words
    page = page.send("/account/profile", email="olga@x.org")
    mine = kinds_of(as_user(served, "olga", "physics", Role.MEMBER).get("/me/notices/mail"))
    assert set(mine.values()) == {"default"}
    place = list(mine).index("lease-warning")
    done = page.send("/account/notices", **{f"choices__{place}__mail": "daily"})
    assert "Your choice is saved." in done.words
    assert f"1 of {len(mine)} kinds" in done.words
    olga = served.remote("cod_olga")
    assert kinds_of(olga.get("/me/notices/mail"))["lease-warning"] == "daily"
    (row,) = served.local.get("/audit?action=notice")["items"]
    assert (row["actor"], row["action"]) == ("user:olga", "notice mail")
    listed = olga.patch("/me/notices/mail", {"choices": [{"kind": "ready", "mail": "never"}]})
    assert kinds_of(listed) | {"lease-warning": "daily"} == kinds_of(listed)
    with pytest.raises(ApiError, match="no notices of kind 'switch' for you"):
        olga.patch("/me/notices/mail", {"choices": [{"kind": "switch", "mail": "daily"}]})
    with pytest.raises(ApiError, match="choices"):
        olga.patch("/me/notices/mail", {"choices": [{"kind": "ready", "mail": "weekly"}]})


def test_the_command_shows_and_chooses(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    olga = as_user(served, "olga", "physics")
    olga.patch("/me", {"email": "olga@x.org"})
    served.tx(lambda tx: people.change(tx, people.named(tx, "olga").id, admin=True))
    assert "only people have an account" in said(served, "notice", "mail", code=1)
    argv = ("--server", f"http://127.0.0.1:{served.server.ports[0]}")
    monkeypatch.setenv("COD_TOKEN", "cod_olga")
    text = said(served, *argv, "notice", "mail", "--all", "--when", "daily")
    assert "Nothing is granted or erased until an administrator acts." in text
    mine = kinds_of(olga.get("/me/notices/mail"))
    assert (mine.pop("site-held"), mine["ready"], mine["switch"]) == ("default", "daily", "daily")
    assert "name kinds" in said(served, *argv, "notice", "mail", "ready", code=2)
    refused = said(served, *argv, "notice", "mail", "site-held", "--when", "never", code=1)
    assert "site-held comes at once" in refused
