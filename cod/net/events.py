"""Server-sent events: transitions of nodes as they are written to the history, the progress of disks being written,
and notices.

Each stream polls the history and the notices by id twice a second, and not while its client is slow to read. Ids only
grow, but MariaDB may commit them out of order: the last `OVERLAP` ids are looked at again, and each row is sent once.
A client that comes back names the last transition that it saw; of the notices it gets those that are not older.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import ensureDeferred
from twisted.internet.interfaces import IPushProducer
from twisted.internet.task import LoopingCall
from zope.interface import implementer

from cod.flows import views
from cod.wire.webhook import document_of

if TYPE_CHECKING:
    from cod.net.api import Api

PERIOD = 0.5
KEEPALIVE = 15.0
MOST = 100  # streams at once
OVERLAP = 100  # ids
SENT = ("id", "at", "node", "event", "from_state", "to_state", "vcluster", "cause", "actor", "bytes_written", "rate")


class Following:
    """How far a stream has come in a table whose ids grow."""

    def __init__(self, floor: int) -> None:
        self._floor = self._newest = floor
        self._sent: deque[int] = deque(maxlen=10 * OVERLAP)

    def after(self) -> int:
        """After which id to look."""
        return max(self._floor, self._newest - OVERLAP)

    def is_new(self, row_id: int) -> bool:
        """Is this row to be sent? It counts as sent from now on."""
        if row_id in self._sent:
            return False
        self._sent.append(row_id)
        self._newest = max(self._newest, row_id)
        return True


@implementer(IPushProducer)
class EventStream:
    """One client that follows the events."""

    def __init__(self, api: Api, request: Any) -> None:
        self._api, self._request = api, request
        self._loop = LoopingCall(self._poll)
        self._loop.clock = api.real_reactor
        self._paused = False
        self._progress: list[Mapping[str, Any]] = []
        self._transitions, self._notices = Following(0), Following(0)
        self._spoke = 0.0

    async def start(self, after: int | None) -> None:
        """Send what happens after the event `after` (None: from now on) until the client leaves."""
        self._notices = Following(await self._api.pool.read(views.told_until, after))
        floor = await self._api.pool.read(views.last_event) if after is None else after
        self._transitions = Following(floor)
        self._api.streams.add(self)
        self._request.notifyFinish().addBoth(lambda _: self._end())
        self._request.setHeader("Content-Type", "text/event-stream")
        self._request.setHeader("Cache-Control", "no-store")
        self._request.registerProducer(self, True)
        self._request.write(f": following from {floor}\n\n".encode())
        self._loop.start(PERIOD).addErrback(lambda _failure: self.stop())

    async def _ask(self) -> None:
        rows, progress, notices = await self._api.pool.read(
            views.happened, self._transitions.after(), self._notices.after())
        lines = [_event("transition", {key: row[key] for key in SENT}, row["id"]) for row in rows
                 if self._transitions.is_new(row["id"])]
        lines += [_event("notice", document_of(view.notice, view.group, view.vcluster)) for view in notices
                  if self._notices.is_new(view.notice.id)]
        if progress != self._progress:
            self._progress = progress
            lines += [_event("progress", row) for row in progress]
        self._speak("".join(lines))

    def _poll(self) -> Any:
        return None if self._paused else ensureDeferred(self._ask())

    def _speak(self, text: str) -> None:
        now = self._api.real_reactor.seconds()
        if not text and now - self._spoke > KEEPALIVE:
            text = ": still here\n\n"
        if text and self._loop.running:
            self._spoke = now
            self._request.write(text.encode())

    def stop(self) -> None:
        """End the stream from this side."""
        if self in self._api.streams:
            self._end()
            self._request.unregisterProducer()
            self._request.finish()

    def _end(self) -> None:
        self._api.streams.discard(self)
        if self._loop.running:
            self._loop.stop()

    def pauseProducing(self) -> None:
        """The client is slow."""
        self._paused = True

    def resumeProducing(self) -> None:
        """The client has caught up."""
        self._paused = False

    def stopProducing(self) -> None:
        """The client is gone."""
        self._end()


def _event(kind: str, value: Mapping[str, Any], event_id: int | None = None) -> str:
    head = "" if event_id is None else f"id: {event_id}\n"
    return f"{head}event: {kind}\ndata: {json.dumps(value, default=str)}\n\n"
