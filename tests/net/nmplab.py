"""A VCM by hand, over real TLS, and a vcluster for it: for tests of the NMP server."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from cod.flows.scheduler import vclusters
from cod.flows.vcms import vcms
from cod.model import AskedVcluster, Site, SiteRef
from cod.net.nmp import tls
from cod.net.nmp.server import NmpServer
from cod.pool import Pool, in_transaction
from cod.security.ca import SERVER_NAME, Ca, Issued
from cod.store.engine import Tx
from cod.wire.nmp import bodies as b
from cod.wire.nmp import xml
from cod.wire.nmp.frames import Decoder, Message, encode
from tests.contexts import flow_context
from tests.store import manager_world as world

NOW = 1_000_000.0


def port(server: NmpServer) -> int:
    number: int = server.ports[0].getHost().port
    return number


def founded(tx: Tx, site: Site, name: str = "pool", nodes: int = 4) -> None:
    """An active vcluster of one node, and three free nodes."""
    world.furnish(tx, nodes)
    vclusters.create(
        tx,
        flow_context(site, NOW),
        AskedVcluster(name=name, size=1, template="debian", group="site"),
    )
    world.run_pass(tx, site, NOW)
    world.arrive(tx, NOW)


def add_web(tx: Tx, site: Site) -> None:
    """A further vcluster of one node, web."""
    vclusters.create(
        tx,
        flow_context(site, NOW),
        AskedVcluster(name="web", size=1, template="debian", group="site"),
    )
    world.run_pass(tx, site, NOW)


def enrolled(
    engine: Engine, ca: Ca, name: str = "pool", when: datetime | None = None, now: float = NOW
) -> Issued:
    issued = ca.vcm(name, when or datetime.now(UTC))
    in_transaction(engine, vcms.enrol, vcluster=name, serial=issued.serial, address="", now=now)
    return issued


def serving(
    reactor: Any,
    in_reactor: Any,
    pool: Pool,
    site: Site,
    listen: Callable[[Any], Sequence[Any]],
    clock: Callable[[], float],
    authority: Ca | None = None,
) -> Iterator[NmpServer]:
    """A server of the name cod1, while it runs."""
    served = NmpServer(
        reactor,
        pool,
        SiteRef(site),
        "cod1",
        listen,
        tls.identity,
        clock,
        lambda effects: None,
        authority,
    )
    in_reactor(served.startService)
    yield served
    in_reactor(served.stopService)


class Client:
    """A VCM by hand."""

    def __init__(
        self,
        server: NmpServer,
        ca: Ca,
        issued: Issued | None,
        folder: Path,
        *,
        buffer: int = 0,
        bare: bool = False,
    ) -> None:
        """`issued` None: without TLS, to the server's last port, or, if `bare`, with TLS and no
        certificate; `buffer`: bytes that its socket takes in unread."""
        plain = socket.socket()
        if buffer:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        plain.settimeout(60)
        tls = bool(issued) or bare
        plain.connect(("127.0.0.1", port(server) if tls else server.ports[-1].getHost().port))
        self.socket = (
            _context(ca, issued, folder).wrap_socket(plain, server_hostname=SERVER_NAME)
            if tls
            else plain
        )
        self.socket.settimeout(60)
        self._decoder, self._number = Decoder(), 0
        self._messages: list[Message] = []

    def send(self, body: b.Body, answers: str = "") -> str:
        self._number += 1
        number = f"t{self._number}"
        self.socket.sendall(encode(Message(xml.verb(body), number, xml.write(body), answers)))
        return number

    def hear(self) -> tuple[Message, b.Body] | None:
        """The next message; None when the server has closed."""
        while not self._messages:
            data = self.socket.recv(65536)
            if not data:
                return None
            self._messages += list(self._decoder.feed(data))
        message = self._messages.pop(0)
        return message, xml.read(message)

    def answer(self, body: b.Body) -> b.Body:
        """Say it; the answer."""
        number = self.send(body)
        while (heard := self.hear()) is not None:
            if heard[0].answers == number:
                return heard[1]
        raise AssertionError("closed without an answer")

    def error(self) -> b.Error:
        """The next error."""
        while (heard := self.hear()) is not None:
            if isinstance(heard[1], b.Error):
                return heard[1]
        raise AssertionError("closed without an error")

    def close(self) -> None:
        self.socket.close()


def _context(ca: Ca, issued: Issued | None, folder: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=ca.certificate.decode())
    if issued is not None:
        for name, content in (("c.crt", issued.certificate), ("c.key", issued.key)):
            (folder / name).write_bytes(content)
        context.load_cert_chain(folder / "c.crt", folder / "c.key")
    return context
