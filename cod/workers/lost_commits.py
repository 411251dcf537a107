"""A server's memory of how far the database has come: a database that is behind it has lost its
last commits, and the site is held.

Every server that may manage looks, also while another does, and remembers in a file, so that a loss
is found that befell the database while no server ran. A file that was not written in time is behind
the truth: by it a loss may be missed, and none is found where there was none.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

from cod.flows.nodes import hold
from cod.flows.nodes.hold import Progress
from cod.pool import Pool, in_transaction

HELD = "the database has lost its last commits: the site is held"
APART = 0.5  # seconds between two looks at least, and so between two writings of the file

log = logging.getLogger("cod.manager")


class LostCommits:
    """The memory of the server `server`, in the file `memory`; None: while this process runs.

    is_held  the site was held at the last look
    """

    def __init__(self, reactor: Any, pool: Pool, server: str, memory: Path | None) -> None:
        self.is_held = False
        self._reactor, self._pool, self._server = reactor, pool, server
        self._memory = memory
        self._seen = self._written = _read(memory) if memory is not None else None
        self._next_at = float("-inf")
        self._is_written = True  # the last attempt to write went well

    def acted(self) -> None:
        """Note that this server has committed an act under the manager's claim, or has got or
        renewed the claim: if the database then has no more acts than before, it has lost some."""
        if self._seen is not None:
            self._seen = replace(self._seen, acts=self._seen.acts + 1)

    def is_due(self) -> bool:
        """Return whether the last look was a while ago."""
        return bool(self._reactor.seconds() >= self._next_at)

    async def look(self, now: float) -> None:
        """Hold the site if the database is behind what was seen."""
        self._next_at = self._reactor.seconds() + APART
        seen = self._seen
        self.is_held, found = await self._pool.read(hold.observe)
        if found is None or (seen is not None and found.is_behind(seen)):
            if await self._pool.run(hold.watch, seen, name=f"{self._server} {now}", now=now):
                log.error(HELD)
            self.is_held, found = await self._pool.read(hold.observe)
        # a database host that is only late is no reason to forget what was seen
        if found is None or seen is None or not found.is_behind(seen):
            self._seen = found
        self._remember()

    def _remember(self) -> None:
        if self._memory is None or self._seen is None or self._seen == self._written:
            return
        try:
            _write(self._memory, self._seen)
        except OSError as error:
            if self._is_written:
                log.error("a loss of the database may not be found after a restart: %s", error)
            self._is_written = False
        else:
            self._written, self._is_written = self._seen, True


def look_first(engine: Any, memory: Path, now: float) -> None:
    """Hold the site before a part of the server begins, where the database is behind what is in the
    file: the parts that give orders to machines do not wait until the manager has looked."""
    seen = _read(memory)
    _, found = in_transaction(engine.execution_options(reading=True), hold.observe)
    is_behind = seen is not None and found is not None and found.is_behind(seen)
    if is_behind and in_transaction(engine, hold.watch, seen, now=now):
        log.error(HELD)


def _read(memory: Path) -> Progress | None:
    """Return what the file holds; None where that is nothing of use."""
    try:
        content = json.loads(memory.read_bytes())
    except (OSError, ValueError):
        return None
    match content:
        case [str(), int(), int(), int()]:
            return Progress(*content)
    return None


def _write(memory: Path, seen: Progress) -> None:
    """Write the file, whole or not at all: the host may lose its power with the database's."""
    draft = memory.with_name(f"{memory.name}.new")
    memory.parent.mkdir(mode=0o750, exist_ok=True)
    with open(draft, "w", encoding="utf-8") as file:
        json.dump(astuple(seen), file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(memory)
