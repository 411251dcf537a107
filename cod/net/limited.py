"""Connections to servers of others that may send a limited number of bytes."""

from __future__ import annotations

from typing import Any

from twisted.protocols.policies import ProtocolWrapper

MOST = 2**16  # bytes of an answer


class Limited(ProtocolWrapper):
    """A connection whose peer cannot fill the memory: it is cut after `most` bytes."""

    transport: Any
    seen = 0
    most = MOST

    def dataReceived(self, data: bytes) -> None:
        """Count."""
        self.seen += len(data)
        if self.seen > self.most:
            self.transport.abortConnection()
        else:
            super().dataReceived(data)  # type: ignore[no-untyped-call]
