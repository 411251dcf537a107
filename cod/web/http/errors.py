"""Errors of requests to the web server: an HTTP status and a sentence."""

from __future__ import annotations

import errno
import logging
from collections.abc import Sequence

from cod import states
from cod.flows.replies import Changed
from cod.model import Impossible, Refused, Remedy, SlowDown
from cod.pool import Pool

STATUS = {
    "invalid": 422,
    "impossible": 422,
    "not_found": 404,
    "conflict": 409,
    "forbidden": 403,
    "unauthorised": 401,
    "slow_down": 429,
    "busy": 503,
    "quota": 413,
}
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
READS_ONLY = "this token may only read"
MEASURES_ONLY = "this token may only read /metrics and /api/v1/targets"

log = logging.getLogger("cod.api")


class HttpProblem(Exception):
    """A request that cannot be answered.

    status    the HTTP status
    code      a stable code
    detail    a sentence
    field     the part of the input at fault, if there is one
    faults    the fault of each part of the input, if there are several
    wait      seconds after which to try again; 0: not known
    remedies  changes that would make an impossible request possible
    """

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        field: str | None = None,
        faults: dict[str, str] | None = None,
        wait: int = 0,
        remedies: Sequence[Remedy] = (),
    ) -> None:
        super().__init__(detail)
        self.wait = wait
        self.remedies = tuple(remedies)
        self.status, self.code, self.detail, self.field = status, code, detail, field
        self.faults = faults or ({field: detail} if field else {})

    def headers(self) -> dict[str, str]:
        """Return the headers that say when to try again (RFC 9110, 10.2.3; RateLimit-Reset, in
        seconds)."""
        if not self.wait:
            return {}
        limited = (
            {"RateLimit-Remaining": "0", "RateLimit-Reset": str(self.wait)}
            if self.status == 429
            else {}
        )
        return {"Retry-After": str(self.wait)} | limited


def problem_of(error: Exception) -> HttpProblem:
    """Return the problem document that the client is sent for an exception: the `HttpProblem`
    itself, or that for a rule's refusal, a late event, a database that does not answer, or a bug.
    """
    if isinstance(error, HttpProblem):
        return error
    if isinstance(error, SlowDown):
        return HttpProblem(STATUS[error.code], error.code, error.sentence, wait=error.seconds)
    if isinstance(error, Refused):
        return HttpProblem(
            STATUS.get(error.code, 422),
            error.code,
            error.sentence,
            error.field or None,
            remedies=error.remedies if isinstance(error, Impossible) else (),
        )
    if isinstance(error, Changed):
        return HttpProblem(412, "changed", "it is not as it was when you saw it: look again")
    if isinstance(error, states.WrongEvent):
        return HttpProblem(409, "conflict", str(error))
    if Pool.is_full(error) or (isinstance(error, OSError) and error.errno in NO_ROOM):
        log.error("the disk is full: %s", error)
        return HttpProblem(
            507, "no_space", "the server's disk is full; an administrator has to make room"
        )
    if Pool.is_away(error):
        return HttpProblem(503, "unavailable", "the database does not answer; try again")
    if Pool.is_race(error):
        log.warning("two requests at once: %s", error)
        return HttpProblem(
            409, "conflict", "somebody else changed the same thing at this moment; look again"
        )
    log.error("a bug: %s", error, exc_info=error)
    return HttpProblem(500, "internal", "a bug in COD; the server's log has the details")
