"""Passes an image's chunks on to other nodes while they are received, over HTTP.

A node keeps in RAM the last compressed chunks that it has checked. The answer to `GET
/DIGEST/NUMBER` with `Authorization: Bearer TOKEN` is all chunks from that number on, each as soon
as the node has it: `RECORD`, then so many bytes. A record of length 0 comes first, and then after
each half second without a chunk to send. The connection ends after the last chunk, or at a chunk
that is no longer kept.

The answer to `HEAD` tells whether that chunk is kept (`Kept`), and with which chunk the other node
should begin (`First`): with this node's first if all chunks are still kept, otherwise with a recent
one. A late node then fetches new chunks together with the others, and the image's beginning
afterwards. -1: this node does not know its own first chunk yet. The manifest has every chunk's
digest, so no node has to be trusted.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress

from cod.orders import PassOn
from cod.wire import chunktoken
from cod.wire.manifest import Manifest

RECORD = struct.Struct("!IIII")
"""The chunk's number and length; the number of this node's newest chunk; how many it received."""
BEAT = 0.5  # seconds
CONNECTIONS = 16  # at the same time, of nodes that are sent chunks or ask by HEAD
_REQUEST = 4096  # bytes of a request at most
_TIMEOUT = 15.0  # seconds in which a child has to take a block, or ask its question
_BLOCK = 1 << 18
_STAY = 10.0  # seconds that a node stays for others in any case
_STAY_SHARE = 0.2  # of the time that its own priming took
_LATELY = 4  # newest chunks with which a late node begins, at most
_BURST = 0.1  # seconds' worth that may be sent at once

Tell = Callable[[str, int, int, float], None]


class _Kept:
    """Chunks of one image by number, compressed as received.

    came    a flag for each chunk, `count` of them set; `newest`: the last chunk received, -1: none
    begins  the first chunk to be received, -1: not known yet
    """

    def __init__(self, found: Manifest) -> None:
        self.manifest = found
        self.chunks: dict[int, bytes | bytearray] = {}
        self.came = bytearray(len(found.chunks))
        self.count, self.newest, self.begins = 0, -1, -1

    def first(self) -> int:
        """Return the chunk with which another node should begin, -1 if that is not known."""
        if self.count == len(self.chunks):
            return self.begins
        numbers = list(self.chunks)
        return numbers[max(len(numbers) * 3 // 4, len(numbers) - _LATELY)] if numbers else 0


class ChunkRing:
    """The last received chunks of all images of an order, in `room` bytes."""

    def __init__(self, room: int) -> None:
        self._changed = threading.Condition()
        self._room = room
        self._images: dict[str, _Kept] = {}
        self._order: OrderedDict[tuple[str, int], int] = OrderedDict()
        self._used = 0

    def expect(self, digest: str, found: Manifest) -> None:
        """Keep chunks of that image from now on."""
        self._images.setdefault(digest, _Kept(found))

    def begin(self, digest: str, number: int) -> None:
        """Record with which chunk the image begins to arrive."""
        if kept := self._images.get(digest):
            with self._changed:
                kept.begins = number
                self._changed.notify_all()

    def put(self, digest: str, number: int, data: bytes | bytearray) -> None:
        """Keep a checked chunk; drop the oldest ones to make room."""
        kept = self._images.get(digest)
        with self._changed:
            if kept is None or kept.came[number]:
                return
            kept.chunks[number] = data
            kept.came[number], kept.newest = True, number
            kept.count += 1
            self._order[digest, number] = len(data)
            self._used += len(data)
            while self._used > self._room and len(self._order) > 1:
                (of, oldest), length = self._order.popitem(last=False)
                del self._images[of].chunks[oldest]
                self._used -= length
            self._changed.notify_all()

    def length(self, digest: str) -> int | None:
        """Return how many chunks the image has; None if the order has no such image."""
        kept = self._images.get(digest)
        return None if kept is None else len(kept.came)

    def state(self, digest: str) -> tuple[int, int]:
        """Return (last received chunk, number of received chunks)."""
        return max(self._images[digest].newest, 0), self._images[digest].count

    def first(self, digest: str, seconds: float) -> int:
        """Return the chunk with which another node should begin; -1 if that is not known after so
        many seconds."""
        kept = self._images[digest]
        with self._changed:
            self._changed.wait_for(lambda: kept.begins >= 0, seconds)
            return kept.first()

    def is_kept(self, digest: str, number: int) -> bool:
        return number in self._images[digest].chunks

    def is_gone(self, digest: str, number: int) -> bool:
        """Return whether the chunk was received and is no longer kept."""
        kept = self._images[digest]
        return bool(kept.came[number]) and number not in kept.chunks

    def get(self, digest: str, number: int, seconds: float) -> bytes | bytearray | None:
        """Return a chunk; None if it does not arrive within so many seconds, or is no longer
        kept."""
        kept = self._images[digest]
        with self._changed:
            self._changed.wait_for(lambda: kept.came[number], seconds)
            return kept.chunks.get(number)

    def left(self, digest: str, number: int) -> int:
        """Return the total length of the chunks from that number on."""
        return sum(chunk.length for chunk in self._images[digest].manifest.chunks[number:])


class _Pace:
    """A limit of bytes per second for all connections together; 0: no limit."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._lock = threading.Lock()
        self._free_at = 0.0

    def take(self, count: int) -> None:
        """Wait until `count` bytes may be sent."""
        if not self._rate:
            return
        with self._lock:
            now = time.monotonic()
            self._free_at = max(self._free_at, now - _BURST) + count / self._rate
            wait = self._free_at - now
        if wait > 0:
            time.sleep(wait)


