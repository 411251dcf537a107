"""The databases of a chaos run: a file, one MariaDB, a pair, or three nodes of Galera."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

from cod.lab.servers.mariadb import UNSYNCED, DatabaseServer
from tests.galera import Galera, GaleraNode
from tests.mariadb import MariaDB
from tests.pair import Pair


class ChaosDatabase:
    """A database whose nodes are killed and stopped. `kind`: sqlite, mariadb, pair
    or galera."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.nodes: Sequence[DatabaseServer] = ()
        self._cluster: Galera | None = None
        self._pair: Pair | None = None
        self.url = f"sqlite:///{folder}/shared.db"
        if kind == "mariadb":
            node = MariaDB(folder / "db")
            node.install()
            node.start(*UNSYNCED)
            self.nodes, self.url = (node,), node.url("cod")
        elif kind == "pair":
            self._pair = Pair(folder / "db")
            self.nodes, self.url = (self._pair.first, self._pair.second), self._pair.url
        elif kind == "galera":
            self._cluster = Galera(folder / "db")
            self.nodes, self.url = self._cluster.nodes, self._cluster.url("cod")
            self.nodes[0].url("cod")  # makes it

    def start(self, node: DatabaseServer) -> None:
        """Start a node that was killed, and wait until it is ready. Of a pair whose primary it was,
        the other becomes the primary."""
        if self._pair is not None:
            if node is self._pair.primary:
                self._pair.promote()
            self._pair.rejoin(node)
        elif self._cluster is not None:
            assert isinstance(node, GaleraNode)
            self._cluster.start(node)
        else:
            node.start(*UNSYNCED)

    def resume(self, node: DatabaseServer) -> None:
        """Have a node that was stopped go on, and wait until the others have taken it in: a quorum
        would be lost where the next fault hits one of them before."""
        assert node.process is not None
        node.process.send_signal(signal.SIGCONT)
        if self._cluster is not None:
            self._cluster.wait_until_whole()

    def recover(self) -> None:
        """Start all nodes after a crash of all."""
        if self._pair is not None:
            self._pair.recover()
        elif self._cluster is not None:
            self._cluster.recover()
        else:
            self.start(self.nodes[0])

    def close(self) -> None:
        """Kill what runs."""
        for node in self.nodes:
            if node.process is not None:
                node.process.send_signal(signal.SIGCONT)
            node.kill()
