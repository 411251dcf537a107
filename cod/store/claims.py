"""Claims: who may do what only one may do at a time, across all servers.

A claim is a row with an owner, an expiry and a generation that goes up with each change of owner.
An act under a claim calls `confirm` in its transaction: it writes the row, so that nobody can take
the claim over between the check and the commit. A lock would do on one host; the hosts of a Galera
cluster tell each other of writes alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select, update

from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.rows import Rows

_c = t.claims.c


@dataclass(frozen=True, slots=True)
class Claim:
    """A row of `claims` as its owner knows it."""

    name: str
    owner: str
    generation: int
    expires_at: float


_ROWS = Rows(Claim, t.claims)


class Lost(Exception):
    """The claim has expired or belongs to somebody else. Nothing may be committed."""


def hold(
    tx: Tx, name: str, owner: str, now: float, seconds: float, held: Claim | None = None
) -> Claim | None:
    """Get the claim, or renew `held`, until `now + seconds`; None while somebody else has it.

    Renewing keeps the generation. An owner that asks without holding it has been started anew: it
    takes over from its former self at once, and the new generation keeps that one from acting,
    should it still be alive.
    """
    row = _ROWS.get(tx, name, lock=True)
    until = now + seconds
    if row is None:
        # Two servers starting at once: the primary key lets one of them in, the other's flow fails
        # and tries again.
        return _ROWS.add(tx, name=name, owner=owner, generation=1, expires_at=until)
    valid = row.expires_at > now
    if valid and row.owner != owner:
        return None
    same = valid and held is not None and held.generation == row.generation
    generation = row.generation + (not same)
    return _ROWS.change(tx, row, owner=owner, generation=generation, expires_at=until)


def went_back(tx: Tx, held: Claim) -> bool:
    """Return whether the row is older than its owner has seen it: the database has lost what was
    committed last. An expiry only grows while the generation stays."""
    row = _ROWS.get(tx, held.name, lock=True)
    if row is None:
        return True
    seen = held.generation, held.expires_at
    return row.generation < held.generation or (
        row.owner == held.owner and (row.generation, row.expires_at) < seen
    )


def confirm(tx: Tx, claim: Claim, now: float) -> None:
    """Raise `Lost` unless the claim is still its owner's, until this transaction ends."""
    held = (
        _c.name == claim.name,
        _c.owner == claim.owner,
        _c.generation == claim.generation,
        _c.expires_at > now,
    )
    if not tx.execute(update(t.claims).values(acts=_c.acts + 1).where(*held)).rowcount:
        raise Lost(f"the claim {claim.name} is not {claim.owner}'s any more")


def owner(tx: Tx, name: str, now: float) -> str:
    """Return who has the claim now; '' while nobody has it."""
    return tx.scalar(select(_c.owner).where(_c.name == name, _c.expires_at > now)) or ""


def give_up(tx: Tx, claim: Claim) -> None:
    """Let the claim expire now, so that another server need not wait for it."""
    tx.execute(
        update(t.claims)
        .values(expires_at=0.0)
        .where(_c.name == claim.name, _c.owner == claim.owner, _c.generation == claim.generation)
    )


def left(tx: Tx, name: str, now: float) -> float:
    """Return the seconds that the claim is still valid for, whoever has it; 0 where nobody has."""
    until = tx.scalar(select(_c.expires_at).where(_c.name == name))
    return max(0.0, (until or 0.0) - now)
