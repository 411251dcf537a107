"""Wrappers of flows: one runs a flow once for each key of a client, the other runs a change only if
its thing is still as the client has seen it.

Like `flows.people.access` these wrap flows: they are handed them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from cod.model import Refused
from cod.store import watermarks
from cod.store.engine import Tx
from cod.store.people import replies

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Repeated:
    """The answer that was given when the question was asked first."""

    status: int
    body: str


class Changed(Exception):
    """The thing differs from what the client has seen. Nothing was changed."""


def once(
    tx: Tx,
    *,
    flow: Callable[[Tx], T],
    key: str,
    question: str,
    status: int,
    body: Callable[[T], str],
    now: float,
) -> T | Repeated:
    """Return what `flow` returns, the first time; a `Repeated` when the key was used for the same
    question before.

    question  digest of the whole question
    body      the answer to keep, from what the flow returns
    Raises `Refused` where the key was used for another question. A flow that raises is as if it was
    never asked.
    """
    before = replies.begin(tx, key, question, now)
    if before is None:
        value = flow(tx)
        replies.keep(tx, key, status, body(value))
        return value
    if before.question != question:
        raise Refused("invalid", "this key was used for another question before", "Idempotency-Key")
    return Repeated(before.status, before.body)


def unchanged(
    tx: Tx,
    *,
    flow: Callable[[Tx], T],
    holds: Callable[[Tx], bool],
) -> T:
    """Return what `flow` returns, if the condition `holds` before it. Raises `Changed`."""
    watermarks.one_at_a_time(tx, "conditions")
    if not holds(tx):
        raise Changed
    return flow(tx)
