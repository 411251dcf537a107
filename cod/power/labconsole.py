"""Consoles of machines of `cod lab`: QEMU writes each machine's serial port to a file, which is
read as it grows.

Output from before the first look is left out: it may be of an earlier holder's time.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import LoopingCall
from twisted.python.failure import Failure

from cod.power.console import Heard, Opened
from cod.power.driver import PowerError, Target
from cod.power.lab import LabDriver

LOOK = 0.5  # seconds
AT_ONCE = 1 << 16  # bytes read at one look
FAR_BEHIND = 1 << 20  # bytes: what is longer than that is passed over


class LabConsoles:
    """A console driver that reads the files in which labs keep their machines' console output."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor

    def follow(self, target: Target, heard: Heard, opened: Opened) -> LabLine:
        """Return a line that reads the file of the machine's console."""
        return LabLine(self._reactor, LabDriver(self._reactor), target, heard, opened)


class LabLine:
    """A console file that is read as it grows. When the file becomes shorter, it is read from its
    beginning."""

    def __init__(
        self, reactor: Any, lab: LabDriver, target: Target, heard: Heard, opened: Opened
    ) -> None:
        self.ended: Deferred[None] = Deferred()
        self._heard, self._opened = heard, opened
        self._path, self._at = "", 0
        self._loop = LoopingCall(self._look)
        self._loop.clock = reactor
        self._asking: Deferred[str] = Deferred.fromCoroutine(lab.console(target))
        self._asking.addCallback(self._begin).addErrback(self._lost)

    def type(self, data: bytes) -> None:
        """Drop the bytes: QEMU writes the serial port to a file, and reads none."""

    def close(self) -> None:
        """Stop reading the file."""
        if not self.ended.called:
            self.ended.callback(None)
        self._asking.cancel()
        if self._loop.running:
            self._loop.stop()

    def _begin(self, path: str) -> None:
        self._path = path
        with suppress(FileNotFoundError):
            self._at = os.stat(path).st_size
        self._opened()
        self._loop.start(LOOK, now=False).addErrback(self._lost)

    def _look(self) -> None:
        if not os.path.isdir(os.path.dirname(self._path)):
            raise PowerError("the lab is gone")
        with suppress(FileNotFoundError), open(self._path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < self._at:  # a new file
                self._at = 0
            self._at = max(self._at, size - FAR_BEHIND)
            file.seek(self._at)
            data = file.read(AT_ONCE)
            self._at += len(data)
            if data:
                self._heard(data)

    def _lost(self, failure: Failure) -> None:
        if not self.ended.called:
            error = failure.value
            known = isinstance(error, PowerError)
            self.ended.errback(
                error if known else PowerError(f"its console cannot be read: {error}")
            )
