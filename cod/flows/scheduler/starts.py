"""Expected starts of waiting requests: they are stored as they are shown, and compared with the
real starts.

A process of its own (`cod.workers.starts`) computes the starts: it gets a `question`, and gives
back what `policy.reservations.starts.predicted` returns.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence

from cod.core import request_starts
from cod.core import snapshot as core_snapshot
from cod.model import Site
from cod.policy.reservations import starts as policy
from cod.store import claims
from cod.store.engine import Tx
from cod.store.scheduler import starts
from cod.store.scheduler.starts import StartRow

Claim = claims.Claim
usually = request_starts.usually
Observed = core_snapshot.Observed
SLIGHT = 30.0  # seconds: a start that has moved by less is not stored anew


def look(tx: Tx, site: Site, now: float, before: Observed | None = None) -> Observed:
    """Return the site now, with the times of nodes on their way; see `core.snapshot.look`."""
    return core_snapshot.look(tx, site, now, before, times=True, again=True)


def question(seen: Observed, site: Site, now: float) -> bytes:
    """Return the arguments of `predicted`, pickled for the process that computes the starts."""
    groups = list(seen.scene.groups.values())
    return pickle.dumps((seen.site, site.policy, now, groups))


def answer(output: bytes) -> list[StartRow]:
    """Return the computed starts as they are stored."""
    found: list[policy.Start] = pickle.loads(output)
    return [
        StartRow(one.request_id, one.at, one.why, *(one.sooner or (None, None))) for one in found
    ]


def changed(tx: Tx, forecast: Iterable[StartRow]) -> list[StartRow]:
    """Return the starts that differ from those stored for their requests."""
    known = starts.waiting(tx)
    return [one for one in forecast if _differs(one, known.get(one.request_id))]


def tell(tx: Tx, forecast: Sequence[StartRow], now: float) -> None:
    """Store the starts in `forecast`."""
    starts.tell(tx, forecast, starts.waiting(tx), now)


def settle(tx: Tx, now: float) -> None:
    """Record the real starts of requests that have begun; forget other ended ones, and old ones."""
    starts.settle(tx, now - request_starts.KEPT)


def gauges(tx: Tx, now: float) -> tuple[dict[str, float], dict[str, int]]:
    """Return quantiles of the errors of expected starts, in seconds, and how many requests that
    began lately had an expected start ('yes') or none ('no')."""
    errors, counts, begun = request_starts.compared(tx, now)
    return policy.quantiles(errors), {"yes": counts, "no": begun - counts}


def _differs(one: StartRow, known: StartRow | None) -> bool:
    if known is None or (one.starts_at is None) != (known.starts_at is None):
        return True
    return (
        abs((one.starts_at or 0.0) - (known.starts_at or 0.0)) > SLIGHT
        or one.why != known.why
        or one.sooner_nodes != known.sooner_nodes
        or abs((one.sooner_at or 0.0) - (known.sooner_at or 0.0)) > SLIGHT
    )
