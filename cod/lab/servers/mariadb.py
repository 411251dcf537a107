"""A private MariaDB server with its own data folder, socket and port, which is started, killed and
restarted by its pid."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pymysql

from cod.lab import network

UNSYNCED = (
    "--innodb-flush-method=nosync",
    "--skip-innodb-doublewrite",
    "--innodb-log-file-size=16M",
)
"""Options of a server that never waits for its disk: what it wrote outlives the server, not the
machine."""

# the folders are private to the user who runs the server
_USER = ["--user=root"] if os.geteuid() == 0 else []


class DatabaseServer:
    """A MariaDB server in `folder`, at `address` and `port`, in the network namespace `namespace`
    ('': this process's own)."""

    def __init__(
        self, folder: Path, address: str = "127.0.0.1", port: int = 3306, namespace: str = ""
    ) -> None:
        self.folder, self.address, self.port = folder, address, port
        self.data = folder / "data"
        self.process: subprocess.Popen[bytes] | None = None
        self.environment: dict[str, str] | None = None  # None: this process's own
        self._inside = network.inside(namespace, []) if namespace else []

    def install(self) -> None:
        """Make an empty data folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [
                *self._inside,  # there, it is ended with the lab
                "mariadb-install-db",
                "--no-defaults",
                *_USER,
                f"--datadir={self.data}",
                "--skip-test-db",
                "--auth-root-authentication-method=normal",
            ],
            check=True,
            capture_output=True,
        )

    def start(self, *options: str) -> None:
        """Start the server and wait until it accepts connections."""
        self.launch(*options)
        self._wait()

    def launch(self, *options: str) -> None:
        """Start the server without waiting for it."""
        self.process = subprocess.Popen(
            [*self.command, *options],
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=(self.folder / "error.log").open("ab"),
            start_new_session=bool(self._inside),  # it outlives the command that started it
        )

    @property
    def command(self) -> list[str]:
        """Return the server's program with the options that it is always started with."""
        return [
            *self._inside,
            "mariadbd",
            "--no-defaults",
            *_USER,
            f"--datadir={self.data}",
            f"--socket={self.folder}/s.sock",
            f"--pid-file={self.folder}/pid",
            # a folder of its own: at its start a server deletes all temporary tables there
            f"--tmpdir={self.folder}",
            f"--bind-address={self.address}",
            f"--port={self.port}",
            "--innodb-buffer-pool-size=64M",
            "--skip-name-resolve",
            "--max-connections=200",
        ]

    def _wait(self) -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            assert self.process is not None
            if self.process.poll() is not None:
                raise RuntimeError((self.folder / "error.log").read_text())
            try:
                self.execute("SELECT 1")
                return
            except OSError:
                pass
            except Exception as error:
                if "refused" not in str(error) and "Can't connect" not in str(error):
                    raise
            time.sleep(0.05)
        raise TimeoutError("mariadbd did not start in 60 s")

    def execute(self, *statements: str) -> None:
        """Run statements as the server's root."""
        with self.connect() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def connect(self, seconds: float = 60.0) -> pymysql.Connection[pymysql.cursors.Cursor]:
        """Return a connection as the server's root, which commits each statement and waits at most
        `seconds` for an answer."""
        return pymysql.connect(
            unix_socket=str(self.folder / "s.sock"),
            user="root",
            autocommit=True,
            read_timeout=seconds,
            ssl_disabled=True,  # else each connection would read the system's certificates
        )

    def url(self, name: str) -> str:
        """Make an empty database `name` and return its URL."""
        self.execute(
            f"DROP DATABASE IF EXISTS {name}", f"CREATE DATABASE {name} CHARACTER SET utf8mb4"
        )
        return f"mysql+pymysql://root@{self.address}:{self.port}/{name}"

    def kill(self) -> None:
        """End the server by kill -9, like a power cut."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End the server in order, by SIGTERM."""
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(how)
            self.process.wait(30)
