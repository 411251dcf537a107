"""Running TFTP transfers: their sockets, their timeouts, and how their datagrams are sent.

Each transfer has a socket of its own (TID, RFC 1350 section 4), connected to its client: the kernel
drops datagrams from other addresses, and reports at once when the client has gone (ECONNREFUSED).
All sockets are watched through one epoll descriptor that the reactor sees as a single reader, so a
turn of the reactor serves every transfer that has something to read, without the reactor's cost for
each. Timeouts are found by one scan, four times a second.

A window is sent by one `sendmsg` with UDP_SEGMENT: the kernel cuts it into datagrams. If it cannot
(blocks larger than the link's MTU: EINVAL; a device or tunnel that does not support it: EIO), the
transfer continues with one send for each datagram.
"""

from __future__ import annotations

import errno
import logging
import select
import socket
import struct
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import prometheus_client as prometheus
from twisted.internet.interfaces import IReadDescriptor
from twisted.python.failure import Failure
from zope.interface import implementer

from cod.net.bootfiles import OpenFile
from cod.periodic import Timer
from cod.wire.tftp import Buffer, Burst, Credit, TftpSession

UDP_SEGMENT = 103  # linux/udp.h; not in the socket module
NO_SEGMENTATION = {errno.EINVAL, errno.EIO, errno.EMSGSIZE, errno.ENOPROTOOPT, errno.EOPNOTSUPP}
SCAN = 0.25  # seconds between looks at the timeouts
MOST_READY = 64  # sockets served at one look
LOOKS = 32  # in one turn of the reactor: a few milliseconds at most
# seconds to wait for the next acknowledgement before going to sleep, which costs as much (measured)
LINGER = 30e-6
LONGEST_ANSWER = 516  # an ACK is 4 bytes; of an ERROR's text nothing is wanted

ENDED = prometheus.Counter("cod_tftp_ended_total", "TFTP transfers by how they ended", ["outcome"])
BYTES = prometheus.Counter("cod_tftp_bytes_total", "bytes of files that TFTP clients acknowledged")
RUNNING = prometheus.Gauge("cod_tftp_transfers", "TFTP transfers under way")

log = logging.getLogger("cod.tftp")

Peer = tuple[str, int]


@dataclass(slots=True, eq=False)
class Transfer:
    """One client's transfer. `socket` and `session` are set when the content is available.

    request   the datagram that started it, by which its repetition is recognised
    file      keeps the mapped file open
    segments  the kernel cuts this transfer's windows into datagrams
    """

    peer: Peer
    request: bytes
    name: str = ""
    socket: socket.socket | None = None
    session: TftpSession | None = None
    file: OpenFile | None = field(default=None, repr=False)
    segments: bool = True

    def send(self, bursts: Sequence[Burst]) -> None:
        """Send bursts of datagrams. Those that do not fit the socket's buffer are lost. Raises
        `OSError` if the client's port is closed."""
        assert self.socket is not None
        try:
            for parts, size in bursts:
                if len(parts) == 2:
                    self.socket.sendmsg(parts)
                else:
                    self._send_many(parts, size)
        except BlockingIOError:
            return

    def _send_many(self, parts: list[Buffer], size: int) -> None:
        assert self.socket is not None
        if self.segments:
            try:
                self.socket.sendmsg(
                    parts, [(socket.IPPROTO_UDP, UDP_SEGMENT, struct.pack("=H", size))]
                )
                return
            except OSError as error:
                if error.errno not in NO_SEGMENTATION:
                    raise
                self.segments = False
        for at in range(0, len(parts), 2):
            self.socket.sendmsg(parts[at : at + 2])


