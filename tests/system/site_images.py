"""Images and templates for stand-in machines, and an image server of the test's own that can be
slow or stall."""

from __future__ import annotations

import ctypes
import hashlib
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cod.lab.standin import MARK
from tests.system.stand import Stand

CLONE_NEWNET = 0x40000000


def make_image(folder: Path, name: str, size: int = 8 << 20) -> Path:
    """A raw disk image that a stand-in machine "boots": the mark, its name, and something of its
    own further on."""
    path = folder / f"{name}.img"
    with open(path, "wb") as image:
        image.write(MARK + name.encode() + b"\0")
        image.seek(510)
        image.write(b"\x55\xaa")  # a boot sector: what holds nothing at all is not taken in
        image.seek(size // 2)
        # does not compress to nothing
        image.write(hashlib.blake2b(name.encode()).digest() * (size // 256))
        image.truncate(size)
    return path


def add_template(stand: Stand, name: str, body: str, **attributes: str) -> None:
    """Add a template with that body."""
    words = "".join(f' {key}="{value}"' for key, value in attributes.items())
    path = stand.folder / f"{name}.xml"
    path.write_text(f'<template name="{name}"{words}>{body}</template>')
    stand.cod("template", "add", str(path))


def offer(stand: Stand, name: str, size: int = 8 << 20, **attributes: str) -> Path:
    """Add an image and a template of the same name that writes it; returns the image's served
    folder."""
    added = stand.cod("image", "add", name, str(make_image(stand.folder, name, size)), "--wait")
    add_template(stand, name, f'<image target="disk" name="{name}"/>', **attributes)
    return stand.socket_folder / "data/images" / str(added["digest"])


class ImageServer:
    """An image server in the stand's network that sends a piece, then waits for `go` (or for
    ever)."""

    def __init__(self, stand: Stand, body: bytes) -> None:
        self.go, self.asked, outer = threading.Event(), threading.Event(), self

        class Slow(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[: len(body) // 2])
                self.wfile.flush()
                outer.asked.set()
                outer.go.wait()
                self.wfile.write(body[len(body) // 2 :])

            def log_message(self, *_: Any) -> None:
                pass

        made = threading.Event()

        def serve() -> None:
            with open(f"/run/netns/{stand.namespace}") as namespace:
                if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            # the socket stays in this thread's network
            self.server = ThreadingHTTPServer(("10.77.0.1", 0), Slow)
            self.server.daemon_threads = True
            made.set()
            self.server.serve_forever()

        threading.Thread(target=serve, daemon=True).start()
        assert made.wait(60)
        self.url = f"http://10.77.0.1:{self.server.server_port}/image.raw"

    def close(self) -> None:
        """Let go of everybody and end."""
        self.go.set()
        self.server.shutdown()
        self.server.server_close()


def offer_slowly(stand: Stand, name: str, size: int = 8 << 20) -> ImageServer:
    """A template whose image comes from a server that stops in the middle until `go` is set."""
    body = make_image(stand.folder, name, size).read_bytes()
    server = ImageServer(stand, body)
    add_template(
        stand,
        name,
        f'<image target="disk" url="{server.url}" size="{size}" compression="raw" '
        f'sha256="{hashlib.sha256(body).hexdigest()}"/>',
    )
    return server
