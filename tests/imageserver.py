"""An HTTP server for the tests' images, with Range and with every fault that a test asks for."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

Fault = Callable[["Request"], None]


class Request(BaseHTTPRequestHandler):
    """Serves files below `server.root`. `server.faults` are called in turn before a body is sent,
    one each request whose path ends with `server.on`; None lets it pass."""

    protocol_version = "HTTP/1.1"
    server: Server
    body: bytes

    def do_GET(self) -> None:
        path = self.server.root / self.path.lstrip("/")
        self.server.seen.append((self.path, self.headers.get("Range", "")))
        if not path.is_file():
            self.send_error(404)
            return
        data = path.read_bytes()
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        start, end = 0, len(data)
        if wanted and self.server.ranges:
            start, end = int(wanted[1]), min(int(wanted[2] or len(data)) + 1, len(data))
            if start >= len(data):
                self.send_error(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
        else:
            self.send_response(200)
        self.body = data[start:end]
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        if (
            self.path.endswith(self.server.on)
            and self.server.faults
            and (fault := self.server.faults.pop(0))
        ):
            fault(self)
        else:
            self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    """See `Request`."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), Request)
        self.root = root
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.faults: list[Fault | None] = []
        self.on = "data.zst"
        self.ranges = True
        self.seen: list[tuple[str, str]] = []
        self.released = threading.Event()

    def handle_error(self, *_: object) -> None:
        pass  # clients that go away are what the tests are about


@contextmanager
def serving(root: Path) -> Iterator[Server]:
    """A server in a thread."""
    with Server(root) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.released.set()
            server.shutdown()
            thread.join()


# ---------------------------------------------------------------- faults


def dies_after(count: int) -> Fault:
    """The connection ends after `count` bytes of the body."""

    def fault(request: Request) -> None:
        request.wfile.write(request.body[:count])
        request.close_connection = True

    return fault


def stalls_after(count: int) -> Fault:
    """Nothing more comes after `count` bytes, and the connection stays open."""

    def fault(request: Request) -> None:
        request.wfile.write(request.body[:count])
        request.wfile.flush()
        request.server.released.wait(30)
        request.close_connection = True

    return fault


def flips(offset: int) -> Fault:
    """One bit of the body is wrong."""

    def fault(request: Request) -> None:
        body = bytearray(request.body)
        body[offset % len(body)] ^= 1
        request.wfile.write(body)

    return fault