@implementer(IReadDescriptor)
class Transfers:
    """All transfers of one server address. `reactor` needs addReader, removeReader, seconds and
    callLater."""

    def __init__(self, reactor: Any) -> None:
        self.credit: Credit | None = None
        self._reactor = reactor
        self._all: dict[Peer, Transfer] = {}
        self._by_fd: dict[int, Transfer] = {}
        self._per_peer: Counter[str] = Counter()
        self._epoll: select.epoll | None = None
        self._scan = Timer(reactor, SCAN, self._tick)

    def start(self) -> None:
        self._epoll = select.epoll()
        self._reactor.addReader(self)
        self._scan.startService()

    def stop(self) -> None:
        """End all transfers. Firmware requests its files again."""
        if self._scan.running:
            self._scan.stopService()
        for transfer in list(self._all.values()):
            self.end(transfer, "stopped")
        self._reactor.removeReader(self)
        if self._epoll is not None:
            self._epoll.close()

    def __len__(self) -> int:
        return len(self._all)

    def of_address(self, address: str) -> int:
        return self._per_peer[address]

    def get(self, peer: Peer) -> Transfer | None:
        return self._all.get(peer)

    def add(self, transfer: Transfer) -> None:
        """Register a transfer whose content is still being looked up."""
        self._all[transfer.peer] = transfer
        self._per_peer[transfer.peer[0]] += 1
        RUNNING.inc()

    def begin(self, transfer: Transfer, session: TftpSession, address: str) -> None:
        """Start sending from `address`. Raises OSError (no descriptor left, no route)."""
        assert self._epoll is not None
        transfer.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        transfer.session = session
        self._by_fd[transfer.socket.fileno()] = transfer
        transfer.socket.bind((address, 0))
        transfer.socket.connect(transfer.peer)
        self._epoll.register(transfer.socket, select.EPOLLIN)
        transfer.send(session.start(self._reactor.seconds()))

    def end(self, transfer: Transfer, outcome: str) -> None:
        """Forget a transfer. A repeated call does nothing."""
        if self._all.get(transfer.peer) is not transfer:
            return
        del self._all[transfer.peer]
        self._per_peer[transfer.peer[0]] -= 1
        if not self._per_peer[transfer.peer[0]]:
            del self._per_peer[transfer.peer[0]]
        if transfer.socket is not None:
            self._by_fd.pop(transfer.socket.fileno(), None)
            transfer.socket.close()
        if transfer.session is not None:
            BYTES.inc(transfer.session.progress)
            if transfer.session.answered and self.credit is not None:
                self.credit.answered(transfer.peer[0])
        RUNNING.dec()
        ENDED.labels(outcome).inc()
        log.info("tftp %s %r %s", transfer.peer[0], transfer.name, outcome)

    # ------------------------------------------------------------ the reactor's reader

    def fileno(self) -> int:
        """Return the epoll descriptor, which is readable when any of the sockets is."""
        return -1 if self._epoll is None or self._epoll.closed else self._epoll.fileno()

    def logPrefix(self) -> str:
        return "tftp"

    def connectionLost(self, reason: Failure) -> None:
        """The reactor gives the descriptor up at shutdown; `stop` closes it."""

    def doRead(self) -> None:
        """Serve every socket that has something to read. On a fast network the next
        acknowledgements have arrived by then, so look again, up to `LOOKS` times, which is cheaper
        than returning to the reactor."""
        for _ in range(LOOKS):
            assert self._epoll is not None
            ready = self._epoll.poll(0, MOST_READY)
            if not ready:
                until = time.monotonic() + LINGER
                while not ready and time.monotonic() < until:
                    ready = self._epoll.poll(0, MOST_READY)
            if not ready:
                return
            now = self._reactor.seconds()
            for fd, _ in ready:
                transfer = self._by_fd.get(fd)
                if transfer is not None:
                    self._converse(transfer, now)

    def _converse(self, transfer: Transfer, now: float) -> None:
        """Read the client's answer, and send the next blocks."""
        sock, session = transfer.socket, transfer.session
        assert sock is not None
        assert session is not None
        try:
            bursts = session.receive(sock.recv(LONGEST_ANSWER), now)
            if bursts:
                transfer.send(bursts)
        except BlockingIOError:
            return
        except Exception as error:
            self._failed(transfer, error)
            return
        if session.outcome:
            self.end(transfer, session.outcome)

    def _tick(self) -> None:
        now = self._reactor.seconds()
        for transfer in list(self._by_fd.values()):
            assert transfer.session is not None
            try:
                transfer.send(transfer.session.tick(now))
            except Exception as error:
                self._failed(transfer, error)
            if transfer.session.outcome:
                self.end(transfer, transfer.session.outcome)

    def _failed(self, transfer: Transfer, error: Exception) -> None:
        """End the transfer after an error. An `OSError` means that the client's port is closed. Any
        other error is a bug, which must not stop the other transfers."""
        if not isinstance(error, OSError):
            log.error("tftp %s %r", transfer.peer[0], transfer.name, exc_info=error)
        self.end(transfer, "gone" if isinstance(error, OSError) else "bug")
