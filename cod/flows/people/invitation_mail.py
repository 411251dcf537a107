"""Limits of the letters that a user has sent to addresses of their choice, for each user and for
the whole site, so that nobody can misuse the site's mail server.
"""

from __future__ import annotations

from cod.model import SignInRules, SlowDown, Who
from cod.policy import rate_limit
from cod.store import watermarks
from cod.store.engine import Tx

HOUR = 3600.0


def count(tx: Tx, *, who: Who, rules: SignInRules, now: float) -> None:
    """Count one more letter of `who`. Raises `SlowDown` if a limit of letters in an hour is
    reached. For administrators, only the site's limit counts."""
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
