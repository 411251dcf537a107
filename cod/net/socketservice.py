"""What the edges that read from one socket of their own do alike: open it, have the reactor watch it, close it."""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from typing import Any

from twisted.application.service import Service
from twisted.internet.interfaces import IReadDescriptor
from twisted.python.failure import Failure
from zope.interface import implementer


@implementer(IReadDescriptor)
class SocketService(Service, ABC):
    """Watches a socket while the service runs. Who inherits says which (`_open`), and what to do when it has something
    to read (`doRead`).

    reactor  needs addReader and removeReader
    name     what the reactor's log calls it
    """

    def __init__(self, reactor: Any, name: str) -> None:
        self._reactor = reactor
        self._name = name
        self._socket: socket.socket | None = None

    @abstractmethod
    def _open(self) -> socket.socket:
        """The socket, which does not block."""

    @abstractmethod
    def doRead(self) -> None:
        """Something waits in the socket."""

    def startService(self) -> None:
        """Open the socket. Raises OSError when that is not allowed, or somebody else has it."""
        super().startService()  # type: ignore[no-untyped-call]
        self._socket = self._open()
        self._reactor.addReader(self)

    def stopService(self) -> None:
        """Close the socket."""
        super().stopService()  # type: ignore[no-untyped-call]
        if self._socket is not None:
            self._reactor.removeReader(self)
            self._socket.close()
            self._socket = None

    def fileno(self) -> int:
        """The socket's, for the reactor."""
        return -1 if self._socket is None else self._socket.fileno()

    def logPrefix(self) -> str:
        """For the reactor's log."""
        return self._name

    def connectionLost(self, reason: Failure) -> None:
        """The reactor found the socket broken, or is shutting down."""
        self.stopService()
