"""One piece of an upload on its way from a connection to the disk, with backpressure.

Bytes gather while a thread writes those that came before. When more than `GATHER` bytes have
gathered, reading from the connection pauses, and TCP slows down the sender. So memory use stays the
same, however fast the sender and however slow the disk.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeVar

from twisted.internet.defer import Deferred, ensureDeferred

from cod.images.incoming import HEAD, Incoming
from cod.model import Image, Refused, Upload, Who

GATHER = 1 << 20  # bytes that are written at once; as many may gather meanwhile
PUT_DOWN = 1 << 28  # bytes after which written bytes are flushed and recorded, within a piece
AT_LEAST = 60.0  # seconds after which that is done if bytes arrive slowly

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("cod.uploads")


class WrongChecksum(Exception):
    """The digest of the piece differs from its checksum."""


class TooLong(Exception):
    """More bytes came than the upload was to have."""


class Connection:
    """The connection that a piece comes from, as far as the piece controls it."""

    def hold(self) -> None:
        """Pause reading from the sender."""

    def flow(self) -> None:
        """Resume reading from the sender."""

    def cut(self) -> None:
        """Break off the sender's request."""


class Storage(Protocol):
    """Destination of a piece: `web.http.uploads.intake.Intake`."""

    reactor: Any

    def in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Deferred[T]:
        """Run `work`, which blocks, in a thread."""

    async def check_format(self, upload: Upload, file: Incoming) -> tuple[str, int]:
        """Return format and size of the image, by the file's first bytes. Raises `Refused`."""

    async def grown(self, upload: Upload, file: Incoming) -> Upload:
        """Flush written bytes to disk, and record how many there are."""

    async def complete(self, upload: Upload, file: Incoming, who: Who | None = None) -> Image:
        """Finish the upload, whose bytes are all there: make it an image."""

    def let_go(self, upload: Upload, file: Incoming) -> None:
        """Close the file; another connection may continue with it."""


class Piece:
    """The bytes of one request, for the upload's file from `upload.offset` on.

    checksum  (algorithm, digest) of the piece, if the client sent it: such a piece is kept as a
              whole or not at all
    error     the first failure: no more bytes are taken, and `finish` will raise it
    """

    def __init__(
        self,
        intake: Storage,
        upload: Upload,
        file: Incoming,
        checksum: tuple[str, bytes] | None,
        connection: Connection,
    ) -> None:
        self.upload = upload
        self.error: BaseException | None = None
        self._intake, self._file, self._connection = intake, file, connection
        algorithm, self._expected = checksum or ("", b"")
        self._hash = hashlib.new(algorithm, usedforsecurity=False) if checksum else None
        self._start, self._sum = upload.offset, file.sum.copy()
        self._gathered: list[bytes] = []
        self._count = self._received = 0
        self._over = self._held = self._closed = self._finishing = False
        self._unknown = upload.offset < HEAD  # the file's format is not known yet
        self._fed = self._noted = intake.reactor.seconds()
        self._more: Deferred[None] | None = None
        self._watchers: list[Deferred[None]] = []
        self._writing = ensureDeferred(self._write())

    def silent(self) -> float:
        """Return seconds since bytes last arrived; 0 once all of them have."""
        return 0.0 if self._finishing else float(self._intake.reactor.seconds() - self._fed)

    def feed(self, data: bytes) -> None:
        """Take bytes that have arrived."""
        self._fed = self._intake.reactor.seconds()
        self._received += len(data)
        if self._start + self._received > self.upload.size:
            self.error = self.error or TooLong()
        if self.error or self._over:
            return
        self._gathered.append(data)
        self._count += len(data)
        if self._count >= GATHER:
            self._go_on()
        if self._count >= GATHER and not self._held:  # a thread is still writing
            self._held = True
            self._connection.hold()

    # ------------------------------------------------------------ to the disk

    async def _write(self) -> None:
        try:
            while await self._anything():
                gathered, self._gathered, self._count = self._gathered, [], 0
                self._release()
                await self._intake.in_thread(self._put, gathered)
                if self._unknown and self._file.end >= HEAD:  # the file's head shows its format
                    self._unknown = False
                    await self._intake.check_format(self.upload, self._file)
                late = self._intake.reactor.seconds() - self._noted >= AT_LEAST
                if (late or self._file.end - self.upload.offset >= PUT_DOWN) and not self._hash:
                    await self._note()
        except Exception as error:
            self.error, self._gathered = error, []
        self._release()

    async def _anything(self) -> bool:
        """Wait until there are enough bytes to write, or the last ones; return whether there are
        any."""
        while self._count < GATHER and not self._over:
            self._more = Deferred()
            await self._more
        return self._count > 0 and self.error is None

    def _go_on(self) -> None:
        if self._more is not None:
            more, self._more = self._more, None
            more.callback(None)

    def _release(self) -> None:
        if self._held:
            self._held = False
            self._connection.flow()

    def _put(self, gathered: list[bytes]) -> None:
        """Write the bytes, in a thread."""
        if self._hash:
            for data in gathered:
                self._hash.update(data)
        self._file.write(gathered)

    async def _note(self) -> None:
        self.upload = await self._intake.grown(self.upload, self._file)
        self._noted = self._intake.reactor.seconds()

    # ------------------------------------------------------------ the end

    async def finish(self, who: Who) -> tuple[Upload, Image | None]:
        """Finish the piece, which is on disk when this returns. Return the upload, and after the
        last piece the image that it has become. Raises WrongChecksum, TooLong, `Refused`, OSError.
        """
        self._finishing = True
        try:
            await self._written()
            if self._hash and self.error is None and self._hash.digest() != self._expected:
                self.error = WrongChecksum()
            await self._keep()
            if self.error is not None:
                raise self.error
            if self.upload.offset < self.upload.size:
                return self.upload, None
            return self.upload, await self._intake.complete(self.upload, self._file, who)
        finally:
            self._close()

    async def leave(self) -> None:
        """Stop, because the connection is gone. Received bytes stay for the next piece."""
        if self._finishing or self._over:
            return
        try:
            await self._written()
            if self._hash:
                self.error = WrongChecksum()
            await self._keep()
        except Exception as error:
            log.info("the upload of %s: %s", self.upload.name, error)
        finally:
            self._close()

    async def break_off(self) -> None:
        """End the piece from this side. Fires when the file is free."""
        if not self._closed:
            freed: Deferred[None] = Deferred()
            self._watchers.append(freed)
            self._connection.cut()
            await freed

    async def _written(self) -> None:
        """Write the rest of the bytes: no more will arrive."""
        self._over = True
        self._go_on()
        await self._writing

    async def _keep(self) -> None:
        """Flush the bytes to disk. If a piece with a checksum has failed, take its bytes back
        instead."""
        if self._hash and self.error is not None:
            await self._intake.in_thread(self._file.back, self._start, self._sum)
        elif not isinstance(self.error, Refused):
            await self._note()

    def _close(self) -> None:
        self._closed = True
        self._intake.let_go(self.upload, self._file)
        for watcher in self._watchers:
            watcher.callback(None)
