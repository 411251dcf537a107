"""TFTP, read-only, without sockets or clocks: RFC 1350, 2347, 2348 (blksize), 2349 (timeout,
tsize), 7440 (windowsize).

A `TftpSession` sends one file to one client. It takes the client's datagrams and the time, and
returns the datagrams to send as `Burst`s: runs of equally long datagrams that a kernel with
UDP_SEGMENT takes in one call. tftpy's packet classes read and write everything that carries text;
acknowledgements and DATA headers, four bytes each and thousands a second, are read and written
here.

How a session proceeds. Blocks are counted from 1 without end; on the wire the count wraps from
65535 to 0, as in other servers (RFC 1350 does not foresee it). An answer to options (OACK) counts
as block 0, which the client acknowledges like any other block. `_acked` is the last block that the
client has acknowledged, `_sent` the last one that was sent. An acknowledgement of a block between
these two is progress, and the next window starts right behind that block, whether that means going
on or going back (RFC 7440 section 4). Any other acknowledgement is old or forged, and is dropped.

A repeated acknowledgement is dropped too (RFC 1123 section 4.2.3.1: answering each one doubles the
traffic for ever), with one exception. With a window, it means that the first block of the window
was lost, so the window is sent again; but a repetition is then ignored for the following window, so
that duplicates made by the network die out.
"""

from __future__ import annotations

import logging
import math
import struct
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from tftpy.TftpPacketFactory import TftpPacketFactory
from tftpy.TftpPacketTypes import TftpPacketERR, TftpPacketInitial, TftpPacketOACK, TftpPacketWRQ
from tftpy.TftpShared import TftpException

from cod.wire.errors import PeerError

# tftpy logs every ERROR packet of a peer, without a limit
logging.getLogger("tftpy").setLevel(logging.CRITICAL)

NOT_DEFINED, NOT_FOUND, ACCESS_VIOLATION, ILLEGAL = 0, 1, 2, 4
LONGEST_REQUEST = 1468  # RFC 2347 says 512; one Ethernet frame is kind enough
# seconds between retransmissions, unless a client that has answered asked for a longer timeout;
# some clients (BusyBox) give up after 13 s, and four losses in a row should not cost them the file
LONGEST_WAIT = 4.0
LARGEST_BURST = 65000  # bytes: an IP datagram's limit is the limit of one UDP_SEGMENT call
MOST_SEGMENTS = 64  # the kernel's UDP_MAX_SEGMENTS before 6.2

Buffer: TypeAlias = bytes | memoryview

_data_header = struct.Struct("!HH").pack
_parse = TftpPacketFactory().parse


class Malformed(PeerError):
    """The datagram is not a request that TFTP knows. The text is for the client."""


class Burst(NamedTuple):
    """Datagrams to send in order: `parts` alternates head and payload; all but the last datagram
    are `size` bytes."""

    parts: list[Buffer]
    size: int

    def datagrams(self) -> list[bytes]:
        """Return each datagram by itself, copied: for tests and for kernels that cannot cut a burst
        themselves."""
        return [
            bytes(head) + bytes(payload)
            for head, payload in zip(self.parts[::2], self.parts[1::2], strict=True)
        ]


NOTHING: Sequence[Burst] = ()


@dataclass(frozen=True, slots=True)
class TftpRequest:
    """A client's first datagram. `kind` is 'read' or 'write'; option names are in lower case (RFC
    2347)."""

    kind: str
    name: str
    mode: str
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """The limits of a session.

    timeout       seconds before the first retransmission, unless the client sets it
    retries       retransmissions without progress before the end, once the client has answered
    unanswered    the same before its first answer: a forged sender's address gets little traffic
    amplified     bytes sent to an address that never answered, without options, for each byte
                  received from it
    window_bytes  bytes in a window, with any windowsize (a socket's buffer must hold them)
    """

    blksize: int = 65464
    windowsize: int = 64
    window_bytes: int = 131072
    timeout: float = 1.0
    retries: int = 10
    unanswered: int = 3
    amplified: float = 4.0


DEFAULTS = SessionLimits()


