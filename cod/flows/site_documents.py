"""Database work of applying the site's documents; the flows that apply them are passed in."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeVar

from cod.model import Result
from cod.store.engine import Tx, savepoint, trial
from cod.store.site import documents

T = TypeVar("T")
managed = documents.every


def attempt(tx: Tx, *, flow: Callable[[Tx], T]) -> T:
    """Return the result of `flow`. Its writes are undone if it raises."""
    with savepoint(tx):
        return flow(tx)


def tried(tx: Tx, *, flow: Callable[[Tx], Result[T]]) -> T:
    """Run `flow`, undo all its changes, and return its value."""
    with trial(tx):
        return flow(tx).value


def manage(tx: Tx, *, named: Collection[documents.Thing], pruned: bool) -> None:
    """Store which things the documents name. After a prune, things that they do not name are no
    longer stored."""
    known = managed(tx)
    documents.add(tx, set(named) - known)
    if pruned:
        documents.remove(tx, known - set(named))
