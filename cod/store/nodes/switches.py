"""Sessions with switches: the claim of each switch, and the outcome of the last session.

A claim is the pair (`claimed_by`, `epoch`): each claim adds one to the epoch, which tells a server
whose claim ran out and was taken over from the new owner.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import and_, delete, insert, or_, select

from cod.model import SwitchSession
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.rows import Rows

_s = t.switches.c
ROWS = Rows(SwitchSession, t.switches)
get, shorten = ROWS.get, ROWS.shorten


def every(tx: Tx) -> list[SwitchSession]:
    """Return the row of every switch, by name."""
    return ROWS.every(tx, order=_s.name)


def keep(tx: Tx, names: Collection[str]) -> None:
    """Add rows for those of the switches that have none, and delete the rows of all others."""
    known = set(tx.scalars(select(_s.name)))
    if gone := known - set(names):
        tx.execute(delete(t.switches).where(_s.name.in_(gone)))
    if new := sorted(set(names) - known):
        tx.execute(insert(t.switches), [{"name": name} for name in new])


def claim(
    tx: Tx, switch: SwitchSession, server: str, now: float, until: float
) -> SwitchSession | None:
    """Claim the switch until `until`; None when another server has claimed it first."""
    as_seen = _s.epoch == switch.epoch
    return ROWS.claim(
        tx, switch.name, server, now, until, as_seen, count="epoch", check_wanted=False
    )


def ended(tx: Tx, name: str, epoch: int, **columns: Any) -> bool:
    """End the session of that epoch with its outcome; return False, and write nothing, when the
    claim was lost."""
    done = ROWS.set_where(
        tx, _s.name == name, _s.epoch == epoch, claimed_by=None, claim_expires=None, **columns
    )
    return done == 1


def is_check_wanted(tx: Tx, now: float) -> bool:
    """Return whether a session with some switch is due even without due ports, because somebody
    requested it or the last session failed."""
    wanted = or_(_s.check_wanted.is_(True), and_(_s.failures > 0, _s.next_at <= now))
    return ROWS.exists(tx, wanted)


def away(tx: Tx) -> list[str]:
    """Return the names of switches whose last session failed."""
    return list(tx.scalars(select(_s.name).where(_s.failures > 0).order_by(_s.name)))


def want_check(tx: Tx, name: str) -> None:
    """Request a session with the switch at once, even without due ports."""
    ROWS.set_where(tx, _s.name == name, check_wanted=True, next_at=0.0)
