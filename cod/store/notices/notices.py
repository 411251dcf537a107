"""Notices, their deliveries, and the notices that each user has read: all up to one id, and single
ones after it.

A claim of a delivery is the pair (`claimed_by`, `attempts`), as for a power action
(`store.nodes.power`): each claim counts one attempt, so a late server cannot overwrite the result
of another.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import (
    BindParameter,
    Integer,
    Select,
    bindparam,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    update,
)

from cod.model import Group, Notice, NoticeView, Send, Who
from cod.store import tables as t
from cod.store.engine import Tx, grouped, new_id, rows_among
from cod.store.rows import Rows, insert_all, theirs

_n = t.notices.c
_s = t.notice_sends.c
_r, _u = t.notice_reads.c, t.users.c
ROWS = Rows(Notice, t.notices)
SENDS = Rows(Send, t.notice_sends)
get = ROWS.known

WEBHOOK, EMAIL = "webhook", "email"
EVENTS = ("vcluster-events", "node-events")
"""The `kind` of what is posted for programs."""
ADMINISTRATORS = ""
"""The target of mail for whom the site file names as administrators when it is delivered."""
DIGEST = "digest"
"""The `kind` of a person's daily mail, which is shown to nobody else."""


def add(tx: Tx, targets: Iterable[tuple[str, str]], *, now: float, **columns: Any) -> Notice:
    """Add a notice with a delivery to each of the targets, (channel, address), and return the
    notice. `columns` as in the table."""
    notice = ROWS.add(tx, at=now, **columns)
    for channel, target in targets:
        send(tx, notice.id, channel, target, now)
    return notice


