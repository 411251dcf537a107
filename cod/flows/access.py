"""Any flow behind the question whether who asks may: decided in the flow's own transaction.

The one flow that runs others: it is handed them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cod.model import Owned, Refused, Right, Who
from cod.policy import rights
from cod.store import access
from cod.store.engine import Tx


@dataclass(frozen=True, slots=True)
class Claim:
    """A right that a question wants, on the thing of that kind and name (see `store.access.owned`)."""

    right: Right
    kind: str = ""
    key: str = ""


def guarded(tx: Tx, *, flow: Callable[[Tx], Any], who: Who, claims: Sequence[Claim]) -> Any:
    """What `flow` returns, if `who` has every right in `claims`. Raises `Refused`."""
    for claim in claims:
        check(tx, who, claim)
    return flow(tx)


def check(tx: Tx, who: Who, claim: Claim) -> None:
    """Raise `Refused` unless `who` has the right."""
    missing = Refused("not_found", f"there is no {claim.kind} {claim.key!r}", "name")
    rights.require(who, claim.right, access.owned(tx, claim.kind, claim.key), missing)


def offered(who: Who, right: Right, group_id: int | None = None) -> bool:
    """Is it worth offering `who` what wants that right on a thing of the group (None: of the site)? Asked again when it
    is done."""
    return who.writes and rights.may(who, right, Owned(frozenset() if group_id is None else frozenset({group_id})))
