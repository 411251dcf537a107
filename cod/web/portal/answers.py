"""What the portal is asked and what it answers, free of sockets; and the headers that all pages
have."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import ip_address

from cod.web.http.errors import HttpProblem
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
WORTH_PACKING = 1000  # bytes


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request for a page. `path` begins with '/', its segments are unquoted; `query` is as it was
    sent."""

    method: str
    path: str
    query: str
    header: Callable[[str], str | None]
    body: bytes
    visit: PortalSession
    address: str = ""


@dataclass(slots=True)
class Answer:
    """What is sent back. `cookies` are Set-Cookie headers. `secret`: it shows one, and is not
    compressed."""

    status: int
    body: bytes = b""
    kind: str = HTML
    headers: dict[str, str] = field(default_factory=dict)
    cookies: list[str] = field(default_factory=list)
    secret: bool = False


def packed(answer: Answer, accepts: str | None) -> Answer:
    """Return the answer, by gzip where the browser takes that and it is worth it."""
    fits = answer.kind == HTML and len(answer.body) >= WORTH_PACKING and not answer.secret
    if fits and "gzip" in (accepts or ""):
        answer.body = gzip.compress(answer.body, 5, mtime=0)
        answer.headers["Content-Encoding"] = "gzip"
    if fits:
        answer.headers["Vary"] = "Accept-Encoding"
    return answer


def redirect(path: str, *cookies: str) -> Answer:
    """Return the redirect to another page, to be fetched by GET."""
    return Answer(303, headers={"Location": path}, cookies=list(cookies))


def same_origin(header: Callable[[str], str | None]) -> bool:
    """Return whether a browser says that the request comes from a page of this site (or nothing at
    all about that)."""
    origin = header("origin")
    if origin is not None:
        return bool(origin.rpartition("://")[2] == header("host"))
    return header("sec-fetch-site") in (None, "same-origin", "none")


def check_host(host: str | None, names: frozenset[str]) -> None:
    """Raise `HttpProblem` (421) unless the Host header names this server: one of its names,
    localhost or an address.

    A page of somebody else's whose name is made to lead here by DNS could else read ours as if they
    were its own.
    """
    name = (host or "").lower()
    name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
    if name == "localhost" or name in names:
        return
    try:
        ip_address(name)
    except ValueError:
        raise HttpProblem(
            421,
            "misdirected",
            "this server has no such name; its administrator can give it one ([api] names)",
        ) from None
