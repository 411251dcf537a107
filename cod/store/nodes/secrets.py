"""Verifiers of the secrets that machines boot with, and of the sessions they were traded for (see
wire/confd)."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import delete

from cod.model import BootSecret
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.rows import Rows

_s = t.boot_secrets.c
ROWS = Rows(BootSecret, t.boot_secrets)
get, spend = ROWS.get, ROWS.remove


def of_mac(tx: Tx, mac: str) -> list[BootSecret]:
    """Return all verifiers of a machine, the last to expire first."""
    return ROWS.every(tx, _s.mac == mac, order=(_s.expires_at.desc(), _s.id))


def of_macs(tx: Tx, macs: Collection[str]) -> list[BootSecret]:
    """Return all verifiers of those MACs."""
    return ROWS.every(tx, _s.mac.in_(macs))


def add(tx: Tx, secret: BootSecret) -> None:
    """Keep a verifier."""
    ROWS.insert(tx, [secret])


def spend_all(tx: Tx, ids: Collection[str]) -> None:
    """Delete verifiers by their ids."""
    if ids:
        tx.execute(delete(t.boot_secrets).where(_s.id.in_(ids)))


def purge(tx: Tx, now: float) -> None:
    """Delete what has expired, of all machines."""
    tx.execute(delete(t.boot_secrets).where(_s.expires_at <= now))
