"""A private MariaDB server for tests, on a free port of loopback."""

from __future__ import annotations

from pathlib import Path

from cod.lab.servers.mariadb import UNSYNCED, DatabaseServer
from tests.ports import free_port

__all__ = ["UNSYNCED", "MariaDB"]


class MariaDB(DatabaseServer):
    """One server in `folder`. `start` waits until it answers; `kill` is kill -9; `url(name)` makes
    a database."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, port=free_port())
