"""Several who watch a virtual cluster's page: what is read for all of them, and that nobody gets by
it what they may not see."""

# ruff: noqa: F401, F811 (fixtures)

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from typing import Any

import pytest
from sqlalchemy import func, select, update

from cod.model import SshKey, Who
from cod.store import tables as t
from cod.store.people import groups, people, sshkeys
from cod.web.portal import nav, shared_loads
from cod.web.portal.page import Page
from cod.web.portal.registry import PAGES
from tests.net.apiserver import NOW, Served
from tests.net.ownersite import browse, engine, furnished_sqlite, there
from tests.net.portalclient import Browser, Shown, signed_in
from tests.waiting import until

pytestmark = pytest.mark.slow

BATCH = "/vclusters/batch"
WAITING = select(t.node_requests).where(t.node_requests.c.state == "pending").subquery()
PARTS = "top,reclaims,nodes,names,change,requests,notices,history"


@pytest.fixture
def follow(there: Served) -> Iterator[Callable[[Browser], Any]]:
    """Open the stream of events of a browser's pages; return what is read of it."""
    connections = []

    def opened(browser: Browser) -> Any:
        connection = HTTPConnection("127.0.0.1", there.server.ports[0], timeout=60)
        connections.append(connection)
        connection.request("GET", "/api/v1/events", headers={
            "Cookie": f"__Host-cod={browser.cookies['__Host-cod']}"
        })  # fmt: skip
        reply = connection.getresponse()
        assert reply.readline().startswith(b"id: ")
        return reply

    yield opened
    for each in connections:
        each.close()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Who]:
    """Return a list that gets whoever a page is read for."""
    asked: list[Who] = []
    read = shared_loads._read

    def noted(page: Any, ask: Any, tx: Any) -> Any:
        asked.append(ask.who)
        return read(page, ask, tx)

    monkeypatch.setattr(shared_loads, "_read", noted)
    return asked


def parts(page: Shown) -> dict[str, str]:
    """The parts of an answer, without what differs each time."""
    found = re.findall(
        r'<template data-of="(\w+)" data-tag="\w+">(.*?)</template>', page.text, re.S
    )
    return {name: still(text) for name, text in found}


def still(text: str) -> str:
    return re.sub(r'(name="(?:csrf|once)"\s+value=")[^"]*', r"\1", text)


def test_each_sees_what_they_would_see_alone(
    there: Served, follow: Callable[[Browser], Any], reads: list[Who]
) -> None:
    those = [
        browse(there, "owner", name="ann"),
        browse(there, "owner", name="ben"),
        browse(there, "member", name="cay"),
        browse(there, "viewer", name="dan"),
        signed_in(there, Who("user:root", admin=True)),
        browse(there, "owner", "web", name="eve"),
    ]
    path = f"{BATCH}?part={PARTS}"
    alone = [each.get(path) for each in those]
    assert len(reads) == 5  # nobody follows the events: each by themselves; eve sees nothing
    follow(those[0])
    together = [each.get(path) for each in those]
    assert len(reads) == 9  # ann and ben have the same rights
    again = [each.get(path) for each in reversed(those)][::-1]
    assert len(reads) == 9
    for one, two, three in zip(alone[:-1], together[:-1], again[:-1], strict=True):
        assert parts(one) == parts(two) == parts(three)
    assert [page.status for page in (alone[-1], together[-1], again[-1])] == [404] * 3
    seen = [parts(page) for page in together[:-1]]
    assert "Resize" in seen[0]["change"]
    assert "Resize" not in seen[3]["change"]
    assert {who.name for who in reads} == {"user:"}


