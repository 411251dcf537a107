"""A request's body that is kept in memory."""

from __future__ import annotations

from cod.web.http.errors import HttpProblem
from cod.web.http.request import Body, WebRequest

JSON_LIMIT = 2**20
STRANGERS = 2**16  # bytes of a body of who has not signed in


class MemoryBody(Body):
    """A body of at most `JSON_LIMIT` bytes, of strangers `STRANGERS`, kept in memory."""

    def __init__(self, request: WebRequest) -> None:
        super().__init__(request)
        self.content = bytearray()

    def begin(self) -> None:
        """Refuse what says that it is too long."""
        if self.request.length is not None and self.request.length > JSON_LIMIT:
            self.request.refuse(_too_large())

    def take(self, data: bytes) -> None:
        """Keep the next bytes."""
        self.content += data
        if len(self.content) > (STRANGERS if self.request.stranger else JSON_LIMIT):
            self.request.refuse(_too_large())

    def drop(self) -> int:
        """Forget them."""
        count = len(self.content)
        self.content.clear()
        return count

    def check_sender(self) -> None:
        """Refuse what came faster than was found out that a stranger sent it."""
        if self.request.stranger and len(self.content) > STRANGERS:
            self.request.refuse(_too_large())


def _too_large() -> HttpProblem:
    return HttpProblem(
        413, "too_large", f"the body may have at most {JSON_LIMIT} bytes, of strangers {STRANGERS}"
    )
