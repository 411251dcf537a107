"""The common part of power drivers, whatever they speak to: a lab's daemon, a BMC, a switched
outlet, a sleeping NIC."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any, Protocol

from twisted.internet.task import deferLater

from cod.choices import PowerDriverKind


class PowerError(Exception):
    """The command was not, or not certainly, carried out; the sentence is for the administrator.

    lasting  trying again is useless: the driver cannot do that, its address is wrong, its password
             is refused
    ignored  the machine accepted the command and did not do it: a stronger one is next
    silent   nothing answered at the address: nothing is known against the machine
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
    """A user and a password, just read."""

    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Target:
    """One machine: its address, in the driver's own form (`nodes.power_address`), and who asks;
    None: no account.

    firmware  'bios' or 'uefi', None where that is not known
    """

    address: str
    sign_in: SignIn | None = None
    firmware: str | None = None


class PowerDriver(Protocol):
    """Each method is awaited, raises `PowerError`, and may be cancelled.

    Commands may be repeated: on while on, off while off do nothing. They return when the command
    was accepted; the edge asks for the status until it is as wished. No sentence holds a password.
    """

    @property
    @abstractmethod
    def switches_off(self) -> bool:
        """Say whether a machine that runs can be switched off."""

    @property
    @abstractmethod
    def measures(self) -> bool:
        """Say whether `watts` may be asked."""

    @abstractmethod
    def status(self, target: Target) -> Awaitable[str]:
        """'on', 'off', or 'unknown' when the driver cannot tell (Wake-on-LAN)."""
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
        """Switch off, then on: a machine that runs, or that has not come on when it was switched
        on."""
        ...

    @abstractmethod
    def soft(self, target: Target) -> Awaitable[bool]:
        """Ask the operating system to shut down. False: this driver cannot ask."""
        ...

    @abstractmethod
    def boot_from_network(self, target: Target) -> Awaitable[bool]:
        """Have the next boot, and that alone, begin at the network. False: that is left to the
        machine's own set-up."""
        ...

    @abstractmethod
    def boot_from_uri(self, target: Target, uri: str) -> Awaitable[bool]:
        """Have the next boot, and that alone, load `uri` by UEFI's HTTP boot. False: the driver, or
        the BMC, cannot hand it over."""
        ...

    @abstractmethod
    def watts(self, target: Target) -> Awaitable[float | None]:
        """Return what the machine draws now; None when its BMC does not measure."""
        ...


class Plain(PowerDriver):
    """Answers of a switch that can do nothing else to the finer questions; drivers derive from
    it."""

    kind: PowerDriverKind

    @property
    def switches_off(self) -> bool:
        """Return what the driver's record says."""
        return self.kind.can.switch_off

    @property
    def measures(self) -> bool:
        """Return what the driver's record says."""
        return self.kind.can.measure

    async def soft(self, target: Target) -> bool:
        """Raise: the driver cannot ask."""
        return False

    async def boot_from_network(self, target: Target) -> bool:
        """Raise: the driver cannot tell the machine."""
        return False

    async def boot_from_uri(self, target: Target, uri: str) -> bool:
        """Return False: the driver hands over no URI."""
        return False

    async def watts(self, target: Target) -> float | None:
        """Return None: the driver does not measure."""
        return None


async def off_then_on(
    reactor: Any, driver: PowerDriver, target: Target, patience: float, dark: float = 0.0
) -> None:
    """A power cycle in two commands: off, seen to be off within `patience` seconds and for `dark`
    seconds, on."""
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
