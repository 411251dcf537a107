"""Sources of an image's chunks: nodes that receive the same image, and last the image server.

The order's first node is asked as long as it works. A node that is dead, that sends a chunk with a
wrong digest, that falls behind or no longer keeps the wanted chunk is replaced by the next one, and
not asked again for a while, which doubles each time. A node that only has no new chunk yet is
waited for: its own source is probably the cause, and if every node of a chain went to the next
source, all would be at the server at once. A node that is only behind the next one is not left,
either: two nodes that fetch from the same node share its link, so that both, and all behind them,
get half its rate. Whether another source is faster is tried with one chunk, beside the stream.
"""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

from cod.orders import ChunkSource, ImageSource
from cod.wire.manifest import Chunk, Manifest
from trampoline.chunkserver import RECORD, ChunkRing
from trampoline.errors import PrimeError, WayError
from trampoline.fetch import MIRROR_TRIES, Download, NodePatience, Patience, split

_BEHIND = 4  # chunks that a node may have less than the one that asks it
_HELD_UP = 2  # chunks that a node may have more while it still holds the other up
_LINES, _LINE = 20, 1000  # of an answer's head at most, and bytes of each
# Factors by which a source must be faster than a node to replace it. A trial shares the source's
# link with the nodes that it serves already, so the factor for half the rate of a link is below 1.
_FASTER_NODE, _FASTER_SERVER = 1.5, 3.0


class Packed(NamedTuple):
    """A fetched chunk, compressed and not checked; its number among the used chunks."""

    number: int
    chunk: Chunk
    data: bytearray


class _Aside(Exception):
    """The neighbour cannot be used now."""


class _Trial:
    """A chunk that is fetched in a thread of its own to measure the time, and dropped.

    faster   the factor by which the source must be faster than the present one
    is_done  whether the trial has ended; `seconds`: its time, infinite if it failed
    """

    def __init__(
        self, fetch: Callable[[], bytearray | None], close: Callable[[], None], faster: float
    ) -> None:
        self.faster, self.close = faster, close
        self.is_done, self.seconds = False, math.inf
        threading.Thread(target=self._run, args=(fetch,), name="trial", daemon=True).start()

    def _run(self, fetch: Callable[[], bytearray | None]) -> None:
        began = time.monotonic()
        try:
            with suppress(OSError, ValueError, PrimeError, _Aside):
                if fetch() is not None:
                    self.seconds = time.monotonic() - began
        finally:
            self.close()
            self.is_done = True


