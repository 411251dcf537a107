"""The portal's requests and answers, without sockets; and the headers of all pages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from cod.web.http.sessions import PortalSession

HTML = "text/html; charset=utf-8"
POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
SECURITY = {
    "Strict-Transport-Security": "max-age=31536000",
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request for a page. `path` begins with '/', and its segments are unquoted. `query` is
    unchanged."""

    method: str
    path: str
    query: str
    header: Callable[[str], str | None]
    body: bytes
    visit: PortalSession
    address: str = ""


@dataclass(slots=True)
class Answer:
    """A response to the browser. `cookies` are Set-Cookie headers. A response that is `secret`
    shows a secret, and is not compressed."""

    status: int
    body: bytes = b""
    kind: str = HTML
    headers: dict[str, str] = field(default_factory=dict)
    cookies: list[str] = field(default_factory=list)
    secret: bool = False


def redirect(path: str, *cookies: str) -> Answer:
    """Return the redirect to another page, to be fetched by GET."""
    return Answer(303, headers={"Location": path}, cookies=list(cookies))
