"""The interface of power drivers, for everything that switches machines: a lab's daemon, a BMC, a
switched outlet, a sleeping NIC."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any, Protocol

from twisted.internet.task import deferLater

from cod.choices import PowerDriverKind


class PowerError(Exception):
    """The command was not carried out, or not certainly; the sentence is for the administrator.

    lasting  trying again is useless: the driver is not able to do that, its address is wrong, or
             its password is refused
    ignored  the machine accepted the command and did not carry it out: a stronger one is next
    silent   nothing answered at the address, which says nothing about the machine
    """

    def __init__(
        self,
        sentence: str,
        *,
        lasting: bool = False,
        ignored: bool = False,
        silent: bool = False,
    ) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.lasting = lasting
        self.ignored = ignored
        self.silent = silent


@dataclass(frozen=True, slots=True)
class SignIn:
    """A user and a password, which was just read from its file."""

    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Target:
    """One machine: its address, in the driver's own form (`nodes.power_address`), and the account
    to sign in with (None: no account).

    firmware  'bios' or 'uefi', None where that is not known
    """

    address: str
    sign_in: SignIn | None = None
    firmware: str | None = None


class PowerDriver(Protocol):
    """Each method is awaited, raises `PowerError`, and may be cancelled.

    Commands may be repeated: `on` for a machine that is on, and `off` for one that is off, do
    nothing. A command returns when it was accepted; the edge then asks for the status until it is
    as wished. No error's sentence contains a password.
    """

    @property
    @abstractmethod
    def switches_off(self) -> bool:
        """Return whether a running machine can be switched off."""

    @property
    @abstractmethod
    def measures(self) -> bool:
        """Return whether `watts` may be called."""

    @abstractmethod
    def status(self, target: Target) -> Awaitable[str]:
        """Return 'on', 'off', or 'unknown' when the driver cannot tell (Wake-on-LAN)."""
        ...

    @abstractmethod
    def on(self, target: Target) -> Awaitable[None]:
        """Switch on."""
        ...

    @abstractmethod
    def off(self, target: Target) -> Awaitable[None]:
        """Switch off at once; the operating system is not asked."""
        ...

    @abstractmethod
    def cycle(self, target: Target) -> Awaitable[None]:
        """Switch off, then on: a machine that runs, or that did not start when it was switched
        on."""
        ...

    @abstractmethod
    def soft(self, target: Target) -> Awaitable[bool]:
        """Ask the operating system to shut down. Return False where this driver cannot ask."""
        ...

    @abstractmethod
    def boot_from_network(self, target: Target) -> Awaitable[bool]:
        """Have the next boot, and only this one, begin at the network. Return False where this is
        left to the machine's own set-up."""
        ...

    @abstractmethod
    def boot_from_uri(self, target: Target, uri: str) -> Awaitable[bool]:
        """Have the next boot, and only this one, load `uri` by UEFI's HTTP boot. Return False where
        the driver or the BMC cannot set this."""
        ...

    @abstractmethod
    def watts(self, target: Target) -> Awaitable[float | None]:
        """Return the machine's present power draw in watts; None when its BMC does not measure."""
        ...


class Plain(PowerDriver):
    """Base class of drivers: the methods for what a simple switch cannot do."""

    kind: PowerDriverKind

    @property
    def switches_off(self) -> bool:
        """Return the value in the driver's record."""
        return self.kind.can.switch_off

    @property
    def measures(self) -> bool:
        """Return the value in the driver's record."""
        return self.kind.can.measure

    async def soft(self, target: Target) -> bool:
        """Return False: the driver cannot ask the operating system."""
        return False

    async def boot_from_network(self, target: Target) -> bool:
        """Return False: the driver cannot set what the machine boots from."""
        return False

    async def boot_from_uri(self, target: Target, uri: str) -> bool:
        """Return False: the driver cannot set a URI."""
        return False

    async def watts(self, target: Target) -> float | None:
        """Return None: the driver does not measure."""
        return None


async def off_then_on(
    reactor: Any, driver: PowerDriver, target: Target, patience: float, dark: float = 0.0
) -> None:
    """Make a power cycle with two commands: switch off, wait at most `patience` seconds until the
    machine is seen to be off, wait `dark` seconds, and switch on."""
    if await driver.status(target) != "off":
        await driver.off(target)
    until = reactor.seconds() + patience
    while await driver.status(target) != "off":
        if reactor.seconds() >= until:
            raise PowerError(
                f"told to go off and on, it is not off after {patience:.0f} s", ignored=True
            )
        await deferLater(reactor, 0.5, lambda: None)
    await deferLater(reactor, dark, lambda: None)
    await driver.on(target)
