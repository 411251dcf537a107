"""How many connections the web server has at once."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cod.model import Site
from cod.pool import Pool
from cod.security import webcert
from cod.web import server as web_server
from cod.web.http.tls import WebTls
from cod.web.server import ConnectionCount
from tests.net.apiserver import serving
from tests.waiting import until


def test_one_address_does_not_take_all_places() -> None:
    crowd = ConnectionCount(2)
    assert [crowd.enter("192.0.2.1") for _ in range(3)] == [True, True, False]
    assert crowd.enter("192.0.2.2")
    crowd.leave("192.0.2.1")
    assert crowd.enter("192.0.2.1")


def test_a_proxy_s_places_are_everybody_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_server, "MOST", 3)
    crowd = ConnectionCount(None)
    assert [crowd.enter("127.0.0.1") for _ in range(4)] == [True, True, True, False]


def is_answered(port: int) -> bool:
    """Return whether a request is answered that comes on a connection of its own."""
    line = http.client.HTTPSConnection(
        "127.0.0.1", port, timeout=60, context=ssl._create_unverified_context()
    )
    try:
        line.request("GET", "/sign-in")
        return line.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        line.close()


def test_one_too_many_is_cut_off_and_there_is_room_again_when_one_leaves(
    pool: Pool,
    reactor: Any,
    in_reactor: Callable[..., Any],
    site: Site,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(web_server, "MOST", 2)
    tls = WebTls(partial(webcert.self_signed, tmp_path / "web", ["127.0.0.1"]))
    with serving(pool, reactor, in_reactor, site, tls=tls) as served:
        port, crowd = served.server.ports[0], served.server._apis[1].connections
        first, second = (socket.create_connection(("127.0.0.1", port), 60) for _ in range(2))
        until(lambda: crowd._by_peer.total() == 2, "both are counted")
        assert not is_answered(port)
        first.close()
        until(lambda: crowd._by_peer.total() == 1, "the first has left")
        assert is_answered(port)
        second.close()
        until(lambda: not crowd._by_peer, "all have left")
