"""A private cluster of MariaDB Galera for tests: nodes on free ports of loopback."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cod.lab.servers.galera import PROVIDER, GaleraCluster, GaleraNode
from cod.lab.servers.mariadb import UNSYNCED
from tests.ports import free_port

__all__ = ["Galera", "GaleraNode", "needs_galera"]

needs_galera = pytest.mark.skipif(
    not (Path(PROVIDER).exists() and shutil.which("wsrep_sst_rsync")),
    reason="galera-4, mariadb-server and rsync are not installed",
)


class Galera(GaleraCluster):
    """A cluster that runs, in `folder`."""

    def __init__(self, folder: Path, size: int = 3, options: tuple[str, ...] = UNSYNCED) -> None:
        super().__init__(
            [
                GaleraNode(folder / f"node{number}", ports=[free_port() for _ in range(4)])
                for number in range(1, size + 1)
            ],
            options,
        )
        self.found()
