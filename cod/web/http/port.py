"""HTTP's view of one listening port of the web server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cod.model import SiteRef
from cod.pool import Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class WebPort:
    """A listening port.

    local    it is the UNIX socket, for the local administrator
    names    host names of the server in lower case, beside its addresses
    proxied  it has no TLS: the headers of a proxy on this host give the clients' addresses
    """

    reactor: Any
    pool: Pool
    site: SiteRef
    clock: Callable[[], float]
    local: bool
    names: frozenset[str]
    proxied: bool
