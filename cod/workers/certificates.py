"""Once an hour: do certificates of VCMs end, or that of the site's authority, without having been
renewed?

Each server with a manager part looks; the rows see to it that everybody is told once.
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
    """One server's. `authority_ends_at`: when the authority's certificate does, as it is now.
    Raises OSError. Who is told is told once: so the first look is an hour away."""

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
