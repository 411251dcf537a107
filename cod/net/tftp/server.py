"""The TFTP server: requests come to one socket for each subnet, and each starts a transfer (see
`transfers`).

The server serves the files below the boot root; the documents of single nodes,
``pxelinux.cfg/01-{mac, with dashes}``, ``boot/{mac}/script.ipxe`` and ``boot/{mac}/secret.cpio``;
and ``boot/disk/{signature}``, for every node.
"""

from __future__ import annotations

import logging
import re
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.python.failure import Failure

from cod.model import Refused, SiteRef, Subnet, mac_of
from cod.net.bootdocs import BootDocs, disk_loader
from cod.net.bootfiles import BootFiles, NoSuchFile
from cod.net.socketservice import SocketService
from cod.net.tftp.transfers import Peer, Transfer, Transfers
from cod.pool import Pool
from cod.wire import tftp
from cod.wire.tftp import Buffer, TftpRequest, TftpSession

LARGEST_NETASCII = 1 << 20
MOST_REQUESTS = 64  # read in one turn of the reactor

_DOCUMENT = re.compile(
    r"/*(?:pxelinux\.cfg/01-(?P<config>[^/]+)|boot/(?P<mac>[^/]+)/(?P<name>secret\.cpio|script\.ipxe))"
)
_DISK = re.compile(r"/*boot/disk/([^/]+)")

log = logging.getLogger("cod.tftp")


@dataclass(frozen=True, slots=True)
class TransferLimits:
    """Limits of concurrent transfers: in all, and to one address (one machine needs two or
    three)."""

    in_all: int = 4096
    per_peer: int = 32


USUAL = TransferLimits()