class _Neighbour:
    """A node that may have the chunks, and the stream from it while one is open."""

    def __init__(self, source: ChunkSource, digest: str, patience: NodePatience) -> None:
        self.source = source
        self.newest = 0  # the chunk that it got last
        self.asked_again_at = 0.0
        self._digest, self._patience = digest, patience
        self._pause = patience.aside
        self._socket: socket.socket | None = None
        self._file: Any = None  # buffered, of the socket

    @property
    def is_open(self) -> bool:
        return self._file is not None

    def open(self, number: int, received: int, length: int) -> None:
        """Begin to receive from that chunk on. `received`: how many chunks this node has, of
        `length` in all. Raises OSError, ValueError and _Aside."""
        self._file, _ = self._ask("GET", number)
        _, _, self.newest, count = RECORD.unpack(self._read(RECORD.size))
        if count + _BEHIND < received and count < length:
            raise _Aside("it has less than is here")

    def first(self) -> int:
        """Return the chunk with which to begin, -1 if the node does not know it yet. Raises
        OSError, ValueError and _Aside."""
        return int(self._head(0)["first"])

    def has(self, number: int) -> bool | None:
        """Return whether the node has that chunk; None if it does not answer."""
        try:
            return self._head(number)["kept"] == "yes"
        except (OSError, ValueError, KeyError, _Aside):
            return None

    def _head(self, number: int) -> dict[str, str]:
        try:
            file, headers = self._ask("HEAD", number)
            file.close()
            return headers
        finally:
            self.close()

    def take(self, number: int, chunk: Chunk, seconds: float) -> bytearray | None:
        """Return the next chunk of the stream, which must have this number; None if it has not
        arrived within so many seconds. Raises OSError and _Aside."""
        until = time.monotonic() + seconds
        while True:
            got, length, self.newest, _ = RECORD.unpack(self._read(RECORD.size))
            if not length:
                if time.monotonic() >= until:
                    return None
                continue
            if (got, length) != (number, chunk.length):
                raise _Aside("it sent another chunk than was asked for")
            return self._read(length)

    def trial(self, number: int, chunk: Chunk) -> _Trial:
        """Start a trial: fetch one chunk from the node on a connection of its own."""
        beside = _Neighbour(self.source, self._digest, self._patience)

        def fetch() -> bytearray | None:
            beside.open(number, 0, 0)
            return beside.take(number, chunk, self._patience.idle)

        return _Trial(fetch, beside.close, _FASTER_NODE)

    def close(self) -> None:
        """End the stream, also while another thread waits for it."""
        connection, file = self._socket, self._file
        self._socket = self._file = None
        if connection:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        if file:
            with suppress(OSError, ValueError):
                file.close()

    def put_aside(self, longer: bool = False) -> None:
        """Close the stream, and do not use the node for a while; with `longer`, for the longest
        pause."""
        self.close()
        pause = self._patience.longest if longer else self._pause
        self.asked_again_at = max(self.asked_again_at, time.monotonic() + pause)
        self._pause = min(self._pause * 2, self._patience.longest)

    def _ask(self, method: str, number: int) -> tuple[Any, dict[str, str]]:
        host, port, _ = split(self.source.url)
        question = f"{method} /{self._digest}/{number} HTTP/1.1\r\nHost: {host}:{port}\r\n"
        # Bytes, because text would need the IDNA codec, which the ramdisk does not carry.
        address: Any = (host.encode(), port)
        asked = self._socket = socket.create_connection(address, self._patience.connect)
        asked.settimeout(self._patience.stall)
        asked.sendall(f"{question}Authorization: Bearer {self.source.token}\r\n\r\n".encode())
        file: Any = asked.makefile("rb", 1 << 16)
        until = time.monotonic() + self._patience.stall
        status, *lines = islice(iter(lambda: _line(file, until), ""), _LINES)
        if status.split(" ")[1:2] != ["200"]:
            raise _Aside(f"it answered {status[:100]}")
        pairs = (line.partition(":") for line in lines)
        return file, {name.lower(): value.strip() for name, _, value in pairs}

    def _read(self, length: int) -> bytearray:
        file, until = self._file, time.monotonic() + self._patience.chunk
        data = bytearray(length)
        view, at = memoryview(data), 0
        while at < length:
            got = file.readinto1(view[at:]) if file else 0
            if not got:
                raise _Aside("the connection ended")
            at += got
            if time.monotonic() > until:
                raise _Aside("it is too slow")
        return data


def _line(file: Any, until: float) -> str:
    """Return a line of an answer's head. Raises _Aside after `until`: a node that sends a byte now
    and then never reaches the socket's time limit."""
    line = b""
    while (byte := file.read(1)) not in (b"", b"\n"):
        line += byte
        if len(line) > _LINE or time.monotonic() > until:
            raise _Aside("it does not come to the end of its answer's head")
    return line.decode("latin-1").strip()


