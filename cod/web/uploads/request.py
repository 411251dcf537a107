"""Requests about uploads: pieces that go to disk as they come, and the headers of every answer (`web.uploads.tus`)."""

from __future__ import annotations

import secrets
from abc import abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import Any

from pydantic import BaseModel

from cod.flows.people.access import guarded
from cod.model import Image, Upload, Who
from cod.web import openapi
from cod.web.calls import carry_out, checked, permit
from cod.web.conditions import encoded
from cod.web.errors import HttpProblem
from cod.web.resources import ROUTES
from cod.web.resources.software import UploadReply
from cod.web.routes import Call, Flow, Route, find, named, unquoted
from cod.web.streaming import StreamingRequest
from cod.web.uploads import tus
from cod.web.uploads.piece import Connection, Piece
from cod.wire.tus import PIECE_TYPE


class UploadRequest(StreamingRequest):
    """What uploads add to a request."""

    _upload: Upload | None = None

    def _take_line(self, command: bytes, uri: bytes) -> None:
        super()._take_line(command, uri)
        if tus.is_here(self._api_path()):
            self.method = tus.verb(command, self.getHeader)
            self._headers |= tus.options(self.context.upload_limit) if command == b"OPTIONS" else tus.SPOKEN

    def _api_path(self) -> str:
        path = unquoted(self.path.decode("latin-1"))
        return path.removeprefix(openapi.PREFIX) if path.startswith(openapi.PREFIX + "/") else ""

    def _verb(self) -> str:
        return {b"HEAD": "GET"}.get(self.method, self.method.decode("latin-1"))

    @abstractmethod
    def _check_script(self) -> None:
        """Raise `HttpProblem` where a foreign page's script asks."""

    def _ask(
        self, route: Route, who: Who, names: Mapping[str, str], body: Any, query: Any, key: str | None = None
    ) -> Call:
        context = self.context
        return Call(context.site, context.clock(), who, context.images, named(route.path, names), body, query,
                    key or secrets.token_hex(16),
                    context.webhook_key, context.authority, context.consoles, fingerprint=context.fingerprint())

    # ------------------------------------------------ a piece

    async def _open_piece(self) -> None:
        """The headers of a piece are there: be ready for it, or refuse it."""
        try:
            if wrong := self._refusal or self._stranger:
                raise wrong
            assert self._who is not None
            self._piece = await self._begin_piece(self._who)
        except Exception as error:
            self._refuse(tus.wrong(error))
        piece = self._piece
        if piece and self._gone:
            await piece.leave()
        elif piece:
            piece.feed(self.content.getvalue())
        if not self._gone:
            self.channel.resumeProducing()

    async def _begin_piece(self, who: Who) -> Piece:
        route, names, _ = find(ROUTES, self._verb(), self._api_path())
        if route is None or not route.upload or route.method not in ("POST", "PATCH"):
            raise HttpProblem(415, "unsupported_media_type", "a piece of an upload is sent by PATCH to "
                              "/api/v1/uploads/ID")
        if self.session:
            self._check_script()
        permit(route, who)
        tus.check_version(self.getHeader)
        checksum, given = tus.checksum(self.getHeader), 0 if route.method == "POST" else tus.offset(self.getHeader)
        self._upload = await self._upload_of(route, names, who)
        piece = await self.context.intake.begin(self._upload, checksum, _Flow(self))
        try:
            tus.check_offset(piece.upload, given, self._length)
        except HttpProblem:
            await piece.leave()
            raise
        return piece

    async def _upload_of(self, route: Route, names: Mapping[str, str], who: Who) -> Upload:
        """The upload that the piece is for: made now, or there. (A piece is no change of its own for the audit.)"""
        if route.method == "POST":
            body = self._creation(route)
            self._check_upload(route, body)
            made = await carry_out(self.context, route, self._ask(route, who, names, body, None))
            assert isinstance(made, Upload)
            return made
        ask = self._ask(route, who, names, None, None)
        flow: Flow[Any] = partial(guarded, flow=route.call(ask), who=who, claims=route.claims(ask))
        found: Upload = await self.context.pool.read(flow)
        return found

    async def _end_piece(self, piece: Piece, who: Who) -> None:
        upload, image = await piece.finish(who)
        if self.method != b"POST":
            return self._told(204, upload, image)
        return self._told(201, upload, image, tus.location(upload.id))

    def _told(self, status: int, upload: Upload, image: Image | None, location: str = "") -> None:
        self._headers |= tus.told(upload, image) | ({"Location": location} if location else {})
        self._send(status, b"" if status == 204 else encoded(UploadReply.model_validate(upload)))

    @abstractmethod
    def _send(self, status: int, body: bytes, kind: str = "application/json", why: str = "") -> None:
        """The answer."""

    # ------------------------------------------------ the other questions

    def _check_upload(self, route: Route, body: Any) -> None:
        """Raise `HttpProblem` for what is refused whoever asks."""
        tus.check_version(self.getHeader)
        if route.method == "PATCH" and not self._is_piece():
            raise HttpProblem(415, "unsupported_media_type", f"a piece should be {PIECE_TYPE}")
        if route.method == "POST":
            tus.check_size(body.size, self.context.upload_limit, self.context.intake.check_room)

    def _told_by_headers(self, route: Route) -> bool:
        return route.upload and route.method == "POST" and tus.creation(self.getHeader) is not None

    def _creation(self, route: Route) -> BaseModel:
        """The body of a creation that headers tell. Raises `HttpProblem`."""
        assert route.body is not None
        body: BaseModel = checked(route.body, tus.creation(self.getHeader) or {})
        return body

    async def _about_upload(self, route: Route, upload: Upload) -> Upload:
        """What is to be done and told beside the flow, once it is committed."""
        if route.method == "DELETE":
            await self.context.intake.cancel(upload)
            return upload
        if route.method == "GET":
            upload = await self.context.intake.look(upload)
        else:
            self._headers["Location"] = tus.location(upload.id)
        self._headers |= tus.told(upload)
        return upload


class _Flow(Connection):
    """A request's connection, for the piece that comes over it."""

    def __init__(self, request: UploadRequest) -> None:
        self._request = request

    @property
    def _channel(self) -> Any:
        """None where the connection is gone; Twisted takes it from a request that was answered, too."""
        return None if self._request._gone else getattr(self._request, "channel", None)

    def hold(self) -> None:
        if channel := self._channel:
            channel.pauseProducing()

    def flow(self) -> None:
        if channel := self._channel:
            channel.resumeProducing()

    def cut(self) -> None:
        if channel := self._channel:
            channel.transport.abortConnection()
