"""Kept disks: applies the site's rules to all nodes at the start, and after the site file was read
again.

A node's next report would do as well. But a node in the reserve pool may not report for months, and
a disk that is no longer kept must be wiped before anybody gets its node.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import Deferred, ensureDeferred

from cod.flows.nodes import nodes
from cod.model import Effect, SiteRef
from cod.pool import Pool

log = logging.getLogger("cod.kept_disks")


class KeepWatch(Service):
    """Watcher of the site's rules for kept disks. `effects` carries out the wake-ups that flows
    return."""

    def __init__(
        self,
        pool: Pool,
        site: SiteRef,
        clock: Callable[[], float],
        effects: Callable[[Iterable[Effect]], object],
    ) -> None:
        self._pool, self._site, self._clock, self._effects = pool, site, clock, effects
        self._rules: object = None
        self.looked: Deferred[Any] | None = None

    def startService(self) -> None:
        """Look at all nodes."""
        super().startService()  # type: ignore[no-untyped-call]
        self.reread()

    def reread(self) -> None:
        """Look at all nodes, if the rules have changed."""
        if self._rules != self._site.current.keep:
            self._rules = self._site.current.keep
            self.looked = ensureDeferred(self._look())

    async def _look(self) -> None:
        after: int | None = 0
        try:
            while after is not None and self.running:
                done = await self._pool.run(
                    nodes.look_again, after=after, site=self._site.current, now=self._clock()
                )
                self._effects(done.effects)
                after = done.value
        except Exception as error:
            self._rules = None  # the next reading of the site file looks again
            log.error("which disks are kept: %s", error, exc_info=not self._pool.is_away(error))