class ChunkSources:
    """All used chunks of an image, compressed, each from the best available source.

    ring      keeps received chunks for other nodes; None: none are passed on
    took      called with the name of each new source, '' for the server
    in_order  from the first chunk to the last; otherwise the chunks that other nodes are receiving
              now come first
    """

    def __init__(
        self,
        source: ImageSource,
        found: Manifest,
        patience: Patience,
        ring: ChunkRing | None = None,
        took: Callable[[str], None] = lambda name: None,
        *,
        in_order: bool = False,
    ) -> None:
        self.fetched_from_nodes = 0
        self._source, self._found, self._patience = source, found, patience
        self._ring, self._took, self._in_order = ring, took, in_order
        self._from: str | None = None
        self._nodes = [_Neighbour(each, source.digest, patience.nodes) for each in source.sources]
        self._server: Download | None = None
        self._by_mirror: Download | None = None  # the last one that the mirror was asked for
        self._gave: dict[int, _Neighbour] = {}  # whose chunk it is, by its offset
        self._received = 0
        self._stop = 0  # the number after those that are fetched in a row now
        self._began = 0.0
        self._look_at = 0.0  # when the next comparison is due
        self._looked: tuple[float, int] = (0.0, 0)  # when the last one was, and how many were here
        self._trial: _Trial | None = None
        self._pause = patience.nodes.compare
        self._is_closed = False

    def chunks(self) -> Iterator[Packed]:
        """Yield each chunk once. Raises PrimeError if neither a node nor the server can give a
        chunk."""
        self._began = time.monotonic()
        chunks = self._found.chunks
        try:
            first = self._first() if chunks else 0
            if self._ring:
                self._ring.begin(self._source.digest, first)
            self._look_again()
            for row in (range(first, len(chunks)), range(first)):
                self._leave()
                self._stop = row.stop
                for number in row:
                    yield Packed(number, chunks[number], self._next(number, chunks[number]))
                    self._received += 1
        finally:
            self._leave()

    def again(self, chunk: Chunk) -> bytearray:
        """Return, from the server, a chunk whose digest was wrong. The node that sent it is put
        aside. Called from any thread."""
        if liar := self._gave.get(chunk.offset):
            liar.put_aside(longer=True)
        end = chunk.offset + chunk.length
        own = Download(f"{self._source.url}/data.zst", self._patience, chunk.offset, end)
        return self._filled(chunk, own)

    def close(self) -> None:
        """Stop, also while another thread waits for a chunk."""
        self._is_closed = True
        self._leave()

    # ------------------------------------------------------------ one chunk

    def _next(self, number: int, chunk: Chunk) -> bytearray:
        waited_since = time.monotonic()
        while node := self._choose(number):
            trial = self._trial  # `close` takes it away in another thread
            if trial and trial.is_done and self._is_beaten(trial):
                node.put_aside()
                continue
            try:
                data = node.take(number, chunk, self._patience.nodes.idle)
            except (OSError, ValueError, _Aside):
                node.put_aside()
                continue
            now = time.monotonic()
            if data is not None:
                self._gave[chunk.offset] = node
                self.fetched_from_nodes += len(data)
                if now >= self._look_at and not self._trial:
                    self._look(node, number)
                return data
            self._is_further(node, number)
            if now >= waited_since + self._patience.nodes.starved:
                for each in self._nodes:
                    each.put_aside()
        return self._from_server(chunk)

    def _choose(self, number: int) -> _Neighbour | None:
        """Return the first usable node, with an open stream; None if there is none."""
        for node in self._nodes:
            if self._is_closed:
                break
            if node.is_open:
                return node
            if time.monotonic() >= node.asked_again_at and self._is_opened(node, number):
                self._leave(but=node)
                self._tell(node.source.name)
                return node
        return None

    def _is_opened(self, node: _Neighbour, number: int) -> bool:
        try:
            node.open(number, self._received, len(self._found.chunks))
            return True
        except (OSError, ValueError, _Aside):
            node.put_aside()
            return False

    def _first(self) -> int:
        """Return the chunk to begin with. The first node may have got its order later than this
        one, and is waited for."""
        usual = self._patience.nodes
        until = self._began + min(usual.start, self._found.stored / usual.worth)
        for node in [] if self._in_order else self._nodes:
            while not self._is_closed:
                try:
                    if (first := node.first()) >= 0:
                        return min(first, len(self._found.chunks) - 1)
                except OSError:
                    if node is not self._nodes[0]:
                        break
                except (ValueError, KeyError, _Aside):
                    break
                if time.monotonic() > until:
                    break
                time.sleep(0.1)
            node.put_aside()
        return 0

    # ------------------------------------------------------------ is another better?

    def _is_further(self, node: _Neighbour, number: int) -> None:
        """Put `node` aside if the next node that answers is ahead of that chunk by more than the
        chunks that may be on their way."""
        if self._above(node, min(number + _BEHIND, self._stop - 1))[1]:
            node.put_aside()

    def _above(self, node: _Neighbour, number: int) -> tuple[_Neighbour | None, bool]:
        """Return the next node behind `node` in the order that answers, and whether it has that
        chunk; (None, False) if none answers."""
        for other in self._nodes[self._nodes.index(node) + 1 :]:
            if time.monotonic() >= other.asked_again_at and (has := other.has(number)) is not None:
                return other, has
        return None, False

    def _look(self, node: _Neighbour, number: int) -> None:
        """Check whether this node may be held up by `node`, which sends each chunk at once but has
        few more than this node. If so, start a trial with the next node that has more, or with the
        server if no other node answers."""
        further = number + self._patience.nodes.ahead
        if number <= node.newest <= number + _HELD_UP and further < self._stop:
            other, has = self._above(node, further)
            if has or not other:
                self._try(other, further)
        self._look_again()

    def _look_again(self) -> None:
        now = time.monotonic()
        self._looked, self._look_at = (now, self._received), now + self._pause

    def _try(self, other: _Neighbour | None, number: int) -> None:
        chunk = self._found.chunks[number]
        if other:
            self._trial = other.trial(number, chunk)
            return
        hasty = replace(self._patience, stall=self._patience.nodes.stall, tries=MIRROR_TRIES)
        own = self._download(chunk.offset, chunk.offset + chunk.length, hasty)
        self._trial = _Trial(lambda: self._filled(chunk, own), own.close, _FASTER_SERVER)

    def _is_beaten(self, trial: _Trial) -> bool:
        """Return whether the tried source is faster than the present one. If not, the next trial
        comes later."""
        since, before = self._looked
        usual = (time.monotonic() - since) / max(self._received - before, 1)
        beaten = trial.seconds * trial.faster < usual
        if not beaten:
            self._pause *= 2
        self._trial = None
        self._look_again()
        return beaten

    # ------------------------------------------------------------ the server

    def _from_server(self, chunk: Chunk) -> bytearray:
        if self._is_closed:
            raise WayError("the image is no longer wanted")
        if self._server is None:
            self._leave()
            self._tell("")
            last = self._found.chunks[self._stop - 1]
            end = last.offset + last.length
            self._server = self._download(chunk.offset, end, self._patience)
        self._server.skip_to(chunk.offset)
        data = bytearray(chunk.length)
        self._server.fill(memoryview(data))
        return data

    def _filled(self, chunk: Chunk, download: Download) -> bytearray:
        data = bytearray(chunk.length)
        download.fill(memoryview(data))
        download.close()
        return data

    def _download(self, start: int, end: int, patience: Patience) -> Download:
        """Return a download from the mirror, which falls back to the server for good if the mirror
        fails."""
        own, mirror = f"{self._source.url}/data.zst", self._source.mirror
        if not mirror or (self._by_mirror and self._by_mirror.url == own):
            return Download(own, patience, start, end)
        self._by_mirror = Download(f"{mirror}/data.zst", patience, start, end, own)
        return self._by_mirror

    def _tell(self, name: str) -> None:
        if name != self._from:
            self._from = name
            self._took(name)

    def _leave(self, but: _Neighbour | None = None) -> None:
        """End all open connections, except one node's stream."""
        for node in self._nodes:
            if node is not but:
                node.close()
        if server := self._server:
            self._server = None
            server.close()
        if trial := self._trial:
            self._trial = None
            trial.close()
