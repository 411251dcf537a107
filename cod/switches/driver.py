"""The interface of switch drivers: a session in which access ports are read and changed."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from cod.model import Switch
from cod.power.driver import SignIn


class SwitchError(Exception):
    """A session or a command failed; the sentence is for the administrator and holds no password.

    lasting  trying again is useless: there is no such port, or it is a trunk
    """

    def __init__(self, sentence: str, *, lasting: bool = False) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.lasting = lasting


@dataclass(frozen=True, slots=True)
class SwitchTarget:
    """A switch of the site file, and the account to sign in with; None: no account."""

    switch: Switch
    sign_in: SignIn | None = None


class SwitchSession(Protocol):
    """A session with one switch. Each method is awaited, raises `SwitchError` when the session is
    over, and may be cancelled.

    Drivers change access ports only: a trunk is refused, because it may be an uplink.
    """

    about: str
    """The switch's own description: its maker, model and version."""

    def read(self, ports: Collection[str]) -> Awaitable[Mapping[str, int | SwitchError]]:
        """Return the access VLAN of each port (0: the port is in no VLAN), or the error with which
        it could not be read."""
        ...

    def change(self, wanted: Mapping[str, int]) -> Awaitable[Mapping[str, SwitchError]]:
        """Put each port into its VLAN; return the errors of the ports that the switch refused. The
        edge reads the other ports back."""
        ...

    def close(self) -> Awaitable[None]:
        """End the session. Raises nothing."""
        ...


class SwitchDriver(Protocol):
    """A kind of switch."""

    def open(self, target: SwitchTarget) -> Awaitable[SwitchSession]:
        """Begin a session. Raises `SwitchError`."""
        ...


class MacTableDriver(Protocol):
    """A kind of switch whose table of MAC addresses can be read."""

    def locate(
        self, target: SwitchTarget, macs: Collection[str]
    ) -> Awaitable[Mapping[str, tuple[str, ...]]]:
        """Return, by MAC, all names of the access port, in the provisioning VLAN, on which the
        switch heard the MAC last. Left out are MACs that the switch does not know, or knows
        elsewhere, such as on a trunk. Raises `SwitchError`."""
        ...
