"""Users' choices of the notices that they get by mail, and notices that wait for a daily mail."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from sqlalchemy import ColumnElement, delete, exists, insert, or_, select

from cod.choices import NoticeMail
from cod.model import Notice, Role
from cod.model.keys import DAY
from cod.store import tables as t
from cod.store.engine import Tx, slices
from cod.store.notices.notices import ROWS
from cod.store.people.people import ABLE

_c, _d, _n = t.notice_choices.c, t.notice_digests.c, t.notices.c
_u, _p, _g = t.users.c, t.group_permissions.c, t.groups.c


class Chooser(NamedTuple):
    """A user who has chosen when notices of a kind come by mail.

    manages  may change the addresses that the group, or the site, names for its notices
    """

    user_id: int
    email: str
    mail: NoticeMail
    manages: bool


def of(tx: Tx, user_id: int) -> dict[str, NoticeMail]:
    """Return the user's choices, by kind."""
    rows = tx.execute(select(_c.kind, _c.mail).where(_c.user_id == user_id))
    return {kind: NoticeMail(mail) for kind, mail in rows}


def put(tx: Tx, user_id: int, chosen: Mapping[str, NoticeMail], now: float) -> None:
    """Replace the user's choices for the kinds in `chosen`. The user's row is locked."""
    tx.execute(delete(t.notice_choices).where(_c.user_id == user_id, _c.kind.in_(list(chosen))))
    rows = [
        {"user_id": user_id, "kind": kind, "mail": mail.value, "chosen_at": now}
        for kind, mail in chosen.items()
        if mail is not NoticeMail.DEFAULT
    ]
    if rows:
        tx.execute(insert(t.notice_choices), rows)


def choosers(tx: Tx, kind: str, group_id: int | None, since: float | None = None) -> list[Chooser]:
    """Return the members of the group (None: the site's administrators) who have an address and a
    choice for that kind; with `since`, only choices that were made by then."""
    query = (
        select(_u.id, _u.email, _c.mail)
        .join_from(t.notice_choices, t.users, _u.id == _c.user_id)
        .where(_c.kind == kind, _u.email != "", *ABLE)
        .order_by(_u.id)
    )
    if since is not None:
        query = query.where(_c.chosen_at <= since)
    if group_id is None:
        rows = tx.execute(query.where(_u.admin))
        return [Chooser(user_id, email, NoticeMail(mail), True) for user_id, email, mail in rows]
    joined = query.join(t.group_permissions, _p.user_id == _u.id).add_columns(_p.role)
    return [
        Chooser(user_id, email, NoticeMail(mail), role == Role.OWNER)
        for user_id, email, mail, role in tx.execute(joined.where(_p.group_id == group_id))
    ]


def collect(tx: Tx, notice_id: int, user_ids: Collection[int]) -> None:
    """Let the notice wait for the daily mail of these users."""
    rows = [{"user_id": user_id, "notice_id": notice_id} for user_id in sorted(user_ids)]
    if rows:
        tx.execute(insert(t.notice_digests), rows)


# ---------------------------------------------------------------- daily mails


def _due(before: float) -> ColumnElement[bool]:
    """Return the condition that a notice is older than `before`, or a day or more ahead of the
    clock: otherwise such a notice would wait for years, and hold up the notices behind it."""
    return or_(_n.at < before, _n.at >= before + 2 * DAY)


def waits(tx: Tx, before: float) -> bool:
    """Return whether a notice older than `before` waits for a daily mail."""
    oldest = select(_d.notice_id).order_by(_d.notice_id).limit(1).scalar_subquery()
    return bool(tx.scalar(select(exists().where(_n.id == oldest, _due(before)))))


def waiting(tx: Tx, before: float, limit: int) -> list[int]:
    """Return at most `limit` users for whom notices older than `before` wait, by id."""
    query = select(_d.user_id).join(t.notices, _n.id == _d.notice_id).where(_due(before))
    return list(tx.scalars(query.distinct().order_by(_d.user_id).limit(limit)))


def take(tx: Tx, user_id: int, before: float) -> list[tuple[Notice, str | None]]:
    """Return the notices older than `before` that wait for the user and that the user may still
    see, each with its group's name, and delete all waiting ones. The user's row is locked."""
    rows = (
        select(*ROWS.columns, _g.name, _may_see())
        .join_from(t.notice_digests, t.notices, _n.id == _d.notice_id)
        .join(t.users, _u.id == _d.user_id)
        .outerjoin(t.groups, _g.id == _n.group_id)
        .where(_d.user_id == user_id, _due(before))
        .order_by(_n.id)
    )
    found = [ROWS.with_rest(row) for row in tx.execute(rows)]
    for part in slices([notice.id for notice, _ in found]):
        tx.execute(delete(t.notice_digests).where(_d.user_id == user_id, _d.notice_id.in_(part)))
    return [(notice, group) for notice, (group, seen) in found if seen]


def _may_see() -> ColumnElement[bool]:
    """Return the condition that the user may read the notice: as an administrator, or as a member
    of the group that it was sent to."""
    member = exists().where(_p.user_id == _u.id, _p.group_id == _n.group_id)
    return or_(_u.admin, member)
