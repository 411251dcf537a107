"""Server-sent events: nodes' transitions as they are written to the history, the progress of disks
being written, and notices. Each client gets the events that it may see.

One poll serves all streams of a process. Twice a second, or less often with many streams, it reads
the new rows of the history and of the notices, and the progress that has changed. A row may appear
after a row with a higher id (`policy.following`). The events are made into text once for each set
of groups whose events a stream may see. The last event of a batch has the stream's position: the
client knows all events up to it. A client that comes back names its position, and may be sent some
later events again. A database that has lost its last commits gives the ids of their rows again:
then all streams end, and each client that comes back is sent the events since before the loss,
because its position has the epoch of the database. For a slow client up to `HELD` characters are
kept; beyond that, its stream ends.
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
BEHIND = 50_000  # ids of the past transitions that a client can be sent
HELD = 2**18  # characters kept for a slow client
WAITING = 5000  # new events that are kept for a stream while it catches up
LINGER = 60.0  # seconds that the loop goes on without a stream, because most clients come back
SELDOM = 4.0  # seconds that a page waits at least between two fetches of its parts
log = logging.getLogger("cod.api")


class Hub:
    """The event streams of a process, and the loop that reads new events for all of them. The loop
    begins with the first stream, and ends `LINGER` seconds after the last one."""

    def __init__(self, reactor: Any, pool: Pool) -> None:
        self.pool, self.reactor = pool, reactor
        self.streams: set[EventStream] = set()
        self._loop = LoopingCall(lambda: ensureDeferred(self._look()))
        self._loop.clock = reactor
        self._turn = DeferredLock()
        self._transitions, self._notices = views.Following(0), views.Following(0)
        self._progress: dict[str, Mapping[str, Any]] = {}
        self._newest = Position(0, 0)  # when the loop began
        self.epoch = ""  # of the database
        self._began = self._left = 0.0
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
                begun = self.reactor.seconds()
                recent, self.epoch = await self.pool.read(views.recent)
                readers = [views.Following(floor) for floor, _ in recent]
                for reader, (_, ids) in zip(readers, recent, strict=True):
                    reader.see(ids, begun, self.reactor.seconds())
                self._transitions, self._notices = readers
                self._newest = Position(self._transitions.newest, self._notices.newest)
                self._progress = {}
                self._began, self._changed_at = self.reactor.seconds(), {}
            self.streams.add(stream)
            if not self._loop.running:
                self._loop.start(PERIOD).addErrback(self._broken)
        finally:
            self._turn.release()

    @property
    def position(self) -> Position:
        """The transition and the notice up to which all rows were read: none is sent later."""
        return Position(self._transitions.floor, self._notices.floor)

    @property
    def from_now_on(self) -> Position:
        """The position of a stream that begins now. In the first seconds of the loop, when ids of
        the last rows are missing, it is later than `position`: else a client that comes back would
        be sent those rows, which are old. A client that is away while one of the missing rows
        comes never hears of that row.
        """
        return self.position.at_least(self._newest)

    def written(self, position: Position) -> str:
        """Return a position as clients are sent it, with the database's epoch."""
        return f"{position}-{self.epoch}" if self.epoch else str(position)

    def page_start(self) -> str | None:
        """Return the position from which a page that is read after this call can follow the events;
        None: the page has to be read again when it follows them."""
        at = self.position
        return self.written(at) if self._loop.running and at == self.from_now_on else None

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
        """Remove the stream."""
        self.streams.discard(stream)
        self._left = self.reactor.seconds()

    def stop(self) -> None:
        """End all streams and the loop."""
        for stream in list(self.streams):
            stream.stop()
        if self._loop.running:
            self._loop.stop()

    def under_way(self) -> list[Event]:
        """Return the progress of the disks being written, as last read."""
        return [progress(row) for row in self._progress.values()]

    async def _look(self) -> None:
        begun = self.reactor.seconds()
        if not self.streams and begun - self._left > LINGER:
            self._loop.stop()  # here, where no read is under way that would go on beside a new loop
            return
        found = await self.pool.read(views.happened, self._transitions, self._notices)
        if self.epoch not in ("", found.epoch):
            log.warning("the database has lost its last commits: all event streams begin anew")
            self.stop()
            return
        self.epoch = found.epoch
        self._loop.interval = self.period()
        for reader, ids in ((self._transitions, found.ids), (self._notices, found.notice_ids)):
            is_cut = len(ids) == AT_ONCE
            reader.see(ids, begun, self.reactor.seconds(), is_cut)
            if is_cut:
                self._loop.interval = PERIOD
        now = {row["node"]: row for row in found.progress}
        events = events_of(found.rows, found.notices)
        for group in (
            {None, *(one for each in events for one in each.groups | each.left)} if events else ()
        ):
            self._changed_at[group] = self.reactor.seconds()
        events += [progress(row) for name, row in now.items() if self._progress.get(name) != row]
        self._progress = now
        texts: dict[Groups, list[str]] = {}
        for stream in list(self.streams):
            if stream.groups not in texts:
                texts[stream.groups] = _texts(events, stream.groups)
            stream.hear(texts[stream.groups], events)

    def _broken(self, failure: Any) -> None:
        log.error("events cannot be followed: %s", failure.value)
        self.stop()