def test_forms_are_the_viewers_own(there: Served, follow: Callable[[Browser], Any]) -> None:
    ann, ben = browse(there, name="ann"), browse(there, name="ben")
    follow(ann)
    ours = [each.get(BATCH, part="change") for each in (ann, ben)]
    tokens = [re.findall(r'name="csrf" value="(\w+)"', page.text)[0] for page in ours]
    form = {"description": "for ben", "tags": "", "once": "x"}
    assert ben.post(f"{BATCH}/describe", form | {"csrf": tokens[0]}).status == 403
    assert ben.post(f"{BATCH}/describe", form | {"csrf": tokens[1]}).status == 200
    # what was read before the form is not shown after it
    assert "for ben" in ann.get(BATCH, part="top").words


def test_the_navigation_s_numbers_come_with_other_parts_and_alone(
    there: Served, follow: Callable[[Browser], Any], reads: list[Who]
) -> None:
    """Show that the numbers are read once for all who watch, alone too: then for whatever page."""
    ann, root = browse(there, name="ann"), signed_in(there, Who("user:root", admin=True))
    follow(ann)
    alone = ann.get("/vclusters/new", part="counts")
    waiting = there.tx(lambda tx: tx.scalar(select(func.count()).select_from(WAITING)))
    assert 0 < json.loads(alone.text)["/requests"] < waiting, "of the own groups alone"
    elsewhere = browse(there, name="ben").get("/account", part="counts")
    assert (elsewhere.text, len(reads)) == (alone.text, 1)
    together = parts(ann.get(f"{BATCH}?part=top,counts"))
    assert json.loads(together["counts"]) == json.loads(alone.text)
    assert len(reads) == 2
    assert set(json.loads(root.get("/nodes", part="counts").text)) == set(nav.COUNTED)
    again = ann.ask(
        "GET", "/vclusters/new?part=counts", headers={"If-None-Match": alone.headers["ETag"]}
    )
    assert again.status == 304


def test_what_is_shown_once_has_no_part_to_fetch(there: Served) -> None:
    """Show that such a page, which has no address of its own, gives the script nothing to fetch: it
    would find no page there, and leave this one."""
    browser = browse(there, name="ann")
    missing = browser.get("/nope")
    assert (missing.status, "data-part" in missing.text) == (404, False)
    page = browser.get("/account")
    shown = page.send("/account/tokens", name="laptop")
    assert (shown.status, "data-part" in shown.text) == (200, False), shown.words


def test_who_has_lost_a_role_sees_nothing_at_once(
    there: Served, follow: Callable[[Browser], Any]
) -> None:
    ann, ben = browse(there, name="ann"), browse(there, name="ben")
    follow(ann)
    group = there.tx(groups.named, "physics").id
    assert ann.get(BATCH, part="nodes").status == 200
    assert ben.get(BATCH, part="nodes").status == 200
    there.tx(lambda tx: people.set_role(tx, group, people.named(tx, "ben").id, None))
    assert ben.get(BATCH, part="nodes").status == 404
    assert ann.get(BATCH, part="nodes").status == 200


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.shared], ids=lambda page: page.path
)
def test_of_each_shared_page_who_has_lost_a_right_sees_what_a_stranger_sees(
    there: Served, follow: Callable[[Browser], Any], page: Page[Any, Any]
) -> None:
    """At once, while those who still have the right are served what was read for all of them."""
    path = page.path.format(name="batch")
    fay = signed_in(there, Who("user:fay"))
    owners = [browse(there, name=name) for name in ("ann", "ben")]
    admins = [signed_in(there, Who(f"user:{name}", admin=True)) for name in ("root", "rae")]
    follow(admins[0])
    group = there.tx(groups.named, "physics").id
    names = re.findall(r'data-part="(\w+)"', admins[0].get(path).text)

    def seen(browser: Browser) -> tuple[int, dict[str, str]]:
        answer = browser.get(f"{path}?part={','.join(names)}")
        return answer.status, parts(answer)

    before = [seen(each) for each in (*owners, *admins)]
    there.tx(lambda tx: people.set_role(tx, group, people.named(tx, "ben").id, None))
    there.tx(lambda tx: people.change(tx, people.named(tx, "rae").id, admin=False))
    after = [seen(each) for each in (*owners, *admins)]
    assert (after[0], after[2]) == (before[0], before[2])
    assert after[1] == after[3] == seen(fay)
    assert after[3] != before[3]


