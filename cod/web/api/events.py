"""Server-sent events: nodes' transitions as they are written to the history, the progress of disks
being written, and notices. Each client gets the events that it may see.

One poll serves all streams of a process. Twice a second, more seldom with many streams, it reads
new rows of the history and of the notices by id, and changes of the progress. It makes the text of
the events once for each set of groups that a stream follows. Ids only grow, but MariaDB may commit
them out of order: the last `OVERLAP` ids are read again, and each row is sent once. A client that
comes back names the last transition that it saw, and gets the notices that are at least as young.
For a slow client up to `HELD` bytes are kept.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from twisted.internet.defer import Deferred, DeferredLock, ensureDeferred
from twisted.internet.interfaces import IPushProducer
from twisted.internet.task import LoopingCall
from zope.interface import implementer

from cod.flows import views
from cod.model import Who
from cod.pool import Pool
from cod.web.api.event_texts import Event, Following, Groups, events_of, progress
from cod.web.http.errors import HttpProblem

PERIOD = 0.5  # seconds between two polls; more with many streams, which are each written to
MANY = 500  # streams that can be written to in a second
KEEPALIVE = 15.0  # seconds
CHECKED = 60.0  # seconds after which a client's rights are checked again
MOST, MOST_OF_ONE = 1000, 40  # streams at once, of all clients and of one user
AT_ONCE = 500  # rows of one poll, of which `event_texts.OVERLAP` were read before
BEHIND = 50_000  # past transitions that a client that comes back may be sent
HELD = 2**18  # bytes
SELDOM = 4.0  # seconds between two fetches of a page's parts, at least
log = logging.getLogger("cod.api")


class Hub:
    """The event streams of a process, and the loop that reads new events for all of them. The loop
    runs while there is a stream."""

    def __init__(self, reactor: Any, pool: Pool) -> None:
        self.pool, self.reactor = pool, reactor
        self.streams: set[EventStream] = set()
        self._loop = LoopingCall(lambda: ensureDeferred(self._look()))
        self._loop.clock = reactor
        self._turn = DeferredLock()
        self._transitions, self._notices = Following(0), Following(0)
        self._progress: dict[str, Mapping[str, Any]] = {}
        self._began = 0.0
        self._changed_at: dict[int | None, float] = {}  # by group; None: anything

    def refusal(self, who: Who) -> str:
        """Return why `who` may not open another stream now; '' if they may."""
        if len(self.streams) >= MOST:
            return f"{MOST} clients follow the events already; try again later"
        if sum(_person(each.who) == _person(who) for each in self.streams) >= MOST_OF_ONE:
            return f"you follow the events {MOST_OF_ONE} times already; close some of those pages"
        return ""

    async def join(self, stream: EventStream) -> None:
        """Add a stream, which is sent the events from now on."""
        await self._turn.acquire()
        try:
            if not self._loop.running:
                self._transitions = Following(await self.pool.read(views.last_event))
                self._notices = Following(await self.pool.read(views.told_until, None))
                self._progress = {}
                self._began, self._changed_at = self.reactor.seconds(), {}
            self.streams.add(stream)
            if not self._loop.running:
                self._loop.start(PERIOD).addErrback(self._broken)
        finally:
            self._turn.release()

    def apart(self) -> float:
        """Return how many seconds a page should wait between two fetches of its parts.

        The time grows with the number of streams. A part takes about 10 ms, so the pages together
        use at most a sixth of a core, however many are open.
        """
        return max(SELDOM, len(self.streams) / 8)

    def period(self) -> float:
        """Return the seconds between two polls of the database. In that time each stream is written
        to once."""
        return max(PERIOD, len(self.streams) / MANY)

    def last_change(self, groups: Groups) -> float:
        """Return when an event was last told to those who see these groups (None: all), on the
        reactor's clock. If there was none, return when the loop began. Progress does not count."""
        of = (None,) if groups is None else groups
        return max(
            (self._changed_at[each] for each in of if each in self._changed_at), default=self._began
        )

    def leave(self, stream: EventStream) -> None:
        """Remove the stream, and stop the loop after the last one."""
        self.streams.discard(stream)
        if not self.streams and self._loop.running:
            self._loop.stop()

    def stop(self) -> None:
        """End all streams."""
        for stream in list(self.streams):
            stream.stop()

    def under_way(self) -> list[Event]:
        """Return the progress of the disks being written, as last read."""
        return [progress(row) for row in self._progress.values()]

    async def _look(self) -> None:
        rows, written, notices = await self.pool.read(
            views.happened, self._transitions.after(), self._notices.after()
        )
        more = AT_ONCE in (len(rows), len(notices))
        self._loop.interval = PERIOD if more else self.period()
        now = {row["node"]: row for row in written}
        events = events_of(
            [row for row in rows if self._transitions.is_new(row["id"])],
            [view for view in notices if self._notices.is_new(view.notice.id)],
        )
        for group in (
            {None, *(one for each in events for one in each.groups | each.left)} if events else ()
        ):
            self._changed_at[group] = self.reactor.seconds()
        events += [progress(row) for name, row in now.items() if self._progress.get(name) != row]
        self._progress = now
        texts: dict[Groups, str] = {}
        for stream in list(self.streams):
            if events and stream.groups not in texts:
                texts[stream.groups] = "".join(each.text(stream.groups) for each in events)
            stream.hear(texts.get(stream.groups, ""), events)

    def _broken(self, failure: Any) -> None:
        log.error("events cannot be followed: %s", failure.value)
        self.stop()


