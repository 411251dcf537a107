"""The boot and image server on loopback: curl, raw sockets, and clients that mean no good."""

from __future__ import annotations

import hashlib
import os
import random
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from cod.core.nodes import boot_nonces
from cod.model import Binding, ImageRules, Site, SiteRef, ipv4
from cod.net.bootserver.connection import HttpLimits
from cod.net.bootserver.server import HttpServer
from cod.pool import Pool, in_transaction
from cod.store.nodes import bindings, nodes, secrets
from cod.wire import diskloader
from cod.wire.confd import protocol

pytestmark = pytest.mark.slow  # half a minute of processor time and more, together with its like

MAC = "52:54:00:12:34:56"
LARGE = random.Random(5).randbytes(5_000_003)
DIGEST = hashlib.blake2b(b"manifest", digest_size=32).hexdigest()
Start = Callable[..., HttpServer]


@pytest.fixture
def start(reactor: Any, in_reactor: Any, pool: Pool, site: Site, tmp_path: Path) -> Iterator[Start]:
    files, images, servers = tmp_path / "boot", tmp_path / "images", []
    (files / "sub").mkdir(parents=True)
    (images / DIGEST).mkdir(parents=True)
    (files / "large").write_bytes(LARGE)
    (files / "sub" / "a b").write_bytes(b"small")
    (files / "empty").write_bytes(b"")
    (files / "escape").symlink_to("../secret")
    (files / "out").symlink_to("..")
    (tmp_path / "secret").write_bytes(b"not for you")
    (images / DIGEST / "manifest.json").write_text("{}")
    (images / DIGEST / "data.zst").write_bytes(LARGE)
    (images / DIGEST / "other").write_bytes(b"internal")

    def start(**options: Any) -> HttpServer:
        open_ = replace(site, images=ImageRules(open=True))
        server = HttpServer(
            reactor,
            pool,
            SiteRef(open_),
            files,
            images,
            ["127.0.0.1"],
            0,
            lambda: 1000.0,
            **options,
        )
        in_reactor(server.startService)
        servers.append(server)
        return server

    yield start
    for server in servers:
        in_reactor(server.stopService)


def bind(engine: Engine, address: str) -> None:
    def rows(tx: Any) -> None:
        node = nodes.add(tx, name="n1", boot_mac=MAC, now=0, cause="test", actor="test")
        bindings.add(
            tx, [Binding(ipv4(address), MAC, "boot", node.id, "lab", None, "bound", 5000.0)]
        )

    in_transaction(engine, rows)


def curl(server: HttpServer, path: str, *options: str) -> bytes:
    command = ["curl", "-s", "--path-as-is", *options, f"http://127.0.0.1:{server.port}{path}"]
    return subprocess.run(command, check=True, timeout=60, capture_output=True).stdout


