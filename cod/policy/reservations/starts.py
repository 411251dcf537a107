"""Forecast of each waiting request's start, and the changes that would make it sooner: the plan,
rolled forward until each has its nodes (`policy.reservations.future`). Pure.

A start is as good as what it is made of: who gives nodes back early makes it sooner, who extends a
lease or comes before it makes it later. What is told is compared with what happens
(`usually`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cod.model import Group, Policy
from cod.policy.reservations.future import Future
from cod.policy.scheduler.allocate import decide
from cod.policy.scheduler.feasibility import Feasibility
from cod.policy.scheduler.reasons import at, in_, nodes
from cod.policy.scheduler.snapshot import Decision, NodeKind, SiteSnapshot
from cod.quantity import span

EVENTS = 2000  # moments that are looked at
HORIZON = 90 * 86400.0  # seconds
LOOK = 1.0  # seconds until the manager sees a change, with what else has happened by then
FINE, PER_GRAIN, COARSE = 1000, 100_000, 0.05
WORTH = 300.0
HINTED = 200  # requests that wait for which it is looked what would make their start sooner
NO_LEASE = "no lease that ends would free enough nodes"
ENDS_FIRST = "the lease of its vcluster ends before nodes are free for it"
TOO_FAR = "too much happens before it to tell"


@dataclass(frozen=True, slots=True)
class Start:
    """The expected start of a request.

    at      None: unknown; `why` says why
    sooner  (nodes, time): with so few nodes it would start by then; None: it would not
    """

    request_id: int
    at: float | None
    why: str = ""
    sooner: tuple[int, float] | None = None


def predicted(
    snapshot: SiteSnapshot,
    policy: Policy,
    now: float,
    groups: Iterable[Group] = (),
    go_on: Callable[[], bool] = lambda: True,
) -> list[Start]:
    """Return the starts of all waiting requests of `snapshot`.

    groups  with their usage; needed if shares are on
    go_on   asked before each moment; False: requests without a start by then get none
    """
    found: dict[int, Start] = {}
    hints: dict[int, tuple[int, float]] = {}
    whys: dict[int, str] = {}
    future = Future(snapshot, policy, now, groups)
    future.advance(now)
    why = NO_LEASE
    for _ in range(EVENTS):
        if not go_on():
            why = TOO_FAR
            break
        waiting = set(future.requests)
        seen = future.snapshot()
        feasibility = Feasibility(seen, future.now)
        decision = decide(seen, policy, future.now, feasibility)
        refused = {refusal.request_id: refusal for refusal in decision.refusals}
        for one in waiting - refused.keys():
            found[one] = Start(one, future.now, sooner=_worth(hints.get(one), future.now))
        whys.update(
            (refusal.request_id, refusal.sentence)
            for refusal in decision.refusals
            if refusal.code in ("limit", "dear")
        )
        for one in waiting & refused.keys():
            if refused[one].final:
                found[one] = Start(one, None, refused[one].sentence)
        if len(waiting) <= HINTED:
            _hint(seen, feasibility, decision, hints, future.now)
        future.apply(decision)
        if not future.requests or (time := future.next()) > now + HORIZON:
            break
        before = set(future.requests)
        future.advance(time + max(LOOK, _grain(len(before)) * (time - now)))
        for one in before - future.requests.keys():
            found.setdefault(one, Start(one, None, ENDS_FIRST))
    else:
        why = TOO_FAR
    for request in snapshot.requests:
        if request.id not in found:
            limit = whys.get(request.id, "").removeprefix("waits: ")
            reason = why if why == TOO_FAR else limit or why
            found[request.id] = Start(request.id, None, reason, hints.get(request.id))
    return [found[request.id] for request in snapshot.requests]


def _grain(waiting: int) -> float:
    """Return the fraction of the remaining time within which moments are merged. With many waiting
    requests each moment costs much, and distant starts need no precision of seconds."""
    return min(COARSE, max(0, waiting - FINE) / PER_GRAIN)


def _hint(
    seen: SiteSnapshot,
    feasibility: Feasibility,
    decision: Decision,
    hints: dict[int, tuple[int, float]],
    now: float,
) -> None:
    """Note, for requests of one kind of nodes, how many nodes they could have had at `now`: the
    first time at which it is half of the request, else the largest number."""
    waiting = {
        refusal.request_id
        for refusal in decision.refusals
        if refusal.code in ("busy", "coming", "taking")
    }
    free = _left(seen, decision)
    for request in seen.requests:
        if request.id not in waiting or len(request.tuples) != 1 or request.source_id is not None:
            continue
        (one,) = request.tuples
        counts = [
            free[kind] for kind in {kind.any_port for kind in feasibility.fit(one, request).kinds}
        ]
        most = sum(counts) if request.may_spread else max(counts, default=0)
        before = hints[request.id][0] if request.id in hints else 0
        if before < min(most, one.count - 1) and before < one.count / 2:
            hints[request.id] = min(most, one.count - 1), now


def _left(seen: SiteSnapshot, decision: Decision) -> Counter[NodeKind]:
    """Return the nodes that are free after a decision and not kept for a request, by kind."""
    free: Counter[NodeKind] = Counter()
    for one in seen.free_nodes:
        if not one.reserved:
            free[one.kind.any_port] += one.count - decision.kept.get(one, 0)
    for grant in decision.grants:
        for share in grant.shares:
            if not share.free_nodes.reserved:
                free[share.free_nodes.kind.any_port] -= share.count
    for hold in decision.holds:
        free[hold.kind.any_port] -= hold.free
    for part in decision.reserved:
        free[part.kind.any_port] -= part.count
    return +free


def _worth(hint: tuple[int, float] | None, start: float) -> tuple[int, float] | None:
    """Return what would make a start sooner, if it is sooner by more than a few minutes."""
    return hint if hint is not None and start - hint[1] > WORTH else None


# ---------------------------------------------------------------- how right it is

MINUTE = 60.0
AHEAD = MINUTE  # seconds: what begins at once is no prediction
FEW = 10  # starts that have to be compared before it is said how right they usually are
USUALLY = 0.8  # of starts
QUANTILES = (0.5, USUALLY, 0.95)


def errors(compared: Iterable[tuple[float | None, float | None, float]]) -> list[float]:
    """Return the errors, in seconds and in order, of starts that were told at least a minute
    before: of (first told start, when it was told, actual begin)."""
    return sorted(
        abs(began - start)
        for start, told_at, began in compared
        if start is not None and told_at is not None and start - told_at >= AHEAD
    )


def usually(wrong: list[float]) -> float | None:
    """Return within how many seconds, in whole minutes, starts are usually right; None where too
    few are known."""
    if len(wrong) < FEW:
        return None
    return max(1, math.ceil(quantiles(wrong)[f"{USUALLY:g}"] / MINUTE)) * MINUTE


def quantiles(wrong: list[float]) -> dict[str, float]:
    """Return the quantiles of ordered errors, by their names; nothing where there are none."""
    return {
        f"{part:g}": wrong[min(len(wrong) - 1, math.ceil(part * len(wrong)) - 1)]
        for part in QUANTILES
        if wrong
    }


def sentence(start: Start, now: float, within: float | None) -> str:
    """Return what people are told of a start. `within`: see `usually`."""
    if start.at is None:
        text = f"Nobody can tell when it starts: {start.why}"
    else:
        text = f"It is expected to start {in_(start.at, now)} ({at(start.at)})"
        if within is not None:
            text += f"; what is told is usually right within {span(within)}"
    if start.sooner is not None:
        count, when = start.sooner
        text += f". With {nodes(count)} it would start {in_(when, now)}"
    return f"{text}."