def test_each_logs_in_by_their_own_name(
    there: Served, follow: Callable[[Browser], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    there.tx(
        lambda tx: tx.execute(
            update(t.config_templates).values(
                document=t.config_templates.c.document.op("||")("<!-- -->")
            )
        )
    )
    monkeypatch.setattr("cod.web.portal.documents._ROOT_CLOSED", re.compile(""))
    monkeypatch.setattr("cod.web.portal.pages.vclusters.locked", lambda *_: {})
    ann, ben = browse(there, name="ann"), browse(there, name="ben")
    follow(ann)
    for browser, name in ((ann, "ann"), (ben, "ben"), (ann, "ann")):
        assert set(re.findall(r"ssh (\w+)@", browser.get(BATCH, part="nodes").text)) == {name}


def test_what_a_browser_has_is_not_sent_again(there: Served) -> None:
    browser = browse(there)
    path = f"{BATCH}?part={PARTS}"
    there.clock.now += 5  # no length of time is whole hours
    first = browser.get(path)
    tags = dict(re.findall(r'data-of="(\w+)" data-tag="(\w+)"', first.text))
    assert tags.keys() == set(PARTS.split(","))
    known = {"If-None-Match": ", ".join(f'"{tag}"' for tag in tags.values())}
    there.clock.now += 1  # no words but how long ago things were
    same = browser.ask("GET", path, headers=known)
    assert (same.status, parts(same)) == (304, {})
    assert same.headers["X-Live-Apart"]
    name = there.tx(
        lambda tx: tx.scalar(
            select(t.nodes.c.name)
            .join_from(t.nodes, t.vclusters, t.nodes.c.vcluster_id == t.vclusters.c.id)
            .where(t.vclusters.c.name == "batch", t.nodes.c.state == "active")
        )
    )
    there.tx(
        lambda tx: tx.execute(
            update(t.nodes).where(t.nodes.c.name == name).values(reason="it is loud")
        )
    )
    changed = browser.ask("GET", path, headers=known)
    assert parts(changed).keys() == {"nodes"}
    assert "it is loud" in changed.text


def test_who_signs_in_anew_is_sent_forms_that_are_theirs(there: Served) -> None:
    """The page of before is still open in another tab: its forms would be refused."""
    known = {"If-None-Match": browse(there, name="ann").get(BATCH, part="change").headers["ETag"]}
    anew = browse(there, name="ann")
    assert anew.ask("GET", f"{BATCH}?part=change", headers=known).status == 200


def test_questions_that_nobody_asks_twice_are_not_all_kept(
    there: Served, follow: Callable[[Browser], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_loads, "MOST", 3)
    browser = browse(there)
    follow(browser)
    for limit in range(1, 8):
        assert browser.get(BATCH, part="top", limit=limit).status == 200
    assert len(there.server._apis[1].portal._loads._loads) == 3


def test_of_one_part_the_answer_has_a_tag(there: Served) -> None:
    browser = browse(there)
    first = browser.get(BATCH, part="nodes")
    known = {"If-None-Match": first.headers["ETag"]}
    assert browser.ask("GET", f"{BATCH}?part=nodes", headers=known).status == 304
    # another part may have the same text
    assert browser.ask("GET", f"{BATCH}?part=requests", headers=known).status == 200


def happen(there: Served) -> None:
    """Write a transition of a node of the cluster once more."""
    there.tx(
        lambda tx: tx.execute(
            t.node_history.insert().from_select(
                [
                    "node_id",
                    "at",
                    "event",
                    "from_state",
                    "to_state",
                    "generation",
                    "vcluster_id",
                    "cause",
                    "actor",
                ],
                select(
                    *(
                        t.node_history.c[name]
                        for name in (
                            "node_id",
                            "at",
                            "event",
                            "from_state",
                            "to_state",
                            "generation",
                            "vcluster_id",
                            "cause",
                            "actor",
                        )
                    )
                )
                .join_from(
                    t.node_history,
                    t.vclusters,
                    t.node_history.c.vcluster_id == t.vclusters.c.id,
                )
                .where(t.vclusters.c.name == "batch")
                .limit(1),
            )
        )
    )


def test_a_page_that_heard_it_from_another_server_sees_it(
    there: Served, follow: Callable[[Browser], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = there.server._apis[1].context.hub
    browser = browse(there)
    follow(browser)
    last = int(browser.get(BATCH, part="nodes").headers["X-Live-After"])
    monkeypatch.setattr(hub, "last_change", lambda groups: 0.0)  # it looks twice a second
    happen(there)
    heard = {"X-Live-Heard": str(last + 1)}
    assert (
        int(browser.ask("GET", f"{BATCH}?part=nodes", headers=heard).headers["X-Live-After"]) > last
    )
    for wrong in ("", "x", "-1", "9" * 5000):
        answer = browser.ask("GET", f"{BATCH}?part=nodes", headers={"X-Live-Heard": wrong})
        assert answer.status == 200


def test_an_answer_that_is_older_than_an_event_says_so(
    there: Served, follow: Callable[[Browser], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = there.server._apis[1].context.hub
    monkeypatch.setattr(hub, "apart", lambda: 1e6)
    browser = browse(there)
    stream = follow(browser)
    first = browser.get(BATCH, part="nodes")
    assert "X-Live-Again" not in first.headers
    last = int(first.headers["X-Live-After"])
    happen(there)
    until(lambda: b"event: transition" in stream.readline(), "the event was told")
    later = browser.get(BATCH, part="nodes")
    assert later.headers["X-Live-Again"] == "1"
    assert int(later.headers["X-Live-After"]) == last
    # of other groups nobody hears
    assert (
        "X-Live-Again"
        not in browse(there, group="web").get("/vclusters/farm", part="nodes").headers
    )


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.shared], ids=lambda page: page.path
)
def test_of_each_shared_page_all_see_what_they_would_see_alone(
    there: Served, follow: Callable[[Browser], Any], page: Page[Any, Any]
) -> None:
    those = [
        browse(there, "owner", name="ann"),
        browse(there, "owner", name="ben"),
        browse(there, "viewer", name="dan"),
        browse(there, "owner", "web", name="eve"),
        *(signed_in(there, Who(f"user:{name}", admin=True)) for name in ("root", "rae")),
    ]
    path = page.path.format(name="batch")
    asked = {}
    for each in those:
        whole = each.get(path)
        if whole.status == 200:
            names = re.findall(r'data-part="(\w+)"', whole.text)
            asked[each] = f"{path}?part={','.join(names)}"
            assert set(names) > {nav.COUNTS}
    assert len(asked) >= 2
    alone = [parts(each.get(where)) for each, where in asked.items()]
    follow(those[-1])
    together = [parts(each.get(where)) for each, where in asked.items()]
    again = [parts(each.get(where)) for each, where in reversed(asked.items())][::-1]
    assert alone == together == again


def test_each_has_their_own_first_steps(
    there: Served, follow: Callable[[Browser], Any], reads: list[Who]
) -> None:
    ann, ben = browse(there, name="ann"), browse(there, name="ben")
    follow(ann)
    there.tx(
        lambda tx: sshkeys.add(tx, SshKey(0, people.named(tx, "ann").id, "k", "a", "b", "c", NOW))
    )
    steps = [parts(each.get("/?part=steps,vclusters"))["steps"] for each in (ann, ben)]
    assert ["2 of 4" in each for each in steps] == [True, False], steps
    assert len(reads) == 1
