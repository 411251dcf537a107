"""The Python client: lists part by part, what it repeats and what not, tags, and whom it trusts
over TLS."""

from __future__ import annotations

import hashlib
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from cod.client import PAUSES, ApiError, Client, Unreachable
from tests.net.apiserver import Served
from tests.net.certificates import Authority


@dataclass
class Far:
    """A server that answers what it is told: (status, body), or None to hang up. `got`: (method,
    path, key)."""

    port: int = 0
    says: list[tuple[int, Any] | None] = field(default_factory=list)
    got: list[tuple[str, str, str | None]] = field(default_factory=list)


@contextmanager
def serving(pem: Path | None = None) -> Iterator[Far]:
    """Serve on loopback, with TLS if there is a certificate."""
    far = Far()

    class Says(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            far.got.append((self.command, self.path, self.headers.get("Idempotency-Key")))
            said = far.says.pop(0) if far.says else (200, {})
            if said is None:
                self.close_connection = True
                return
            body = json.dumps(said[1]).encode()
            self.send_response(said[0])
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PATCH = do_DELETE = _answer

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    class Quiet(ThreadingHTTPServer):
        def handle_error(self, *_: Any) -> None:
            """A client that goes away is no news; the standard error may be another test's by
            now."""

    server = Quiet(("127.0.0.1", 0), Says)
    if pem is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    far.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield far
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def far() -> Iterator[Far]:
    with serving() as far:
        yield far


def client(far: Far, slept: list[float]) -> Client:
    return Client(f"http://127.0.0.1:{far.port}", timeout=60, sleep=slept.append)


# ---------------------------------------------------------------- lists and tags


def test_a_server_that_is_there_and_says_nothing_is_not_called_away(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "api.sock"))
        listening.listen()
        silent = Client(str(tmp_path / "api.sock"), timeout=0.1, sleep=lambda _: None)
        with pytest.raises(Unreachable) as found:
            silent.get("/nodes")
    assert "is there, and did not answer within 0.1 s: `cod doctor`" in str(found.value)
    with pytest.raises(Unreachable, match="is `cod serve` running"):
        silent.get("/nodes")


def test_a_list_is_asked_for_as_it_is_needed(served: Served) -> None:
    for name in "abcde":
        served.local.post("/blocks", {"name": name})
    assert [one["name"] for one in served.local.items("/blocks", limit=2)] == list("abcde")
    assert [one["name"] for one in served.local.every("/blocks", sort="-name")] == list("edcba")
    assert [one["name"] for one in served.local.newest("/blocks", 3, sort="-name")] == list("cde")
    assert next(served.local.items("/blocks", limit=1))["name"] == "a"


def test_a_change_is_bound_to_what_was_seen(served: Served) -> None:
    group, tag = served.local.seen("/groups/site")
    assert (
        served.local.patch("/groups/site", {"priority": group["priority"] + 1}, match=tag)[
            "priority"
        ]
        == 1
    )
    with pytest.raises(ApiError) as caught:
        served.local.patch("/groups/site", {"priority": 9}, match=tag)
    assert (caught.value.status, caught.value.code) == (412, "changed")
    served.local.post("/blocks", {"name": "b"})
    with pytest.raises(ApiError):
        served.local.delete("/blocks/b", match=tag)
    served.local.delete("/blocks/b", match=served.local.seen("/blocks/b")[1])


# ---------------------------------------------------------------- what is repeated


def test_a_busy_server_is_asked_again(far: Far) -> None:
    slept: list[float] = []
    far.says = [(503, {"code": "unavailable"}), (503, {"code": "unavailable"}), (200, {"ok": True})]
    assert client(far, slept).get("/health") == {"ok": True}
    assert slept == list(PAUSES[:2])


def test_a_creation_is_repeated_under_its_key(far: Far) -> None:
    far.says = [(503, {}), (201, {"name": "x"})]
    assert client(far, []).post("/groups", {"name": "x"}) == {"name": "x"}
    (_, _, first), (_, _, second) = far.got
    assert first
    assert first == second
    client(far, []).post("/groups", {"name": "x"}, key="mine")
    assert far.got[-1][2] == "mine"


def test_a_change_is_not_repeated(far: Far) -> None:
    far.says = [(503, {"code": "unavailable", "detail": "try again"}), (503, {}), None]
    for method in ("PATCH", "DELETE"):
        with pytest.raises(ApiError) as caught:
            client(far, []).call(method, "/groups/x", {})
        assert caught.value.status == 503
    with pytest.raises(Unreachable):
        client(far, []).patch("/groups/x", {})
    assert [got[0] for got in far.got] == ["PATCH", "DELETE", "PATCH"]


def test_a_sign_in_is_not_repeated(far: Far) -> None:
    """The server counts attempts, and a directory that is away would be many wrong passwords."""
    far.says = [(503, {"code": "busy", "detail": "the directory does not answer"})] * 2
    with pytest.raises(ApiError, match="does not answer"):
        client(far, []).sign_in(name="bob", password="x", token="t")
    assert len(far.got) == 1


def test_patience_ends(far: Far) -> None:
    slept: list[float] = []
    far.says = [(503, {"code": "busy", "detail": "later"})] * 9
    with pytest.raises(ApiError, match="later"):
        client(far, slept).get("/nodes")
    assert slept == list(PAUSES)
    assert len(far.got) == len(PAUSES) + 1


def test_a_kept_connection_that_was_closed_is_made_anew(far: Far) -> None:
    far.says = [(200, {}), None, (201, {"name": "x"})]
    api = client(far, [])
    api.get("/health")
    assert api.post("/groups", {"name": "x"}) == {"name": "x"}
    assert len(far.got) == 3
    far.says = [None]
    with pytest.raises(Unreachable):
        client(far, []).get("/health")


# ---------------------------------------------------------------- whom it trusts


def fingerprint(pem: Path) -> str:
    text = pem.read_text()
    return hashlib.sha256(
        ssl.PEM_cert_to_DER_cert(text[text.index("-----BEGIN CERT") :])
    ).hexdigest()


def test_a_certificate_by_who_signed_it_or_by_itself(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pem = authority.certificate("localhost")
    pin = fingerprint(pem).upper()
    with serving(pem) as far:
        url = f"https://localhost:{far.port}"
        assert Client(url, ca_file=str(authority.ca), timeout=60).get("/health") == {}
        assert (
            Client(url, pin=":".join(pin[n : n + 2] for n in range(0, 64, 2)), timeout=60).get(
                "/health"
            )
            == {}
        )
        for stranger in (Client(url, timeout=60), Client(url, pin="0" * 64, timeout=60)):
            with pytest.raises(Unreachable, match=f"cannot be trusted.*SHA-256 {pin.lower()}"):
                stranger.post("/groups", {"name": "x"})
        assert len(far.got) == 2, "nothing is said to who is not trusted"
