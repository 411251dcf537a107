"""Every power driver that there is, and every console, by the name that the site file and
`nodes.power_driver` use: found by `choices.PowerDriverKind`."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any

from cod.choices import PowerDriverKind
from cod.power.console import ConsoleDriver
from cod.power.driver import PowerDriver


def drivers(reactor: Any) -> dict[str, PowerDriver]:
    """Return drivers that speak with `reactor`."""
    return {
        name: resolve_name(f"cod.power.{name}:{name.capitalize()}Driver")(reactor)
        for name in PowerDriverKind.names()
        if name != PowerDriverKind.NONE
    }


def consoles(reactor: Any) -> dict[str, ConsoleDriver]:
    """Return what follows the consoles of those drivers' machines."""
    return {
        kind.value: resolve_name(f"cod.power.{kind.can.console}")(reactor)
        for kind in PowerDriverKind
        if kind.can.console
    }
