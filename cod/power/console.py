"""The common part of consoles, whatever they are followed by: a BMC's Serial-over-LAN, a lab's
file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from twisted.internet.defer import Deferred

from cod.power.driver import Target

Heard = Callable[[bytes], object]
Opened = Callable[[], object]


class Line(Protocol):
    """A console that is being followed, or about to be.

    ended  fires with None after `close`, when nothing of it is left; fails with `PowerError` when
           the line is lost or does not come about
    """

    ended: Deferred[None]

    def type(self, data: bytes) -> None:
        """Pass on what somebody types; drop it where the console is not heard."""
        ...

    def close(self) -> None:
        """Stop following the console. Further calls do nothing."""
        ...


class ConsoleDriver(Protocol):
    """Follows what machines write on their serial consoles."""

    def follow(self, target: Target, heard: Heard, opened: Opened) -> Line:
        """Follow the console: call `opened` once, when it is heard, and then `heard` with what
        comes, as it comes."""
        ...
