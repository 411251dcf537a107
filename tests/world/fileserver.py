"""The file server of a world, by the interface that drivers have: what it keeps of each volume, and
how it lies, hangs and answers late.

What a change means to it is what `cod/fileservers/volume.sh` makes of it: one that is older than
what was carried out is refused, and so is one for a directory that was made before and is missing.
"""

from __future__ import annotations

import random
from ipaddress import ip_address, ip_network
from typing import Any

from sqlalchemy import select
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from cod.choices import FileServerDriverKind
from cod.fileservers.driver import FileServerError, Outcome
from cod.model import FileServer, WantedVolume
from cod.policy import volumes as policy
from cod.store import tables as t
from cod.store import volumes as store
from cod.store.engine import Tx
from tests.world.clock import SimReactor

NAME = "files"
WAYS = ("refuses", "hangs", "acts late", "answers late", "says that it failed", "lies")
LATE = 120.0  # seconds, longer than a server waits

GONE = "its directory is missing"


class SimFileServer:
    """What the file server has.

    way        how it is: 'well' or one of `WAYS`
    exports    what was carried out last, by the exports' numbers
    untold     exports of which it has said that they are as they are to be, and they are not
    forgotten  those that the database may have forgotten, until they are changed or withdrawn
    """

    def __init__(self, world: Any) -> None:
        self.world, self.way = world, "well"
        self.exports: dict[int, WantedVolume] = {}
        self.untold: set[int] = set()
        self.forgotten: set[int] = set()
        self.rng = random.Random(f"{world.seed} files")
        self._made: set[int] = set()
        self._erased: set[int] = set()

    def drivers(self, reactor: SimReactor) -> dict[str, Any]:
        """Return the drivers of one process."""
        return dict.fromkeys(FileServerDriverKind.names(), _Driver(self, reactor))

    def carry_out(self, wanted: WantedVolume, ordered: float) -> None:
        """Make of a volume what is wanted since `ordered`. Raises `FileServerError`."""
        there = self.exports.get(wanted.export_id)
        if there is not None and there.sequence > wanted.sequence:
            self.world.seen["file server: an older change was refused"] += 1
            raise FileServerError("a newer change was carried out already")
        if not (wanted.may_make or wanted.erase or wanted.id in self._made):
            raise FileServerError(GONE)
        self.untold.discard(wanted.export_id)
        if self.world.loss.has_lost(ordered):
            self.forgotten.add(wanted.export_id)
        else:
            self.forgotten.discard(wanted.export_id)
        if wanted.erase:
            self._made.discard(wanted.id)
            self._erased.add(wanted.id)
            self.exports.pop(wanted.export_id, None)
        else:
            self._made.add(wanted.id)
            self.exports[wanted.export_id] = wanted
        self.world.check_volumes()

    def is_made(self, wanted: WantedVolume) -> bool:
        """Return whether the volume's directory is there."""
        return wanted.id in self._made

    def forget(self) -> None:
        """Lose all exports, as a file server whose configuration was replaced."""
        self.exports.clear()

    def reachable(self, address: str) -> set[int]:
        """Return the volumes that the address may mount, as far as the file server has told."""
        asked = ip_address(address)
        return {
            wanted.id
            for number, wanted in self.exports.items()
            if number not in self.untold | self.forgotten
            and any(asked in ip_network(client.network) for client in wanted.clients)
        }

    def differs(self, tx: Tx) -> str:
        """Return in what the file server and the database differ; '' in nothing."""
        known = store.of_server(tx, NAME)
        if stray := self.exports.keys() - known.keys():
            return f"exports {sorted(stray)} belong to no volume"
        for number, volume in known.items():
            if volume.id in self._erased and volume.reason == GONE:  # the database has forgotten it
                self.world.seen["volume of a forgotten end"] += 1
                continue
            wanted = policy.clients(store.clients(tx, volume.id))
            there = self.exports.get(number)
            if volume.applied != volume.sequence or there is None or there.clients != wanted:
                return f"volume {volume.name} is to have {wanted}, and has {there}"
        return ""


class _Driver:
    """The driver of one process, which may be killed while the file server works."""

    def __init__(self, files: SimFileServer, reactor: SimReactor) -> None:
        self._files, self._reactor = files, reactor

    async def carry_out(self, server: FileServer, wanted: WantedVolume) -> Outcome:
        files = self._files
        way, ordered = files.way, files.world.clock.now
        if way != "well":
            files.world.seen[f"file server: {way}"] += 1
        if way == "refuses":
            raise FileServerError("it refuses")
        if way == "lies" and files.is_made(wanted) and not wanted.erase:
            files.untold.add(wanted.export_id)
            return Outcome("none")
        if way == "acts late":
            files.world.clock.later(files.rng.uniform(5.0, LATE), _at_last, files, wanted, ordered)
        if way in ("hangs", "acts late"):
            await Deferred()
        await self._wait(0.5)
        files.carry_out(wanted, ordered)
        if way == "answers late":
            await self._wait(LATE)
        if way == "says that it failed":
            raise FileServerError("it says that it failed")
        return Outcome("none")

    async def exports(self, server: FileServer) -> dict[int, int]:
        files = self._files
        if files.way in ("hangs", "acts late"):
            await Deferred()
        if files.way == "refuses":
            raise FileServerError("it refuses")
        await self._wait(0.5)
        lost = files.untold
        return {
            number: 0 if number in lost else one.sequence for number, one in files.exports.items()
        }

    async def withdraw(self, server: FileServer, number: int) -> None:
        await self._wait(0.5)
        self._files.world.seen["file server: a stray was withdrawn"] += 1
        self._files.untold.discard(number)
        self._files.exports.pop(number, None)

    async def _wait(self, most: float) -> None:
        await deferLater(self._reactor, self._files.rng.uniform(0.0, most))


def _at_last(files: SimFileServer, wanted: WantedVolume, ordered: float) -> None:
    """Carry out a change that its asker may have given up."""
    try:
        files.carry_out(wanted, ordered)
    except FileServerError as error:
        files.world.say(f"a late change of volume {wanted.name}: {error}")


def attached(tx: Tx, vcluster: str) -> set[int]:
    """Return the volumes that are attached to the virtual cluster, or are still exported to it."""
    a, v = t.volume_attachments.c, t.vclusters.c
    query = select(a.volume_id).join(t.vclusters, v.id == a.vcluster_id)
    return set(tx.scalars(query.where(v.name == vcluster)))
