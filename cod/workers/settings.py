"""Applies settings that are changed while the servers run, in each part of each server."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from cod.flows import site_settings
from cod.model import SettingChange
from cod.periodic import Claimer
from cod.pool import Pool

PERIOD = 3.0  # seconds between looks; on the host of the change they are woken

log = logging.getLogger("cod.service")


def newest(changes: Sequence[SettingChange]) -> int:
    """Return the id of the newest of these changes; 0: there is none."""
    return max((each.id for each in changes), default=0)


class SettingsWatch(Claimer):
    """A watch for changed settings. `obey` is called with the newest change of each setting;
    it knows the changes up to the id `seen`."""

    def __init__(
        self, reactor: Any, pool: Pool, seen: int, obey: Callable[[Sequence[SettingChange]], None]
    ) -> None:
        super().__init__(reactor, pool, log, "changed settings are not taken over", PERIOD)
        self._seen, self._obey = seen, obey

    async def look(self) -> None:
        """Apply changed settings."""
        changes = await self._pool.read(site_settings.changed, seen=self._seen)
        if changes is not None:
            self._obey(changes)
            self._seen = newest(changes)  # what failed is taken over at the next look
