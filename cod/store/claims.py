"""Claims: each lets one server at a time do a piece of work, such as managing the site.

A claim is a row with an owner, and a generation that goes up with each change of owner. An act
under a claim calls `confirm` in its transaction, which writes the row, so that nobody can take the
claim over between the check and the commit. A lock of the row would do on one host, but the hosts
of a Galera cluster tell each other of writes alone.

A claim is over when its owner has shown no sign of life for a while: each sign changes the row.
Each server measures by its own clock how long a row has stayed unchanged (`claimkeeper`), as the
hosts' clocks may differ. The expiry is shown to people, and servers of the previous release judge
some claims by it.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

from sqlalchemy import func, insert, select, update

from cod.store import tables as t
from cod.store import watermarks
from cod.store.engine import Tx
from cod.store.rows import Rows

MANAGER = "manager"
_c, _m = t.claims.c, t.marks.c


@dataclass(frozen=True, slots=True)
class Claim:
    """A row of `claims`, as it was read or written last."""

    name: str
    owner: str
    generation: int
    expires_at: float
    acts: int = 0

    def is_given_up(self) -> bool:
        """Return whether the owner has given the claim up."""
        return self.expires_at == 0.0


_ROWS = Rows(Claim, t.claims)


@dataclass(frozen=True, slots=True)
class Progress:
    """Numbers by which a database is found to be behind: of one `database` they only grow.

    database    its name; one that was restored from a backup has another
    losses      how many times it was found to have lost its last commits
    generation  generation of the manager's claim; 0: there is no claim
    acts        renewals of that claim, and acts confirmed under it
    """

    database: str
    losses: int
    generation: int
    acts: int

    @property
    def epoch(self) -> str:
        """Return 8 hex digits that stand for the database since its last loss: ids of rows that
        were lost are given again in the next epoch."""
        return blake2b(f"{self.database} {self.losses}".encode(), digest_size=4).hexdigest()

    def is_behind(self, seen: Progress) -> bool:
        """Return whether the database has lost what was seen, which nobody has noticed yet."""
        if self.database != seen.database or self.losses > seen.losses:
            return False
        return (
            self.losses < seen.losses or self.generation < seen.generation or self.acts < seen.acts
        )


class Lost(Exception):
    """The claim belongs to somebody else. Nothing may be committed."""


def find(tx: Tx, name: str) -> Claim | None:
    """Return the claim of that name, whoever owns it; None if it was never taken."""
    return _ROWS.get(tx, name)


def hold(
    tx: Tx,
    name: str,
    owner: str,
    now: float,
    seconds: float,
    held: Claim | None = None,
    over: Claim | None = None,
) -> Claim | None:
    """Get the claim, or renew `held`, until `now + seconds`; None while another owner has it.

    over  a claim of another owner that was found to be over: this owner takes it if it has not
          changed

    Renewing keeps the generation. An owner that asks without holding the claim was restarted: it
    takes the claim over from its former self at once. The new generation keeps the former self from
    acting, if it is still alive.
    """
    row = _ROWS.get(tx, name, lock=True)
    until = now + seconds
    if row is None:
        # Two servers starting at once: the primary key lets one of them in, the other's flow fails
        # and tries again.
        return _ROWS.add(tx, name=name, owner=owner, generation=1, acts=1, expires_at=until)
    own = row.owner == owner
    if not own and (over is None or not is_unchanged(row, over)):
        return None
    same = own and held is not None and held.generation == row.generation
    columns = {"owner": owner, "generation": row.generation + (not same), "expires_at": until}
    return _ROWS.change(tx, row, **columns, acts=row.acts + 1)


def is_unchanged(row: Claim, seen: Claim) -> bool:
    """Return whether the claim's owner has shown no sign of life since `seen` was read. Servers of
    the previous release change only the expiry when they renew a claim."""
    return (row.generation, row.acts, row.expires_at) == (
        seen.generation,
        seen.acts,
        seen.expires_at,
    )


def confirm(tx: Tx, claim: Claim) -> None:
    """Raise `Lost` unless the claim is still its owner's, until this transaction ends."""
    held = (
        _c.name == claim.name,
        _c.owner == claim.owner,
        _c.generation == claim.generation,
    )
    if not _ROWS.set_where(tx, *held, acts=_c.acts + 1):
        raise Lost(f"the claim {claim.name} is not {claim.owner}'s any more")


def progress(tx: Tx, *, lock: bool = False) -> Progress | None:
    """Return how far the database has come; None while it has no name."""
    query = (
        select(_m.about, _m.at, func.coalesce(_c.generation, 0), func.coalesce(_c.acts, 0))
        .outerjoin_from(t.marks, t.claims, _c.name == MANAGER)
        .where(_m.name == watermarks.DATABASE)
    )
    row = tx.execute(query.with_for_update() if lock else query).one_or_none()
    return None if row is None else Progress(row[0], int(row[1]), row[2], row[3])


def epoch(tx: Tx) -> str:
    """Return the epoch of the database (`Progress.epoch`); '' while it has no name."""
    found = progress(tx)
    return "" if found is None else found.epoch


def name_database(tx: Tx, name: str) -> None:
    """Name the database, which has no name yet. IntegrityError when another server does it at the
    same moment."""
    tx.execute(insert(t.marks).values(name=watermarks.DATABASE, at=0.0, about=name))


def count_loss(tx: Tx, seen: Progress) -> None:
    """Count the loss of what was seen, so that it is noticed once."""
    tx.execute(update(t.marks).where(_m.name == watermarks.DATABASE).values(at=seen.losses + 1.0))


def interrupt(tx: Tx, name: str) -> None:
    """Refuse the acts under way: their commits fail, and the claim's owner has to get it again."""
    _ROWS.set_where(tx, _c.name == name, generation=_c.generation + 1)


def owner(tx: Tx, name: str, now: float) -> str:
    """Return the owner of the claim now; '' where the claim has none."""
    return tx.scalar(select(_c.owner).where(_c.name == name, _c.expires_at > now)) or ""


def give_up(tx: Tx, claim: Claim) -> None:
    """Let the claim expire now, so that another server need not wait for it."""
    tx.execute(
        update(t.claims)
        .values(expires_at=0.0)
        .where(_c.name == claim.name, _c.owner == claim.owner, _c.generation == claim.generation)
    )
