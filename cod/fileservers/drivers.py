"""Every file server's driver, by the name that the site file uses."""

from __future__ import annotations

from typing import Any

from cod.fileservers.driver import FileServerDriver, ScriptDriver


def drivers(reactor: Any) -> dict[str, FileServerDriver]:
    """Return drivers that run their children with `reactor`. Both run scripts;
    `cod.fileservers.script` chooses the functions of a script by the server's driver."""
    scripts = ScriptDriver(reactor)
    return {"ganesha": scripts, "kernel": scripts}
