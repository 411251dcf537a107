"""Who gets notices, on loopback: a real SMTP server, a real HTTP or HTTPS listener; each notes what
it got."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword
from twisted.internet.task import Clock

from tests.ports import free_port

PASSWORD = "a s3cret: unfit for logs"


class MovedTime:
    """The reactor, with a clock of its own for `callLater`, which a test moves."""

    def __init__(self, reactor: Any) -> None:
        self._reactor, self.clock = reactor, Clock()
        self.callLater = self.clock.callLater

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reactor, name)


@dataclass
class Box:
    """What a mail server took in, and what it says to whom. `says`: by command, or by recipient."""

    port: int = 0
    got: list[tuple[str, list[str], bytes]] = field(default_factory=list)
    signed_in: list[str] = field(default_factory=list)
    says: dict[str, str] = field(default_factory=dict)

    async def handle_MAIL(
        self, _server: Any, _session: Any, envelope: Any, address: str, _options: Any
    ) -> str:
        envelope.mail_from = address
        return self.says.get("MAIL", "250 OK")

    async def handle_RCPT(
        self, _server: Any, _session: Any, envelope: Any, address: str, _options: Any
    ) -> str:
        said = self.says.get(address, "250 OK")
        if said.startswith("2"):
            envelope.rcpt_tos.append(address)
        return said

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:
        said = self.says.get("DATA", "250 taken")
        if said.startswith("2"):
            self.got.append((envelope.mail_from, envelope.rcpt_tos, envelope.content))
        return said

    async def handle_QUIT(self, _server: Any, _session: Any, _envelope: Any) -> str:
        return self.says.get("QUIT", "221 bye")

    def authenticate(
        self, _server: Any, _session: Any, _envelope: Any, _mechanism: str, data: Any
    ) -> AuthResult:
        assert isinstance(data, LoginPassword)
        good = data.login == b"cod" and data.password == PASSWORD.encode()
        self.signed_in += ["cod"] if good else []
        return AuthResult(success=good, handled=good)


@contextmanager
def serving(
    certificate: Path | None = None, tls: str = "none", user: bool = False
) -> Iterator[Box]:
    box = Box()
    context = None
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
    more: dict[str, Any] = (
        {"authenticator": box.authenticate, "auth_required": True} if user else {}
    )
    if user:
        more["auth_require_tls"] = tls == "starttls"
    if tls == "starttls":
        more |= {"tls_context": context, "require_starttls": True}
    port = free_port()
    controller = Controller(
        box,
        hostname="127.0.0.1",
        port=port,
        ssl_context=context if tls == "tls" else None,
        ready_timeout=60,
        **more,
    )
    controller.start()
    box.port = port
    try:
        yield box
    finally:
        controller.stop()


@dataclass
class Listener:
    """What an HTTP server got, and what it answers."""

    port: int = 0
    status: int = 200
    more: bytes = b""
    got: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)

    def url(self, host: str = "127.0.0.1", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}/hook?x=1"


@contextmanager
def listening(certificate: Path | None = None) -> Iterator[Listener]:
    listener = Listener()

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            listener.got.append((self.path, dict(self.headers), body))
            self.send_response(listener.status)
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", str(len(listener.more)))
            self.end_headers()
            self.wfile.write(listener.more)

        def log_message(self, *_args: Any) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        def handle_error(self, *_args: Any) -> None:
            """Handshakes that the client breaks off are what is tested."""

    server = Quiet(("127.0.0.1", 0), Answer)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    listener.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield listener
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
