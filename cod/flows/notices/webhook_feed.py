"""Events of nodes and vclusters, collected into posts for the webhooks of groups that subscribe to
them.

`due` only reads; `gather` writes. A post is delivered, tried again and shown like a notice.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from cod.model import Group
from cod.quantity import counted
from cod.store.engine import Tx
from cod.store.notices import notices, webhook_feed

KINDS = dict(zip(webhook_feed.KINDS, notices.EVENTS, strict=True))
"""The `kind` of a post, by the event class that groups subscribe to."""
KEPT = 14 * 86400.0  # seconds that posts can be looked at, and sent again
BATCH = 200  # older posts that are deleted at a time


def due(tx: Tx, now: float) -> bool:
    """Return whether there is something for `gather` to do."""
    readers = webhook_feed.readers(tx)
    for kind in webhook_feed.KINDS:
        mark = webhook_feed.mark(tx, kind)
        if (mark is None) == bool(readers[kind]):
            return True
        if mark is not None and webhook_feed.happened(tx, kind, mark, now):
            return True
    return False


def gather(tx: Tx, now: float) -> int:
    """Write the posts that are due; return how many. If several servers do this at once, one writes
    the posts."""
    readers = webhook_feed.readers(tx)
    notices.forget_events(tx, now - KEPT, BATCH)
    return sum(_gather(tx, kind, readers[kind], now) for kind in webhook_feed.KINDS)


def _gather(tx: Tx, kind: str, readers: Sequence[Group], now: float) -> int:
    mark = webhook_feed.mark(tx, kind)
    if not readers:
        webhook_feed.end(tx, kind)
        return 0
    if mark is None:
        webhook_feed.begin(tx, kind)
        return 0
    rows = webhook_feed.happened(tx, kind, mark, now)
    if not rows or not webhook_feed.move(tx, kind, mark, rows[-1].id):
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
