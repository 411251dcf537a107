"""Bodies that go to disk as they come."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from twisted.internet.defer import ensureDeferred

from cod.model import Upload
from cod.web.http.request import Body, WebRequest
from cod.web.http.uploads import tus
from cod.web.http.uploads.piece import Connection, Piece


class FileBody(Body):
    """A body with a file, or a piece of one, that goes to disk as it comes.

    piece   where it goes, once it is known that who asks may send it
    upload  which it belongs to
    """

    swallows = 2**26

    def __init__(self, request: WebRequest) -> None:
        super().__init__(request)
        self.piece: Piece | None = None
        self.upload: Upload | None = None
        self._early: list[bytes] = []

    def open(self) -> None:
        """Take nothing more from the connection until there is a piece, or a refusal; not before it
        is known who asks.
        """
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
        """Begin the piece. Raises what is in the way."""

    def put(self, data: bytes) -> None:
        """Put the file's next bytes into the upload."""
        if self.piece is None:
            self._early.append(data)
        elif self.piece.error is None:
            self.piece.feed(data)
        else:
            self.request.swallow(data)

    def drop(self) -> int:
        """Forget the bytes that came before there was an upload for them; return their number."""
        early, self._early = self._early, []
        return sum(map(len, early))

    def leave(self) -> None:
        """Free the upload's file for others, whatever became of the request."""
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
