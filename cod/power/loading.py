"""Loading of all power drivers and console drivers, by the names that the site file and
`nodes.power_driver` use. The names are in `choices.PowerDriverKind`."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any

from cod.choices import PowerDriverKind
from cod.power.console import ConsoleDriver
from cod.power.driver import PowerDriver


def drivers(reactor: Any) -> dict[str, PowerDriver]:
    """Return the power drivers, which use `reactor`."""
    return {
        name: resolve_name(f"cod.power.{name}:{name.capitalize()}Driver")(reactor)
        for name in PowerDriverKind.names()
        if name != PowerDriverKind.NONE
    }


def consoles(reactor: Any) -> dict[str, ConsoleDriver]:
    """Return the console drivers for the machines of those power drivers that have one."""
    return {
        kind.value: resolve_name(f"cod.power.{kind.can.console}")(reactor)
        for kind in PowerDriverKind
        if kind.can.console
    }
