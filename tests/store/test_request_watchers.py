"""Whoever watches a request is told once, by e-mail, when it is decided."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import insert, select

from cod.flows.scheduler import requests, vclusters
from cod.model import AskedVcluster, Refused, RequestView
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.people import groups
from cod.store.scheduler import requests as rows
from cod.store.scheduler import watchers
from tests.contexts import flow_context
from tests.store.manager_world import furnish, rest
from tests.store.test_manager_properties import SITE

pytestmark = pytest.mark.slow

NOW = 1_000_000.0


@pytest.fixture
def ann(tx: Tx) -> int:
    """A person with an e-mail address, beside one without."""
    furnish(tx, 4)
    u = t.users
    for number, email in ((7, "ann@example.org"), (8, ""), (9, "stranger@example.org")):
        tx.execute(u.insert().values(id=number, name=f"u{number}", email=email, created_at=0.0))
    site = groups.named(tx, "site").id
    for member in (7, 8):
        tx.execute(insert(t.group_permissions).values(group_id=site, user_id=member, role="viewer"))
    return 7


def watch(tx: Tx, user_id: int, request_id: int, on: bool = True) -> RequestView:
    context = flow_context(SITE, NOW, "user:ann", user_id=user_id)
    return requests.watch(tx, context, request_id=request_id, on=on).value


def create(tx: Tx, name: str, size: int) -> int:
    asked = AskedVcluster(name, size, "debian", "site", lease=1e6)
    vclusters.create(tx, flow_context(SITE, NOW, "user:ann"), asked)
    [one] = [each for each in rows.every(tx) if each.kind == "create" and each.state == "pending"]
    return one.id


def sent(tx: Tx) -> list[Any]:
    n, s = t.notices.c, t.notice_sends.c
    query = select(n.subject, s.channel, s.target).join_from(t.notices, t.notice_sends)
    return [tuple(row) for row in tx.execute(query.where(n.kind == "decided"))]


def test_who_watches_is_told_when_it_begins(tx: Tx, ann: int) -> None:
    request = create(tx, "web", 2)
    watch(tx, ann, request)
    watch(tx, ann, request)  # again: no harm
    watch(tx, 9, request)  # who is in the group no more
    rest(tx, SITE, NOW)
    assert sent(tx) == [(f"web: request {request} begins", "email", "ann@example.org")]
    assert not watchers.of(tx, request)
    with pytest.raises(Refused, match="is granted already"):
        watch(tx, ann, request)


def test_who_may_not_sign_in_is_not_told(tx: Tx, ann: int) -> None:
    watch(tx, ann, create(tx, "web", 2))
    tx.execute(t.users.update().where(t.users.c.id == ann).values(disabled_at=NOW))
    rest(tx, SITE, NOW)
    assert sent(tx) == []


def test_who_watches_no_more_is_not_told(tx: Tx, ann: int) -> None:
    request = create(tx, "web", 2)
    watch(tx, ann, request)
    watch(tx, ann, request, on=False)
    rest(tx, SITE, NOW)
    assert sent(tx) == []


def test_a_request_that_is_changed_is_watched_on(tx: Tx, ann: int) -> None:
    request = create(tx, "web", 9)
    watch(tx, ann, request)
    made = requests.change(tx, request_id=request, count=2, now=NOW).value
    assert sent(tx) == []
    assert watchers.of(tx, made.request.id) == {ann}


def test_who_has_no_address_is_refused(tx: Tx, ann: int) -> None:
    request = create(tx, "web", 2)
    with pytest.raises(Refused, match="has no e-mail address"):
        watch(tx, 8, request)
