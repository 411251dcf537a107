"""The common base of services that read from one socket: it opens the socket, has the reactor watch
it, closes it, and explains errors of opening it."""

from __future__ import annotations

import errno
import os
import socket
from abc import ABC, abstractmethod
from typing import Any

from twisted.application.service import Service
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IReadDescriptor
from twisted.python.failure import Failure
from zope.interface import implementer


@implementer(IReadDescriptor)
class SocketService(Service, ABC):
    """A service that watches a socket while it runs. A subclass opens the socket (`_open`), and
    reads from it (`doRead`).

    reactor  needs addReader and removeReader
    name     what the reactor's log calls it
    """

    def __init__(self, reactor: Any, name: str) -> None:
        self._reactor = reactor
        self._name = name
        self._socket: socket.socket | None = None

    @abstractmethod
    def _open(self) -> socket.socket:
        """Return the open socket, in non-blocking mode."""

    @abstractmethod
    def doRead(self) -> None:
        """Read what waits in the socket."""

    def startService(self) -> None:
        """Open the socket. Raises OSError when this is not allowed, or when the port is in use."""
        super().startService()  # type: ignore[no-untyped-call]
        try:
            self._socket = self._open()
        except OSError as error:
            error.filename = error.filename or self._name  # which of the site's sockets it is
            raise
        self._reactor.addReader(self)

    def stopService(self) -> None:
        super().stopService()  # type: ignore[no-untyped-call]
        if self._socket is not None:
            self._reactor.removeReader(self)
            self._socket.close()
            self._socket = None

    def fileno(self) -> int:
        return -1 if self._socket is None else self._socket.fileno()

    def logPrefix(self) -> str:
        return self._name

    def connectionLost(self, reason: Failure) -> None:
        """The reactor found the socket broken, or is shutting down."""
        self.stopService()


# ---------------------------------------------------------------- what may be in the way

_ADVICE = {
    errno.EADDRINUSE: (
        "another program has that port, or `cod serve` runs here already: `ss -lnp` shows who"
    ),
    errno.EADDRNOTAVAIL: "this host has no such address: see [[subnet]] and [api] in the site file",
    errno.ENODEV: "this host has no such interface: see [[subnet]] in the site file",
    errno.EACCES: "it wants root, or the capabilities that docs/systemd/cod.service gives",
    errno.EPERM: "it wants root, or the capabilities that docs/systemd/cod.service gives",
}


def why(error: Exception) -> str:
    """Return why a service cannot start: which port or socket, and what to do about it."""
    cause, text = error, str(error)
    if isinstance(error, CannotListenError):
        cause = error.socketError
        port = error.port
        where = (
            port.decode(errors="replace")
            if isinstance(port, bytes)
            else f"{error.interface}:{port}"
        )
        text = f"{where}: {os.strerror(cause.errno) if getattr(cause, 'errno', None) else cause}"
    advice = _ADVICE.get(getattr(cause, "errno", None) or 0)
    return f"{text}; {advice}" if advice else text
