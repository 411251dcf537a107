"""A request to the portal whose body is in memory: a page, or a form."""

from __future__ import annotations

from cod.web.http import sessions
from cod.web.http.request import MemoryBody, WebRequest, unquoted
from cod.web.portal.answers import SECURITY, Answer, PageRequest
from cod.web.portal.front import Portal


class PageBody(MemoryBody):
    """The body of a request for a page."""

    def __init__(self, request: WebRequest, portal: Portal) -> None:
        super().__init__(request)
        self._portal = portal

    async def answer(self) -> None:
        """Answer by a page."""
        request = self.request
        self.check_sender()
        asked = page_request(request, bytes(self.content))
        send_page(request, await self._portal.answer(asked, request.refusal))


def page_request(request: WebRequest, body: bytes) -> PageRequest:
    """Return the request as the portal takes it."""
    path, _, query = request.uri.decode("latin-1").partition("?")
    return PageRequest(
        request.verb,
        unquoted(path),
        query,
        request.getHeader,
        body,
        sessions.visit(request.session, request.getHeader("cookie")),
        request.address,
    )


def send_page(request: WebRequest, answer: Answer) -> None:
    """Send what the portal answers."""
    request.headers |= SECURITY | answer.headers
    for line in answer.cookies:
        request.responseHeaders.addRawHeader("Set-Cookie", line)
    request.send(answer.status, answer.body, answer.kind)
