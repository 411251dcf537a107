"""Follows the consoles of nodes and records their output. Only the server that holds the claim does
so.

Every few seconds the recorder looks which consoles have to be followed and who holds their nodes. A
lost console is tried again, at growing intervals. At most eight connections a second are begun and
at most `OPENING` are being opened at a time, so that a thousand BMCs that come back together are
asked one after the other.

Output is held in memory for half a second and written by a thread, under the tenure that was known
when the output came: output between a change of the holder and the next look counts as the earlier
holder's. Output just after something was typed is written at once, since somebody waits for it. A
BMC may also keep output while nobody is connected, and send it first: unless the console was
recorded under the same tenure before, such output counts as nobody's. So some output may be hidden
from a holder whose it is, but none is shown to anybody whose it is not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import Deferred, DeferredList, DeferredLock
from twisted.internet.threads import deferToThreadPool
from twisted.python.failure import Failure

from cod import consolefiles
from cod.claimkeeper import ClaimKeeper
from cod.consolefiles import State
from cod.flows.nodes import consoles as flows
from cod.flows.nodes.consoles import Followed
from cod.model import SiteRef
from cod.periodic import Timer
from cod.power.accounts import sign_in
from cod.power.console import ConsoleDriver, Line
from cod.power.driver import PowerError, Target

LOOK = 5.0  # seconds between looks at what is to be followed
LEASE = 30.0
TICK = 0.5  # seconds that what is heard is held, and between beginnings
AT_ONCE = 4  # consoles begun at a time: eight a second
OPENING = 16  # begun and not heard yet
PATIENCE = 60.0  # seconds until a console that was begun is heard
# seconds after the opening in which output may be older than the node's present holder: the BMC may
# have kept it
DOUBT = 3.0
STEADY = 60.0  # seconds for which a console is heard, after which earlier failures are forgotten
# most bytes of one console that wait to be written; a serial line brings six thousand meanwhile
HELD = 1 << 18
# bytes that a serial line of 9600 baud takes in a tick: ipmitool gets no more, since bytes that it
# has cannot be taken back
PACE = 480
ANSWERING = 3.0  # seconds after something was typed in which what is heard answers it
GATHER = 0.02  # seconds that such an answer is gathered before it is written
# most bytes of one console that wait to be typed: for more, nobody would wait
TYPED = round(flows.LATE / TICK) * PACE
SWEEP = 3600.0  # seconds between looks for files that are too old

log = logging.getLogger("cod.consoles")


@dataclass(slots=True, eq=False)
class Console:
    """One console, and the state of following it. `line`: None while it is not followed."""

    what: Followed
    next_at: float
    line: Line | None = None
    heard_at: float | None = None
    begun_at: float = 0.0
    failures: int = 0
    about: str | None = None
    given_up: str = field(default="", repr=False)
    known: str = ""  # tenure under which the console was followed last
    doubt_until: float = 0.0
    typed: bytearray = field(default_factory=bytearray, repr=False)
    room: int = PACE  # bytes that may be typed until the next tick
    answers_until: float = 0.0

    @property
    def where(self) -> tuple[str, str, str | None]:
        """Return the place where the console is followed. A node's console at another place is
        treated as another console."""
        return self.what.driver, self.what.address, self.what.account


class Recorder(Service):
    """One server's recorder. `reactor` keeps its time, `clock()` is the time of day; `folder` is
    the folder of the recorded consoles.

    in_thread  calls a slow function outside of the reactor, and returns a Deferred
    """

    def __init__(
        self,
        reactor: Any,
        pool: Any,
        drivers: Mapping[str, ConsoleDriver],
        server_name: str,
        clock: Callable[[], float],
        site: SiteRef,
        folder: Path,
        in_thread: Callable[..., Deferred[Any]] | None = None,
    ) -> None:
        self._reactor, self._pool, self._drivers, self._server = reactor, pool, drivers, server_name
        self._clock, self._site, self._folder = clock, site, folder
        self._in_thread = in_thread or self._deferred
        self._keeper = ClaimKeeper(reactor, pool, flows.CLAIM, server_name, LEASE)
        self._consoles: dict[int, Console] = {}
        self._ending: set[Deferred[None]] = set()
        self._held: dict[tuple[int, str], bytearray] = {}
        self._lost: dict[tuple[int, str], int] = {}
        self._states: dict[int, State] = {}
        self._full: set[int] = set()
        self._soon: Any = None  # the call that writes an answer
        # one at a time, so that typed bytes and written output keep their order
        self._typing, self._writing = DeferredLock(), DeferredLock()
        self._swept = 0.0
        self._timers = [
            Timer(reactor, LOOK, lambda: Deferred.fromCoroutine(self._look()), at_once=True),
            Timer(reactor, TICK, lambda: Deferred.fromCoroutine(self._tick()), at_once=True),
            # a timer of its own: output is written even while the database does not answer
            Timer(reactor, TICK, lambda: Deferred.fromCoroutine(self._type(PACE))),
        ]

    def _deferred(self, work: Callable[..., Any], *args: Any) -> Deferred[Any]:
        return deferToThreadPool(self._reactor, self._reactor.getThreadPool(), work, *args)

    def startService(self) -> None:
        """Begin. Old files are deleted after an hour at the earliest, when the clock will be
        right."""
        super().startService()  # type: ignore[no-untyped-call]
        self._swept = self._clock()
        for timer in self._timers:
            timer.startService()

    def wake(self) -> None:
        """Type the waiting bytes now, as many as the lines take before the next tick."""
        if self.running and not self._typing.waiting:
            Deferred.fromCoroutine(self._type())

    def reread(self) -> None:
        """Try refused consoles again; called after the site file was read again."""
        for each in self._consoles.values():
            each.next_at = min(each.next_at, self._reactor.seconds())

    def stopService(self) -> Deferred[None]:
        """End; fires when all lines are closed and their output is written."""
        super().stopService()  # type: ignore[no-untyped-call]
        return Deferred.fromCoroutine(self._ended([timer.stopService() for timer in self._timers]))

    async def _ended(self, looks: list[Deferred[Any]]) -> None:
        await DeferredList(looks)
        await self._typing.run(lambda: None)  # the one that was woken
        self._agree({})
        while self._ending:
            await next(iter(self._ending))
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        await self._write()

    # ------------------------------------------------ what is to be followed

    async def _look(self) -> None:
        rules, now = self._site.current.consoles, self._clock()
        try:
            found: list[Followed] = []
            if rules.record and await self._keeper.keep(now) is not None:
                found = await self._pool.read(flows.followed, rules)
            if self.running:
                self._agree({each.node_id: each for each in found})
            if not 0 <= now - self._swept < SWEEP:  # the clock may have been set back
                self._swept = now
                before = now - rules.keep if rules.keep else None
                if before is not None and (
                    gone := await self._in_thread(consolefiles.sweep, self._folder, before)
                ):
                    log.info("deleted %d old files of consoles", gone)
        except Exception as error:
            log.error(
                "looking which consoles to follow: %s",
                error,
                exc_info=not self._pool.is_away(error),
            )

    def _agree(self, wanted: Mapping[int, Followed]) -> None:
        """Follow the consoles of `wanted`, as many as the site allows, and close all others."""
        for node_id, console in list(self._consoles.items()):
            what = wanted.get(node_id)
            if what is not None and (what.driver, what.address, what.account) == console.where:
                if what.tenure != console.what.tenure:
                    console.typed.clear()
                console.what = what
                console.known = what.tenure if console.heard_at is not None else console.known
            else:
                del self._consoles[node_id]
                self._close(console)
        most = self._site.current.consoles.most
        others = [what for node_id, what in wanted.items() if node_id not in self._consoles]
        room = max(0, most - len(self._consoles))
        self._consoles |= {
            what.node_id: Console(what, self._reactor.seconds()) for what in others[:room]
        }
        about = f"this server follows {most} consoles already: [console] most of the site file"
        full = {what.node_id for what in others[room:]}
        self._states |= {
            node_id: State("lost", about, self._clock()) for node_id in full - self._full
        }
        self._full = full

    def _close(self, console: Console) -> None:
        if console.line is None:
            return
        ended: Deferred[None] = Deferred()
        self._ending.add(ended)

        def end(_result: object) -> None:
            self._ending.discard(ended)
            ended.callback(None)

        line, console.line = console.line, None
        line.ended.addBoth(end)
        line.close()

    # ------------------------------------------------ lines

    async def _tick(self) -> None:
        try:
            if self.running:
                now = self._reactor.seconds()
                opening = [
                    each
                    for each in self._consoles.values()
                    if each.line is not None and each.heard_at is None
                ]
                for console in opening:
                    if now >= console.begun_at + PATIENCE and console.line is not None:
                        console.given_up = f"it was not heard within {PATIENCE:.0f} s"
                        console.line.close()
                room = max(0, min(AT_ONCE, OPENING - len(opening)))
                due = [
                    each
                    for each in self._consoles.values()
                    if each.line is None and each.next_at <= now
                ]
                for console in sorted(due, key=lambda each: each.next_at)[:room]:
                    self._begin(console)
        except Exception:
            log.exception("beginning to follow consoles")
        await self._write()

    async def _type(self, room: int | None = None) -> None:
        """Pass on the bytes that people typed, where the console is connected and still belongs to
        the same holder. `room`: the bytes that each line takes from now on."""
        await self._typing.acquire()
        try:
            await self._typed(room)
        finally:
            self._typing.release()

    async def _typed(self, room: int | None) -> None:
        try:
            if self._consoles and self.running and await self._pool.read(flows.is_typed):
                for each in await self._pool.run(flows.typed, self._server, self._clock()):
                    console, data = self._consoles.get(each.node_id), each.text.encode()
                    if console and console.line and console.what.tenure == each.tenure:
                        console.typed += data if len(console.typed) + len(data) <= TYPED else b""
        except Exception as error:
            log.error("typing on consoles: %s", error, exc_info=not self._pool.is_away(error))
        for console in self._consoles.values():
            console.room = console.room if room is None else room
            if console.typed and console.line is not None and console.room:
                data = bytes(console.typed[: console.room])
                console.answers_until = self._reactor.seconds() + ANSWERING
                console.line.type(data)
                del console.typed[: len(data)]
                console.room -= len(data)

    def _begin(self, console: Console) -> None:
        what = console.what
        console.begun_at, console.heard_at, console.given_up = self._reactor.seconds(), None, ""
        try:
            target = Target(what.address, sign_in(self._site.current, what.account))
            line = self._drivers[what.driver].follow(
                target, lambda data: self._heard(console, data), lambda: self._opened(console)
            )
        except Exception as error:
            self._failed(console, self._known(console, error))
            return
        console.line = line
        line.ended.addCallbacks(
            lambda _: self._gave_up(console), lambda failure: self._over(console, failure)
        )

    def _opened(self, console: Console) -> None:
        now, tenure = self._reactor.seconds(), console.what.tenure
        console.doubt_until = now + DOUBT if console.known != tenure else 0.0
        console.heard_at, console.about, console.known = now, "", tenure
        self._states[console.what.node_id] = State("recording", "", self._clock())
        log.info(
            "%s: its console is recorded", console.what.node, extra={"node": console.what.node}
        )

    def _gave_up(self, console: Console) -> None:
        """Record the failure for which COD itself closed a console's connection: no data came, or
        the recording was given up. Does nothing if the connection was closed on purpose."""
        if console.line is not None:
            self._failed(console, PowerError(console.given_up))

    def _over(self, console: Console, failure: Failure) -> None:
        if console.line is not None:
            self._failed(console, self._known(console, failure.value))

    def _known(self, console: Console, error: BaseException | None) -> PowerError:
        if isinstance(error, PowerError):
            return error
        log.error(
            "%s: the %s console is broken", console.what.node, console.what.driver, exc_info=error
        )
        return PowerError(f"the {console.what.driver} console failed: {type(error).__name__}")

    def _failed(self, console: Console, error: PowerError) -> None:
        now = self._reactor.seconds()
        steady = console.heard_at is not None and now >= console.heard_at + STEADY
        console.failures = 1 if steady else console.failures + 1
        console.line, console.heard_at = None, None
        console.typed.clear()
        console.next_at = now + flows.pause(console.failures, error.lasting)
        if console.about != error.sentence:  # else it has been told
            console.about = error.sentence
            self._states[console.what.node_id] = State("lost", error.sentence, self._clock())
            log.warning(
                "%s: its console is not recorded: %s",
                console.what.node,
                error.sentence,
                extra={"node": console.what.node},
            )

    # ------------------------------------------------ what is heard

    def _heard(self, console: Console, data: bytes) -> None:
        doubtful = self._reactor.seconds() < console.doubt_until
        key = (console.what.node_id, flows.FREE if doubtful else console.what.tenure)
        held = self._held.setdefault(key, bytearray())
        room = HELD - len(held)
        held += data[:room]
        if len(data) > room:
            self._lost[key] = self._lost.get(key, 0) + len(data) - room
        if self._soon is None and self._reactor.seconds() < console.answers_until and self.running:
            self._soon = self._reactor.callLater(GATHER, self._write_answer)

    def _write_answer(self) -> None:
        self._soon = None
        Deferred.fromCoroutine(self._write())

    async def _write(self) -> None:
        await self._writing.acquire()
        try:
            await self._write_held()
        finally:
            self._writing.release()

    async def _write_held(self) -> None:
        held, lost, states = self._held, self._lost, self._states
        if held or states:
            self._held, self._lost, self._states = {}, {}, {}
            for key, count in lost.items():
                held[key] += f"\r\n[{count} bytes came too fast and were not recorded]\r\n".encode()
            try:
                await self._in_thread(
                    written, self._folder, held, states, self._site.current.consoles.size
                )
            except Exception:
                log.exception("consoles are not written")


def written(
    folder: Path, held: Mapping[tuple[int, str], bytes], states: Mapping[int, State], size: int
) -> None:
    """Write output and states of consoles. Output that cannot be written is lost, which is logged
    once for all consoles."""
    troubles = []
    for (node_id, tenure), data in held.items():
        try:
            consolefiles.append(folder, node_id, tenure, bytes(data), size)
        except OSError as error:
            troubles.append(error)
    for node_id, state in states.items():
        try:
            consolefiles.note(folder, node_id, state)
        except OSError as error:
            troubles.append(error)
    if troubles:
        log.error("%d consoles cannot be written: %s", len(troubles), troubles[0])
