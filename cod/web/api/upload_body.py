"""Bodies of requests about uploads: pieces of a file, which go to disk as they arrive, and the
other requests of the tus protocol."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pydantic import BaseModel

from cod.flows.people.access import guarded
from cod.model import Upload, Who
from cod.pool import Tx
from cod.web.api.calls import carry_out, checked, encoded, permit, question
from cod.web.api.context import Context
from cod.web.api.json_body import JsonBody
from cod.web.api.resources import ROUTE_MAP
from cod.web.api.resources.software import UploadReply
from cod.web.api.routes import Names, Route, named
from cod.web.http.errors import HttpProblem
from cod.web.http.request import WebRequest
from cod.web.http.uploads import tus
from cod.web.http.uploads.body import FileBody, Flow
from cod.web.http.uploads.piece import Piece
from cod.wire.tus import PIECE_TYPE

# bytes of a piece that are read from the network at once; Twisted's 64 KiB cost a third more CPU
AT_A_TIME = 2**18


def speak(request: WebRequest, limit: int) -> None:
    """Use the method that the client means (`X-HTTP-Method-Override`), and announce the tus
    protocol in the answer's headers."""
    if tus.is_here(request.api_path):
        options = request.method == b"OPTIONS"
        request.method = tus.verb(request.method, request.getHeader)
        request.headers |= tus.options(limit) if options else tus.SPOKEN


class UploadBody(JsonBody):
    """The body of a request about uploads that is no piece of a file: JSON, or headers in its
    place."""

    def __init__(self, request: WebRequest, context: Context) -> None:
        speak(request, context.upload_limit)
        super().__init__(request, context)

    def digested(self) -> bytes:
        """Return the headers that can replace the body."""
        return b"\n".join(
            (self.request.getHeader(name) or "").encode(errors="replace") for name in tus.CREATION
        )

    def model(self, route: Route) -> BaseModel | None:
        """Return the body, or the fields that headers carry in its place. Raises `HttpProblem` for
        faults that do not depend on the caller."""
        header = self.request.getHeader
        if route.body is None:
            body = None if route.upload else super().model(route)
        elif route.method == "POST" and (creation := tus.creation(header)) is not None:
            body = checked(route.body, creation)
        else:
            body = super().model(route)
        if route.upload:
            tus.check_version(header)
            if route.method == "PATCH":
                raise HttpProblem(415, "unsupported_media_type", f"a piece should be {PIECE_TYPE}")
            check_size(self.context, body)
        return body

    async def after_commit(self, route: Route, value: Any) -> Any:
        """Return the upload to show, once its row is committed: cancel or look at its file, and set
        its headers."""
        if not isinstance(value, Upload):
            return value
        if route.method == "DELETE":
            await self.context.intake.cancel(value)
            return value
        if route.method == "GET":
            value = await self.context.intake.look(value)
        else:
            self.request.headers["Location"] = tus.location(value.id)
        self.request.headers |= tus.upload_headers(value)
        return value

    def wrong(self, error: Exception) -> HttpProblem:
        """Return the problem document that the client is sent for an exception."""
        return tus.wrong(error)


def check_size(context: Context, body: Any) -> None:
    """Raise `HttpProblem` if there is no room for the upload to be created. `body` is the
    creation's; None for other requests."""
    if body is not None:
        tus.check_size(body.size, context.upload_limit, context.intake.check_room)


class PieceBody(FileBody):
    """A piece of an upload."""

    def __init__(self, request: WebRequest, context: Context) -> None:
        super().__init__(request)
        speak(request, context.upload_limit)
        self._context = context
        self._route, self._names, _ = ROUTE_MAP.find(request.verb, request.api_path)

    def begin(self) -> None:
        """Open the upload as soon as the sender is known."""
        self.request.channel.transport.bufferSize = AT_A_TIME
        self.open()

    def take(self, data: bytes) -> None:
        """Write the next bytes into the upload."""
        self.put(data)

    async def begun(self) -> Piece:
        """Begin the piece, if its sender may send it."""
        request, route = self.request, self._route
        if request.stranger is not None:
            raise request.stranger
        who = request.permitted()
        if route is None or not route.upload or route.method not in ("POST", "PATCH"):
            raise HttpProblem(
                415,
                "unsupported_media_type",
                "a piece of an upload is sent by PATCH to /api/v1/uploads/ID",
            )
        permit(route, who)
        header = request.getHeader
        tus.check_version(header)
        checksum, given = tus.checksum(header), 0 if route.method == "POST" else tus.offset(header)
        self.upload = await (
            self._made(route, who) if route.method == "POST" else self._found(route, who)
        )
        check = partial(tus.check_offset, given=given, length=request.length)
        return await self._context.intake.begin(self.upload, checksum, Flow(request), check)

    async def _made(self, route: Route, who: Who) -> Upload:
        """Create the upload that begins with this piece."""
        assert route.body is not None
        body = checked(route.body, tus.creation(self.request.getHeader) or {})
        check_size(self._context, body)
        made = await carry_out(self._context, route, question(self._context, who, Names(), body))
        assert isinstance(made, Upload)
        return made

    async def _found(self, route: Route, who: Who) -> Upload:
        """Return the upload that this piece continues. This is not a change of its own for the
        audit."""
        context = self._context
        ask = question(context, who, named(route.path, self._names))
        flow: Callable[[Tx], Any] = partial(
            guarded, flow=route.call(ask), who=who, claims=route.claims(ask)
        )
        found: Upload = await context.pool.read(flow)
        return found

    @property
    def quiet(self) -> bool:  # type: ignore[override]
        """Return whether a piece was taken: then the success is not logged."""
        return self.piece is not None

    async def answer(self) -> None:
        """Finish the piece, and answer. The piece is on disk then, and the last piece has made the
        image."""
        request = self.request
        try:
            who = request.permitted()
            assert self.piece is not None
            upload, image = await self.piece.finish(who)
            request.headers |= tus.upload_headers(upload, image)
            if request.method != b"POST":
                return request.send(204, b"")
            request.headers["Location"] = tus.location(upload.id)
            return request.send(201, encoded(UploadReply.of(upload)))
        except Exception as error:
            return request.problem(tus.wrong(error, self.upload))
