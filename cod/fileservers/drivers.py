"""Every file server's driver, by the name that the site file uses."""

from __future__ import annotations

from typing import Any

from cod.choices import FileServerDriverKind
from cod.fileservers.driver import FileServerDriver, ScriptDriver


def drivers(reactor: Any) -> dict[str, FileServerDriver]:
    """Return drivers that run their children with `reactor`. All run scripts;
    `cod.fileservers.script` chooses the functions of a script by the server's driver."""
    return dict.fromkeys(FileServerDriverKind.names(), ScriptDriver(reactor))
