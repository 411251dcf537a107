"""A request to the portal whose body is in memory, for a page or with a form; and the sending of
answers."""

from __future__ import annotations

import gzip

from cod.web.http import sessions
from cod.web.http.request import MemoryBody, WebRequest, gzips, unquoted
from cod.web.portal.answers import HTML, SECURITY, Answer, PageRequest
from cod.web.portal.front import Portal

WORTH_PACKING = 1000  # bytes


class PageBody(MemoryBody):
    """The body of a request for a page."""

    def __init__(self, request: WebRequest, portal: Portal) -> None:
        super().__init__(request)
        self._portal = portal

    async def answer(self) -> None:
        """Answer with a page."""
        request = self.request
        self.check_sender()
        asked = page_request(request, bytes(self.content))
        send_page(request, await self._portal.answer(asked, request.refusal))


def page_request(request: WebRequest, body: bytes) -> PageRequest:
    """Return the request in the portal's form."""
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
    """Send the portal's answer."""
    answer = packed(answer, request.getHeader("accept-encoding"))
    request.headers |= SECURITY | answer.headers
    for line in answer.cookies:
        request.responseHeaders.addRawHeader("Set-Cookie", line)
    request.send(answer.status, answer.body, answer.kind)


def packed(answer: Answer, accepts: str | None) -> Answer:
    """Return the answer, compressed by gzip if the browser accepts that and the answer is long
    enough."""
    fits = answer.kind == HTML and len(answer.body) >= WORTH_PACKING and not answer.secret
    fits = fits and "Content-Encoding" not in answer.headers
    if fits and gzips(accepts or ""):
        answer.body = gzip.compress(answer.body, 5, mtime=0)
        answer.headers["Content-Encoding"] = "gzip"
    if fits:
        answer.headers["Vary"] = "Accept-Encoding"
    return answer
