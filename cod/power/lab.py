"""The driver `lab`: the power switches of virtual bare metal (`cod.lab.daemon` has the protocol).

Address: ``<path of the lab's socket>#<node's name or MAC>``, for example
``/var/lib/cod-lab/demo/lab.sock#52:54:00:12:34:56``.
"""

from __future__ import annotations

import json
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import UNIXClientEndpoint, connectProtocol
from twisted.protocols.basic import LineOnlyReceiver
from twisted.python.failure import Failure

from cod.choices import PowerDriverKind
from cod.power.driver import Plain, PowerError, Target

CONNECT_SECONDS = 5.0


class LabDriver(Plain):
    """The driver for machines of labs, with one connection to the daemon for each command."""

    kind = PowerDriverKind.LAB

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor

    async def status(self, target: Target) -> str:
        """Return 'on' or 'off'."""
        return await self.status_after(target, "status")

    async def on(self, target: Target) -> None:
        """Start the machine."""
        await self.status_after(target, "on")

    async def off(self, target: Target) -> None:
        """Kill the machine."""
        await self.status_after(target, "off")

    async def cycle(self, target: Target) -> None:
        """Kill the machine and start it."""
        await self.status_after(target, "reset")

    async def status_after(self, target: Target, op: str) -> str:
        """Carry out `op`, which has ended when the daemon answers; return the power state."""
        power = (await self._answer(target.address, op)).get("power")
        return power if power in ("on", "off") else "unknown"

    async def console(self, target: Target) -> str:
        """Return the file to which the machine's serial port is written; it may not exist yet.
        Raises `PowerError`."""
        return str((await self._answer(target.address, "console-path")).get("console"))

    async def _answer(self, address: str, op: str) -> dict[str, Any]:
        path, separator, node = address.rpartition("#")
        if not (separator and path and node):
            raise PowerError(f"{address!r} is not of the form SOCKET#NODE", lasting=True)
        request = {"op": op, "node": node}
        endpoint = UNIXClientEndpoint(self._reactor, path, timeout=CONNECT_SECONDS)
        try:
            connection = await connectProtocol(endpoint, _Exchange(json.dumps(request).encode()))
        except Exception as error:
            raise PowerError(
                f"the lab's socket {path} does not answer: {error}", silent=True
            ) from None
        try:
            answer = json.loads(await connection.answer)
        except ValueError:
            raise PowerError(f"{path} is not the socket of a lab: its answer is not JSON") from None
        finally:
            connection.transport.abortConnection()
        answer = answer if isinstance(answer, dict) else {}
        if answer.get("ok") is not True:
            raise PowerError(f"the lab says: {answer.get('error', 'nothing')}")
        return answer


class _Exchange(LineOnlyReceiver):
    """Sends one line and receives one line."""

    delimiter = b"\n"
    transport: Any

    def __init__(self, request: bytes) -> None:
        self._request = request
        self.answer: Deferred[bytes] = Deferred()

    def connectionMade(self) -> None:
        self.transport.write(self._request + self.delimiter)

    def lineReceived(self, line: bytes) -> None:
        if not self.answer.called:
            self.answer.callback(line)

    def connectionLost(self, reason: Failure | None = None) -> None:
        if not self.answer.called:
            self.answer.errback(PowerError("the lab closed the connection without an answer"))