def raw(
    server: HttpServer, request: bytes, source: str = "127.0.0.1", timeout: float = 60
) -> bytes:
    """Everything the server answers until it closes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout, (source, 0)) as sock:
        sock.sendall(request)
        return _rest(sock)


def _rest(sock: socket.socket) -> bytes:
    received = bytearray()
    while data := sock.recv(1 << 20):
        received += data
    return bytes(received)


def get(
    server: HttpServer, path: str, *headers: str, method: str = "GET", source: str = "127.0.0.1"
) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: 10.77.0.1", "Connection: close", *headers, "", ""]
    return raw(server, "\r\n".join(lines).encode(), source)


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


# ---------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/files/large", LARGE),
        ("/files/sub/a%20b", b"small"),
        ("/files/empty", b""),
        (f"/images/{DIGEST}/manifest.json", b"{}"),
        (f"/images/{DIGEST}/data.zst", LARGE),
    ],
)
def test_whole_files(start: Start, path: str, body: bytes) -> None:
    assert curl(start(), path, "-f") == body


def test_ranges_and_resuming_with_curl(start: Start, tmp_path: Path) -> None:
    server = start()
    assert curl(server, "/files/large", "-r", "100-2000000") == LARGE[100:2000001]
    assert curl(server, "/files/large", "-r", "-7") == LARGE[-7:]
    part = tmp_path / "part"
    part.write_bytes(LARGE[:1_234_567])
    curl(server, "/files/large", "-C", "-", "-o", str(part))
    assert part.read_bytes() == LARGE
    assert (
        curl(server, "/files/large", "-r", "9000000-", "-o", "/dev/null", "-w", "%{http_code}")
        == b"416"
    )


def test_head_and_conditions(start: Start) -> None:
    server = start()
    head = get(server, "/files/large", method="HEAD")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"\r\nContent-Length: 5000003\r\n" in head
    assert head.endswith(b"\r\n\r\n")
    etag = head.split(b"ETag: ")[1].split(b"\r\n")[0].decode()
    assert status(get(server, "/files/large", f"If-None-Match: {etag}")) == 304
    assert status(get(server, "/files/large", "Range: bytes=0-9", f"If-Range: {etag}")) == 206
    assert status(get(server, "/files/large", "Range: bytes=0-9", 'If-Range: "other"')) == 200


def test_a_replaced_file_has_a_new_etag(start: Start, tmp_path: Path) -> None:
    server = start()
    before = get(server, "/files/empty", method="HEAD")
    (tmp_path / "boot" / "new").write_bytes(b"new")
    os.replace(tmp_path / "boot" / "new", tmp_path / "boot" / "empty")
    after = get(server, "/files/empty")
    assert after.endswith(b"\r\n\r\nnew")
    assert before.split(b"ETag: ")[1].split(b"\r\n")[0] not in after


def test_keep_alive_and_pipelining(start: Start) -> None:
    request = (
        b"GET /files/large HTTP/1.1\r\nHost: h\r\n\r\nGET /nothing HTTP/1.1\r\nHost: h\r\n\r\n" * 3
    )
    last = b"GET /files/sub/a%20b HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
    answers = raw(start(), request + last)
    assert answers.count(LARGE) == 3
    assert answers.count(b"HTTP/1.1 404 ") == 3
    assert answers.endswith(b"small")


def test_a_thousand_pipelined_errors(start: Start) -> None:
    request = b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n" * 1000 + b"GET /x HTTP/1.0\r\n\r\n"
    assert raw(start(), request).count(b"HTTP/1.1 404 ") == 1001


def test_requests_in_small_pieces(start: Start) -> None:
    with socket.create_connection(("127.0.0.1", start().port), 60) as sock:
        for byte in b"GET /files/sub/a%20b HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n":
            sock.send(bytes([byte]))
        assert _rest(sock).endswith(b"small")


def test_a_slow_reader_gets_everything_while_others_are_served(start: Start) -> None:
    server = start()
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.settimeout(60)
        slow.connect(("127.0.0.1", server.port))
        slow.sendall(b"GET /files/large HTTP/1.0\r\n\r\n")
        assert curl(server, "/files/large") == LARGE
        assert _rest(slow).endswith(LARGE)


def test_a_file_truncated_meanwhile_ends_the_connection(start: Start, tmp_path: Path) -> None:
    server = start()
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", server.port))
        slow.settimeout(60)
        slow.sendall(b"GET /files/large HTTP/1.1\r\nHost: h\r\n\r\n")
        slow.recv(100)
        os.truncate(tmp_path / "boot" / "large", 10)
        with pytest.raises(ConnectionResetError):
            _rest(slow)
    assert curl(server, "/files/sub/a%20b") == b"small"


# ---------------------------------------------------------------- what is not served


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/files",
        "/files/",
        "/files/missing",
        "/files/sub",
        "/files/../secret",
        "/files/%2e%2e/secret",
        "/files/%252e%252e/secret",
        "/files/..%2fsecret",
        "/files/sub/..%5c..%5csecret",
        "/files/escape",
        "/files/out/secret",
        "/files//etc/passwd",
        "/files/%2fetc%2fpasswd",
        "/images",
        f"/images/{DIGEST}",
        f"/images/{DIGEST}/other",
        "/images/../boot/large",
        f"/images/{DIGEST}/../{DIGEST}/data.zst",
        "/images/x/data.zst",
        f"/images/{DIGEST.upper()}/data.zst",
        "/secret",
        "/files/large%00",
        "/boot",
        "/boot/x/script.ipxe",
        f"/boot/{MAC}",
        f"/boot/{MAC}/other",
        "/boot/../files/large",
    ],
)
def test_nothing_else_is_there(start: Start, path: str) -> None:
    answer = get(start(), path)
    assert status(answer) == 404
    assert b"not for you" not in answer
    assert b"root:" not in answer


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "PATCH", "BREW"])
def test_other_methods(start: Start, method: str) -> None:
    answer = get(start(), "/files/large", method=method)
    assert status(answer) == 405
    assert b"\r\nAllow: GET, HEAD\r\n" in answer


def test_a_body_is_not_read(start: Start) -> None:
    answer = raw(
        start(), b"POST /files/large HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999\r\n\r\nabc"
    )
    assert status(answer) == 405
    assert b"Connection: close" in answer


@pytest.mark.parametrize(
    "request_",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nBad Header: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        (
            b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nTransfer-Encoding:"
            b" chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n"
        ),
        b"GET /" + b"a" * 20000,
        b"GET / HTTP/1.1\r\nHost: h\r\n" + b"X: y\r\n" * 5000,
    ],
)
def test_bad_requests(start: Start, request_: bytes) -> None:
    assert 400 <= status(raw(start(), request_)) < 500


def test_random_bytes_do_no_harm(start: Start) -> None:
    # on a busy machine it hears late that the others are gone
    server = start(limits=HttpLimits(per_peer=1000))
    rng = random.Random(9)
    good = b"GET /files/large HTTP/1.1\r\nHost: h\r\nRange: bytes=0-10\r\nConnection: close\r\n\r\n"
    for number in range(300):
        data = bytearray(good if number % 2 else rng.randbytes(200))
        for _ in range(3):
            data[rng.randrange(len(data))] = rng.randrange(256)
        with socket.create_connection(("127.0.0.1", server.port), 60) as sock:
            sock.sendall(data)
    assert curl(server, "/files/large") == LARGE


def test_connections_of_one_peer_are_limited(start: Start) -> None:
    server = start(limits=HttpLimits(per_peer=2))
    held = [
        socket.create_connection(("127.0.0.1", server.port), 60, ("127.0.0.2", 0)) for _ in range(2)
    ]
    assert raw_or_reset(server, "127.0.0.2") == b""
    assert status(get(server, "/files/empty", source="127.0.0.3")) == 200
    for sock in held:
        sock.close()


def raw_or_reset(server: HttpServer, source: str) -> bytes:
    try:
        return raw(server, b"GET /files/empty HTTP/1.0\r\n\r\n", source)
    except ConnectionError:
        return b""


# ---------------------------------------------------------------- documents


def test_script_for_the_bound_address(start: Start, engine: Engine) -> None:
    bind(engine, "127.0.0.1")
    text = curl(start(), f"/boot/{MAC}/script.ipxe", "-f").decode()
    assert text.startswith("#!ipxe\n")
    assert "kernel http" in text


def test_a_script_that_changes_nothing_does_not_wait_for_a_writer(
    start: Start, engine: Engine
) -> None:
    bind(engine, "127.0.0.1")
    server = start()
    with engine.begin():  # as another process would: it holds SQLite's only lock for writers
        assert curl(server, f"/boot/{MAC}/script.ipxe", "-f").startswith(b"#!ipxe\n")


def test_script_tells_a_stranger_nothing(start: Start, engine: Engine) -> None:
    bind(engine, "127.0.0.44")
    answer = get(start(), f"/boot/{MAC}/script.ipxe")
    assert status(answer) == 403
    assert b"is not bound to" in answer
    assert b"kernel" not in answer


def test_the_program_that_finds_a_disk_is_for_everybody(start: Start) -> None:
    server = start()
    assert curl(server, "/boot/disk/1234abcd", "-f") == diskloader.loader(0x1234ABCD)
    assert curl(server, "/boot/disk/1234abcd-or-first", "-f") == diskloader.loader(
        0x1234ABCD, lenient=True
    )
    for name in ("1234ABCD", "1234abcd0", "", "1234abcd-or-last"):
        assert status(get(server, f"/boot/disk/{name}")) == 404, name


def test_secret_fits_the_verifier_that_is_kept(start: Start, engine: Engine) -> None:
    bind(engine, "127.0.0.1")
    archive = curl(start(), f"/boot/{MAC.upper().replace(':', '-')}/secret.cpio", "-f")
    listed = subprocess.run(
        ["cpio", "-i", "--to-stdout", "cod/secret"], input=archive, capture_output=True, check=True
    )
    secret = protocol.Secret.read(listed.stdout.decode())
    (kept,) = in_transaction(engine, secrets.of_mac, MAC)
    assert kept.id == secret.id
    assert protocol.verifier(secret.key, kept.salt) == protocol.Verifier(
        kept.salt, kept.stored_key, kept.server_key
    )
    assert (kept.address, kept.expires_at) == ("127.0.0.1", 1300.0)


@pytest.mark.parametrize("source", ["127.0.0.2", "127.0.0.44"])
def test_wrong_address_gets_no_secret_and_none_is_minted(
    start: Start, engine: Engine, source: str
) -> None:
    bind(engine, "127.0.0.1")
    answer = get(start(), f"/boot/{MAC}/secret.cpio", source=source)
    assert status(answer) == 403
    assert in_transaction(engine, secrets.of_mac, MAC) == []


def test_a_nonce_fetches_the_loader_and_no_log_tells_it(
    start: Start, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    bind(engine, "127.0.0.1")
    server, path = start(), "/boot/once/abcd/sub/a%20b"
    with caplog.at_level("DEBUG", "cod.http"):
        assert status(get(server, path)) == 404
        node = in_transaction(engine, nodes.by_mac, MAC)
        in_transaction(engine, boot_nonces.order, node, "abcd", 999.0)
        assert status(get(server, path, source="127.0.0.2")) == 403
        assert status(get(server, "/boot/once/abcd/none.efi")) == 404
        head = get(server, path, method="HEAD")
        assert (status(head), b"Content-Length: 5\r\n" in head) == (200, True)
        assert curl(server, path, "-f") == b"small"
    assert in_transaction(engine, boot_nonces.was_brought, node, "127.0.0.1", 1000.0)
    assert "no such nonce" in caplog.text
    assert "abcd" not in caplog.text


def test_head_mints_nothing(start: Start, engine: Engine) -> None:
    bind(engine, "127.0.0.1")
    assert status(get(start(), f"/boot/{MAC}/secret.cpio", method="HEAD")) == 405
    assert in_transaction(engine, secrets.of_mac, MAC) == []
