"""A UDP client for queries to other name servers: matches each answer with its query."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Any

from twisted.internet.protocol import DatagramProtocol

log = logging.getLogger("cod.dns")


class QueryClient(DatagramProtocol):
    """Queries under way, by number. An answer counts only from the address that was asked."""

    transport: Any

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._waiting: dict[int, tuple[tuple[str, int], Callable[[bytes], object]]] = {}
        self._port: Any = None
        self._random = random.SystemRandom()

    def start(self) -> None:
        """Open the socket."""
        self._port = self._reactor.listenUDP(0, self)

    def stop(self) -> None:
        """Close the socket."""
        self.forget()
        port, self._port = self._port, None
        if port is not None:
            port.stopListening()

    def forget(self) -> None:
        """Ignore the answers to all queries under way."""
        self._waiting.clear()

    def ask(
        self,
        question: Callable[[int], bytes],
        server: tuple[str, int],
        answered: Callable[[bytes], object],
    ) -> None:
        """Send the question, made with a free number, and call `answered` with its answer. Nothing
        is sent while 32,768 queries are under way."""
        if self._port is None or len(self._waiting) >= 2**15:
            return
        number = self._random.getrandbits(16)
        while number in self._waiting:
            number = self._random.getrandbits(16)
        try:
            self.transport.write(question(number), server)
        except OSError as error:
            log.debug("%s cannot be asked: %s", server[0], error)
            return
        self._waiting[number] = server, answered

    def datagramReceived(self, data: bytes, addr: Any) -> None:
        number = int.from_bytes(data[:2], "big")
        if len(data) >= 12 and number in self._waiting and self._waiting[number][0] == addr[:2]:
            self._waiting.pop(number)[1](data)

    def connectionRefused(self) -> None:
        """Do nothing: no server listens there, and none answers."""
