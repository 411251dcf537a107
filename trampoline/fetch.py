"""HTTP/1.1 downloads that survive a bad server: timeouts, reconnects with Range, a limited number
of attempts. Plain http only.

Digests are checked elsewhere; here only lengths are.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any

from trampoline.errors import OrderError, PrimeError, WayError

BLOCK = 1 << 18
MIRROR_TRIES = 2  # in a row, until the server is asked instead of a cache
_SLOWEST = 1 << 16  # bytes that must arrive in each `stall` seconds
_REDIRECTS = (301, 302, 303, 307, 308)


@dataclass(frozen=True, slots=True)
class NodePatience:
    """Limits of time, in seconds, for other nodes that an image comes from.

    start    for the first choice to begin, as it may have got its order later
    worth    bytes per second: `start` is at most the image's time at this rate, so that the server
             is soon asked for a small image
    connect  until a node has answered
    stall    of silence after which a sending node counts as dead
    idle     without a chunk, after which the next node is asked whether it has more
    starved  without a chunk, after which the server is asked for it
    chunk    that one chunk may take
    compare  between two checks whether the next node is ahead
    aside    until a node that failed is asked again, doubling up to `longest`
    ahead    chunks by which the next node must be ahead to replace a node
    """

    start: float = 8.0
    worth: float = 4 << 20
    connect: float = 1.0
    stall: float = 3.0
    idle: float = 8.0
    starved: float = 20.0
    chunk: float = 30.0
    compare: float = 10.0
    aside: float = 20.0
    longest: float = 600.0
    ahead: int = 16


@dataclass(frozen=True, slots=True)
class Patience:
    """Limits of time for a server: seconds without progress, number of attempts in a row, seconds
    before the second attempt (doubling); and limits for nodes, which are asked first."""

    stall: float = 15.0
    tries: int = 6
    pause: float = 0.5
    nodes: NodePatience = NodePatience()


PATIENT = Patience()


class _Broken(Exception):
    """This attempt failed; another may succeed."""


class Download:
    """The bytes of `url` from `start` up to `end` (None: to its end), in order. It reconnects when
    the connection breaks. `instead`: another URL with the same bytes, used for good once `url`
    fails.

    at     offset of the next byte
    total  bytes of the whole resource, known after the first byte was read
    """

    def __init__(
        self,
        url: str,
        patience: Patience,
        start: int = 0,
        end: int | None = None,
        instead: str = "",
    ) -> None:
        self.url = url
        self._instead = instead
        self.at = start
        self.total = -1
        self._end = end
        self._patience = patience
        self._connection: HTTPConnection | None = None
        self._socket: socket.socket | None = None  # http.client forgets its own as soon as it can
        self._response: HTTPResponse | None = None
        self._failures = 0
        self._slow = 0.0  # seconds spent on the `_few` bytes that came last
        self._few = 0
        self._closed = False

    def fill(self, view: memoryview) -> int:
        """Read until `view` is full or the end is reached; return how many bytes were read. Raises
        PrimeError after the last attempt."""
        filled = 0
        while filled < len(view):
            try:
                got = self._some(view[filled:])
            except _Broken as error:
                self._try_again(str(error))
                continue
            except PrimeError:
                if not self._instead:
                    raise
                self._turn_away()
                continue
            if not got:
                break
            filled += got
            self.at += got
            self._failures = 0
        return filled

    def blocks(self) -> Iterator[bytes]:
        """Yield all bytes, in blocks."""
        buffer = bytearray(BLOCK)
        view = memoryview(buffer)
        while got := self.fill(view):
            yield bytes(view[:got])

    def skip_to(self, offset: int) -> None:
        """Continue reading at `offset`, ahead of `at`: if it is near, on the same connection,
        otherwise by another request."""
        if offset - self.at > BLOCK:
            self._drop()
            self.at = offset
        elif offset > self.at:
            self.fill(memoryview(bytearray(offset - self.at)))

    def close(self) -> None:
        """Stop, also while another thread waits for a read."""
        self._closed = True
        if self._socket:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        self._drop()

    # ------------------------------------------------------------ one try

    def _some(self, view: memoryview) -> int:
        end = self._end if self._end is not None else self.total
        if self.total >= 0 and self.at >= end:
            return 0
        if self._response is None:
            self._response = self._request()
            return self._some(view)
        started = time.monotonic()
        try:
            # read only what has arrived, so that a stall loses nothing
            data = self._response.read1(min(len(view), end - self.at, BLOCK))
        except TimeoutError:
            raise _Broken(f"nothing came for {self._patience.stall:g} seconds") from None
        except (OSError, HTTPException, ValueError, AttributeError) as error:
            # the last two: closed by another thread
            raise _Broken(words(error)) from None
        if not data:
            raise _Broken("the connection ended early")
        view[: len(data)] = data
        # a server that sends a byte now and then never runs into the socket's time limit
        self._few += len(data)
        self._slow += time.monotonic() - started
        if self._few >= _SLOWEST:
            self._few, self._slow = 0, 0.0
        elif self._slow > self._patience.stall:
            raise _Broken(f"only {self._few} bytes came in {self._slow:.0f} seconds")
        return len(data)

    def _request(self) -> HTTPResponse:
        url = self.url
        for _ in range(5):
            response = self._ask(url)
            if response.status not in _REDIRECTS:
                return self._accept(response)
            url = response.getheader("Location", "")
            self._drop()
        raise PrimeError(f"the image server sends {self.url} in circles")

    def _ask(self, url: str) -> HTTPResponse:
        host, port, path = split(url)
        asked = {"Accept": "*/*"}
        if self.at or self._end is not None:
            asked["Range"] = f"bytes={self.at}-" + (
                str(self._end - 1) if self._end is not None else ""
            )
        try:
            # Bytes, because text would need the IDNA codec, which the ramdisk does not carry.
            address: Any = (host.encode(), port)
            self._socket = socket.create_connection(address, self._patience.stall)
            self._connection = HTTPConnection(host, port, timeout=self._patience.stall)
            self._connection.sock = self._socket
            self._connection.request("GET", path, headers=asked)
            return self._connection.getresponse()
        except TimeoutError:
            raise _Broken(f"no answer for {self._patience.stall:g} seconds") from None
        except (OSError, HTTPException) as error:
            raise _Broken(words(error)) from None

    def _accept(self, response: HTTPResponse) -> HTTPResponse:
        status, length = response.status, response.getheader("Content-Length")
        if status >= 500 or status in (408, 425, 429):
            raise _Broken(f"it answered {status} {response.reason}")
        if status == 206:
            first, _, total = (
                response.getheader("Content-Range", "").removeprefix("bytes ")
            ).partition("/")
            if not first.startswith(f"{self.at}-") or not total.isdecimal():
                raise _Broken("it answered with another range than asked for")
            found = int(total)
        elif status == 200 and self.at == 0 and length and length.isdecimal():
            found = int(length)
        elif status == 200:
            raise PrimeError(
                f"the image server cannot send parts of {self.url} (Range), or does not say its"
                " length"
            )
        else:
            raise WayError(f"the image server answered {status} {response.reason} for {self.url}")
        if self.total not in (-1, found):
            raise PrimeError(f"{self.url} changed while it was being fetched")
        self.total = found
        if self._end is not None and self._end > found:
            raise OrderError(
                f"{self.url} is cut short: {found} bytes, at least {self._end} expected"
            )
        return response

    def _try_again(self, why: str) -> None:
        self._drop()
        self._failures += 1
        self._few, self._slow = 0, 0.0
        if self._instead and self._failures >= MIRROR_TRIES:
            self._turn_away()
            return
        if self._failures >= self._patience.tries or self._closed:
            raise WayError(
                f"the image server failed at byte {self.at} of {self.url}: {why}; "
                f"gave up after {self._failures} tries"
            )
        time.sleep(min(self._patience.pause * 2 ** (self._failures - 1), 8.0))

    def _turn_away(self) -> None:
        """Fetch the rest from the other URL."""
        self._drop()
        self.url, self._instead, self._failures, self.total = self._instead, "", 0, -1

    def _drop(self) -> None:
        response, connection = self._response, self._connection
        self._response = self._connection = None
        for closing in (response, connection):
            if closing:
                closing.close()


def get(url: str, limit: int, patience: Patience) -> bytes:
    """Return all of a small resource. Raises PrimeError, also when it has more than `limit`
    bytes."""
    download = Download(url, patience)
    data = bytearray()
    try:
        for block in download.blocks():
            data += block
            if len(data) > limit:
                raise PrimeError(f"{url} has more than {limit} bytes")
    finally:
        download.close()
    return bytes(data)


def split(url: str) -> tuple[str, int, str]:
    """Return host, port and path of an http URL. Raises PrimeError for any other."""
    scheme, _, rest = url.partition("://")
    place, slash, path = rest.partition("/")
    host, _, port = (
        place.rpartition(":") if not place.endswith("]") and ":" in place else (place, "", "80")
    )
    if scheme != "http" or not host or not port.isdecimal():
        raise PrimeError(f"{url} is not an http URL that can be fetched here")
    return host.strip("[]"), int(port), slash + path or "/"


def words(error: BaseException) -> str:
    """Return an error's own text, or else its name."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
