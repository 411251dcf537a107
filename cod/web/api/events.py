"""Server-sent events: nodes' transitions as they are written to the history, the progress of disks
being written, and notices. Each client gets the events that it may see.

One poll serves all streams of a process. Twice a second, or less often with many streams, it reads
the new rows of the history and of the notices, and the progress that has changed. A row may appear
after a row with a higher id (`policy.following`). The events are made into text once for each set
of groups whose events a stream may see. A client that comes back names the position that came with
its last event: it knows all events up to this position, and may be sent some later events again.
For a slow client up to `HELD` characters are kept; beyond that, its stream ends.
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
from cod.web.api.event_texts import Event, Groups, Position, events_of, progress
from cod.web.http.errors import HttpProblem

PERIOD = 0.5  # seconds between two polls; more with many streams, as each poll writes to each
MANY = 500  # streams that can be written to in a second
KEEPALIVE = 15.0  # seconds of silence after which a stream is sent a comment
CHECKED = 60.0  # seconds between two checks of a client's rights
MOST, MOST_OF_ONE = 1000, 40  # streams at once: of all clients, and of one person
AT_ONCE = views.AT_ONCE  # rows of one poll
BEHIND = 50_000  # past transitions that a client can be sent
HELD = 2**18  # characters kept for a slow client
SELDOM = 4.0  # seconds that a page waits at least between two fetches of its parts
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
        self._transitions, self._notices = views.Following(0), views.Following(0)
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
                self._transitions, self._notices = await self.pool.read(
                    views.from_now_on, self.reactor.seconds()
                )
                self._progress = {}
                self._began, self._changed_at = self.reactor.seconds(), {}
            self.streams.add(stream)
            if not self._loop.running:
                self._loop.start(PERIOD).addErrback(self._broken)
        finally:
            self._turn.release()

    @property
    def position(self) -> Position:
        """The transition and the notice up to which all events were sent."""
        return Position(self._transitions.floor, self._notices.floor)

    def knows(self, event: Event) -> bool:
        """Return whether the event was sent already, or is older than the loop."""
        table = self._notices if event.kind == "notice" else self._transitions
        return event.row is not None and table.knows(event.row)

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
        """Return when an event was last sent to clients that see these groups (None: all), on the
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
        transitions, notices = self._transitions, self._notices
        before, begun = self.position, self.reactor.seconds()
        found = await self.pool.read(views.happened, transitions, notices)
        if transitions is not self._transitions:
            return  # the loop was started anew meanwhile
        transitions.see(found.ids, begun, self.reactor.seconds())
        notices.see(found.notice_ids, begun, self.reactor.seconds())
        more = AT_ONCE in (len(found.ids), len(found.notice_ids))
        self._loop.interval = PERIOD if more else self.period()
        now = {row["node"]: row for row in found.progress}
        events = events_of(found.rows, found.notices, before, self.position)
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


def _key(event: Event) -> tuple[str, int | None]:
    return event.kind, event.row


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
        # keys of events that were sent while the stream caught up, and that the hub will send later
        self._sent: set[tuple[str, int | None]] = set()
        self._reads: Deferred[None] | None = None
        self._spoke = self._checked = hub.reactor.seconds()

    @property
    def groups(self) -> Groups:
        """Return the groups whose events the client may see; None: all groups."""
        return self.who.groups

    async def start(self, after: tuple[int, int | None] | None) -> None:
        """Send the events after the position `after` (None: from now on) until the client leaves.
        If the position has no notice, notices older than its transition are left out.

        Of past transitions at most the last `BEHIND` are sent, because reading years of them for
        each new client would delay all others.
        """
        pool = self._hub.pool
        newest = await pool.read(views.last_event)
        known = None
        # a higher position is from before the database was restored: its ids are lower now
        if after is not None and after[0] <= newest:
            transition, notice = after
            if notice is None:
                notice = await pool.read(views.told_until, transition)
            known = Position(max(transition, newest - BEHIND), notice)
        self._request.notifyFinish().addBoth(lambda _: self.stopProducing())
        self._request.setHeader("Content-Type", "text/event-stream")
        self._request.setHeader("Cache-Control", "no-store")
        self._request.registerProducer(self, True)
        await self._hub.join(self)
        if self._gone:
            self._hub.leave(self)
            return
        floor = self._hub.position if known is None else known
        self._request.write(f": following from {floor}\n\n".encode())
        if known is not None:
            await self._catch_up(known)
        behind, self._behind = self._behind or [], None
        behind = [each for each in behind if each.kind != "progress"] + self._hub.under_way()
        self._speak(self._text(behind))

    async def _catch_up(self, at: Position) -> None:
        """Send the events that are in the tables already, as fast as the client reads."""
        end = Position(*map(max, at, self._hub.position))
        while self in self._hub.streams:
            if self._paused:  # until the client has read what it was sent
                self._reads = Deferred()
                await self._reads
            rows, notices = await self._hub.pool.read(views.past, *at)
            found = events_of(rows, notices, at, end)
            keys = {_key(each) for each in found}
            self._behind = [each for each in self._behind or [] if _key(each) not in keys]
            self._sent |= {_key(each) for each in found if not self._hub.knows(each)}
            self._speak(self._text(found))
            if len(rows) < AT_ONCE and len(notices) < AT_ONCE:
                return
            at = Position(
                max([at.transition, *(row["id"] for row in rows)]),
                max([at.notice, *(view.notice.id for view in notices)]),
            )

    def _has_read(self) -> None:
        reads, self._reads = self._reads, None
        if reads is not None:
            reads.callback(None)

    def _text(self, events: list[Event]) -> str:
        return "".join(each.text(self.groups) for each in events)

    def _fresh(self, events: list[Event]) -> list[Event]:
        """Return those events that were not sent while the stream caught up."""
        fresh = [each for each in events if _key(each) not in self._sent]
        self._sent -= {_key(each) for each in events}
        return fresh

    def hear(self, text: str, events: list[Event]) -> None:
        """Send new events; `text` is their text for the stream's groups."""
        now = self._hub.reactor.seconds()
        if now - self._checked > CHECKED:
            self._checked = now
            ensureDeferred(self._check())
        if self._behind is not None:
            self._behind += self._fresh(events)
            return
        if self._sent:
            text = self._text(self._fresh(events))
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
