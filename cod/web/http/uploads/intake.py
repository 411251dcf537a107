"""Takes the bytes of uploads to disk. Requests bring the bytes, `images.incoming` writes them, and
`flows.images.uploads` records how many there are.

An upload's file has one writer at a time, whichever process it is in. A second writer is told to
wait, unless the first has been silent for a while. A connection that broke at the client's end may
stay open here for long, and the second writer is then the same client, which has come back.
"""

from __future__ import annotations

import logging
import secrets
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, ParamSpec, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.python.threadpool import ThreadPool

from cod.flows.images import uploads
from cod.flows.people.access import Change, RequiredRight, has_run, noted
from cod.images import formats
from cod.images.incoming import Incoming, Sum, UploadBusy, boot_id
from cod.model import Image, Refused, Result, Right, SiteRef, Upload, Who
from cod.pool import Pool
from cod.web.http.uploads.piece import Connection, Piece

P = ParamSpec("P")
T = TypeVar("T")

THREADS = 4
SILENT = 5.0  # seconds without a byte after which another connection may continue an upload

log = logging.getLogger("cod.uploads")


class Locked(Exception):
    """Somebody else is sending the same upload."""


class Full(Exception):
    """The disk has no room for the upload."""


class _Thread(Thread):
    """A thread that does not keep the process from ending."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs, daemon=True)


class _Threads(ThreadPool):
    threadFactory = _Thread


class Intake:
    """The uploads of one process.

    folder  the folder of incoming files; each has its upload's id as its name
    wake    carries out the effects of a flow
    """

    def __init__(
        self,
        reactor: Any,
        pool: Pool,
        site: SiteRef,
        folder: Path,
        wake: Callable[[Any], object],
        clock: Callable[[], float],
    ) -> None:
        self.reactor, self.pool, self.site, self.clock = reactor, pool, site, clock
        self._folder, self._wake, self._boot = folder, wake, boot_id()
        # threads of our own, so that a slow disk delays no other work
        self._threads = _Threads(0, THREADS, "uploads")
        self._pieces: dict[str, Piece] = {}
        self._sums: dict[str, Sum] = {}

    def start(self) -> None:
        """Start the threads, also after `stop`."""
        self._threads = _Threads(0, THREADS, "uploads")
        self._threads.start()

    def in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Deferred[T]:
        """Run `work`, which blocks, in one of the threads for uploads."""
        return deferToThreadPool(self.reactor, self._threads, work, *args, **kwargs)

    def check_room(self, size: int) -> None:
        """Raise Full unless the disk has room for `size` more bytes now."""
        folder = self._folder if self._folder.exists() else self._folder.parent
        if shutil.disk_usage(folder).free < size:
            raise Full

    # ------------------------------------------------------------ receiving

    async def begin(
        self,
        upload: Upload,
        checksum: tuple[str, bytes] | None,
        connection: Connection,
        check: Callable[[Upload], object] | None = None,
    ) -> Piece:
        """Open the upload's file, and return a piece that takes bytes from `connection`, from the
        piece's `upload.offset` on. `check`: as for `uploads.begin`. Raises Locked, `Refused`."""
        if (other := self._pieces.get(upload.id)) is not None:
            if other.silent() < SILENT:
                raise Locked
            log.info("the upload of %s is sent anew: its old connection is silent", upload.name)
            await other.break_off()
        file, row = await self._open(upload, checked=checksum is not None, check=check)
        piece = self._pieces[upload.id] = Piece(self, row, file, checksum, connection)
        return piece

    async def _open(
        self,
        upload: Upload,
        *,
        checked: bool = False,
        check: Callable[[Upload], object] | None = None,
    ) -> tuple[Incoming, Upload]:
        path = self._folder / upload.id
        try:
            file = await self.in_thread(Incoming, path, self._sums.get(upload.id))
        except UploadBusy:
            raise Locked from None
        try:
            row = await self.pool.run(
                uploads.begin,
                seen=upload,
                length=file.length,
                boot=self._boot,
                checked=checked,
                check=check,
                now=self.clock(),
            )
            await self.in_thread(file.start, row.offset)
        except BaseException as error:
            if isinstance(error, Refused) and not file.length:
                # opening has made the empty file anew: the upload is over. A file that is not
                # empty may be an image's.
                path.unlink(missing_ok=True)
            file.close()
            raise
        return file, row

    def let_go(self, upload: Upload, file: Incoming) -> None:
        """Close the file, and keep its checksum: the writer is done with it for now."""
        self._sums[upload.id] = file.sum
        self._pieces.pop(upload.id, None)
        file.close()

    async def grown(self, upload: Upload, file: Incoming) -> Upload:
        """Flush the written bytes to disk, then store how far the upload has come. Raises `Refused`
        if the upload was given up."""
        end = file.end
        await self.in_thread(file.flush)
        return await self.pool.run(
            uploads.grown,
            upload_id=upload.id,
            offset=end,
            rules=self.site.current.images,
            now=self.clock(),
        )

    async def check_format(self, upload: Upload, file: Incoming) -> tuple[str, int]:
        """Return format and size of the image, by the file's first bytes. If the file is not
        acceptable, give the upload up, so that the rest is not sent in vain, and raise `Refused`.
        """
        if upload.plain:
            return "plain", upload.size
        try:
            return formats.look(
                await self.in_thread(file.head), upload.size, self.site.current.images.largest
            )
        except Refused:
            await self.drop(upload)
            raise

    async def complete(self, upload: Upload, file: Incoming, who: Who | None = None) -> Image:
        """Make a complete upload an image. Raises `Refused`; if the file is the wrong one, the
        upload is given up."""
        while not await self.in_thread(file.sum_up):
            pass
        form, size = await self.check_format(upload, file)
        run, now = secrets.token_hex(16), self.clock()
        flow = partial(
            uploads.complete,
            upload_id=upload.id,
            name=upload.name,
            source=str(file.path),
            sha256=file.sum.hexdigest(),
            format=form,
            size=size,
            now=now,
        )
        if who is not None:
            noting = partial(noted, who=who, change=_arrival(upload), now=now, run=run)
            flow = partial(noting, flow=flow)
        try:
            result: Result[Image] = await self.pool.run_once(
                partial(has_run, run=run, now=now), flow
            )
        except Refused as no:
            if no.code == "invalid":
                await self.drop(upload)
            raise
        self._wake(result.effects)
        image: Image = result.value
        log.info(
            "%s came in: %d bytes, %s, sha256 %s", upload.name, upload.size, form, image.sha256
        )
        return image

    # ------------------------------------------------------------ looking, giving up

    async def look(self, upload: Upload) -> Upload:
        """Return the upload with the number of bytes that this host has on its disk. If these are
        all, the upload is made an image; otherwise nothing is changed."""
        if upload.id in self._pieces:
            return upload
        offset = uploads.kept(upload, self._boot, self._length(upload))
        try:
            if offset < upload.size:
                if offset > upload.offset:  # a process that died has written these bytes
                    (await self.in_thread(Incoming, self._folder / upload.id)).close()  # flushed
                return replace(upload, offset=offset)
            file, row = await self._open(upload)
        except (Locked, UploadBusy):
            return upload
        try:
            if row.offset == row.size:
                await self.complete(row, file)
        finally:
            self.let_go(row, file)
        return row

    def _length(self, upload: Upload) -> int:
        """Return the number of bytes of the upload's file on this host."""
        try:
            return (self._folder / upload.id).stat().st_size
        except FileNotFoundError:
            return 0

    async def drop(self, upload: Upload) -> None:
        """Delete the upload's row and file."""
        await self.pool.run(uploads.drop, upload_id=upload.id)
        await self.forget(upload)

    async def cancel(self, upload: Upload) -> None:
        """Cancel an upload whose row is gone: break off its sender, and remove its file."""
        if (piece := self._pieces.get(upload.id)) is not None:
            await piece.break_off()
        await self.forget(upload)

    async def forget(self, upload: Upload) -> None:
        """Remove the file of an upload whose row is gone."""
        self._sums.pop(upload.id, None)
        await self.in_thread((self._folder / upload.id).unlink, missing_ok=True)

    async def sweep(self) -> None:
        """Give up uploads that have expired, finish those whose bytes are all there, and remove
        files without an upload."""
        try:
            for upload in await self.pool.run(uploads.sweep, now=self.clock()):
                log.info("the upload of %s is given up: nothing more came of it", upload.name)
                await self.cancel(upload)
            present = await self.in_thread(lambda: list(self._folder.glob("*")))
            needed = await self.pool.read(uploads.files)
            for path in present:
                if path.name not in needed and str(path) not in needed:
                    await self.in_thread(path.unlink, missing_ok=True)
            open_uploads = await self.pool.read(uploads.every)
            ids = {upload.id for upload in open_uploads}
            self._sums = {each: known for each, known in self._sums.items() if each in ids}
            for upload in open_uploads:
                # a file that is not here may be at another server
                if upload.offset == upload.size == self._length(upload):
                    try:
                        await self.look(upload)
                    except Refused as no:
                        log.info(
                            "the upload of %s cannot become an image: %s", upload.name, no.sentence
                        )
        except Exception as error:
            log.error("uploads: %s", error, exc_info=None if self.pool.is_away(error) else error)

    async def stop(self) -> None:
        """Break off all uploads that are under way."""
        for piece in list(self._pieces.values()):
            await piece.break_off()
        if self._threads.started:
            self._threads.stop()


def _arrival(upload: Upload) -> Change:
    """Return the description of an image's arrival for the audit."""
    return Change(
        "image upload",
        upload.name,
        RequiredRight(Right.SEE, "image", upload.name),
        None,
        {},
        lambda image: {"group": upload.group, "size": upload.size, "sha256": image.sha256},
    )
