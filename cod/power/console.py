"""The interface of console drivers, for every source of a console: a BMC's Serial-over-LAN, a lab's
file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from twisted.internet.defer import Deferred

from cod.power.driver import Target

Heard = Callable[[bytes], object]
Opened = Callable[[], object]


class Line(Protocol):
    """A connection to a console, open or about to open.

    ended  fires with None after `close`, when everything of the connection is gone; fails with
           `PowerError` when the connection is lost or cannot be made
    """

    ended: Deferred[None]

    def type(self, data: bytes) -> None:
        """Pass on typed bytes; drop them while the console is not connected."""
        ...

    def close(self) -> None:
        """Close the connection. Further calls do nothing."""
        ...


class ConsoleDriver(Protocol):
    """A driver that follows the output of machines on their serial consoles."""

    def follow(self, target: Target, heard: Heard, opened: Opened) -> Line:
        """Follow the console: call `opened` once, when the console is connected, and then `heard`
        with each piece of output as it comes."""
        ...
