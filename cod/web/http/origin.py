"""Whether a request was meant for this server, and comes from a page of it."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address

from cod.web.http.errors import HttpProblem


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
