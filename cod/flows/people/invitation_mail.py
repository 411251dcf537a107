"""Letters that somebody has sent to an address of their choice: so many in an hour, and so many
from the whole site, so that nobody makes the site's mail server a nuisance to others.
"""

from __future__ import annotations

from cod.model import SignInRules, SlowDown, Who
from cod.policy import rate_limit
from cod.store import watermarks
from cod.store.engine import Tx

HOUR = 3600.0


def count(tx: Tx, *, who: Who, rules: SignInRules, now: float) -> None:
    """Count one letter more. Raises `SlowDown`. Administrators are bound by the site's number
    alone."""
    mine = f"user:{who.user_id}" if who.user_id is not None else who.name
    if not who.admin:
        _count(tx, f"letters of {mine}"[:64], rules.letters, "one person", now)
    _count(tx, "letters", rules.letters_in_all, "the whole site", now)


def _count(tx: Tx, name: str, most: int, whose: str, now: float) -> None:
    before = watermarks.at(tx, name)
    after, wait = rate_limit.done_once(before, now, most, HOUR)
    if wait:
        raise SlowDown(wait, f"{most} letters in an hour are all that {whose} may have sent")
    if not watermarks.move(tx, name, before, after):
        raise SlowDown(1.0, "somebody else sends a letter at this moment")
