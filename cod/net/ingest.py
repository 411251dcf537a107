"""Takes images in: asks the database for the next one, turns its file into the served form, says how it went.

The work is done in a thread of low priority, so that the images that are being served come first. It is begun anew by
whichever server has the claim next if this one dies; nothing that it leaves half done is ever seen (`images.store`).
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.task import LoopingCall
from twisted.python.failure import Failure

from cod.flows import images
from cod.images import ingest, store
from cod.model import Image, Ingested, Refused
from cod.net.periodic import Periodic
from cod.pool import Pool

P = ParamSpec("P")
T = TypeVar("T")

PERIOD = 1.0  # seconds between looks
RENEW = 10.0  # seconds between renewals of the claim
SWEEP = 60.0  # seconds between searches for folders that nobody needs
NICE = 10

log = logging.getLogger("cod.images")


class Stopping(Exception):
    """The server is being stopped in the middle of an ingest."""


class Ingester(Periodic):
    """One server's ingester. `root` holds the images; files below `uploads` are removed once they were taken in.
    `largest`: bytes that an image may have on a disk, by the site's rules at that moment."""

    def __init__(
        self, reactor: Any, pool: Pool, root: Path, uploads: Path, server: str, clock: Callable[[], float],
        largest: Callable[[], int] = lambda: ingest.LARGEST,
    ) -> None:
        super().__init__(reactor, pool, log, "images", PERIOD, at_once=True)
        self._root, self._uploads, self._server, self._clock = root, uploads, server, clock
        self._reactor, self._largest = reactor, largest
        self._stopping = threading.Event()
        self._swept = 0.0

    def startService(self) -> None:
        """Begin."""
        self._stopping.clear()
        store.clean(self._root)
        super().startService()

    def stopService(self) -> Deferred[Any] | None:
        """End; an ingest that is under way is given up and begun anew by the next server."""
        self._stopping.set()
        return super().stopService()

    async def look(self) -> None:
        """Take in an image that waits, or sweep."""
        image = await self._pool.run(images.take, owner=self._server, now=self._clock())
        if image is not None:
            await self._take_in(image)
        elif self._clock() - self._swept > SWEEP:
            await self._sweep()

    async def _take_in(self, image: Image) -> None:
        log.info("taking in %s from %s", image.name, image.source)
        renewal = LoopingCall(lambda: self._pool.run(images.take, owner=self._server, now=self._clock()))
        renewal.clock = self._loop.clock
        renewal.start(RENEW, now=False).addErrback(lambda failure: log.warning("the claim: %s", failure.value))
        try:
            ingested = await self._in_thread(self._ingest, image)
            await self._pool.run(images.finish, image_id=image.id, ingested=ingested)
            log.info("%s: %d bytes, %d in use, %d stored", image.name, ingested.size, ingested.used, ingested.stored)
        except Stopping:
            return
        except (Refused, OSError) as error:
            reason = error.sentence if isinstance(error, Refused) else f"{error.strerror or error}"
            await self._pool.run(images.fail, image_id=image.id, reason=reason)
            log.warning("%s was not taken in: %s", image.name, reason)
        finally:
            if renewal.running:
                renewal.stop()
        self._forget_upload(Path(image.source))
        self._swept = 0.0

    def _in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Deferred[T]:
        """In a thread of its own, because one that has become nice cannot go back without privileges."""
        done: Deferred[T] = Deferred()

        def run() -> None:
            try:
                value = work(*args, **kwargs)
            except BaseException:
                self._reactor.callFromThread(done.errback, Failure())
            else:
                self._reactor.callFromThread(done.callback, value)

        threading.Thread(target=run, name="ingest", daemon=True).start()
        return done

    def _ingest(self, image: Image) -> Ingested:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)  # Linux: of this thread and those it starts
        return ingest.ingest(Path(image.source), self._root, sha256=image.sha256, plain=image.content == "file",
                             limit=self._largest(), progress=self._go_on)

    def _go_on(self, done: int, total: int) -> None:
        if self._stopping.is_set():
            raise Stopping

    def _forget_upload(self, source: Path) -> None:
        if source.is_relative_to(self._uploads):
            source.unlink(missing_ok=True)

    async def _sweep(self) -> None:
        """Remove the folders of images that were deleted."""
        self._swept = self._clock()
        present = store.digests(self._root)
        unneeded = await self._pool.run(images.unneeded, owner=self._server, present=present, now=self._clock())
        for digest in unneeded:
            log.info("removing the files of a deleted image: %s", digest)
            await self._in_thread(store.remove, self._root, digest)
