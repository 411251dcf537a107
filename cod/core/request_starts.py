"""Expected starts of waiting requests, as people see them, and their usual error."""

from __future__ import annotations

from cod.model import ExpectedStart
from cod.policy.reservations import starts as policy
from cod.store.engine import Tx
from cod.store.scheduler import starts

KEPT = 30 * 86400.0  # seconds for which expected starts are kept, to compare them with real ones


def compared(tx: Tx, now: float) -> tuple[list[float], int, int]:
    """Return, for requests that have begun lately: the errors of the first expected starts, in
    seconds and in ascending order; how many requests had an expected start; and how many requests
    there are."""
    found = starts.begun(tx, now - KEPT)
    errors = policy.errors((one.first_at, one.first_told_at, one.began_at) for one in found)
    return errors, sum(one.first_at is not None for one in found), len(found)


def usually(tx: Tx, now: float) -> float | None:
    """Return the usual error of expected starts in seconds; None if too few requests have begun
    yet."""
    return policy.usually(compared(tx, now)[0])


def sentence(tx: Tx, start: ExpectedStart | None, now: float) -> str:
    """Return the sentence about a start for people; '' where none is known yet."""
    if start is None:
        return ""
    sooner = (
        None
        if start.sooner_nodes is None or start.sooner_at is None
        else (start.sooner_nodes, start.sooner_at)
    )
    return policy.sentence(policy.Start(0, start.at, start.why, sooner), now, usually(tx, now))
