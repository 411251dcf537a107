"""Records that each part of the server runs, so that all servers of a site can be listed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from cod.flows import servers
from cod.model import HostPart
from cod.periodic import Periodic
from cod.pool import Pool

log = logging.getLogger("cod.service")


class Presence(Periodic):
    """One part's signs of life. A site with a single server needs them too: `cod server list` and
    `cod db upgrade` ask which programs run.

    part  the part's description, without the time
    end   ends the process of a part that was stopped, or overlooked, during an upgrade
    """

    def __init__(
        self,
        reactor: Any,
        pool: Pool,
        part: HostPart,
        clock: Callable[[], float],
        end: Callable[[], None],
    ) -> None:
        super().__init__(
            reactor,
            pool,
            log,
            "other servers are not told that this one runs",
            servers.RENEWAL,
            at_once=True,
        )
        self._part, self._clock, self._end = part, clock, end

    async def look(self) -> None:
        """Record that the part runs; end it where the database has become too new for it."""
        schema = self._part.database_schema
        if await self._pool.read(servers.is_too_old, schema=schema):
            log.error(
                "the database was upgraded to a schema that this program, for %s, does not work"
                " with: install the newer version",
                schema,
            )
            self._end()
            return
        part = replace(self._part, seen_at=self._clock())
        if other := await self._pool.run(servers.renew, part=part):
            log.error(
                "a host with the addresses %s runs %s under this host's name, %s: each host needs"
                " a name of its own",
                ", ".join(other),
                part.part,
                part.server,
            )
