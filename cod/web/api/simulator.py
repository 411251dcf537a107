"""Questions that the simulator answers, in a process of its own: one at a time, with a deadline.

A simulation takes seconds of processor time. The process is nice and bounds itself; here its time
on the clock is bounded, too, and it ends with the server.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import Any

from cod.childprocess import ChildProcess
from cod.web.http.errors import HttpProblem

PROGRAM = (sys.executable, "-P", "-m", "cod.service.share_preview")
SECONDS = 55.0  # less than a minute, after which browsers and programs give up
WAIT = 10  # seconds after which a client should try again
TOO_MUCH = "simulating these days takes longer than the server allows: name fewer days"
BUSY = "another preview is being simulated, one at a time: try again in some seconds"

log = logging.getLogger("cod.api")


class Simulator:
    """The simulator of one server. `stop` ends a running simulation."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._child: ChildProcess | None = None

    async def answer(self, question: bytes) -> Any:
        """Return the simulator's answer. Raises `HttpProblem`: 503 while another question is being
        answered, 422 if the simulation takes too long."""
        if self._child is not None:
            raise HttpProblem(503, "busy", BUSY, wait=WAIT)
        self._child = child = ChildProcess(question)
        limit = None
        try:
            self._reactor.spawnProcess(child, PROGRAM[0], list(PROGRAM), dict(os.environ))
            limit = self._reactor.callLater(SECONDS, child.kill)
            status, output, trouble = await child.ended
        finally:
            self._child = None
            if limit is not None and limit.active():
                limit.cancel()
        if status is None:  # a signal ended it, by its limit of processor time or from here
            raise HttpProblem(422, "invalid", TOO_MUCH, "days")
        if status != 0:
            log.error("a preview failed: %s", trouble[-2000:].decode(errors="replace"))
            raise HttpProblem(500, "internal", "the simulation failed; the server's log says why")
        return json.loads(output)

    def stop(self) -> None:
        """End a running simulation."""
        if self._child is not None:
            self._child.kill()
