"""What every power driver does, whatever it speaks to: a lab's daemon, a BMC, a switched outlet.

A driver's `address` names one machine; its form is the driver's own and is kept in `nodes.power_address`.
"""

from __future__ import annotations

from typing import Protocol

from twisted.internet.defer import Deferred


class PowerError(Exception):
    """The command was not, or not certainly, carried out; the sentence is for the administrator.

    lasting  trying again is useless: the driver cannot do that, or its address is wrong
    """

    def __init__(self, sentence: str, *, lasting: bool = False) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.lasting = lasting


class PowerDriver(Protocol):
    """Each method returns a Deferred that fails with `PowerError`, and may be cancelled.

    Commands may be repeated: on while on, off while off do nothing. They fire when the command was accepted; the edge
    asks for the status until it is as wished.
    """

    def status(self, address: str) -> Deferred[str]:
        """'on', 'off', or 'unknown' when the driver cannot tell (Wake-on-LAN)."""
        ...

    def on(self, address: str) -> Deferred[None]:
        """Switch on."""
        ...

    def off(self, address: str) -> Deferred[None]:
        """Switch off at once; the operating system is not asked."""
        ...

    def cycle(self, address: str) -> Deferred[None]:
        """Off, then on. Only asked for while the machine is not off."""
        ...
