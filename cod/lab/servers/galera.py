"""A private cluster of MariaDB Galera. Each of its nodes can be killed, stopped, cut off from the
others and started again."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pymysql

from cod.lab.servers.mariadb import UNSYNCED, DatabaseServer

PROVIDER = "/usr/lib/galera/libgalera_smm.so"
SUSPECT = 2  # seconds without an answer after which the others leave a node out; usually 5

READY = 120.0  # seconds in which a node that was started has what the others have


class GaleraNode(DatabaseServer):
    """One server of a cluster, in `folder`. `ports`: for clients, for the other nodes, for whole
    copies (SST), and for the changes since an earlier state (IST)."""

    def __init__(
        self,
        folder: Path,
        address: str = "127.0.0.1",
        ports: Sequence[int] = (3306, 4567, 4444, 4568),
        namespace: str = "",
    ) -> None:
        super().__init__(folder, address, ports[0], namespace)
        self.peers, self._copies, self._changes = (f"{address}:{port}" for port in ports[1:])

    @property
    def host(self) -> str:
        """Return HOST:PORT for clients."""
        return f"{self.address}:{self.port}"

    def start_in(self, cluster: list[str], *options: str) -> None:
        """Start the server as a part of the cluster of those `peers`, from its own last commit;
        return without waiting until it is ready."""
        self.data.mkdir(parents=True, exist_ok=True)
        self._write_copier()
        position = self.position()
        provider = (
            f"gmcast.listen_addr=tcp://{self.peers}",
            f"ist.recv_addr={self._changes}",
            "gcache.size=8M",
            "gcache.page_size=8M",
            f"evs.keepalive_period=PT{SUSPECT / 4}S",
            f"evs.suspect_timeout=PT{SUSPECT}S",
            f"evs.inactive_timeout=PT{3 * SUSPECT}S",
            "evs.inactive_check_period=PT0.2S",
            f"evs.install_timeout=PT{3 * SUSPECT}S",
            "pc.recovery=false",  # after a crash of all, `Galera.recover` bootstraps
        )
        self.launch(
            f"--wsrep-provider={PROVIDER}",
            "--wsrep-on=ON",
            "--wsrep-cluster-name=test",
            f"--wsrep-cluster-address=gcomm://{','.join(cluster)}",
            f"--wsrep-node-address={self.address}",
            f"--wsrep-node-incoming-address={self.host}",
            f"--wsrep-provider-options={';'.join(provider)}",
            "--wsrep-sst-method=own",
            f"--wsrep-sst-receive-address={self._copies}",
            "--wsrep-slave-threads=1",
            "--binlog-format=ROW",
            "--innodb-autoinc-lock-mode=2",
            *([f"--wsrep-start-position={position}"] if position else []),
            *options,
        )

    def _write_copier(self) -> None:
        """Write `wsrep_sst_own`, which runs wsrep_sst_rsync with an rsync daemon that writes as
        this user. As root, the daemon would otherwise write as nobody."""
        programs = self.folder / "bin"
        programs.mkdir(exist_ok=True)
        copier, rsync = programs / "wsrep_sst_own", programs / "rsync"
        # the server puts the system's programs before those of its own PATH
        copier.write_text(f'#!/bin/sh\nPATH="{programs}:$PATH" exec wsrep_sst_rsync "$@"\n')
        own = f"--dparam=uid={os.getuid()} --dparam=gid={os.getgid()}"
        rsync.write_text(
            f'#!/bin/sh\n[ "$1" != --daemon ] || set -- "$@" {own}\n'
            f'exec {shutil.which("rsync")} "$@"\n'
        )
        for program in (copier, rsync):
            program.chmod(0o755)
        self.environment = os.environ | {"PATH": f"{os.environ['PATH']}:{programs}"}

    def position(self) -> str:
        """Return the last commit of the stopped or killed server, UUID:NUMBER; '' where it never
        was part of a cluster."""
        if not (self.data / "grastate.dat").exists():
            return ""
        output = subprocess.run(
            [
                *self.command,
                "--wsrep-recover",
                "--wsrep-on=ON",
                "--wsrep-cluster-address=gcomm://",  # is not connected to
                f"--wsrep-provider={PROVIDER}",
                "--binlog-format=ROW",
                *UNSYNCED,
            ],
            check=True,
            capture_output=True,
            text=True,
        ).stderr
        positions = re.findall(r"Recovered position: (\S+:-?\d+)", output)
        return "" if not positions or positions[-1].endswith(":-1") else str(positions[-1])

    def status(self, name: str) -> str:
        """Return a status variable, e.g. wsrep_local_state_comment; '' while the server does not
        answer."""
        with suppress(pymysql.Error, OSError):
            rows = self.rows(f"SHOW STATUS LIKE '{name}'")
            return str(rows[0][1]) if rows else ""
        return ""

    def rows(self, statement: str) -> list[tuple[object, ...]]:
        """Return the rows that a statement finds. It runs as the server's root."""
        with self.connect(5) as made, made.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def wait_until_synced(self) -> None:
        """Wait until the server is ready and has all commits of the others."""

        end = time.monotonic() + READY
        while not (
            self.status("wsrep_ready") == "ON"
            and self.status("wsrep_local_state_comment") == "Synced"
        ):
            ended = self.process is None or self.process.poll() is not None
            if ended or time.monotonic() > end:
                raise RuntimeError((self.folder / "error.log").read_text()[-3000:])
            time.sleep(0.2)

    def freeze(self) -> None:
        """Stop the process by SIGSTOP, like a host that hangs."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let the process go on by SIGCONT."""
        self._signal(signal.SIGCONT)

    def cut_off(self) -> None:
        """Drop all traffic from and to the other nodes; clients still reach this node."""
        self._isolate(1)

    def join_again(self) -> None:
        """Undo `cut_off`."""
        self._isolate(0)

    def _isolate(self, value: int) -> None:
        self.execute(f"SET GLOBAL wsrep_provider_options = 'gmcast.isolate={value}'")

    def _signal(self, what: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(what)


class GaleraCluster:
    """A cluster of `nodes`: the first is bootstrapped, the others join it and copy its data by
    rsync."""

    def __init__(self, nodes: Sequence[GaleraNode], options: tuple[str, ...] = UNSYNCED) -> None:
        self.nodes, self._options = nodes, options

    def found(self) -> None:
        """Make the cluster's databases, and start all nodes."""
        first, *others = self.nodes
        first.install()
        self.start(first, bootstrap=True)
        for node in others:
            self.start(node)

    @property
    def hosts(self) -> list[str]:
        """Return HOST:PORT of each node."""
        return [node.host for node in self.nodes]

    def url(self, name: str, user: str = "root") -> str:
        """Return the URL of a database that names all nodes."""
        return f"mysql+pymysql://{user}@{','.join(self.hosts)}/{name}"

    def start(self, node: GaleraNode, *, bootstrap: bool = False, wait: bool = True) -> None:
        """Start a node that is new, was stopped, or was killed."""
        if bootstrap:
            self._allow_bootstrap(node)
        cluster = [] if bootstrap else [each.peers for each in self.nodes]
        node.start_in(cluster, *self._options)
        if wait:
            node.wait_until_synced()

    def recover(self) -> GaleraNode:
        """Start a cluster whose nodes have all ended, beginning with the node that has the last
        commit; return that node."""
        newest = max(self.nodes, key=lambda node: int(node.position().rpartition(":")[2] or -1))
        self.start(newest, bootstrap=True)
        for node in self.nodes:
            if node is not newest:
                self.start(node)
        return newest

    @staticmethod
    def _allow_bootstrap(node: GaleraNode) -> None:
        state = node.data / "grastate.dat"
        if state.exists():
            found = state.read_text()
            state.write_text(found.replace("safe_to_bootstrap: 0", "safe_to_bootstrap: 1"))

    def wait_until_whole(self) -> None:
        """Wait until each node sees all nodes in the cluster. A node that was expelled while it was
        frozen does not know of that at first, but the others do."""
        end = time.monotonic() + READY
        while not all(
            node.status("wsrep_cluster_status") == "Primary"
            and node.status("wsrep_cluster_size") == str(len(self.nodes))
            for node in self.nodes
        ):
            if time.monotonic() > end:
                raise RuntimeError((self.nodes[0].folder / "error.log").read_text()[-3000:])
            time.sleep(0.2)

    def size(self) -> int:
        """Return the number of nodes in the part of the cluster that has a quorum; 0 where none
        has."""
        sizes = (
            int(node.status("wsrep_cluster_size") or 0)
            for node in self.nodes
            if node.status("wsrep_cluster_status") == "Primary"
        )
        return max(sizes, default=0)

    def stop(self) -> None:
        """Kill all nodes (kill -9)."""
        for node in self.nodes:
            node.kill()
