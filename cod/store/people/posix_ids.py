"""POSIX numbers of users and groups. A number stays with the holder that it was given to, also
after the holder's deletion."""

from __future__ import annotations

from sqlalchemy import and_, func, insert, select

from cod.model import OVERFLOW, Refused
from cod.store import tables as t
from cod.store.engine import Tx

_i = t.posix_ids.c


def give(tx: Tx, kinds: tuple[str, ...], first: int, last: int, holder: str, now: float) -> int:
    """Return a number between `first` and `last` that was never used, given to `holder` as each of
    `kinds` ('uid', 'gid'). Raises `Refused` when all are used."""
    # A locking read: two servers that give a number at once wait for each other, or one of them is
    # run again.
    within = select(_i.number).where(_i.number.between(first, last))
    highest = tx.scalar(within.order_by(_i.number.desc()).limit(1).with_for_update())
    number = first if highest is None else highest + 1
    if number > last:
        number = _gap(tx, first, last)
    while number in OVERFLOW:
        number += 1
    if not first <= number <= last:
        raise Refused(
            "conflict",
            f"all numbers from {first} to {last} are given: an administrator has to extend the "
            "range in [accounts] of the site file",
        )
    for kind in kinds:
        claim(tx, kind, number, holder, now)
    return number


def _gap(tx: Tx, first: int, last: int) -> int:
    """Return the first free number of a range; `last` + 1 if there is none."""
    if tx.scalar(select(_i.number).where(_i.number == first).limit(1)) is None:
        return first
    after = t.posix_ids.alias().c
    follows = select(after.number).where(after.number == _i.number + 1).exists()
    before = tx.scalar(
        select(func.min(_i.number)).where(
            and_(_i.number >= first, _i.number < last, ~follows, (_i.number + 1).not_in(OVERFLOW))
        )
    )
    return last + 1 if before is None else before + 1


def holder(tx: Tx, kind: str, number: int) -> str | None:
    """Return the user or group that has or had that number, as 'user:NAME' or 'group:NAME'; None if
    the number was never given."""
    query = select(_i.holder).where(_i.number == number, _i.kind == kind)
    return tx.scalar(query.with_for_update())


def claim(tx: Tx, kind: str, number: int, holder: str, now: float) -> None:
    """Record that `holder` has the number from now on. Raises IntegrityError if the number belongs
    or belonged to another holder."""
    tx.execute(insert(t.posix_ids).values(kind=kind, number=number, holder=holder, given_at=now))