def add_all(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add notices that are only shown on pages and delivered to no target; each has the same
    columns."""
    insert_all(tx, t.notices, rows)


def add_events(tx: Tx, group: Group, kind: str, subject: str, events: str, now: float) -> None:
    """Add a delivery of events (JSON) to the group's webhook. It is for programs, so people are not
    shown it."""
    webhook = [(WEBHOOK, group.webhook)]
    about = dict(kind=kind, group_id=group.id, subject=subject, about="", events=events)
    add(tx, webhook, now=now, **about)


def send(tx: Tx, notice_id: int, channel: str, target: str, now: float) -> int:
    """Add a delivery of the notice; return its id."""
    return new_id(
        tx.execute(
            insert(t.notice_sends).values(
                notice_id=notice_id, channel=channel, target=target, next_at=now
            )
        )
    )


# ---------------------------------------------------------------- deliveries


def due(tx: Tx, now: float, limit: int) -> list[tuple[str, str, int]]:
    """Return (channel, target, id of its most urgent delivery) for the targets with a due delivery,
    the longest due first. A target with a delivery under way is left out."""
    other = t.notice_sends.alias()
    busy = exists().where(
        other.c.channel == _s.channel,
        other.c.target == _s.target,
        other.c.done_at.is_(None),
        other.c.claim_expires > now,
    )
    query = (
        select(_s.channel, _s.target, func.min(_s.id))
        .where(_s.done_at.is_(None), _s.next_at <= now, ~busy)
        .group_by(_s.channel, _s.target)
        .order_by(func.min(_s.next_at), func.min(_s.id))
        .limit(limit)
    )
    return [(channel, target, send_id) for channel, target, send_id in tx.execute(query)]


def claim(tx: Tx, send_id: int, server: str, now: float, until: float) -> Send | None:
    """Claim one attempt at the delivery until `until`; None when another server has claimed it
    first."""
    open_ = _s.done_at.is_(None), _s.next_at <= now
    return SENDS.claim(tx, send_id, server, now, until, *open_)


def close(tx: Tx, send: Send, now: float, delivered: bool, error: str = "") -> bool:
    """Close a delivery as `delivered` or given up; return False when `send`'s claim is no longer
    valid."""
    return SENDS.settle(
        tx, send, _s.done_at.is_(None), done_at=now, delivered=delivered, error=error
    )


def again(tx: Tx, send: Send, next_at: float, error: str) -> bool:
    """Record that the attempt failed, and that the next one is due at `next_at`; return False when
    `send`'s claim is no longer valid."""
    return SENDS.settle(tx, send, _s.done_at.is_(None), next_at=next_at, error=error)


def sent(tx: Tx, send_id: int, group_id: int) -> Send | None:
    """Return the delivery if it is one to that group; else None."""
    own = _s.notice_id.in_(select(_n.id).where(_n.group_id == group_id))
    return SENDS.find(tx, _s.id == send_id, own)


def rest(tx: Tx, channel: str, target: str | None, until: float) -> None:
    """Postpone the open deliveries to `target` (None: to all targets of the channel) until
    `until`."""
    SENDS.set_where(tx, *_open(channel, target), _s.next_at < until, next_at=until)


def give_up(
    tx: Tx, channel: str, target: str | None, before: float, now: float, error: str
) -> None:
    """Give up the open deliveries to `target` (None: to all targets of the channel) whose notices
    are older than `before`."""
    old = select(_n.id).where(_n.at <= before)
    idle = or_(_s.claim_expires.is_(None), _s.claim_expires <= now)
    SENDS.set_where(
        tx, *_open(channel, target), _s.notice_id.in_(old), idle, done_at=now, error=error
    )


def _open(channel: str, target: str | None) -> list[Any]:
    return [
        _s.done_at.is_(None),
        _s.channel == channel,
        *([] if target is None else [_s.target == target]),
    ]


def redirect(tx: Tx, group_id: int, channel: str, target: str, now: float) -> None:
    """Send the group's open deliveries of that channel to `target` from now on; '': give them up."""
    own = (
        _s.done_at.is_(None),
        _s.channel == channel,
        _s.notice_id.in_(select(_n.id).where(_n.group_id == group_id)),
    )
    values = (
        dict(target=target, next_at=now)
        if target
        else dict(done_at=now, error=f"the group has no {channel} now")
    )
    tx.execute(update(t.notice_sends).where(*own).values(values))


# ---------------------------------------------------------------- for people


def forget(tx: Tx, group_id: int) -> None:
    """Delete the notices to the group. The newest of all notices stays, as one to administrators,
    because SQLite would reuse its id."""
    own = select(_n.id).where(_n.group_id == group_id)
    for table in (t.notice_sends, t.notice_reads, t.notice_digests):
        tx.execute(delete(table).where(table.c.notice_id.in_(own)))
    tx.execute(delete(t.notices).where(_n.group_id == group_id, _n.id != newest(tx)))
    ROWS.set_where(tx, _n.group_id == group_id, group_id=None)


def forget_events(tx: Tx, before: float, limit: int) -> None:
    """Delete at most `limit` deliveries of events that are older than `before` and closed. As in
    `forget`, the newest notice of all stays."""
    waits = exists().where(_s.notice_id == _n.id, _s.done_at.is_(None))
    old = list(
        tx.scalars(
            select(_n.id)
            .where(_n.kind.in_(EVENTS), _n.at < before, ~waits, _n.id != newest(tx))
            .order_by(_n.id)
            .limit(limit)
        )
    )
    tx.execute(delete(t.notice_sends).where(_s.notice_id.in_(old)))
    tx.execute(delete(t.notices).where(_n.id.in_(old)))


def every(
    tx: Tx,
    *,
    after: int | None = None,
    ids: Collection[int] | None = None,
    notice_id: int | None = None,
    limit: int = 1000,
) -> list[NoticeView]:
    """Return at most `limit` notices with their deliveries, oldest first: those with ids above
    `after`, or, if it is None, the newest. `ids` and `notice_id` restrict the result to these
    notices. Posts of events are left out, unless `notice_id` is given."""
    rows = query(None)
    rows = rows.where(_n.events.is_(None) if notice_id is None else _n.id == notice_id)
    if ids is not None:
        rows = rows.where(_n.id.in_(ids))
    if after is None:
        return seen(tx, tx.execute(rows.order_by(_n.id.desc()).limit(limit)).all()[::-1])
    return seen(tx, tx.execute(rows.where(_n.id > after).order_by(_n.id).limit(limit)).all())


def query(groups: frozenset[int] | None) -> Select[Any]:
    """Return the query whose rows `seen` takes, without an order: notices to these groups (None:
    all notices)."""
    return (
        select(*ROWS.columns, t.groups.c.name, t.vclusters.c.name)
        .select_from(
            t.notices.outerjoin(t.groups, _n.group_id == t.groups.c.id).outerjoin(
                t.vclusters, _n.vcluster_id == t.vclusters.c.id
            )
        )
        .where(*theirs(_n.group_id, groups))
    )


def seen(tx: Tx, rows: Sequence[Any]) -> list[NoticeView]:
    """Return notices for people from rows of `query`."""
    found = rows_among(tx, SENDS.select.order_by(_s.id), _s.notice_id, [row[0] for row in rows])
    sends = grouped((send.notice_id, send) for send in map(SENDS.read, found))
    return [
        NoticeView(notice, group, vcluster, tuple(sends.get(notice.id, ())))
        for notice, (group, vcluster) in map(ROWS.with_rest, rows)
    ]


def of_site(tx: Tx, kinds: Collection[str], since: float) -> list[Notice]:
    """Return notices of those kinds to the site's administrators, from `since` on, the oldest
    first."""
    condition = _n.kind.in_(list(kinds)), _n.at >= since, _n.group_id.is_(None)
    return ROWS.every(tx, *condition, order=_n.id)


def newest(tx: Tx) -> int:
    """Return the id of the newest notice; 0 when there is none."""
    return tx.scalar(select(func.max(_n.id))) or 0


def newest_before(tx: Tx, transition: int) -> int:
    """Return the id of the newest notice that is older than the transition with that id. If that
    transition is deleted, the next one counts; if there is none, return the newest notice of
    all."""
    at = (
        select(t.node_history.c.at)
        .where(t.node_history.c.id >= transition)
        .order_by(t.node_history.c.id)
        .limit(1)
    )
    moment = tx.scalar(at)
    if moment is None:
        return newest(tx)
    return tx.scalar(select(func.max(_n.id)).where(_n.at < moment)) or 0


# ---------------------------------------------------------------- who has read them


def _unread(site: bool) -> Select[tuple[int]]:
    """Return the query for notices that the user has not read and that came after the user was
    added; with `site`, also notices to administrators."""
    user: BindParameter[int] = bindparam("user_id")
    own = _n.group_id.in_(bindparam("groups", expanding=True))
    up_to = select(_u.notices_read).where(_u.id == user).scalar_subquery()
    since = select(_u.created_at).where(_u.id == user).scalar_subquery()
    return select(_n.id).where(
        _n.events.is_(None),
        or_(own, _n.group_id.is_(None)) if site else own,
        _n.id > up_to,
        _n.at >= since,
        ~exists().where(_r.user_id == user, _r.notice_id == _n.id),
    )


# made once: each page asks
_UNREAD = {site: _unread(site) for site in (False, True)}
COUNTED = 100  # unread notices at most
_COUNTED = {
    site: select(func.count()).select_from(query.limit(bindparam("most", type_=Integer)).subquery())
    for site, query in _UNREAD.items()
}


def _reader(who: Who) -> dict[str, Any]:
    return {"user_id": who.user_id, "groups": sorted(who.roles)}


def unread_count(tx: Tx, who: Who) -> int:
    """Return how many notices `who` has not read, at most `COUNTED`: notices to the groups of `who`
    and, if `who` is an administrator, to administrators. For a client without a user, return 0."""
    if who.user_id is None:
        return 0
    return tx.scalar(_COUNTED[who.admin], {**_reader(who), "most": COUNTED}) or 0


def unread_among(tx: Tx, who: Who, among: Collection[int]) -> set[int]:
    """Return those of the notices that `who` has not read; none for a client without a user."""
    if who.user_id is None or not among:
        return set()
    return set(tx.scalars(_UNREAD[who.admin].where(_n.id.in_(among)), _reader(who)))


def mark_read(tx: Tx, user_id: int, notice_ids: Collection[int]) -> None:
    """Record that the user has read these unread notices."""
    rows = [{"user_id": user_id, "notice_id": one} for one in sorted(notice_ids)]
    if rows:
        tx.execute(insert(t.notice_reads), rows)


def mark_all_read(tx: Tx, user_id: int, until: int) -> None:
    """Record that the user has read all notices up to the one with that id."""
    tx.execute(
        update(t.users).where(_u.id == user_id, _u.notices_read < until).values(notices_read=until)
    )
    tx.execute(delete(t.notice_reads).where(_r.user_id == user_id, _r.notice_id <= until))
