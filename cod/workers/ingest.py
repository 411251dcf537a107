"""Takes images in: finds the next waiting ones in the database, turns their files into the served
form, and records the outcome.

The work is done in threads of low priority, so that the serving of images comes first. Groups take
turns: `AT_ONCE` files are taken in at a time, never two of one group. If this server ends or loses
the claim, the server that has the claim next begins an ingest anew; unfinished files are never
served (`images.store`).
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.python.failure import Failure

from cod.claimkeeper import ClaimKeeper
from cod.flows.claims import Lost
from cod.flows.images import images
from cod.images import ingest, store
from cod.model import Image, ImageRules, Ingested, Refused
from cod.periodic import Periodic
from cod.pool import Pool

P = ParamSpec("P")
T = TypeVar("T")

PERIOD = 1.0  # seconds between looks
CLAIM = 30.0  # seconds that the claim outlives its owner's last sign
SWEEP = 60.0  # seconds between searches for folders that nobody needs
NICE = 10
AT_ONCE = 2
# seconds that a file waits if the server had no memory or threads for it, and how often
PAUSE, MOST_PAUSES = 300.0, 24

log = logging.getLogger("cod.images")


class Stopping(Exception):
    """The server is being stopped in the middle of an ingest, or has lost the claim."""


class Ingester(Periodic):
    """One server's ingester. `root`: folder of the images; files below `uploads` are removed when
    they have been taken in. `rules`: returns the site's current rules. `several`: the site has
    other servers, each of which takes in the files that it has."""

    def __init__(
        self,
        reactor: Any,
        pool: Pool,
        root: Path,
        uploads: Path,
        server: str,
        clock: Callable[[], float],
        rules: Callable[[], ImageRules] = ImageRules,
        *,
        several: bool = False,
    ) -> None:
        super().__init__(reactor, pool, log, "images", PERIOD, at_once=True)
        self._keeper = ClaimKeeper(reactor, pool, "ingest", server, CLAIM)
        self._root, self._uploads, self._clock = root, uploads, clock
        self._reactor, self._rules, self._several = reactor, rules, several
        self._absent: dict[int, Image] = {}  # images whose files are on another server
        self._paused: dict[int, float] = {}  # by image, the time until which it waits
        self._shortages: Counter[int] = Counter()  # by image, how often it has had to wait
        self._stopping = threading.Event()
        self._threads: set[Deferred[Any]] = set()
        self._busy: dict[int, int | None] = {}  # groups by the images that are being taken in
        self._served: dict[int | None, float] = {}  # when each group's last turn began
        self._swept = 0.0

    def startService(self) -> None:
        # a new event: a thread of the last run, which has the old one, may not have ended yet
        self._stopping = threading.Event()
        store.clean(self._root)
        super().startService()

    def stopService(self) -> Deferred[Any]:
        """End. An ingest under way is given up, and the next server begins it anew. Its thread is
        told to end, but not waited for, since it may wait for the disk for minutes."""
        self._end_threads()
        return super().stopService()

    def _end_threads(self) -> None:
        self._stopping.set()
        for thread in list(self._threads):
            thread.errback(Stopping())

    async def look(self) -> None:
        """Begin to take in waiting images; keep the claim while some are being taken in, otherwise
        delete the files of deleted images now and then."""
        self._absent = {each: one for each, one in self._absent.items() if not _is_here(one)}
        now = self._reactor.seconds()
        self._paused = {each: until for each, until in self._paused.items() if until > now}
        while len(self._busy) < AT_ONCE and (image := await self._next()) is not None:
            self._busy[image.id] = image.group_id
            self._served[image.group_id] = self._clock()
            ensureDeferred(self._turn(image))
        if self._busy:
            if await self._keeper.keep(self._clock()) is None and not self._stopping.is_set():
                log.warning("another server takes images in")
                self._end_threads()
                self._stopping = threading.Event()
            return
        if self._clock() - self._swept > SWEEP:
            await self._sweep()
        if self._several:
            await self._keeper.give_up()

    async def _next(self) -> Image | None:
        """Return the image to take in next, under the claim; None: no image waits whose file is on
        this host, or another server has the claim."""
        while True:
            image = await self._pool.read(
                images.next_waiting,
                busy=list(self._busy.values()),
                served=dict(self._served),
                absent=[*self._absent, *self._paused],
            )
            if image is None or self._stopping.is_set():
                return None
            if self._several and not _is_here(image):
                self._absent[image.id] = image
                continue
            held = self._keeper.claim
            if await self._keeper.keep(self._clock()) is None or self._stopping.is_set():
                return None
            if held is not None:  # else another server may have taken it in meanwhile
                return image

    async def _sweep(self) -> None:
        """Remove the folders of images that were deleted."""
        present = store.digests(self._root)
        if await self._keeper.keep(self._clock()) is None:
            return
        unneeded = await self._pool.run(images.unneeded, present=present, alone=not self._several)
        self._swept = self._clock()
        for digest in unneeded:
            log.info("removing the files of a deleted image: %s", digest)
            await self._in_thread(store.remove, self._root, digest)

    async def _turn(self, image: Image) -> None:
        try:
            await self._take_in(image)
        except Lost as error:
            log.warning("%s: %s", image.name, error)
        except Exception as error:
            log.error("%s: %s", image.name, error, exc_info=not self._pool.is_away(error))
        finally:
            self._busy.pop(image.id, None)

    async def _take_in(self, image: Image) -> None:
        log.info("taking in %s from %s", image.name, image.source)
        rules, claim = self._rules(), self._keeper.claim
        left = await self._pool.read(images.left, image=image, rules=rules)
        limits = ingest.IngestLimits(rules.largest, left, rules.expansion, rules.ingest_time)
        try:
            ingested = await self._in_thread(self._ingest, image, limits, self._stopping)
            await self._pool.run(
                images.finish, image_id=image.id, ingested=ingested, rules=rules, claim=claim
            )
            log.info(
                "%s: %d bytes, %d in use, %d stored",
                image.name,
                ingested.size,
                ingested.used,
                ingested.stored,
            )
        except Stopping:
            return
        except Exception as error:
            if isinstance(error, Lost) or self._pool.is_away(error):
                raise  # the file may be good: it will be taken in anew
            if _is_shortage(error) and self._shortages[image.id] < MOST_PAUSES:
                self._shortages[image.id] += 1
                self._paused[image.id] = self._reactor.seconds() + PAUSE
                raise
            known = isinstance(error, Refused | OSError)
            log.warning("%s was not taken in: %s", image.name, error, exc_info=not known)
            reason = "the server failed on this file: its log says how"
            if isinstance(error, Refused):
                reason = error.sentence
            elif isinstance(error, OSError):
                reason = error.strerror or f"{error}"
            await self._pool.run(images.fail, image_id=image.id, reason=reason, claim=claim)
        source = Path(image.source)
        if source.is_relative_to(self._uploads):
            source.unlink(missing_ok=True)
        self._shortages.pop(image.id, None)
        self._swept = 0.0

    def _in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Deferred[T]:
        """Run the work in a thread of its own, since a thread that has lowered its priority cannot
        raise it again without privileges. If the service stops first, the Deferred fires with
        `Stopping`."""
        done: Deferred[T] = Deferred()

        def over(result: Any) -> Any:
            self._threads.discard(done)
            return result

        def fire(value: T | Failure) -> None:
            if not done.called:
                done.callback(value)

        def run() -> None:
            try:
                value: T | Failure = work(*args, **kwargs)
            except BaseException:
                value = Failure()
            self._reactor.callFromThread(fire, value)

        threading.Thread(target=run, name="ingest", daemon=True).start()
        self._threads.add(done)
        done.addBoth(over)
        return done

    def _ingest(
        self, image: Image, limits: ingest.IngestLimits, stopping: threading.Event
    ) -> Ingested:
        # on Linux, this is the priority of this thread and of those that it starts
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        return ingest.ingest(
            Path(image.source),
            self._root,
            sha256=image.sha256,
            plain=image.content == "file",
            raw=image.content == "raw",
            limits=limits,
            progress=partial(_go_on, stopping),
        )


def _go_on(stopping: threading.Event, done: int, total: int) -> None:
    if stopping.is_set():
        raise Stopping


def _is_shortage(error: Exception) -> bool:
    """Return whether the server lacked memory, threads or processes, which is not the file's
    fault."""
    return (
        isinstance(error, MemoryError)
        or (isinstance(error, OSError) and error.errno in (errno.ENOMEM, errno.EAGAIN))
        or (isinstance(error, RuntimeError) and "start new thread" in str(error))
    )


def _is_here(image: Image) -> bool:
    """Return whether this host has the whole file of an image: an upload that began here may have
    been completed at another server."""
    try:
        size = Path(image.source).stat().st_size
    except OSError:
        return False
    return image.stored in (0, size)
