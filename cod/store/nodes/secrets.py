"""Verifiers of the secrets that machines boot with, and of the sessions they were traded for (see
wire/confd)."""

from __future__ import annotations

from dataclasses import astuple, fields

from sqlalchemy import delete, insert, select

from cod.model import BootSecret
from cod.store import tables as t
from cod.store.engine import Tx

_s = t.boot_secrets.c
_NAMES = [f.name for f in fields(BootSecret)]
_SELECT = select(*(_s[name] for name in _NAMES))


def get(tx: Tx, secret_id: str) -> BootSecret | None:
    """Return the verifier with that public name, expired or not."""
    row = tx.execute(_SELECT.where(_s.id == secret_id)).one_or_none()
    return BootSecret(*row) if row else None


def of_mac(tx: Tx, mac: str) -> list[BootSecret]:
    """Return all verifiers of a machine, the last to expire first."""
    query = _SELECT.where(_s.mac == mac).order_by(_s.expires_at.desc(), _s.id)
    return [BootSecret(*row) for row in tx.execute(query)]


def add(tx: Tx, secret: BootSecret) -> None:
    """Keep a verifier."""
    tx.execute(insert(t.boot_secrets).values(dict(zip(_NAMES, astuple(secret), strict=True))))


def spend(tx: Tx, secret_id: str) -> bool:
    """Use a secret up. True for the one caller that was first, whichever server it runs on."""
    return tx.execute(delete(t.boot_secrets).where(_s.id == secret_id)).rowcount == 1


def purge(tx: Tx, now: float) -> None:
    """Delete what has expired, of all machines."""
    tx.execute(delete(t.boot_secrets).where(_s.expires_at <= now))
