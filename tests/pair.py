"""A private primary and its semi-synchronous replica for tests, and what a site's fail-over tool
does with them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pymysql

from cod.store import database
from cod.store import tables as t
from tests.mariadb import UNSYNCED, MariaDB
from tests.waiting import until

YEAR = 31_536_000_000  # milliseconds
OPTIONS = (
    "--log-bin=log",
    "--log-slave-updates",
    "--gtid-strict-mode=ON",
    # nobody reads what the replica does not have yet
    "--rpl-semi-sync-master-wait-point=AFTER_SYNC",
    # never goes on without the replica
    f"--rpl-semi-sync-master-timeout={YEAR}",
    *UNSYNCED,
)


class Pair:
    """Two MariaDB servers, `first` and its replica `second`, with COD's tables. A promotion makes
    the replica the `primary`.

    url  of both, for a user without the right to write to a replica
    """

    def __init__(self, folder: Path) -> None:
        self.first, self.second = MariaDB(folder / "first"), MariaDB(folder / "second")
        self.primary = self.first
        self.first.install()
        shutil.copytree(self.first.data, self.second.data)
        self.start_first()
        made = database.connect(self.first.url("cod"))
        t.metadata.create_all(made)
        made.dispose()
        self.first.execute("CREATE USER cod", "GRANT ALL ON cod.* TO cod")
        self.hosts = [f"127.0.0.1:{server.port}" for server in (self.first, self.second)]
        self.url = f"mysql+pymysql://cod@{','.join(self.hosts)}/cod"
        self.rejoin(self.second)

    @property
    def replica(self) -> MariaDB:
        """Return the server that is not the primary."""
        return self.second if self.primary is self.first else self.first

    def start_first(self, *options: str) -> None:
        """Start the first server, as a primary unless the options say otherwise."""
        self._start(self.first, *options)

    def promote(self) -> None:
        """Make the replica the primary, after it has written what it has received."""
        replica = self.replica
        replica.execute("STOP SLAVE IO_THREAD")
        until(lambda: self._replica("Gtid_IO_Pos") == self._variable("gtid_slave_pos", replica))
        replica.execute("STOP SLAVE", "RESET SLAVE ALL", "SET GLOBAL read_only = OFF")
        self.primary = replica

    def recover(self) -> None:
        """Start both after a crash of both: the primary as it was, and then its replica."""
        self._start(self.primary)
        self.rejoin(self.replica)

    def rejoin(self, server: MariaDB) -> None:
        """Start a server as the primary's replica. The primary reports no commit that the replica
        does not have, from when it has all of before."""
        # the role has recovery drop transactions that no replica has confirmed
        confirmed = ("--init-rpl-role=SLAVE", "--rpl-semi-sync-slave-enabled=ON")
        self._start(server, *confirmed, "--read-only", "--skip-slave-start")
        server.execute(
            "SET GLOBAL gtid_slave_pos = @@gtid_current_pos",
            "CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_USER='root',"
            " MASTER_USE_GTID=slave_pos,"
            f" MASTER_PORT={self.primary.port}, MASTER_CONNECT_RETRY=1",
            "START SLAVE",
        )
        written = self._number("gtid_binlog_pos", self.primary)
        until(
            lambda: self._number("gtid_slave_pos", server) >= written,
            lambda: self._rows("SHOW SLAVE STATUS", server),
        )
        self.primary.execute("SET GLOBAL rpl_semi_sync_master_enabled = ON")

    def _start(self, server: MariaDB, *options: str) -> None:
        number = 1 if server is self.first else 2
        server.start(f"--server-id={number}", *OPTIONS, *options)

    def _number(self, name: str, server: MariaDB) -> int:
        """Return the number of the last transaction of a position."""
        return int(self._variable(name, server).rpartition("-")[2] or 0)

    def _replica(self, name: str) -> str:
        rows = self._rows("SHOW SLAVE STATUS", self.replica)
        return str(rows[0][name]) if rows else ""

    def _variable(self, name: str, server: MariaDB) -> str:
        return str(self._rows(f"SELECT @@{name} AS found", server)[0]["found"])

    def _rows(self, statement: str, server: MariaDB) -> list[dict[str, object]]:
        with (
            pymysql.connect(
                host="127.0.0.1",
                port=server.port,
                user="root",
                cursorclass=pymysql.cursors.DictCursor,
            ) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(statement)
            return list(cursor.fetchall())

    def stop(self) -> None:
        """Kill both servers."""
        self.first.kill()
        self.second.kill()
