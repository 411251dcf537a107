"""The image server's receiver of captured disks: a node's agent sends a disk here piece by piece.

========================  ========================================================================
``GET /captures/ID``      return the byte up to which the disk is stored: ``{"at": BYTES}``
``PUT /captures/ID/AT``   store the next piece (`cod.wire.capture`), if the stored part ends at AT;
                          otherwise 409
``POST /captures/ID``     end the capture: ``{"size": …, "at": …, "partitions": […]}``; the image
                          is made and becomes visible
``GET …/ID/before``       return the byte up to which an earlier order of the node has sent the
                          disk, and the digest of its chunks' heads: ``{"at": BYTES, "heads":
                          DIGEST}``
``POST …/ID/before``      continue where the earlier order ended: ``{"heads": DIGEST}``; 409 if
                          the digest is another
========================  ========================================================================

ID is the agent's order. The order's secret is the bearer token of each request, and is checked
before a body is read. Files are written in threads, for each node one task after the other. The
data of an order stay until the node's capture is over, until the disk has no room for the rest, or
until a later order begins anew: it does so if its agent sends any request but ``before`` without
having continued.
"""

from __future__ import annotations

import errno
import json
import logging
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import h11
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from twisted.application.service import Service
from twisted.internet.defer import Deferred, DeferredLock, ensureDeferred
from twisted.internet.threads import deferToThreadPool

from cod.flows.nodes import captures
from cod.images import deposit
from cod.images.deposit import CaptureBusy, Deposit, NoRoom
from cod.model import (
    Capture,
    CapturedPartition,
    CaptureLimits,
    Effect,
    Ingested,
    Refused,
    SiteRef,
    field_error,
)
from cod.net.bootserver.connection import BodyLost, Connection
from cod.periodic import Timer
from cod.pool import NODES, Pool
from cod.states import CaptureState
from cod.wire import capture
from cod.wire.manifest import LIMIT

SWEEP = 60.0  # seconds between two sweeps
STATUS = {"not_found": 404, "forbidden": 403, "conflict": 409, "invalid": 400, "quota": 413}
BEFORE = "before"
T = TypeVar("T")
Word = TypeVar("Word", bound=BaseModel)
METHODS = {b"GET": 1, b"PUT": 2, b"POST": 1}  # methods, and the number of parts of their paths

log = logging.getLogger("cod.captures")


class CapturePart(BaseModel):
    """A partition, as the agent reports it."""

    model_config = ConfigDict(extra="forbid", strict=True)
    number: int = Field(ge=0, le=4096)
    start: int = Field(ge=0, le=10**18)
    size: int = Field(ge=0, le=10**18)
    type: str = Field(max_length=40, pattern=r"^[!-~]*$")
    name: str = Field(max_length=72)
    content: str = Field(max_length=16, pattern=r"^[!-~]*$")


class LastWord(BaseModel):
    """The message that ends a capture. `at`: the byte at which the agent believes the stored part
    of the disk to end. `what`: as in `orders.Deposit`; agents of a release that cannot capture
    parts of a disk leave it out."""

    model_config = ConfigDict(extra="forbid", strict=True)
    size: int = Field(ge=1, le=LIMIT << 20)
    at: int = Field(ge=0)
    partitions: list[CapturePart] = Field(max_length=256)
    what: str = Field(default="", max_length=8)


class EarlierWord(BaseModel):
    """The message by which an agent continues from what an earlier order has sent."""

    model_config = ConfigDict(extra="forbid", strict=True)
    heads: str = Field(pattern=r"^[0-9a-f]{64}$")


class Elsewhere(Exception):
    """An error: the part of the disk that is stored ends at another byte, `at`, than the agent
    believes."""

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.at = at


