"""Consoles of BMCs that speak IPMI 2.0: Serial-over-LAN by the program ipmitool, with a child
process for each console.

ipmitool gets a terminal, because into a pipe it would write only when it has four kilobytes.
ipmitool is ended by its own escape sequence (`~.`), so that it closes the session: after a kill the
BMC keeps the session for a minute, in which nobody else can get the console. A BMC has only one
session. COD never ends the session of somebody else: administrators precede the recorder.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.error import ProcessExitedAlready
from twisted.internet.protocol import ProcessProtocol
from twisted.python.failure import Failure

from cod.power import ipmi
from cod.power.console import Heard, Opened
from cod.power.driver import PowerError, Target

# the line of ipmitool after which the console's output begins
BEGINS = b"[SOL Session operational."
GOODBYE = b"~."
PATIENCE = 3.0  # seconds for the goodbye
BEFORE = 1 << 14  # bytes kept of what ipmitool says before the console is heard

LASTING = {
    "SOL payload disabled": "Serial-over-LAN is switched off in the BMC",
    "cannot activate payload with": "the BMC wants Serial-over-LAN with other encryption",
}
FOR_NOW = {
    "already active on another session": "somebody else has this console; a BMC lets one at a time",
    "activation limit reached": "the BMC has no more sessions for consoles",
    "No response activating SOL": "the BMC does not answer",
}


class SolConsoles:
    """The driver for consoles of BMCs, by Serial-over-LAN."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor

    def follow(self, target: Target, heard: Heard, opened: Opened) -> SolLine:
        """Follow a console by `ipmitool sol activate`."""
        line = SolLine(self._reactor, heard, opened)
        try:
            options, environment = ipmi.call(target)
            program = ipmi.installed("ipmitool")
            words = [program, *options, "sol", "activate"]
            self._reactor.spawnProcess(line, program, words, environment, usePTY=True)
        except (PowerError, OSError) as error:
            line.ended.errback(
                error
                if isinstance(error, PowerError)
                else PowerError(f"no terminal: {error.strerror}")
            )
        return line


class SolLine(ProcessProtocol):
    """A running ipmitool that follows a console."""

    transport: Any = None

    def __init__(self, reactor: Any, heard: Heard, opened: Opened) -> None:
        self.ended: Deferred[None] = Deferred()
        self._reactor, self._heard, self._opened = reactor, heard, opened
        self._banner: bytes | None = b""  # None: from now on the output is the console's
        self._closing: Any = None
        self._at_start = True  # of a line: there ipmitool takes a tilde as its own

    def type(self, data: bytes) -> None:
        """Type the bytes on the console. A tilde that ipmitool would take as its own is doubled."""
        if self._banner is None and self._closing is None and data:
            self.transport.write(escaped(data, self._at_start))
            self._at_start = data.endswith((b"\r", b"\n"))

    def close(self) -> None:
        """Ask ipmitool to end. Kill it if it does not, or if the console would get the request as
        typed text."""
        if self.transport is not None and self.transport.pid and self._closing is None:
            self._closing = self._reactor.callLater(PATIENCE, self._kill)
            if self._banner is None and self._at_start:
                self.transport.write(GOODBYE)
            else:
                self._kill()  # there is no session yet, or an unfinished line was typed

    def _kill(self) -> None:
        with suppress(ProcessExitedAlready):
            self.transport.signalProcess("KILL")

    def outReceived(self, data: bytes) -> None:
        if self._banner is not None:
            data = self._introduced(data)
        if data and self._closing is None:
            self._heard(data)

    def _introduced(self, data: bytes) -> bytes:
        """Return the console's output after ipmitool's own introduction, b"" until that is
        complete."""
        assert self._banner is not None
        self._banner = (self._banner + data)[-BEFORE:]
        _, begins, after = self._banner.partition(BEGINS)
        end = after.find(b"\n")
        if not begins or end < 0:
            return b""
        self._banner = None
        if self._closing is None:
            self._opened()
        return after[end + 1 :]

    def processEnded(self, reason: Failure | None = None) -> None:
        """Report why the program ended by itself, unless it was asked to end."""
        if self._closing is None:
            self.ended.errback(trouble(self._banner))
            return
        if self._closing.active():
            self._closing.cancel()
        self.ended.callback(None)


def escaped(data: bytes, at_start: bool) -> bytes:
    """Return the bytes for which ipmitool passes on `data`: each `~` at the start of a line is
    doubled, since ipmitool takes a single one as its own."""
    return re.sub(rb"(?<![^\r\n])~" if at_start else rb"(?<=[\r\n])~", b"~~", data)


def trouble(output: bytes | None) -> PowerError:
    """Return the error that ipmitool's output tells. `output`: None where the console was connected
    before."""
    if output is None:
        return PowerError("the line to the BMC was lost")
    words = output.decode(errors="replace")
    for table, lasting in ((LASTING, True), (ipmi.LASTING, True), (FOR_NOW, False)):
        for part, meaning in table.items():
            if part in words:
                return PowerError(meaning, lasting=lasting)
    if ipmi.SILENT in words:
        return PowerError("the BMC does not answer")
    complaints = [line.strip() for line in words.splitlines() if line.startswith(("Error", "Info"))]
    return PowerError(
        f"the BMC gives no console: {complaints[-1] if complaints else 'no reason'}"[:300]
    )
