"""The signer's socket. It signs certificates of VCMs for the server's parts on this host that may
ask for them (`cod.security.partusers.MAY_SIGN`). The kernel tells which part asks."""

from __future__ import annotations

import json
import logging
from base64 import b64decode
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import Factory
from twisted.protocols.basic import LineOnlyReceiver
from twisted.protocols.policies import TimeoutMixin

from cod.security import partusers, signer
from cod.security.ca import Ca

log = logging.getLogger("cod.signer")


class SignerLine(LineOnlyReceiver, TimeoutMixin):
    """A connection to the signer, for one question and one answer."""

    delimiter = b"\n"
    MAX_LENGTH = signer.LONGEST

    def __init__(self, ca: Ca, clock: Callable[[], float]) -> None:
        self._ca, self._clock = ca, clock

    def connectionMade(self) -> None:
        self.setTimeout(signer.PATIENCE)  # type: ignore[no-untyped-call]

    def lineReceived(self, line: bytes) -> None:
        """Answer the question, if the peer may ask it."""
        transport: Any = self.transport
        process, user = signer.peer(transport.socket)
        if user in partusers.signer_clients():
            self._answer(self._signed(line))
        else:
            log.warning(
                "process %d of user %d may not ask the signer: it is refused", process, user
            )
            self._answer({"error": "may not ask"})

    def lineLengthExceeded(self, line: bytes) -> None:
        """Refuse a question that is too long."""
        self._answer({"error": "the question is too long"})

    def connectionLost(self, reason: Any = None) -> None:
        self.setTimeout(None)  # type: ignore[no-untyped-call]

    def _signed(self, line: bytes) -> dict[str, Any]:
        now = datetime.fromtimestamp(self._clock(), UTC)
        try:
            question = json.loads(line)
            vcluster = str(question["vcluster"])
            issued = self._ca.certify(vcluster, b64decode(question["request"]), now)
        except (ValueError, KeyError, TypeError) as error:
            return {"error": f"the question cannot be read: {error}"}
        log.info("signed certificate %s for the VCM of %s", issued.serial, vcluster)
        return signer.encoded(issued)

    def _answer(self, answer: dict[str, Any]) -> None:
        self.sendLine(json.dumps(answer).encode())  # type: ignore[no-untyped-call]
        transport: Any = self.transport
        transport.loseConnection()


class _Lines(Factory):
    noisy = False

    def __init__(self, ca: Ca, clock: Callable[[], float]) -> None:
        self._ca, self._clock = ca, clock

    def buildProtocol(self, addr: IAddress | None) -> SignerLine:
        return SignerLine(self._ca, self._clock)


class Signer(Service):
    """The signer at `path`, with the authority `ca`."""

    def __init__(self, reactor: Any, path: Path, ca: Ca, clock: Callable[[], float]) -> None:
        self._reactor, self._path, self._lines = reactor, path, _Lines(ca, clock)
        self._port: Any = None

    def startService(self) -> None:
        """Listen. Raises CannotListenError, OSError."""
        super().startService()  # type: ignore[no-untyped-call]
        self._path.unlink(missing_ok=True)
        self._port = self._reactor.listenUNIX(str(self._path), self._lines, mode=0o660)

    def stopService(self) -> Deferred[Any]:
        super().stopService()  # type: ignore[no-untyped-call]
        return maybeDeferred(self._port.stopListening)
