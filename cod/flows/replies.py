"""Wrappers of flows, which are passed in: `once` runs a flow once for each key of a client, and
`unchanged` runs a change only if the thing that it changes is still as the client has seen it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from cod.model import Refused
from cod.store import replies, watermarks
from cod.store.engine import Tx

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Repeated:
    """The answer to the first call with the same key."""

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
    """Run `flow` and return its result, the first time that the key is used; if the key was used
    for the same call before, return the answer as a `Repeated`.

    question  digest of the whole call
    body      returns the answer to keep, from the flow's result
    Raises `Refused` if the key was used for another call. If the flow raises, its key counts as
    unused.
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
    """Run `flow` and return its result, if the condition `holds`. Otherwise, raises `Changed`."""
    one_at_a_time(tx)
    if not holds(tx):
        raise Changed
    return flow(tx)


def one_at_a_time(tx: Tx) -> None:
    """Wait for other transactions that change things under a condition. Those that come later wait
    for this transaction."""
    watermarks.one_at_a_time(tx, "conditions")