class Credit:
    """Limits the bytes that may be sent to addresses that never acknowledged anything: at most
    `factor` times the bytes received from there, headers included. Forged requests gain nothing.

    Only a transfer without options needs it: an answer to options is as short as the request, a
    first block is not.
    """

    HEADERS = 28  # bytes of IP and UDP
    REMEMBERED = 4096  # addresses

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._left: OrderedDict[str, float] = OrderedDict()

    def asked(self, address: str, size: int) -> None:
        """Count a request of `size` bytes."""
        self._left[address] = self._left.get(address, 0.0) + (size + self.HEADERS) * self._factor
        self._left.move_to_end(address)
        if len(self._left) > self.REMEMBERED:
            self._left.popitem(last=False)

    def answered(self, address: str) -> None:
        """Lift the limit of an address, which has answered."""
        self._left[address] = math.inf

    def knows(self, address: str) -> bool:
        """Return whether the address has answered."""
        return self._left.get(address) == math.inf

    def pays(self, address: str, size: int) -> bool:
        """Return whether `size` bytes may be sent there, and count them."""
        left = self._left.get(address, 0.0) - size - self.HEADERS
        if left < 0:
            return False
        self._left[address] = left
        return True


def decode_request(datagram: bytes) -> TftpRequest:
    """Return the request in the first datagram from a client. Raises `Malformed`."""
    if len(datagram) > LONGEST_REQUEST or datagram[:2] not in (b"\0\1", b"\0\2"):
        raise Malformed("not a TFTP request")
    try:
        packet: TftpPacketInitial = _parse(datagram)
    except (TftpException, struct.error, UnicodeDecodeError) as error:
        raise Malformed("malformed TFTP request") from error
    kind = "write" if isinstance(packet, TftpPacketWRQ) else "read"
    return TftpRequest(
        kind, packet.filename, packet.mode, {k.lower(): v for k, v in packet.options.items()}
    )


def encode_error(code: int, message: str) -> bytes:
    """Return an ERROR datagram with the given text (tftpy knows only the texts of RFC 1350, and
    none for code 0)."""
    packet = TftpPacketERR()
    packet.errorcode = code
    packet.errmsgs = {code: message.encode("ascii", "replace")}
    return bytes(packet.encode().buffer)


def netascii(text: bytes) -> bytes:
    """Return a file as netascii sends it (RFC 764): line ends as CR LF, a bare CR as CR NUL."""
    return text.replace(b"\r", b"\r\0").replace(b"\n", b"\r\n")