def _person(who: Who) -> object:
    """Return the key by which streams are counted: all streams of a user count together, whichever
    tokens opened them."""
    return who.name if who.user_id is None else who.user_id


@implementer(IPushProducer)
class EventStream:
    """A client that follows the events. `again` looks up the client's rights anew, because its
    session may have ended, or its groups may have changed."""

    def __init__(self, hub: Hub, request: Any, who: Who, again: Any) -> None:
        self._hub, self._request, self.who, self._again = hub, request, who, again
        self._behind: list[Event] | None = []  # new events, while the stream catches up
        self._held: list[str] = []
        self._size = 0
        self._paused = self._gone = False
        self._floors, self._careful = (0, 0), 2
        self._sent: set[tuple[str, int | None]] = set()  # by the last read of `_catch_up`
        self._reads: Deferred[None] | None = None
        self._spoke = self._checked = hub.reactor.seconds()

    @property
    def groups(self) -> Groups:
        """Return the groups whose events the client may see; None: all groups."""
        return self.who.groups

    async def start(self, after: int | None) -> None:
        """Send the events after the event `after` (None: from now on) until the client leaves.

        Of past transitions at most the last `BEHIND` are sent, because reading years of them for
        each new client would delay all others.
        """
        pool = self._hub.pool
        newest = await pool.read(views.last_event)
        if after is not None and after > newest:
            after = None  # the client saw it before a restore: new events have lower ids
        latest = await pool.read(views.told_until, after)
        floor = newest if after is None else max(after, newest - BEHIND)
        self._floors = (floor, latest)
        self._request.notifyFinish().addBoth(lambda _: self.stopProducing())
        self._request.setHeader("Content-Type", "text/event-stream")
        self._request.setHeader("Cache-Control", "no-store")
        self._request.registerProducer(self, True)
        self._request.write(f": following from {floor}\n\n".encode())
        await self._hub.join(self)
        if self._gone:
            self._hub.leave(self)
        await self._catch_up(floor, latest)
        behind, self._behind = self._behind or [], None
        behind = [each for each in behind if each.kind != "progress"] + self._hub.under_way()
        self._speak(self._fresh(behind))

    async def _catch_up(self, after: int, newest: int) -> None:
        """Send the events that are in the tables already, as fast as the client reads."""
        rows_seen, notices_seen = Following(after), Following(newest)
        while self in self._hub.streams:
            if self._paused:  # until the client has read what it was sent
                self._reads = Deferred()
                await self._reads
            self._behind = []  # these events are in the tables, and are read now
            rows, _, notices = await self._hub.pool.read(
                views.happened, rows_seen.after(), notices_seen.after()
            )
            found = events_of(
                [row for row in rows if rows_seen.is_new(row["id"])],
                [view for view in notices if notices_seen.is_new(view.notice.id)],
            )
            self._speak("".join(each.text(self.groups) for each in found))
            self._sent = {("transition", row["id"]) for row in rows} | {
                ("notice", view.notice.id) for view in notices
            }
            if len(rows) < AT_ONCE and len(notices) < AT_ONCE:
                return

    def _has_read(self) -> None:
        reads, self._reads = self._reads, None
        if reads is not None:
            reads.callback(None)

    def _fresh(self, events: list[Event]) -> str:
        """Return the text of those events that are new to the client: not sent by `_catch_up`, and
        later than the events from which the stream started."""
        return "".join(
            each.text(self.groups)
            for each in events
            if (each.kind, each.row) not in self._sent
            and (each.row is None or each.row > self._floors[each.kind == "notice"])
        )

    def hear(self, text: str, events: list[Event]) -> None:
        """Send new events; `text` is their text for the stream's groups."""
        now = self._hub.reactor.seconds()
        if now - self._checked > CHECKED:
            self._checked = now
            ensureDeferred(self._check())
        if self._behind is not None:
            self._behind += events
            return
        # The poll of these events may have begun before the stream had caught up. The next poll
        # surely begins later.
        if self._careful:
            self._careful -= 1
            text = self._fresh(events)
        if text:
            self._speak(text)
        elif now - self._spoke > KEEPALIVE:
            self._speak(": still here\n\n")

    async def _check(self) -> None:
        try:
            self.who = await self._again()
        except HttpProblem:
            self.stop()
        except Exception as error:
            log.warning("who follows the events cannot be looked up: %s", error)

    def _speak(self, text: str) -> None:
        if not text or self not in self._hub.streams:
            return
        self._spoke = self._hub.reactor.seconds()
        if not self._paused:
            self._request.write(text.encode())
            return
        self._held.append(text)
        self._size += len(text)
        if self._size > HELD:
            self.stop()  # the client can come back and name the last event that it saw

    def stop(self) -> None:
        """End the stream from this side."""
        if self in self._hub.streams:
            self._hub.leave(self)
            self._request.unregisterProducer()
            self._request.finish()

    def pauseProducing(self) -> None:
        """Hold text back, because the client is slow."""
        self._paused = True

    def resumeProducing(self) -> None:
        """Send the text that was held back, because the client has caught up."""
        self._paused = False
        held, self._held, self._size = self._held, [], 0
        self._speak("".join(held))
        self._has_read()

    def stopProducing(self) -> None:
        """End the stream, because the client is gone."""
        self._gone = True
        self._hub.leave(self)
        self._has_read()