class Captures(Service):
    """The captures that one server receives and publishes as images below `root`.

    effects  carries out the wake-ups that flows return
    """

    def __init__(
        self,
        reactor: Any,
        pool: Pool,
        site: SiteRef,
        root: Path,
        clock: Callable[[], float],
        effects: Callable[[Iterable[Effect]], object] = lambda effects: None,
    ) -> None:
        self._reactor, self._pool, self._site, self._root, self._clock = (
            reactor,
            pool,
            site,
            root,
            clock,
        )
        self._effects = effects
        self._locks: dict[str, DeferredLock] = {}
        self._open: dict[str, Deposit] = {}
        self._timer = Timer(reactor, SWEEP, self.sweep, at_once=True)

    def startService(self) -> None:
        super().startService()  # type: ignore[no-untyped-call]
        self._timer.startService()

    def stopService(self) -> Any:
        """Stop. Agents continue with the next server that uses this folder."""
        super().stopService()  # type: ignore[no-untyped-call]
        self._timer.stopService()
        for one in self._open.values():
            one.close()
        self._open.clear()

    # ------------------------------------------------------------ requests

    def respond(
        self, connection: Connection, request: h11.Request, rest: list[str]
    ) -> Deferred[tuple[int, bytes]]:
        """Return the answer to a request for ``/captures/`` and `rest`: status and body. Never
        fails."""
        return ensureDeferred(self._answer(connection, request, rest)).addErrback(
            self._error_reply, connection.peer
        )

    async def _answer(
        self, connection: Connection, request: h11.Request, rest: list[str]
    ) -> tuple[int, bytes]:
        earlier = rest[1:] == [BEFORE] and request.method != b"PUT"
        if METHODS.get(request.method) != len(rest) - earlier:
            raise Refused("not_found", "no such capture")
        sent = dict(request.headers).get(b"authorization", b"").decode("latin-1")
        kind, _, secret = sent.partition(" ")
        bearer = secret.strip() if kind.lower() == "bearer" and secret.isascii() else ""
        credentials = {"order": rest[0], "address": connection.peer, "secret": bearer}
        if request.method == b"PUT":
            limits = await self._limits(credentials)
            body = await connection.body(capture.LARGEST)
            return _json(
                at=(await self._alone(rest[0], partial(self._add, rest[0], rest[1], body, limits)))
            )
        row: Capture = await self._pool.read(captures.receiving, **credentials)
        if earlier and request.method == b"GET":
            return _json(**await self._alone(rest[0], partial(self._before, rest[0])))
        if earlier:
            heads = _word(EarlierWord, await connection.body(capture.LAST_WORD)).heads
            return _json(at=await self._alone(rest[0], partial(self._take_over, rest[0], heads)))
        if request.method == b"GET":
            return _json(at=(await self._alone(rest[0], lambda: self._deposit(rest[0]).at)))
        body = await connection.body(capture.LAST_WORD)
        connection.patience(3600.0)  # a large image takes its time until it is on the disk
        word = _word(LastWord, body)
        if word.what != row.what:
            raise Refused(
                "invalid",
                "the trampoline captures whole disks only: build it anew (`cod trampoline build`)",
                "what",
            )
        if row.state != CaptureState.DONE:
            await self._finish(credentials, row, word)
        return _json(image=row.image)

    def _limits(self, credentials: dict[str, str]) -> Deferred[CaptureLimits]:
        return self._pool.read(captures.limits, **credentials, rules=self._site.current.images)

    async def _finish(self, credentials: dict[str, str], row: Capture, word: LastWord) -> None:
        order = credentials["order"]
        parts = [CapturedPartition(**part.model_dump()) for part in word.partitions]
        limits = await self._limits(credentials)
        made: Ingested = await self._alone(order, partial(self._seal, order, row, word, limits))
        await self._pool.run_at(NODES, captures.note_digest, **credentials, digest=made.digest)
        await self._alone(order, partial(self._publish, order, made.digest))
        result = await self._pool.run_at(
            NODES,
            captures.keep,
            **credentials,
            ingested=made,
            partitions=parts,
            rules=self._site.current.images,
            now=self._clock(),
        )
        self._effects(result.effects)
        log.info(
            "%s is the image %s: %d bytes, %d in use, %d stored",
            order,
            row.image,
            made.size,
            made.used,
            made.stored,
        )

    def _error_reply(self, failure: Any, peer: str) -> tuple[int, bytes]:
        error = failure.value
        if isinstance(error, Elsewhere):
            return 409, _json(at=error.at)[1]
        if isinstance(error, BodyLost):
            return 400, b"the body did not come\n"
        if isinstance(error, CaptureBusy):
            return 503, b"another server is at this capture\n"
        if isinstance(error, Refused):
            log.info("capture from %s refused: %s", peer, error.sentence)
            return STATUS[error.code], f"{error.sentence}\n".encode()
        if _no_room(error) or self._pool.is_full(error):
            log.error("capture from %s: %s", peer, error)
            sentence = (
                str(error) if isinstance(error, NoRoom) else "the image server's disk is full"
            )
            return 507, f"{sentence}\n".encode()
        log.error(
            "capture from %s: %s",
            peer,
            error,
            exc_info=None if self._pool.is_away(error) else error,
        )
        return 503, b"server error\n"

    # ------------------------------------------------------------ in threads, one after the other

    def _alone(self, order: str, work: Callable[[], Any]) -> Deferred[Any]:
        lock = self._locks.setdefault(deposit.node_of(order), DeferredLock())
        return lock.run(deferToThreadPool, self._reactor, self._reactor.getThreadPool(), work)

    def _opened(self, order: str) -> Deposit:
        if not self.running:
            raise CaptureBusy(order)
        if order not in self._open:
            self._open[order] = Deposit(self._root, order)
        return self._open[order]

    def _deposit(self, order: str) -> Deposit:
        """Return the received part of the order's capture. What earlier orders of the node have
        sent is deleted."""
        if order not in self._open:
            for each in deposit.earlier(self._root, order):
                self._forget(each)
        return self._opened(order)

    def _before(self, order: str) -> dict[str, Any]:
        for each in deposit.earlier(self._root, order)[:1]:
            found = self._opened(each)
            return {"at": found.at, "heads": found.heads}
        return {"at": 0, "heads": ""}

    def _take_over(self, order: str, heads: str) -> int:
        if order not in deposit.orders(self._root):
            for each in deposit.earlier(self._root, order)[:1]:
                found = self._opened(each)
                if found.heads == heads:
                    found.hand_over(order)
                    self._open[order] = self._open.pop(each)
                    log.info("%s goes on with what %s has sent: %d bytes", order, each, found.at)
        taken = self._deposit(order)  # taken over already, if the answer was lost
        if taken.heads != heads:
            raise Elsewhere(taken.at)
        return taken.at

    def _add(self, order: str, at: str, body: bytes, limits: CaptureLimits) -> int:
        incoming = self._deposit(order)
        if at != str(incoming.at):
            raise Elsewhere(incoming.at)
        return self._in_room(order, partial(incoming.add, body, limits))

    def _seal(self, order: str, row: Capture, word: LastWord, limits: CaptureLimits) -> Ingested:
        # an earlier attempt has published it, and failed afterwards
        if row.digest and (self._root / row.digest).is_dir():
            return deposit.published(self._root, row.digest)
        incoming = self._deposit(order)
        if word.at != incoming.at:
            raise Elsewhere(incoming.at)
        return self._in_room(order, partial(incoming.seal, word.size, limits))

    def _in_room(self, order: str, work: Callable[[], T]) -> T:
        """Return the result of `work`, which writes. What the order has sent is removed if the disk
        has no room for the rest, so that it takes none from others."""
        try:
            return work()
        except (NoRoom, OSError) as error:
            if _no_room(error):
                self._forget(order)
            raise

    def _publish(self, order: str, digest: str) -> None:
        incoming = self._open.pop(order, None)
        if incoming is not None:
            incoming.publish(digest)

    # ------------------------------------------------------------ sweeping

    def sweep(self) -> Deferred[None]:
        """Forget captures that are over, and discard their deposits."""
        return ensureDeferred(self._sweep())

    async def _sweep(self) -> None:
        try:
            wanted = {str(each) for each in await self._pool.read(captures.under_way)}
            for order in {*self._open, *deposit.orders(self._root)}:
                if deposit.node_of(order) not in wanted:
                    await self._alone(order, partial(self._forget, order))
            for node in set(self._locks) - wanted:
                if not self._locks[node].locked:
                    del self._locks[node]
        except Exception as error:
            log.error("captures: %s", error, exc_info=not self._pool.is_away(error))

    def _forget(self, order: str) -> None:
        if incoming := self._open.pop(order, None):
            incoming.close()
        if deposit.discard(self._root, order):
            log.info("what came of the capture %s was removed", order)


def _word(kind: type[Word], body: bytes) -> Word:
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise Refused(
            "invalid", f"the message cannot be used: {field} {field_error(first)}", "body"
        ) from None


def _no_room(error: BaseException) -> bool:
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return full or isinstance(error, NoRoom)


def _json(**values: Any) -> tuple[int, bytes]:
    return 200, json.dumps(values).encode()