def _texts(events: list[Event], groups: Groups) -> list[str]:
    return [text for each in events if (text := each.text(groups))]


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
        self._known = Position(0, 0)  # the client knows all events up to there
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

    @property
    def position(self) -> Position:
        """Return the position up to which the client knows all events: never one before the
        position that the client has named."""
        return self._known if self._behind is not None else self._known.at_least(self._hub.position)

    async def start(self, after: tuple[int, int | None, str] | None) -> None:
        """Send the events after the position `after` (None: from now on) until the client leaves;
        see `views.resume`.

        Of past transitions those of the last `BEHIND` ids are sent, because reading years of them
        for each new client would delay all others.
        """
        self._request.notifyFinish().addBoth(lambda _: self.stopProducing())
        found, epoch = await self._hub.pool.read(views.resume, after, BEHIND)
        known = None if found is None else Position(*found)
        await self._hub.join(self)
        if self._gone:
            self._hub.leave(self)
            return
        self._request.setHeader("Content-Type", "text/event-stream")
        self._request.setHeader("Cache-Control", "no-store")
        self._request.registerProducer(self, True)
        self._known = known or self._hub.from_now_on
        if self._hub.epoch != epoch:  # the hub has yet to see the loss: the client comes back
            self.stop()
            return
        self._request.write(f"id: {self._hub.written(self._known)}\n\n".encode())
        if known is not None:
            try:
                await self._catch_up(known)
            except Exception as error:
                log.warning("what a client has missed cannot be read: %s", error)
                self.stop()  # the client comes back
        behind, self._behind = self._behind or [], None
        self._tell(_texts(behind + self._hub.under_way(), self.groups))

    async def _catch_up(self, at: Position) -> None:
        """Send the events that are in the tables already, as fast as the client reads."""
        while self in self._hub.streams:
            if self._paused:  # until the client has read what it was sent
                self._reads = Deferred()
                await self._reads
            floor = self._hub.position
            rows, notices = await self._hub.pool.read(views.past, *at)
            found = events_of(rows, notices)
            keys = {_key(each) for each in found}
            self._behind = [each for each in self._behind or [] if _key(each) not in keys]
            self._sent |= {_key(each) for each in found if not self._hub.knows(each)}
            at = Position(
                max([at.transition, *(row["id"] for row in rows)]),
                max([at.notice, *(view.notice.id for view in notices)]),
            )
            self._known = self._known.at_least(Position(*map(min, at, floor)))
            self._tell(_texts(found, self.groups))
            if len(rows) < AT_ONCE and len(notices) < AT_ONCE:
                return

    def _has_read(self) -> None:
        reads, self._reads = self._reads, None
        if reads is not None:
            reads.callback(None)

    def _fresh(self, events: list[Event]) -> list[Event]:
        """Return those events that were not sent while the stream caught up."""
        fresh = [each for each in events if _key(each) not in self._sent]
        self._sent -= {_key(each) for each in events}
        return fresh

    def hear(self, texts: list[str], events: list[Event]) -> None:
        """Send new events; `texts` are their texts for the stream's groups."""
        now = self._hub.reactor.seconds()
        if now - self._checked > CHECKED:
            self._checked = now
            ensureDeferred(self._check())
        if self._behind is not None:
            self._behind += [each for each in self._fresh(events) if each.kind != "progress"]
            if len(self._behind) > WAITING:
                self.stop()
            return
        if self._sent:
            texts = _texts(self._fresh(events), self.groups)
        if texts:
            self._tell(texts)
        elif now - self._spoke > KEEPALIVE:
            self._speak(f": still here\nid: {self._hub.written(self.position)}\n\n")

    async def _check(self) -> None:
        try:
            self.who = await self._again()
        except HttpProblem:
            self.stop()
        except Exception as error:
            log.warning("who follows the events cannot be looked up: %s", error)

    def _tell(self, texts: list[str]) -> None:
        """Send the texts of events, the last of them with the stream's position."""
        if texts:
            position = self._hub.written(self.position)
            self._speak("".join([*texts[:-1], f"id: {position}\n", texts[-1]]))

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
