"""A confd server that is woken by what its own flows have done."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cod.model import Effect
from cod.net.confd.connection import AgentConnection
from cod.net.confd.server import ConfdServer


def confd_server(*args: Any, **options: Any) -> ConfdServer:
    """Return a server that looks for orders when a flow of its own says so. The arguments are those
    of `ConfdServer` behind `connect`."""

    def effects(effects: Iterable[Effect]) -> None:
        if any(effect.what == "orders" for effect in effects):
            server.poll()

    server = ConfdServer(AgentConnection, *args, effects=effects, **options)
    return server
