"""Loading of all switch drivers, by the names that the site file uses, which are in
`choices.SwitchDriverKind`."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any

from cod.choices import SwitchDriverKind
from cod.switches.driver import MacTableDriver, SwitchDriver


def drivers(reactor: Any) -> dict[str, SwitchDriver]:
    """Return the drivers, which use `reactor`."""
    return {
        kind.value: resolve_name(f"cod.switches.{kind.driver}")(reactor)
        for kind in SwitchDriverKind
    }


def mac_tables(reactor: Any) -> dict[str, MacTableDriver]:
    """Return the drivers that can tell on which port a MAC was heard."""
    return {
        kind.value: resolve_name(f"cod.switches.{kind.driver}")(reactor)
        for kind in SwitchDriverKind
        if kind.tells_macs
    }
