"""How a VCM reaches a server: its certificate and key, if they can be used; how long the certificate
holds; and that it goes from one server to the next."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.error import ConnectError
from twisted.internet.protocol import Factory, Protocol

from cod.security.ca import Ca
from cod.vcm.connect import days_left, over_tls, plainly

NOW = datetime.now(UTC)
SERVERS = [("192.0.2.1", 8071)]


@pytest.fixture
def ca(tmp_path: Path) -> Ca:
    return Ca(tmp_path / "ca", "test")


def reached(*pems: bytes) -> Any:
    return over_tls(None, SERVERS, *pems)


def test_a_certificate_with_its_key(ca: Ca) -> None:
    one = ca.server(["192.0.2.1"], NOW)
    assert callable(reached(one.certificate, one.key, ca.certificate))
    assert callable(reached(b"", b"", ca.certificate)), "an invitation wants none"


def test_what_does_not_belong_together_is_said_before_anything_is_connected(ca: Ca) -> None:
    one, other = (ca.server(["192.0.2.1"], NOW) for _ in range(2))
    for pems, why in (
        ((one.certificate, other.key, ca.certificate), "the key is of another certificate"),
        ((one.certificate, b"", ca.certificate), "cannot be used"),
        ((one.key, one.key, ca.certificate), "cannot be used"),
        ((one.certificate, one.key, b"nothing"), "cannot be used"),
    ):
        with pytest.raises(ValueError, match=why):
            reached(*pems)


def test_how_long_it_holds(ca: Ca) -> None:
    one = ca.server(["192.0.2.1"], NOW)
    left = days_left(one.certificate, NOW.timestamp())
    assert left > 1
    assert days_left(one.certificate, NOW.timestamp() + 86400) == pytest.approx(left - 1)
    with pytest.raises(ValueError, match="cannot be read"):
        days_left(b"nothing", 0.0)


def test_a_vcm_goes_to_the_next_server_when_one_does_not_answer(
    reactor: Any, in_reactor: Callable[..., Any]
) -> None:
    def there() -> Any:
        return reactor.listenTCP(0, Factory.forProtocol(Protocol), interface="127.0.0.1")

    gone, alive = in_reactor(there), in_reactor(there)
    ports = [each.getHost().port for each in (gone, alive)]
    in_reactor(gone.stopListening)
    connect = plainly(reactor, [("127.0.0.1", port) for port in ports])
    link: Any = Protocol()
    with pytest.raises(ConnectError):
        in_reactor(connect, link)
    in_reactor(connect, link)
    assert link.transport.getPeer().port == ports[1]
    in_reactor(link.transport.abortConnection)
    in_reactor(alive.stopListening)
