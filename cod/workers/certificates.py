"""Looks once an hour whether certificates of VCMs, or the certificate of the site's authority, are
about to end without having been renewed.

Each server with a manager part looks. The rows record who was notified, so nobody is notified
twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from cod.flows.vcms import certificates
from cod.periodic import Periodic
from cod.pool import Pool

PERIOD = 3600.0  # seconds between looks

log = logging.getLogger("cod.certificates")


class CertificateWatch(Periodic):
    """One server's watch over certificates. `authority_ends_at`: returns when the authority's
    current certificate ends; raises OSError. The first look is after an hour, when the host's clock
    is set: a notice by a wrong clock would be the only one."""

    def __init__(
        self,
        reactor: Any,
        pool: Pool,
        authority_ends_at: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        super().__init__(reactor, pool, log, "certificates' ends are not looked for", PERIOD)
        self._ends_at, self._clock = authority_ends_at, clock

    async def look(self) -> None:
        warned = await self._pool.run(certificates.look, self._ends_at(), self._clock())
        if warned:
            log.warning("%d certificates end, or have ended: see the notices", warned)