class TftpServer(SocketService):
    """The TFTP server for the files below `root` and the nodes' documents, on `subnet.server`.

    reactor  needs addReader, removeReader, seconds and callLater
    clock    wall time for the flows
    port     0 takes any free one (tests); `port` then says which
    """

    def __init__(
        self,
        reactor: Any,
        pool: Pool,
        site: SiteRef,
        subnet: Subnet,
        root: Path,
        clock: Callable[[], float] = time.time,
        *,
        port: int = 69,
        transfer_limits: TransferLimits = USUAL,
        limits: tftp.SessionLimits = tftp.DEFAULTS,
    ) -> None:
        super().__init__(reactor, f"tftp {subnet.name}")
        self.port = port
        self.transfers = Transfers(reactor)
        self._address = subnet.server
        self._files = BootFiles(root)
        self._docs = BootDocs(pool, site, clock)
        self._transfer_limits = transfer_limits
        self._limits = limits
        self._credit = self.transfers.credit = tftp.Credit(limits.amplified)

    def startService(self) -> None:
        """Bind and listen. Raises OSError when the address or the port is not available."""
        super().startService()
        self.transfers.start()

    def stopService(self) -> None:
        """Stop listening and drop all transfers."""
        super().stopService()
        self.transfers.stop()

    def _open(self) -> socket.socket:
        listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        # hundreds of clients may send requests at the same moment
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        listener.bind((self._address, self.port))
        self.port = listener.getsockname()[1]
        return listener

    def doRead(self) -> None:
        assert self._socket is not None
        for _ in range(MOST_REQUESTS):
            try:
                datagram, peer = self._socket.recvfrom(tftp.LONGEST_REQUEST + 1)
            except OSError:  # nothing more, or an ICMP error caused by an earlier answer
                return
            try:
                self._asked(datagram, peer)
            except Exception:  # a bug; left to the reactor it would close the socket
                log.exception("tftp %s: %s", peer[0], datagram.hex())

    # ------------------------------------------------------------ requests

    def _asked(self, datagram: bytes, peer: Peer) -> None:
        old = self.transfers.get(peer)
        if old is not None:
            if old.request == datagram and not (old.session and old.session.answered):
                return  # the client is in a hurry: its request is being seen to
            # it starts anew from the same port, as ROMs do after a reset
            self.transfers.end(old, "replaced")
        try:
            request = tftp.decode_request(datagram)
        except tftp.Malformed as error:
            # never an error in answer to an error, or to an echo
            if datagram[:2] in (b"\0\1", b"\0\2"):
                self._refuse(peer, tftp.ILLEGAL, str(error))
            return
        self._credit.asked(peer[0], len(datagram))
        refusal = self._refusal(request, peer)
        if refusal is not None:
            self._refuse(peer, *refusal)
            return
        transfer = Transfer(peer, datagram, request.name)
        self.transfers.add(transfer)
        content: Deferred[Any] = maybeDeferred(self._content, transfer, request)
        content.addCallback(self._begin, transfer, request).addErrback(self._failed, transfer)

    def _refusal(self, request: TftpRequest, peer: Peer) -> tuple[int, str] | None:
        if request.kind == "write":
            return tftp.ACCESS_VIOLATION, "this server is read-only"
        if request.mode not in ("octet", "netascii"):
            return tftp.ILLEGAL, "unknown mode"
        limits = self._transfer_limits
        if (
            len(self.transfers) >= limits.in_all
            or self.transfers.of_address(peer[0]) >= limits.per_peer
        ):
            return tftp.NOT_DEFINED, "too many transfers, try again later"
        return None

    def _content(self, transfer: Transfer, request: TftpRequest) -> Buffer | Deferred[bytes]:
        """Return the bytes to send, now or when a document's flow is done (it may refuse). Raises
        `NoSuchFile`."""
        found = _DOCUMENT.fullmatch(request.name)
        mac = mac_of(found["config"] or found["mac"]) if found else None
        if found is not None and mac is not None:
            made = {
                None: self._docs.pxelinux,
                "secret.cpio": self._docs.secret,
                "script.ipxe": self._docs.ipxe,
            }
            return made[found["name"]](mac, transfer.peer[0])
        if (found := _DISK.fullmatch(request.name)) and (
            program := disk_loader(found[1])
        ) is not None:
            return program
        transfer.file = self._files.open(request.name)
        return transfer.file.view()

    def _begin(self, content: Buffer, transfer: Transfer, request: TftpRequest) -> None:
        if self.transfers.get(transfer.peer) is not transfer:
            return  # replaced, or the service stopped, while the flow ran
        if request.mode == "netascii":
            if len(content) > LARGEST_NETASCII:
                raise Refused("invalid", "too large for netascii, use octet")
            content = tftp.netascii(transfer.file.read() if transfer.file else bytes(content))
        session = TftpSession(request, content, self._limits)
        if session.first and not self._credit.knows(transfer.peer[0]):
            if not self._credit.pays(transfer.peer[0], session.first):
                # until the client has asked again, twice or so
                self.transfers.end(transfer, "withheld")
                return
            # its credit pays for one block: it is not repeated before the address has answered
            session = TftpSession(request, content, replace(self._limits, unanswered=0))
        self.transfers.begin(transfer, session, self._address)

    def _failed(self, failure: Failure, transfer: Transfer) -> None:
        self.transfers.end(transfer, "refused")
        error = failure.value
        if isinstance(error, NoSuchFile):
            self._refuse(transfer.peer, tftp.NOT_FOUND, "file not found")
        elif isinstance(error, Refused):
            self._refuse(transfer.peer, tftp.ACCESS_VIOLATION, error.sentence)
        elif isinstance(error, OSError):  # no descriptor left, no way to the client
            log.warning("tftp %s %r: %s", transfer.peer[0], transfer.name, error)
            self._refuse(transfer.peer, tftp.NOT_DEFINED, "the server has no room, try again later")
        else:
            log.error("tftp %s %r: %s", transfer.peer[0], transfer.name, failure.getTraceback())
            self._refuse(transfer.peer, tftp.NOT_DEFINED, "server error")

    def _refuse(self, peer: Peer, code: int, message: str) -> None:
        log.debug("tftp %s: %s", peer[0], message)
        if self._socket is None:
            return  # stopped while the flow ran
        try:
            self._socket.sendto(tftp.encode_error(code, message), peer)
        except OSError as error:
            log.debug("tftp %s: cannot be answered: %s", peer[0], error)