class _Child:
    """A node that is being served: the image and the next chunk."""

    def __init__(self, digest: str, number: int) -> None:
        self.digest, self.number = digest, number


class ChunkServer:
    """A TCP server that passes the chunks in a node's `ring` on to other nodes, as an order says.
    `sent`: bytes of chunks sent so far.

    address  to listen on; '': every address of the node
    port     the port listened on; an order may name port 0 (tests). 0 after the start: another
             program has the port, and nothing is passed on
    """

    def __init__(self, order: PassOn, ring: ChunkRing, address: str = "") -> None:
        self.ring = ring
        self.sent = 0
        self.port = 0
        self._order = order
        self._began = time.monotonic()
        self._pace = _Pace(order.rate)
        self._children: set[_Child] = set()
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._socket: socket.socket | None = None
        with suppress(OSError):
            self._socket = socket.create_server((address, order.port))
            self.port = self._socket.getsockname()[1]
            self._start(self._accept, self._socket)

    def linger(self, tell: Tell) -> None:
        """Wait until no node is being served: at most as long as the order says, and for a slow
        node not much longer than this node's own priming took."""
        now = time.monotonic()
        until = now + min(self._order.linger, max(_STAY, (now - self._began) * _STAY_SHARE))
        while time.monotonic() < until:
            with self._lock:
                left = sum(self.ring.left(each.digest, each.number) for each in self._children)
                if not self._children:
                    return
            before = self.sent
            self._closed.wait(BEAT / 4)
            tell("pass on", self.sent, self.sent + left, (self.sent - before) / (BEAT / 4))

    def close(self) -> None:
        """End all connections."""
        self._closed.set()
        with self._lock:
            open_ones = [*self._connections, *([self._socket] if self._socket else [])]
        for each in open_ones:
            with suppress(OSError):  # wakes the thread that waits for it
                each.shutdown(socket.SHUT_RDWR)
        if self._socket:
            self._socket.close()

    # ------------------------------------------------------------ one connection

    def _start(self, work: Callable[[socket.socket], None], argument: socket.socket) -> None:
        threading.Thread(target=work, args=(argument,), name="chunks", daemon=True).start()

    def _accept(self, listening: socket.socket) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with self._lock:
                if len(self._connections) >= CONNECTIONS:
                    connection.close()
                    continue
                self._connections.add(connection)
            self._start(self._converse, connection)

    def _converse(self, connection: socket.socket) -> None:
        try:
            with connection, suppress(OSError, ValueError):
                connection.settimeout(_TIMEOUT)
                self._answer(connection)
        finally:
            with self._lock:
                self._connections.discard(connection)

    def _answer(self, connection: socket.socket) -> None:
        method, digest, number, token = _asked(connection)
        now = self._order.now + time.monotonic() - self._began
        count = self.ring.length(digest)
        address = connection.getpeername()[0]
        if count is None or number >= count or method not in ("GET", "HEAD"):
            connection.sendall(_head("404 Not Found"))
        elif not chunktoken.allows(token, self._order.key, digest, address, now):
            connection.sendall(_head("403 Forbidden"))
        elif method == "HEAD":
            first = self.ring.first(digest, BEAT)
            kept = "yes" if self.ring.is_kept(digest, number) else "no"
            connection.sendall(_head("200 OK", f"First: {first}", f"Kept: {kept}"))
        elif self.ring.is_gone(digest, number):
            connection.sendall(_head("410 Gone"))
        else:
            connection.sendall(_head("200 OK", "Content-Type: application/x-cod-chunks"))
            self._serve(connection, _Child(digest, number), count)

    def _serve(self, connection: socket.socket, child: _Child, count: int) -> None:
        with self._lock:
            self._children.add(child)
        try:
            self._send(connection, child, b"")
            while child.number < count and not self._closed.is_set():
                data = self.ring.get(child.digest, child.number, BEAT)
                if data is None:
                    if self.ring.is_gone(child.digest, child.number):
                        return
                    self._send(connection, child, b"")
                    continue
                self._send(connection, child, data)
                child.number += 1
            # a reset of the machine would lose the kernel's buffers: wait until they are sent
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1)
        finally:
            with self._lock:
                self._children.discard(child)

    def _send(self, connection: socket.socket, child: _Child, data: bytes | bytearray) -> None:
        state = self.ring.state(child.digest)
        connection.sendall(RECORD.pack(child.number, len(data), *state))
        view = memoryview(data)
        for at in range(0, len(view), _BLOCK):
            block = view[at : at + _BLOCK]
            self._pace.take(len(block))
            connection.sendall(block)
            with self._lock:
                self.sent += len(block)


def _asked(connection: socket.socket) -> tuple[str, str, int, str]:
    """Return method, digest, number and token of the request. Raises ValueError and OSError."""
    received, until = b"", time.monotonic() + _TIMEOUT
    while b"\r\n\r\n" not in received:
        data = connection.recv(_REQUEST)
        if not data or len(received) > _REQUEST or time.monotonic() > until:
            raise ValueError("no request")
        received += data
    first, *lines = received.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ", 2)
    digest, _, number = path.strip("/").partition("/")
    if not number.isascii() or not number.isdecimal():
        raise ValueError("no number")
    headers = {
        name.strip().lower(): value.strip()
        for name, _, value in (line.partition(":") for line in lines)
    }
    return method, digest, int(number[:9]), headers.get("authorization", "").removeprefix("Bearer ")


def _head(status: str, *lines: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", "Connection: close", *lines, "", ""]).encode()
