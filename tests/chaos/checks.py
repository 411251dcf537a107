"""What a chaos run looks at: rows of nodes and of their histories, disks of free machines, DHCP,
and what was acknowledged to owners."""

from __future__ import annotations

import ctypes
import os
import random
import select
import socket
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pymysql
from sqlalchemy import select as query
from sqlalchemy.exc import DBAPIError

from cod.client import ApiError, Client, Unreachable, path
from cod.lab.agents import Agent
from cod.model import database_urls
from cod.policy.histories import Histories, NodeRow, NodeTransition
from cod.states import Disk, NodeState
from cod.store import tables as t
from cod.store.database import connect
from cod.store.engine import Tx, is_retryable
from cod.wire import dhcp
from tests.chaos.site import PROBER, RELAY, TEMPLATES, ChaosSite
from tests.history_rows import history_after, node_rows

LIVING = ("pending", "active")
AWAY = 300.0  # seconds after which a database that nobody reaches is given up
LATE = 300  # ids: a transition is committed before another with one that is so much larger
REPEATED = 0.2  # share of the acknowledged questions that are asked again under their key
CLONE_NEWNET = 0x40000000
T = TypeVar("T")


class Turns(threading.Thread):
    """Does `turn` again and again, with pauses of `pause` seconds, until it is stopped."""

    def __init__(self, turn: Callable[[], None], pause: float) -> None:
        super().__init__(daemon=True)
        self._turn, self._pause, self._ending = turn, pause, threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Take turns; an error of one ends the thread and is kept."""
        try:
            while not self._ending.wait(self._pause):
                self._turn()
        except BaseException as error:
            self.failure = error

    def stop(self) -> None:
        """Stop. Raises the error that has ended the thread, where one has."""
        self._ending.set()
        self.join()
        if self.failure is not None:
            raise self.failure


# ---------------------------------------------------------------- the database


@dataclass(frozen=True, slots=True)
class ClaimSeen:
    """The manager's claim as it was from a moment on (seconds of the monotonic clock)."""

    since: float
    owner: str
    generation: int


class Watch:
    """Reads rows, machines' disks and their addresses, with connections of its own to each node of
    the database. `machines`: by name.

    claims  of managers
    signs   when a manager has shown a sign of life, in seconds of the monotonic clock
    """

    def __init__(self, url: str, machines: Mapping[str, Agent]) -> None:
        self._engines = [connect(each, size=1, patience=5) for each in database_urls(url).values()]
        self._sqlite = url.startswith("sqlite")
        self._checker = Histories()
        self._machines = machines
        self._names: dict[int, str] = {}
        self.seen: dict[int, NodeTransition] = {}
        self.claims: list[ClaimSeen] = []
        self.signs: list[float] = [time.monotonic()]
        self._acts = (0, 0)
        self.violations: list[str] = []
        self.looks = self.disks_read = 0

    def read(self, flow: Callable[[Tx], T]) -> T:
        """Return what `flow` reads at one moment; again while no node of the database answers.
        Raises RuntimeError where none has for so long that none will."""
        end = time.monotonic() + AWAY
        while time.monotonic() < end:
            for engine in self._engines:
                with suppress(_Busy):
                    return self._once(engine, flow)
            time.sleep(0.05)
        raise RuntimeError(f"no node of the database has answered for {AWAY:.0f} s")

    def _once(self, engine: Any, flow: Callable[[Tx], T]) -> T:
        options = {"reading": True} if self._sqlite else {"isolation_level": "REPEATABLE READ"}
        try:
            with engine.connect().execution_options(**options) as tx, tx.begin():
                if len(self._engines) > 1:  # what another node has committed has to be here first
                    tx.exec_driver_sql("SET SESSION wsrep_sync_wait = 1")
                    if tx.exec_driver_sql("SELECT @@read_only").scalar():
                        raise _Busy  # a pair's replica, which may lag
                return flow(tx)
        except pymysql.Error as error:  # of setting the isolation level, which is not translated
            raise _Busy from error
        except DBAPIError as error:
            if is_retryable(error):
                raise _Busy from error
            raise

    def look(self) -> None:
        """Read what is new, compare all nodes, and look at the disk of one that is free."""
        after = max(self.seen, default=0) - LATE

        def rows(tx: Tx) -> tuple[list[NodeTransition], list[NodeRow], Any]:
            claim = query(t.claims.c.owner, t.claims.c.generation, t.claims.c.acts)
            return (
                history_after(tx, after),
                node_rows(tx),
                tx.execute(claim.where(t.claims.c.name == "manager")).first(),
            )

        history, now, claim = self.read(rows)
        new = [row for row in history if row.id not in self.seen]
        # hosts of a database give out ids in turns: a later transition may have a smaller one
        new.sort(key=lambda row: (row.node, row.generation))
        told = [one for row in new for one in self._checker.add(row)]
        found = list(map(str, [*told, *self._checker.compare(now)]))
        self.seen |= {row.id: row for row in new}
        if claim and (not self.claims or self.claims[-1].generation != claim.generation):
            if self.claims and claim.generation < self.claims[-1].generation:
                found.append(f"the manager's claim went back to generation {claim.generation}")
            self.claims.append(ClaimSeen(time.monotonic(), claim.owner, claim.generation))
        if claim and (claim.generation, claim.acts) != self._acts:
            self._acts = (claim.generation, claim.acts)
            self.signs.append(time.monotonic())
        free = [row for row in now if row.state == NodeState.INACTIVE and row.disk == Disk.CLEAN]
        if free:
            found += self._written(free[self.looks % len(free)])
        self.violations += [*found, *self._shared_addresses()]
        self.looks += 1

    def _written(self, node: NodeRow) -> list[str]:
        """Return what is wrong with the disk of a free node."""
        if node.node not in self._names:
            self._names = dict(map(tuple, self.read(_names)))
        self.disks_read += 1
        disk = (self._machines[self._names[node.node]].folder / "disk").read_bytes()
        # a node that was free before and after was free meanwhile
        if any(disk) and node in self.read(node_rows):
            return [f"{self._names[node.node]}: is free and clean, and its disk is not empty"]
        return []

    def _shared_addresses(self) -> list[str]:
        """Return what is wrong with the addresses of the systems that run."""
        users: dict[str, list[str]] = {}
        for name, machine in self._machines.items():
            with suppress(OSError, IndexError):  # it has none
                if machine.is_on:
                    address = (machine.folder / "os").read_text().split()[1]
                    users.setdefault(address, []).append(name)
        return [
            f"{' and '.join(names)} run with the address {address}"
            for address, names in users.items()
            if names[1:]
        ]

    def conclude(self) -> None:
        """Look a last time, and read the whole history again: nothing that was once read may be
        gone or another."""
        self.look()
        again = {row.id: row for row in self.read(lambda tx: history_after(tx, 0))}
        if again != self.seen:
            self.violations.append("rows of the history are gone, or have changed")

    def close(self) -> None:
        """Close the connections."""
        for engine in self._engines:
            engine.dispose()


