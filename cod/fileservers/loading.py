"""Loading of the drivers of file servers, by the names that the site file uses."""

from __future__ import annotations

from typing import Any

from cod.choices import FileServerDriverKind
from cod.fileservers.driver import FileServerDriver, ScriptDriver


def drivers(reactor: Any) -> dict[str, FileServerDriver]:
    """Return the driver for each name of a driver in the site file: the same for all, since
    `cod.fileservers.script` chooses a script's functions by that name. It runs its child processes
    with `reactor`."""
    return dict.fromkeys(FileServerDriverKind.names(), ScriptDriver(reactor))
