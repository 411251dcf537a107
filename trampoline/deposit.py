"""Sends a captured disk to the image server: see docs/capture. One connection, one request at a
time.

A connection that breaks is made again, for as long as the order has patience. The server is then
asked up to which byte it has the disk, because the answer to the last piece may have been lost, or
the server may have been restarted without all of it. A server that stays silent for a part of that
time is given up for the next one that answers, which may have the disk up to another byte.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from http.client import HTTPConnection, HTTPException
from typing import Any

from cod.orders import Deposit
from trampoline.errors import PrimeError, WayError
from trampoline.fetch import Patience, split, words

# Part of an order's patience after which the other servers are asked, too. It is large, because
# another server has to be sent the whole image again, and a restarted server continues.
_PART = 1 / 8
_END = 900.0  # seconds for the server to bring a large image to its disk
_BLOCK = 1 << 16  # bytes of a body, each of which may take as long as an answer
_TEMPORARY = (408, 425, 429, 500, 502, 503, 504)


class Behind(Exception):
    """The server has the disk up to another byte than expected, or is another server than before:
    the sender continues at byte `at`."""

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.at = at


class _Broken(Exception):
    """This attempt failed; another may succeed."""


class Sender:
    """The sending side of a capture. Its methods raise PrimeError if the server refuses, and
    WayError if no server has answered for the deposit's patience.

    deposit   where to send the disk; its `url` is that of the server that answered last
    patience  of one attempt: seconds until a silent server is asked again, and pauses between
              attempts
    """

    def __init__(self, deposit: Deposit, patience: Patience) -> None:
        self.deposit, self._patience = deposit, patience
        self._connection: HTTPConnection | None = None
        self._closed = False
        self.sent = 0

    def before(self) -> tuple[int, str]:
        """Return the byte up to which an earlier order has sent the disk, and the digest of its
        chunks' heads; 0 and '' if the server has nothing of an earlier order, or does not know this
        request.

        The earlier order's data stay until `at` or `adopt` is called.
        """
        try:
            answer = self._again("GET", "/before", b"", self._patience.stall)
        except WayError:
            raise
        except PrimeError:
            return 0, ""
        return int(answer["at"]), str(answer["heads"])

    def adopt(self, heads: str) -> None:
        """Let this order continue where the earlier order ended, whose heads have that digest."""
        word = json.dumps({"heads": heads}).encode()
        with suppress(Behind):  # another digest: `at` tells it
            self._again("POST", "/before", word, self._patience.stall)

    def at(self) -> int:
        """Return the byte up to which the server has the disk."""
        return int(self._again("GET", "", b"", self._patience.stall)["at"])

    def put(self, piece: bytes, at: int, end: int) -> None:
        """Send the next piece, which extends the disk from `at` to `end`. Raises Behind if the
        server has the disk up to another byte than `end`, or if another server took the piece."""
        url = self.deposit.url
        try:
            found = int(self._again("PUT", f"/{at}", piece, self._patience.stall)["at"])
        except Behind as behind:
            found = behind.at
        if found == end:
            self.sent += len(piece)
        if found != end or self.deposit.url != url:
            raise Behind(found)

    def finish(self, size: int, at: int, partitions: list[dict[str, Any]], what: str = "") -> None:
        """End the upload: the whole of `what` was sent. Raises Behind."""
        word = {"size": size, "at": at, "partitions": partitions}
        if what:
            word["what"] = what
        self._again("POST", "", json.dumps(word).encode(), _END)

    def close(self) -> None:
        """Stop, also while another thread waits for a request."""
        self._closed = True
        connection = self._connection
        if connection and connection.sock:
            with suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)

    # ------------------------------------------------------------ requests

    def _again(self, method: str, path: str, body: bytes, stall: float) -> dict[str, Any]:
        began, lasts = time.monotonic(), self.deposit.patience
        failures = 0
        while True:
            late = time.monotonic() >= began + lasts * _PART
            others = self.deposit.others.split() if late else ()
            # the present server is asked again just before each other one: it must not be left
            # because this machine's own cable was cut
            for url in (self.deposit.url, *others):
                try:
                    # an answer that the server sends during the piece might never be read
                    if failures and method == "PUT":
                        self._ask(url, "GET", "", b"", self._patience.stall)
                    return self._ask(url, method, path, body, stall)
                except _Broken as error:
                    self._drop()
                    why = str(error)
            failures += 1
            pause = min(self._patience.pause * 2 ** min(failures - 1, 8), 8.0)
            if self._closed or time.monotonic() + pause >= began + lasts:
                break
            time.sleep(pause)
        raise WayError(
            f"the image server failed: {why}; gave up after {failures} tries in "
            f"{time.monotonic() - began:.0f} seconds"
        )

    def _ask(self, url: str, method: str, path: str, body: bytes, stall: float) -> dict[str, Any]:
        """Return the server's answer. Raises _Broken, Behind and PrimeError."""
        status, content = self._exchange(url, method, path, body, stall)
        if status in _TEMPORARY:
            raise _Broken(f"it answered {status}: {_words(content)}")
        own = url == self.deposit.url
        try:
            values: dict[str, Any] = json.loads(content)
            at = None if status == 200 and isinstance(values, dict) else int(values["at"])
        except (ValueError, KeyError, TypeError):
            sentence = f"the image server refuses the capture ({status}): {_words(content)}"
            # the first server may accept, once it is back, what another refuses
            raise (PrimeError if own else _Broken)(sentence) from None
        if not own and method != "GET":  # a look at an empty server gives up nobody's bytes
            others = [self.deposit.url, *self.deposit.others.split()]
            others.remove(url)
            self.deposit = replace(self.deposit, url=url, others=" ".join(others))
        if at is None:
            return values
        raise Behind(at)

    def _exchange(
        self, url: str, method: str, path: str, body: bytes, stall: float
    ) -> tuple[int, bytes]:
        """Send one request; return the status and the body of the answer. Raises _Broken."""
        host, port, folder = split(url)
        headers = {
            "Authorization": f"Bearer {self.deposit.secret}",
            "Content-Length": str(len(body)),
        }
        try:
            connection = self._connected(host, port, stall)
            connection.request(method, folder + path, _blocks(body) if body else None, headers)
            response = connection.getresponse()
            content = response.read(1 << 16)
        except TimeoutError:
            raise _Broken(f"no answer for {stall:g} seconds") from None
        except (OSError, HTTPException, ValueError, AttributeError) as error:
            # the last two: closed by another thread
            raise _Broken(words(error)) from None
        if response.will_close:
            self._drop()
        return response.status, content

    def _connected(self, host: str, port: int, stall: float) -> HTTPConnection:
        if self._closed:
            raise _Broken("it is not wanted any more")
        kept = self._connection
        if kept and (kept.host, kept.port) != (host, port):  # it leads to another server
            self._drop()
        if self._connection is None:
            # Bytes, because text would need the IDNA codec, which the ramdisk does not carry.
            address: Any = (host.encode(), port)
            self._connection = HTTPConnection(host, port, timeout=stall)
            self._connection.sock = socket.create_connection(address, self._patience.stall)
            self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        assert self._connection.sock
        self._connection.sock.settimeout(stall)
        return self._connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection:
            connection.close()


def _blocks(body: bytes) -> Iterator[bytes]:
    """Yield the body in blocks, because the socket's time limit applies to each block."""
    for at in range(0, len(body), _BLOCK):
        yield body[at : at + _BLOCK]


def _words(body: bytes) -> str:
    return " ".join(body.decode("utf-8", "replace").split())[:300]