def _names(tx: Tx) -> list[Any]:
    return list(tx.execute(query(t.nodes.c.id, t.nodes.c.name)))


class _Busy(Exception):
    """The database had no time."""


# ---------------------------------------------------------------- owners


@dataclass(slots=True)
class Told:
    """What owners know of a vcluster: how many changes of each kind they have asked for, each under
    a key, and how many were acknowledged."""

    asked: Counter[str] = field(default_factory=Counter)
    acknowledged: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class _Asked:
    """A change that is asked until it is answered, under one key, and perhaps once more."""

    word: str
    name: str
    path: str
    body: dict[str, Any]
    key: str
    answered: bool = False


class Owners:
    """Ask for vclusters, resize and delete them at any server, and keep what was acknowledged. A
    question without an answer, and now and then one that was answered, is asked again under its
    key, at any server."""

    def __init__(self, site: ChaosSite, rng: random.Random) -> None:
        self._site, self._rng = site, rng
        self._again: list[_Asked] = []
        self._keys: set[str] = set()
        self.told: dict[str, Told] = {}
        self.asked: Counter[str] = Counter()
        self.violations: list[str] = []
        self.log: list[str] = []
        self.resting = False

    def turn(self) -> None:
        """Ask for one thing."""
        server = self._rng.choice(self._site.servers)
        with suppress(Unreachable, ApiError), server.client() as client:
            for node in client.items("/nodes", state="quarantined"):
                client.post(path("nodes", node["name"], "restore"), {})
                self.asked["restore"] += 1
            asked = self._again.pop(0) if self._again else self._next(client)
            if asked is None:
                return
            if asked.key not in self._keys:
                self._keys.add(asked.key)
                self.asked[asked.word] += 1
                self.told[asked.name].asked[asked.word] += 1
            self._ask(client, server.name, asked)

    def _next(self, client: Client) -> _Asked | None:
        there = [one for one in client.items("/vclusters") if one["state"] in LIVING]
        word = self._rng.choice(("create", "create", "resize", "delete"))
        key = f"chaos-{self.asked.total()}-{self._rng.randrange(1 << 30)}"
        if self.resting:
            word = "delete"
        if word == "create" and len(there) < len(self._site.machines):
            name = f"v{len(self.told) + 1}"
            self.told[name] = Told()
            size, template = self._rng.randint(1, 2), self._rng.choice(TEMPLATES)
            body: dict[str, Any] = {"name": name, "size": size, "template": template}
            return _Asked(word, name, "/vclusters", body, key)
        if word in ("create", "resize") and there:
            one = self._rng.choice(there)
            body = {"size": one["size"] % 3 + 1}
            return _Asked(
                "resize", one["name"], path("vclusters", one["name"], "resize"), body, key
            )
        if word == "delete" and there:
            name = self._rng.choice(there)["name"]
            return _Asked(word, name, path("vclusters", name), {}, key)
        return None

    def _ask(self, client: Client, server: str, asked: _Asked) -> None:
        told = self.told[asked.name]
        try:
            if asked.word == "delete":
                client.delete(asked.path)
            else:
                client.post(asked.path, asked.body, key=asked.key)
        except (Unreachable, ApiError) as error:
            self._note(f"{server}: {asked.word} {asked.name} ({asked.key}): {error}")
            if not isinstance(error, ApiError) or error.status >= 500:
                self._again.append(asked)
            elif asked.answered or (asked.word == "create" and "exist" in str(error)):
                self.violations.append(f"{asked.word} {asked.name} was done, and refused: {error}")
            return
        self._note(f"{server}: {asked.word} {asked.name} ({asked.key}): done")
        told.acknowledged[asked.word] += not asked.answered
        if asked.word != "delete" and not asked.answered and self._rng.random() < REPEATED:
            self._again.append(asked)
        asked.answered = True

    def _note(self, line: str) -> None:
        self.log.append(f"{time.strftime('%H:%M:%S')} {line}")

    def compare(self, watch: Watch) -> list[str]:
        """Return the acknowledged changes that are not in the database, and those that are there
        twice."""
        vclusters, changes = watch.read(_changes)
        found = []
        for name, told in self.told.items():
            rows = vclusters[name]
            if told.acknowledged["create"] and not rows:
                found.append(f"{name} was created, and is lost")
            if len(rows) > 1:
                found.append(f"{name} was created {len(rows)} times under one key")
            if told.acknowledged["delete"] and rows and rows[0] != "ended":
                found.append(f"{name} was deleted, and is {rows[0]}")
            resized = changes[name, "vcluster resize"]
            if resized < told.acknowledged["resize"]:
                found.append(
                    f"{name} was resized {told.acknowledged['resize']} times, and the audit has"
                    f" {resized}"
                )
            for word in ("create", "resize"):
                most = told.asked[word]
                if (count := changes[name, f"vcluster {word}"]) > most:
                    found.append(f"{name}: {word} is in the audit {count} times, asked {most}")
        return found


