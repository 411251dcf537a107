"""Events of nodes and vclusters, collected into posts for the webhooks of groups that subscribe to
them.

`look` only reads; `gather` writes. A post is delivered, repeated and shown like a notice. Rows of a
history are posted only up to an id below which no row can still appear, as observed by the server
that gathers (`policy.following`).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cod.model import Group
from cod.policy import following
from cod.quantity import counted
from cod.store.engine import Tx
from cod.store.notices import notices, webhook_feed

KINDS = dict(zip(webhook_feed.KINDS, notices.EVENTS, strict=True))
"""The `kind` of a post, by the event class that groups subscribe to."""
KEPT = 14 * 86400.0  # seconds that posts can be looked at, and sent again
BATCH = 200  # old posts that are deleted at a time


Following = following.Following


class PostedEvents(NamedTuple):
    """Progress of posting the events of one kind.

    mark    id of the row up to which events were posted; None: posting has not begun
    wanted  whether a group subscribes to the events
    reader  the calling server's position in the history; None: nothing is to be posted. The
            position is a new one if the server had none, or if the database has lost rows up to
            it: later rows get their ids again
    ids     ids of the rows that are new to the calling server
    """

    mark: int | None
    wanted: bool
    reader: Following | None
    ids: list[int]


def look(tx: Tx, readers: Mapping[str, Following]) -> dict[str, PostedEvents]:
    """Return how far events were posted, by kind. `readers`: the calling server's positions in the
    histories, by kind."""
    wanted = webhook_feed.readers(tx)
    found = {}
    for kind in webhook_feed.KINDS:
        mark, reader, ids = webhook_feed.mark(tx, kind), readers.get(kind), list[int]()
        if mark is None or not wanted[kind]:
            reader = None
        else:
            if reader is None or webhook_feed.newest(tx, kind) < reader.newest:
                reader = Following(mark)
            ids = reader.unseen(webhook_feed.ids_after(tx, kind, max(mark, reader.floor)))
        found[kind] = PostedEvents(mark, bool(wanted[kind]), reader, ids)
    return found


def gather(tx: Tx, until: Mapping[str, int], now: float) -> int:
    """Write posts of the events up to the row `until[kind]` of each kind, and return the number of
    posts. If several servers do so at once, one of them writes the posts of a kind."""
    readers = webhook_feed.readers(tx)
    notices.forget_events(tx, now - KEPT, BATCH)
    return sum(
        _gather(tx, kind, readers[kind], until.get(kind, 0), now) for kind in webhook_feed.KINDS
    )


def _gather(tx: Tx, kind: str, readers: Sequence[Group], until: int, now: float) -> int:
    mark = webhook_feed.mark(tx, kind)
    if not readers:
        webhook_feed.end(tx, kind)
        return 0
    if mark is None:
        webhook_feed.begin(tx, kind)
        return 0
    rows = webhook_feed.happened(tx, kind, mark, until)
    end = rows[-1].id if rows else until
    if end <= mark or not webhook_feed.move(tx, kind, mark, end):
        return 0
    return _post(tx, kind, readers, rows, now)


def _post(
    tx: Tx, kind: str, readers: Sequence[Group], rows: Sequence[webhook_feed.Happened], now: float
) -> int:
    wanted: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        for group_id, event in row.events.items():
            wanted[group_id].append(event)
    recipients = [group for group in readers if group.id in wanted]
    for group in recipients:
        events = wanted[group.id]
        subject = f"{counted(len(events), 'event')} of {kind}"
        notices.add_events(tx, group, KINDS[kind], subject, json.dumps(events), now)
    return len(recipients)
