"""A job, as an owner submits it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SimJob:
    """A job of `size` nodes that is submitted at `at` and runs for `runtime` seconds.

    lease        run time that its user requests, in seconds; None: it is estimated by the demand's
                 rule
    queue, user  names that it is counted under; '': the demand's name, and no user
    """

    at: float
    size: int
    runtime: float
    lease: float | None = None
    queue: str = ""
    user: str = ""

    def estimate(self, factor: float) -> float:
        """Return the run time that the user requests, or else the run time times `factor`, in
        seconds."""
        return self.lease or self.runtime * factor
