"""Permissions to fetch images, remembered for a while, because a node fetches an image in hundreds
of pieces, many at once.

A permission lasts `ALLOWED` seconds. A node that loses its holder in the middle of a piece
therefore still gets that piece, and learns from its order, not from an error, that it has to stop.
While the database is away, clients that were allowed before are allowed.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable

from cod.flows.boot import fetches
from cod.pool import Pool

ALLOWED, REFUSED = 60.0, 1.0  # seconds for which an answer is remembered
MOST = 50_000  # answers

log = logging.getLogger("cod.http")

Key = tuple[str, str]
"""(address, digest)."""


class Fetches:
    """The remembered permissions of clients to fetch images. `seconds`: a monotonic clock."""

    def __init__(self, pool: Pool, seconds: Callable[[], float]) -> None:
        self._pool, self._seconds = pool, seconds
        self._known: OrderedDict[Key, tuple[float, bool]] = OrderedDict()  # until when, what

    def known(self, address: str, digest: str) -> bool | None:
        """Return whether the client may fetch the image; None if that is not remembered."""
        until, answer = self._known.get((address, digest), (0.0, False))
        return answer if until > self._seconds() else None

    async def ask(self, address: str, digest: str) -> bool:
        """Return whether the client may fetch the image. Raises the database's error, unless the
        client was allowed before."""
        key = address, digest
        try:
            answer: bool = await self._pool.read(fetches.may_fetch, address=address, digest=digest)
        except Exception as error:
            if not self._known.get(key, (0.0, False))[1]:
                raise
            log.warning(
                "%s gets an image as before: nobody can say whether it still may: %s",
                address,
                error,
            )
            answer = True
        self._known.pop(key, None)
        self._known[key] = self._seconds() + (ALLOWED if answer else REFUSED), answer
        while len(self._known) > MOST:
            self._known.popitem(last=False)
        return answer
