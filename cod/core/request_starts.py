"""Expected starts of waiting requests, as people see them, and their usual error."""

from __future__ import annotations

from cod.model import ExpectedStart
from cod.policy.reservations import starts as policy
from cod.store.engine import Tx
from cod.store.scheduler import starts

KEPT = 30 * 86400.0  # seconds for which it is remembered how right a start was


def compared(tx: Tx, now: float) -> tuple[list[float], int, int]:
    """Return of requests that have begun lately: the errors of what was told first, in seconds and
    in order; how many were told a start; and how many there are."""
    found = starts.begun(tx, now - KEPT)
    errors = policy.errors((one.first_at, one.first_told_at, one.began_at) for one in found)
    return errors, sum(one.first_at is not None for one in found), len(found)


def usually(tx: Tx, now: float) -> float | None:
    """Return the usual error of told starts in seconds; None where too few have been compared
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
