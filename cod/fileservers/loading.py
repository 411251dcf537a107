"""Loading of the drivers of file servers, by the names that the site file uses."""

from __future__ import annotations

from typing import Any

from cod.choices import FileServerDriverKind
from cod.fileservers.driver import FileServerDriver, ScriptDriver


def drivers(reactor: Any) -> dict[str, FileServerDriver]:
    """Return the drivers, which run their child processes with `reactor`. All drivers run scripts;
    `cod.fileservers.script` chooses the functions of a script by the server's driver."""
    return dict.fromkeys(FileServerDriverKind.names(), ScriptDriver(reactor))
