"""The first day on the portal: a welcome for who has no group, and steps that tick themselves."""

from __future__ import annotations

import re

import pytest

from cod import data
from cod.model import Role, SshKey, Who
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.people import groups, people, sshkeys
from cod.web.portal.glossary import TERMS
from tests.net.apiserver import NOW, Served
from tests.net.portalclient import Shown, signed_in
from tests.net.test_event_streams import _vcluster, held

pytestmark = pytest.mark.slow

TEMPLATE = dict(revision=1, document="<template/>", digest="0" * 64, created_at=NOW)


def _olga(tx: Tx) -> Who:
    user = people.by_name(tx, "olga") or people.add(tx, "olga", NOW)
    return Who("user:olga", user_id=user.id, roles=people.roles(tx, user.id))


def _joins(tx: Tx, role: Role = Role.MEMBER) -> Who:
    groups.ensure(tx, "physics", NOW)
    group, olga = groups.named(tx, "physics"), _olga(tx)
    people.set_role(tx, group.id, olga.user_id or 0, role)
    return _olga(tx)


def _owns(tx: Tx, **columns: object) -> None:
    """Say that olga requested the vcluster of physics."""
    v = t.vclusters.c
    tx.execute(
        t.vclusters.update()
        .where(v.id == _vcluster(tx, "physics"))
        .values(user_id=_olga(tx).user_id, **columns)
    )


def _done(page: Shown) -> list[bool]:
    return [each.get("class") == "done" for each in page.tree.xpath("//ol[@class='steps']/li")]


def test_steps_tick_themselves_and_go_away_when_all_are_done(served: Served) -> None:
    olga = served.tx(_joins)
    open_at_first = signed_in(served, olga).get("/")
    assert _done(open_at_first) == [False] * 4
    assert "First steps: 0 of 4 done" in open_at_first.words
    served.tx(lambda tx: tx.execute(t.config_templates.insert().values(name="x", **TEMPLATE)))
    user_id = olga.user_id or 0
    served.tx(lambda tx: sshkeys.add(tx, SshKey(0, user_id, "k", "a", "b", "c", NOW)))
    assert _done(signed_in(served, olga).get("/")) == [True, True, False, False]
    served.tx(held, "p1", 1, "physics")
    assert _done(signed_in(served, olga).get("/")) == [True, True, False, False], "another's"
    served.tx(_owns)
    assert _done(signed_in(served, olga).get("/", part="steps")) == [True, True, True, False]
    served.tx(_owns, ready_at=NOW)
    assert "First steps" not in signed_in(served, olga).get("/").words
    assert signed_in(served, olga).get("/", part="steps").text.strip() == ""


def test_steps_are_dismissed_for_good_by_each_for_themselves(served: Served) -> None:
    page = signed_in(served, served.tx(_joins)).get("/")
    after = page.send("/checklist/dismiss")
    assert after.status == 200
    assert "The first steps are dismissed." in after.words
    assert _done(after) == _done(signed_in(served, served.tx(_olga)).get("/")) == []
    other = served.tx(lambda tx: people.add(tx, "otto", NOW).id)
    physics = served.tx(groups.named, "physics")
    otto = Who("user:otto", user_id=other, roles={physics.id: Role.OWNER})
    assert _done(signed_in(served, otto).get("/")) == [False] * 4


def test_a_viewer_who_may_request_nothing_has_no_steps(served: Served) -> None:
    assert _done(signed_in(served, served.tx(_joins, Role.VIEWER)).get("/")) == []


def test_a_person_without_a_group_learns_whom_to_ask_and_administrators_see_who(
    served: Served,
) -> None:
    def begin(tx: Tx) -> Who:
        for name, more in (
            ("root", {"admin": True, "email": "root@example.org", "full_name": "Ada <Root>"}),
            ("gone", {"admin": True, "email": "gone@example.org", "disabled_at": NOW}),
            ("off", {"disabled_at": NOW}),
        ):
            people.add(tx, name, NOW, **more)
        return _olga(tx)

    olga = served.tx(begin)
    page = signed_in(served, olga).get("/")
    assert page.status == 200
    for words in ("Welcome to", "Ada <Root>", "root@example.org", "olga"):
        assert words in page.words, words
    for words in ("gone@example.org", "New virtual cluster", "Waiting requests", "First steps"):
        assert words not in page.words, words
    seen = signed_in(served).get("/", part="site").words
    assert "People without a group olga" in seen
    assert not re.search(r"\b(off|root|gone)\b", seen.partition("without a group")[2])
    served.tx(_joins)
    assert "without a group" not in signed_in(served).get("/").words
    assert "Welcome to" not in signed_in(served, served.tx(_olga)).get("/").words


def test_every_term_that_a_page_explains_is_in_the_glossary() -> None:
    asked = {
        term
        for path in (data.path("web") / "templates").glob("*.html")
        for names in re.findall(r"m\.terms\(\[([^\]]*)\]", path.read_text())
        for term in re.findall(r'"([^"]+)"', names)
    }
    assert asked
    assert asked <= TERMS.keys()
    assert list(TERMS) == sorted(TERMS)
