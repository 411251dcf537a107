"""Child processes of the reactor, whose output is collected."""

from __future__ import annotations

import os
from contextlib import suppress
from signal import SIGKILL
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.error import ProcessExitedAlready
from twisted.internet.protocol import ProcessProtocol
from twisted.python.failure import Failure


class ChildProcess(ProcessProtocol):
    """A running program. `ended` fires with (exit status, output, errors); the status is None where
    a signal ended the program. Cancelling `ended` kills the program.

    input_  bytes for the program's standard input, which ends after them
    leads   the program is started by setsid(1); the processes that it starts are killed with it
    most    bytes that are kept of the output, and of the errors; None: all
    """

    transport: Any

    def __init__(
        self, input_: bytes = b"", most: int | None = None, *, leads: bool = False
    ) -> None:
        self._input, self._most, self._leads = input_, most, leads
        self._output, self._errors = bytearray(), bytearray()
        self.ended: Deferred[tuple[int | None, bytes, bytes]] = Deferred(lambda _: self.kill())

    def connectionMade(self) -> None:
        self.transport.write(self._input)
        self.transport.closeStdin()

    def outReceived(self, data: bytes) -> None:
        self._keep(self._output, data)

    def errReceived(self, data: bytes) -> None:
        self._keep(self._errors, data)

    def _keep(self, kept: bytearray, data: bytes) -> None:
        kept += data if self._most is None else data[: self._most - len(kept)]

    def processEnded(self, reason: Failure | None = None) -> None:
        status = getattr(getattr(reason, "value", None), "exitCode", None)
        if not self.ended.called:
            self.ended.callback((status, bytes(self._output), bytes(self._errors)))

    def kill(self) -> None:
        """End the program at once."""
        if self._leads and self.transport.pid is not None:  # None: it was reaped
            with suppress(ProcessLookupError):  # setsid has not made it a group's leader yet
                os.killpg(self.transport.pid, SIGKILL)
        with suppress(ProcessExitedAlready):
            self.transport.signalProcess("KILL")
