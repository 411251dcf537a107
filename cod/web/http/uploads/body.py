"""Request bodies that go to disk as they arrive."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from twisted.internet.defer import ensureDeferred

from cod.model import Upload
from cod.web.http.request import Body, WebRequest
from cod.web.http.uploads import tus
from cod.web.http.uploads.piece import Connection, Piece


class FileBody(Body):
    """A body with a file, or a piece of one, that goes to disk as it arrives.

    piece   the piece that the bytes go into; None until the sender is known to be allowed to send
            it
    upload  the upload that the piece belongs to
    """

    swallows = 2**26

    def __init__(self, request: WebRequest) -> None:
        super().__init__(request)
        self.piece: Piece | None = None
        self.upload: Upload | None = None
        self._early: list[bytes] = []

    def open(self) -> None:
        """Pause reading from the connection until there is a piece, or a refusal. The piece is
        begun once the sender is known."""
        assert self.request.authentic is not None
        self.request.channel.pauseProducing()
        self.request.authentic.addCallback(lambda _none: ensureDeferred(self._open()))

    async def _open(self) -> None:
        request = self.request
        try:
            self.piece = await self.begun()
        except Exception as error:
            request.refuse(tus.wrong(error))
        early, self._early = self._early, []
        if self.piece is not None and request.gone:
            await self.piece.leave()
        elif self.piece is not None:
            self.piece.feed(b"".join(early))
        if not request.gone:
            request.channel.resumeProducing()

    @abstractmethod
    async def begun(self) -> Piece:
        """Begin the piece, and return it. Raises what prevents that."""

    def put(self, data: bytes) -> None:
        """Write the file's next bytes into the piece. Keep them in memory while there is no piece,
        and discard them after an error."""
        if self.piece is None:
            self._early.append(data)
        elif self.piece.error is None:
            self.piece.feed(data)
        else:
            self.request.swallow(data)

    def drop(self) -> int:
        """Forget the bytes that arrived before there was a piece; return their number."""
        early, self._early = self._early, []
        return sum(map(len, early))

    def leave(self) -> None:
        """Free the upload's file for other requests, whatever became of this one."""
        if self.piece is not None:
            ensureDeferred(self.piece.leave())


class Flow(Connection):
    """The connection of a request whose body is a piece of an upload."""

    def __init__(self, request: WebRequest) -> None:
        self._request = request

    @property
    def _channel(self) -> Any:
        """Return the request's HTTP channel; None if the connection is lost, or the request was
        answered and Twisted has taken the channel back."""
        return None if self._request.gone else getattr(self._request, "channel", None)

    def hold(self) -> None:
        if channel := self._channel:
            channel.pauseProducing()

    def flow(self) -> None:
        if channel := self._channel:
            channel.resumeProducing()

    def cut(self) -> None:
        if channel := self._channel:
            channel.transport.abortConnection()
