"""The events' texts in the stream and their recipients; and the position of a reader in a table."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cod.wire.webhook import document_of

OVERLAP = 100  # ids that are read again: MariaDB may commit them out of order
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


@dataclass(frozen=True, slots=True)
class Event:
    """An event of the stream.

    row     its id in the table that it comes from
    groups  the groups that see it; administrators see all events
    left    groups that see it, too, but without facts about another group
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
        head = f"id: {self.row}\n" if self.kind == "transition" else ""
        return f"{head}event: {self.kind}\ndata: {json.dumps(value, default=str)}\n\n"


def events_of(rows: Iterable[Mapping[str, Any]], notices: Iterable[Any]) -> list[Event]:
    """Return the events for rows of the history and of the notices."""
    found = [
        Event(
            "transition",
            {key: row[key] for key in SENT},
            row["id"],
            _one(row["group_id"]),
            _one(row["left_group_id"]),
        )
        for row in rows
    ]
    return found + [
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


class Following:
    """Position of a reader in a table whose ids grow."""

    def __init__(self, floor: int) -> None:
        self._floor = self._newest = floor
        self._sent: deque[int] = deque(maxlen=10 * OVERLAP)

    def after(self) -> int:
        """Return the id after which to look for new rows."""
        return max(self._floor, self._newest - OVERLAP)

    def is_new(self, row_id: int) -> bool:
        """Return whether this row is to be sent, and count it as sent from now on."""
        if row_id in self._sent:
            return False
        self._sent.append(row_id)
        self._newest = max(self._newest, row_id)
        return True


def progress(row: Mapping[str, Any]) -> Event:
    """Return the event for a row of the progress."""
    return Event(
        "progress",
        {key: value for key, value in row.items() if key != "group_id"},
        None,
        _one(row["group_id"]),
    )
