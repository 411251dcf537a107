"""A request to the REST API as it arrives: who asks, and where the body goes.

A body is JSON of at most `JSON_LIMIT` bytes, kept in memory, or, where it says that it is one, a file that goes to disk
as it arrives, and only once the token is known to be good. What is refused on the way is answered when the request is
all there, so that the client can hear why.
"""

from __future__ import annotations

import logging
import secrets
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.web import http

from cod import states
from cod.flows.replies import Changed
from cod.flows.signin import Session
from cod.model import Refused, Who
from cod.pool import Pool

if TYPE_CHECKING:
    from cod.net.api import Api

JSON_LIMIT = 2**20
SWALLOWED = 2**24  # bytes of a body that is refused, read on so that the client can hear why
STATUS = {"invalid": 422, "not_found": 404, "conflict": 409, "forbidden": 403,
          "unauthorised": 401, "slow_down": 429, "busy": 503}
READS_ONLY = "this token may only read"

log = logging.getLogger("cod.api")


class Wrong(Exception):
    """The request cannot be answered: HTTP status, stable code, a sentence, the part of the input that is meant; and
    what is wrong with each part, where several are."""

    def __init__(
        self, status: int, code: str, detail: str, field: str | None = None, faults: dict[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail, self.field = status, code, detail, field
        self.faults = faults or ({field: detail} if field else {})


class Arriving(http.Request):
    """A request on a connection of `api` until it is all there; then `_answer`, in `net.apirequest`, is called."""

    channel: Any
    content: Any

    def __init__(self, api: Api, channel: Any) -> None:
        super().__init__(channel)
        self.api = api
        self._started = api.real_reactor.seconds()
        self._upload: Path | None = None
        self._refusal: Wrong | None = None
        self._stranger: Wrong | None = None
        self._who: Who | None = None
        self.session: Session | None = None
        self._received = 0
        self._limit = JSON_LIMIT
        self._gone = False
        self._headers = {"Cache-Control": "no-store"}
        self._authentic: Deferred[None] | None = None
        self.notifyFinish().addErrback(self._lost)

    def _lost(self, _reason: Any) -> None:
        self._gone = True
        self._forget_upload()

    def gotLength(self, length: int | None) -> None:
        """The headers are there: decide where the body goes, and find out who asks before any file is written."""
        self.content = BytesIO()
        self._authentic = ensureDeferred(self._authenticate())
        if self.getHeader("content-type") == "application/octet-stream":
            self._limit = self.api.upload_limit
            self.channel.pauseProducing()
            self._authentic.addCallback(self._open_upload)
        if length is not None and length > self._limit:
            self._refuse(Wrong(413, "too_large", f"the body may have at most {self._limit} bytes"))

    async def _authenticate(self) -> None:
        try:
            self._who = await self.api.caller(self)
        except Wrong as wrong:
            if wrong.status == 401 and self.getHeader("authorization") is None:
                self._stranger = wrong  # who may see the pages for signing in, and send their forms
            else:
                self._refuse(wrong)
        except Exception as error:
            self._refuse(unexpected(error))

    def _open_upload(self, _none: None) -> None:
        if self._stranger:
            self._refuse(self._stranger)
        if self._who is not None and not self._who.writes:
            self._refuse(Wrong(403, "forbidden", READS_ONLY))
        if self._refusal is None and not self._gone:
            try:
                self._redirect_body(self.api.incoming / secrets.token_hex(16))
            except OSError as error:
                self._refuse(_no_space(error))
        if not self._gone:
            self.channel.resumeProducing()

    def _redirect_body(self, path: Path) -> None:
        """From now on the body goes into the file `path`, what has come already first."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        early, self.content = self.content, open(path, "xb")  # noqa: SIM115 (closed when the upload is let go of)
        self._upload = path
        self.api.uploading.add(path)
        self.content.write(early.getvalue())

    def handleContentChunk(self, data: bytes) -> None:
        """A piece of the body."""
        self._received += len(data)
        if self._received > self._limit:
            self._refuse(Wrong(413, "too_large", f"the body may have at most {self._limit} bytes"))
        if self._refusal is None:
            try:
                self.content.write(data)
            except OSError as error:
                self._refuse(_no_space(error))
        elif self._received > SWALLOWED:
            self.channel.loseConnection()

    def _refuse(self, wrong: Wrong) -> None:
        self._refusal = self._refusal or wrong
        self._forget_upload()
        self.content = BytesIO()

    def _forget_upload(self) -> None:
        if self._upload is not None:
            self.content.close()
            self._upload.unlink(missing_ok=True)
            self._let_go()

    def _let_go(self) -> None:
        if self._upload is not None:
            self.api.uploading.discard(self._upload)
            self._upload = None

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        """The whole request is there. Unlike Twisted's own, this one looks into no form: bodies are JSON or files."""
        self.method, self.uri, self.clientproto = command, path, version
        self.path = path.partition(b"?")[0]
        assert self._authentic is not None
        self._authentic.addCallback(lambda _none: ensureDeferred(self._answer()))
        self._authentic.addErrback(self._broken)

    async def _answer(self) -> None:
        raise NotImplementedError

    def _broken(self, failure: Any) -> None:
        log.error("the answer to %s could not be sent", shown(self.path), exc_info=failure.value)
        if not self._gone and not self.finished:
            self.channel.loseConnection()


def shown(path: bytes) -> str:
    """A path for the log: one line, not for ever. The query string stays out."""
    return ascii(path[:200].decode("latin-1"))[1:-1]


def _no_space(error: OSError) -> Wrong:
    return Wrong(507, "no_space", f"the upload cannot be kept: {error.strerror}")


def unexpected(error: Exception) -> Wrong:
    """What a flow raised, as the client sees it: a rule's sentence; a late event; the database away; a bug."""
    if isinstance(error, Refused):
        return Wrong(STATUS.get(error.code, 422), error.code, error.sentence, error.field or None)
    if isinstance(error, Changed):
        return Wrong(412, "changed", "it is not as it was when you saw it: look again")
    if isinstance(error, states.WrongEvent):
        return Wrong(409, "conflict", str(error))
    if Pool.is_away(error):
        return Wrong(503, "unavailable", "the database does not answer; try again")
    if Pool.is_race(error):
        log.warning("two requests at once: %s", error)
        return Wrong(409, "conflict", "somebody else changed the same thing at this moment; look again")
    log.error("a bug: %s", error, exc_info=error)
    return Wrong(500, "internal", "a bug in COD; the server's log has the details")