def negotiate(
    options: Mapping[str, str], size: int, limits: SessionLimits = DEFAULTS
) -> dict[str, int]:
    """Return the options to acknowledge for a file of `size` bytes; those unknown or out of range
    are left out (RFC 2347)."""
    asked = {
        name: int(value)
        for name, value in options.items()
        if value.isdecimal() and len(value) <= 12
    }
    granted: dict[str, int] = {}
    if asked.get("blksize", 0) >= 8:
        granted["blksize"] = min(asked["blksize"], limits.blksize)
    if 1 <= asked.get("timeout", 0) <= 255:
        granted["timeout"] = asked["timeout"]
    if "tsize" in asked and size:  # curl takes a size of 0 for an error
        granted["tsize"] = size
    if 1 <= asked.get("windowsize", 0) <= 65535:
        most = max(1, limits.window_bytes // granted.get("blksize", 512))
        granted["windowsize"] = min(asked["windowsize"], limits.windowsize, most)
    return granted


class TftpSession:
    """The transfer of one file to one client. The length of `content` must not change while the
    session exists.

    deadline   when `tick` has something to do, in the caller's seconds
    outcome    '' while running, then 'done', 'timeout' or 'error' (the client sent one)
    progress   bytes that the client has acknowledged
    """

    __slots__ = (
        "_acked",
        "_blksize",
        "_content",
        "_last",
        "_limits",
        "_oack",
        "_quiet",
        "_sent",
        "_stride",
        "_timeout",
        "_tries",
        "_window",
        "answered",
        "deadline",
        "outcome",
    )

    def __init__(
        self, request: TftpRequest, content: Buffer, limits: SessionLimits = DEFAULTS
    ) -> None:
        granted = negotiate(request.options, len(content), limits)
        self._content = memoryview(content)
        self._limits = limits
        self._blksize = granted.get("blksize", 512)
        self._window = granted.get("windowsize", 1)
        self._timeout = float(granted.get("timeout", limits.timeout))
        # the file ends with a short block, which may be empty
        self._last = len(content) // self._blksize + 1
        self._stride = max(1, min(MOST_SEGMENTS, LARGEST_BURST // (self._blksize + 4)))
        self._oack = _oack(granted) if granted else b""
        self._acked = -1 if granted else 0
        self._sent = self._acked
        self._tries = self._quiet = 0
        self.answered = False
        self.deadline = 0.0
        self.outcome = ""

    @property
    def progress(self) -> int:
        """Return the bytes that the client has acknowledged."""
        return min(max(self._acked, 0) * self._blksize, len(self._content))

    @property
    def first(self) -> int:
        """Return the size of the first block's datagram if no option was agreed on; else 0."""
        return 0 if self._oack else 4 + min(self._blksize, len(self._content))

    def start(self, now: float) -> Sequence[Burst]:
        """Return the first datagrams: the OACK, or the first block when no option was agreed on."""
        return self._send(now)

    def receive(self, datagram: bytes, now: float) -> Sequence[Burst]:
        """Return the datagrams to send after a datagram of the client. Meaningless ones are
        dropped."""
        if self.outcome:
            return NOTHING
        code = datagram[:2]
        if code == b"\0\4" and len(datagram) >= 4:
            block = datagram[2] << 8 | datagram[3]
            ahead = (block - self._acked) & 0xFFFF
            if ahead == 0:
                if self._window == 1 or self._quiet:
                    return NOTHING
                self._quiet = 2
                return self._send(now)
            if ahead > self._sent - self._acked:
                return NOTHING
            self._acked += ahead
            self._tries = 0
            if self._quiet:
                self._quiet -= 1
            self.answered = True
            if self._acked == self._last:
                self.outcome = "done"
                return NOTHING
            return self._send(now)
        if code == b"\0\5":
            self.outcome = "error"
        return NOTHING

    def tick(self, now: float) -> Sequence[Burst]:
        """Repeat blocks that were not acknowledged in time, waiting twice as long each time; after
        the last retry, give up."""
        if self.outcome or now < self.deadline:
            return NOTHING
        self._tries += 1
        if self._tries > (self._limits.retries if self.answered else self._limits.unanswered):
            self.outcome = "timeout"
            return NOTHING
        return self._send(now)

    def _send(self, now: float) -> Sequence[Burst]:
        # No repetition, and one block below: these short cuts halve the session's CPU.
        self.deadline = now + (self._wait() if self._tries or not self.answered else self._timeout)
        if self._acked < 0:
            self._sent = 0
            return (Burst([self._oack, b""], len(self._oack)),)
        first = self._acked + 1
        if self._window == 1:
            self._sent, size = first, self._blksize
            start = self._acked * size
            block = self._content[start : start + size]
            return (Burst([_data_header(3, first & 0xFFFF), block], size + 4),)
        self._sent = last = min(self._acked + self._window, self._last)
        if last - first < self._stride:
            return (self._burst(first, last),)
        return [
            self._burst(block, min(block + self._stride - 1, last))
            for block in range(first, last + 1, self._stride)
        ]

    def _wait(self) -> float:
        """Return the seconds to wait, twice as long each time. Before the client has answered, its
        timeout counts only up to `LONGEST_WAIT`: a forged request with 255 seconds would occupy the
        server for a quarter of an hour."""
        longest = max(LONGEST_WAIT, self._timeout) if self.answered else LONGEST_WAIT
        return min(self._timeout * (1 << self._tries), longest)

    def _burst(self, first: int, last: int) -> Burst:
        size, content = self._blksize, self._content
        parts: list[Buffer] = []
        start = (first - 1) * size
        for block in range(first, last + 1):
            parts.append(_data_header(3, block & 0xFFFF))
            parts.append(content[start : start + size])
            start += size
        return Burst(parts, size + 4)


def _oack(granted: Mapping[str, int]) -> bytes:
    packet = TftpPacketOACK()
    packet.options = dict(granted)
    return bytes(packet.encode().buffer)
