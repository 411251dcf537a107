"""Texts of the event streams, and the recipients of each event."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from cod.model import NoticeView
from cod.wire.webhook import document_of

SENT = (
    "id",
    "at",
    "node",
    "event",
    "from_state",
    "to_state",
    "vcluster",
    "cause",
    "actor",
    "bytes_written",
    "rate",
)
# facts about a node's next holder, hidden from the group that the node has left
HIDDEN = {"vcluster": None, "cause": "", "actor": ""}

Groups = frozenset[int] | None
POSITION = r"^([0-9]{1,18})(?:-([0-9]{1,18})(?:-([0-9a-f]{8}))?)?$"


class Position(NamedTuple):
    """A client's position in the events: the ids of the transition and of the notice up to which
    the client knows all rows of the two tables. A client that comes back sends it, with the epoch
    of the database: ``17-3-5f0c2a91``."""

    transition: int
    notice: int

    def __str__(self) -> str:
        return f"{self.transition}-{self.notice}"

    def at_least(self, other: Position) -> Position:
        """Return the position with the higher id of the two in each table."""
        return Position(max(self[0], other[0]), max(self[1], other[1]))


def position_of(text: str) -> tuple[int, int | None, str] | None:
    """Return the position (transition, notice, epoch) that a client sent; None if the text is none.
    The notice is None and the epoch '' if the client left them out."""
    found = re.fullmatch(POSITION, text)
    if found is None:
        return None
    return int(found[1]), int(found[2]) if found[2] else None, found[3] or ""


@dataclass(frozen=True, slots=True)
class Event:
    """An event of the stream.

    row     id of the row that the event was made from
    groups  groups that see the whole event; administrators see all events
    left    groups that see the event without the facts of `HIDDEN`
    """

    kind: str
    value: Mapping[str, Any]
    row: int | None = None
    groups: frozenset[int] = frozenset()
    left: frozenset[int] = frozenset()

    def text(self, groups: Groups) -> str:
        """Return the event as sent to readers who may see these groups (None: all groups); '' if
        those readers may not see the event."""
        if groups is None or self.groups & groups:
            return self._event(self.value)
        return self._event(dict(self.value) | HIDDEN) if self.left & groups else ""

    def _event(self, value: Mapping[str, Any]) -> str:
        return f"event: {self.kind}\ndata: {json.dumps(value, default=str)}\n\n"


def events_of(rows: Iterable[Mapping[str, Any]], notices: Iterable[NoticeView]) -> list[Event]:
    """Return the events of rows of the history and of notices."""
    return [
        Event(
            "transition",
            {key: row[key] for key in SENT},
            row["id"],
            _one(row["group_id"]),
            _one(row["left_group_id"]),
        )
        for row in rows
    ] + [
        Event(
            "notice",
            document_of(view.notice, view.group, view.vcluster),
            view.notice.id,
            _one(view.notice.group_id),
        )
        for view in notices
    ]


def _one(group: int | None) -> frozenset[int]:
    return frozenset() if group is None else frozenset({group})


def progress(row: Mapping[str, Any]) -> Event:
    """Return the event for a row of the progress."""
    return Event(
        "progress",
        {key: value for key, value in row.items() if key != "group_id"},
        groups=_one(row["group_id"]),
    )