def _changes(tx: Tx) -> tuple[dict[str, list[str]], Counter[tuple[str, str]]]:
    """Return the states of the vclusters of each name, and how often the audit has each action."""
    states: dict[str, list[str]] = defaultdict(list)
    for name, state in tx.execute(query(t.vclusters.c.name, t.vclusters.c.state)):
        states[name].append(state)
    audit = tx.execute(query(t.audit.c.thing, t.audit.c.action))
    return states, Counter((thing, action) for thing, action in audit)


# ---------------------------------------------------------------- DHCP


class Prober:
    """Asks all servers for an address ten times a second, as a relay does, and keeps when they
    answered (seconds of the monotonic clock), and which addresses they offered."""

    def __init__(self, site: ChaosSite) -> None:
        self._servers = [server.address for server in site.servers]
        self._xid = 0
        self.answered: list[float] = [time.monotonic()]
        self.offered: set[str] = set()
        made = threading.Thread(target=self._open, args=(f"/run/netns/{site.namespace}",))
        made.start()
        made.join()

    def _open(self, namespace: str) -> None:
        with open(namespace) as entry:  # a socket stays in the network in which it was made
            if ctypes.CDLL(None, use_errno=True).setns(entry.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((RELAY, dhcp.SERVER_PORT))
        self._socket.setblocking(False)

    def turn(self) -> None:
        """Ask once, and take the answers of a tenth of a second."""
        self._xid += 1
        for address in self._servers:
            with suppress(OSError):
                self._socket.sendto(self._discover(), (address, dhcp.SERVER_PORT))
        end = time.monotonic() + 0.1
        while (left := end - time.monotonic()) > 0:
            if not select.select([self._socket], [], [], left)[0]:
                return
            with suppress(OSError):
                self.offered.add(socket.inet_ntoa(dhcp.decode(self._socket.recv(2048)).yiaddr))
                self.answered.append(time.monotonic())

    def _discover(self) -> bytes:
        options = {53: b"\1", 60: b"PXEClient:Arch:00000:UNDI:002001", 93: b"\0\0"}
        mac = bytes.fromhex(PROBER.replace(":", "")) + bytes(10)
        nothing, relay = bytes(4), socket.inet_aton(RELAY)
        return dhcp.encode(
            dhcp.Packet(
                1,
                1,
                6,
                1,
                self._xid,
                0,
                0,
                nothing,
                nothing,
                nothing,
                relay,
                mac,
                bytes(64),
                bytes(128),
                options,
            )
        )
