"""Sending a range of a file to a TCP connection by sendfile(2), so that its bytes do not pass
through this process."""

from __future__ import annotations

import os
import socket
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IPullProducer
from zope.interface import implementer

from cod.net.bootfiles import OpenFile

TURN = 1 << 20  # bytes in one turn of the reactor: one fast reader must not make the others wait


@implementer(IPullProducer)
class SendFile:
    """Sender of `length` bytes from `start`, after the data already written to `transport`.

    The transport calls `resumeProducing` once its own buffer is empty. From then on this sender
    takes the transport's turns to write: the transport itself would try its empty buffer, and leave
    and enter the reactor's set of writers, at each turn. Bytes that the socket does not take stay
    in the page cache. `done` fires with None when all bytes are in the socket; if the connection
    ends first it never fires. `at` is the next offset, `begin` the first.
    """

    def __init__(self, transport: Any, file: OpenFile, start: int, length: int) -> None:
        self.begin = self.at = start
        self.done: Deferred[None] = Deferred()
        self._transport = transport
        self._file = file
        self._end = start + length
        self._begun = False

    def start(self) -> Deferred[None]:
        """Register behind the bytes already written; return `done`."""
        self._transport.registerProducer(self, False)
        return self.done

    def resumeProducing(self) -> None:
        """Send more when the socket takes it. The first call comes from `registerProducer`, before
        the head has left."""
        if not self._begun:
            self._begun = True
            self._cork(True)
        elif self._send():
            self._transport.doWrite = self._turn
        else:
            return
        self._transport.startWriting()

    def stopProducing(self) -> None:
        """Send no more: the connection has ended."""
        vars(self._transport).pop("doWrite", None)

    def _turn(self) -> None:
        self._send()  # the reactor takes a value for the connection's end

    def _send(self) -> bool:
        """Send one turn's worth; return whether there is more to do."""
        try:
            sent = os.sendfile(
                self._transport.fileno(), self._file.fd, self.at, min(TURN, self._end - self.at)
            )
        except BlockingIOError:
            return True
        except OSError:
            self._transport.abortConnection()
            return False
        self.at += sent
        if sent == 0:  # the file was truncated: what was promised cannot be sent
            self._transport.abortConnection()
            return False
        if self.at < self._end:
            return True
        vars(self._transport).pop("doWrite", None)
        self._cork(False)
        self._transport.stopWriting()
        self._transport.unregisterProducer()
        self.done.callback(None)
        return False

    def _cork(self, on: bool) -> None:
        """Have the socket send full segments alone: with TCP_NODELAY each call of `sendfile` ends
        in a short one, which costs both ends as much as a full one."""
        self._transport.getHandle().setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, int(on))
