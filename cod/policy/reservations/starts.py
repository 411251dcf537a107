"""Forecast of each waiting request's start, and of a smaller request that would start sooner. The
site is simulated until each request has its nodes (`policy.reservations.future`). Pure.

A forecast depends on its assumptions. A start is sooner if nodes are given back early, and later if
a lease is extended or a request of higher precedence is made. Forecasts are compared with the
actual starts (`usually`).
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

EVENTS = 2000  # moments that are simulated
HORIZON = 90 * 86400.0  # seconds
LOOK = 1.0  # seconds until the manager sees a change, together with other changes by then
FINE, PER_GRAIN, COARSE = 1000, 100_000, 0.05
WORTH = 300.0
HINTED = 200  # with more waiting requests, no hints at sooner starts are computed
NO_LEASE = "no lease that ends would free enough nodes"
ENDS_FIRST = "the lease of its vcluster ends before nodes are free for it"
TOO_FAR = "too much happens before it to tell"


@dataclass(frozen=True, slots=True)
class Start:
    """The expected start of a request.

    at      when it starts; None: unknown, for the reason in `why`
    sooner  (nodes, time): the request would start at that time if it asked for so few nodes; None:
            no smaller request would start much sooner
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

    groups  groups with their usage; needed if shares are on
    go_on   called before each moment; if it returns False, the simulation ends, and requests that
            have not started in it have no known start
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
    """Return the fraction of a moment's distance from now within which later moments are merged
    with it. With many waiting requests each moment takes long to compute, and distant starts need
    no precision of seconds."""
    return min(COARSE, max(0, waiting - FINE) / PER_GRAIN)


def _hint(
    seen: SiteSnapshot,
    feasibility: Feasibility,
    decision: Decision,
    hints: dict[int, tuple[int, float]],
    now: float,
) -> None:
    """Note in `hints`, for requests of one tuple, how many nodes they could have had at `now`. A
    hint stays once it is half of the request; until then a larger number replaces it."""
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
    """Return the hint if it makes the start sooner by more than `WORTH` seconds, else None."""
    return hint if hint is not None and start - hint[1] > WORTH else None


# ---------------------------------------------------------------- accuracy of forecasts

MINUTE = 60.0
AHEAD = MINUTE  # seconds from a forecast to its start; a shorter one is not compared
FEW = 10  # compared starts that are needed to state the usual accuracy
USUALLY = 0.8  # part of starts
QUANTILES = (0.5, USUALLY, 0.95)


def errors(compared: Iterable[tuple[float | None, float | None, float]]) -> list[float]:
    """Return the errors in seconds, in order, of starts that were forecast at least `AHEAD` seconds
    before. `compared`: (forecast start, when it was told, actual start)."""
    return sorted(
        abs(began - start)
        for start, told_at, began in compared
        if start is not None and told_at is not None and start - told_at >= AHEAD
    )


def usually(wrong: list[float]) -> float | None:
    """Return the error in seconds, rounded up to minutes, that forecasts usually do not exceed;
    None if too few have been compared."""
    if len(wrong) < FEW:
        return None
    return max(1, math.ceil(quantiles(wrong)[f"{USUALLY:g}"] / MINUTE)) * MINUTE


def quantiles(wrong: list[float]) -> dict[str, float]:
    """Return quantiles of the ordered errors, by their names such as '0.5'; none without errors."""
    return {
        f"{part:g}": wrong[min(len(wrong) - 1, math.ceil(part * len(wrong)) - 1)]
        for part in QUANTILES
        if wrong
    }


def sentence(start: Start, now: float, within: float | None) -> str:
    """Return the sentence that tells people of a start. `within`: see `usually`."""
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
