"""Renewal of a VCM's certificate: when two thirds of its life are over, on the connection made with
it.

The new key is made in memory and written atomically, together with its certificate
(cod/vcm/credentials.py). COD accepts the old certificate until the new one is shown. So nothing is
lost if either side crashes: before the file is written, the renewal is repeated; afterwards, the
next connection uses the new certificate.
"""

from __future__ import annotations

import logging
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cod.vcm import credentials
from cod.vcm.retry import RetryingSteps
from cod.vcm.settings import Settings
from cod.wire.nmp.bodies import Body, Renew, Renewed

PART = 2 / 3  # of its life
PAUSE = 3600.0  # seconds between looks
# seconds to wait after a failed attempt, doubled after each further failure, up to `PAUSE`
FIRST_PAUSE = 60.0

log = logging.getLogger("cod.vcm")


class Renewal(RetryingSteps):
    """The renewal of the credentials in `folder`. `clock`: seconds since the epoch."""

    def __init__(
        self,
        reactor: Any,
        threads: Any,
        settings: Settings,
        folder: Path,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(reactor, threads)
        self._settings, self._folder, self._clock = settings, folder, clock
        self._next_look, self._pause = 0.0, FIRST_PAUSE
        self._is_done = False

    async def run(self, ask: Callable[[Body], Awaitable[Body]]) -> bool:
        """Renew the certificate if it is time; return whether it was renewed. Then the next
        connection has to be made with the new certificate. Never raises."""
        if self._clock() < self._next_look <= self._clock() + PAUSE:  # else the clock was set back
            return False
        self._is_done = False
        if await self._attempt("the certificate is renewed", self._renew(ask)):
            self._next_look, self._pause = self._clock() + PAUSE, FIRST_PAUSE
        else:
            self._next_look, self._pause = self._clock() + self._pause, min(2 * self._pause, PAUSE)
        return self._is_done

    async def _renew(self, ask: Callable[[Body], Awaitable[Body]]) -> None:
        begin, end = credentials.load(self._settings, self._folder).life()
        if self._clock() < begin + PART * (end - begin):
            return
        key = credentials.new_key()
        answer = await ask(Renew(b64encode(credentials.request(key)).decode()))
        assert isinstance(answer, Renewed)
        self._keep(key, b64decode(answer.certificate), b64decode(answer.authority))

    def _keep(self, key: Any, certificate: bytes, authority: bytes) -> None:
        got = credentials.keep_renewed(self._settings, self._folder, key, certificate, authority)
        self._is_done = True
        log.info(
            "the certificate is renewed, until %s",
            f"{datetime.fromtimestamp(got.life()[1], UTC):%Y-%m-%d}",
        )
