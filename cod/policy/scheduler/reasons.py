"""Reasons why a request is not granted, as a sentence for its owner. Pure.

The sentence of a request that waits for nodes of other vclusters names nothing that changes from
hour to hour, such as the number of free nodes or their holders. Otherwise thousands of reasons
would have to be updated whenever a node moves. `policy.scheduler.explain` has these details.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from cod.policy.scheduler.distribution import Exhausted, KindDemand, spread, whole
from cod.policy.scheduler.feasibility import Feasibility, Fit
from cod.policy.scheduler.placement import Want
from cod.policy.scheduler.snapshot import Hold, NodeKind, PendingRequest, RequestRefusal
from cod.quantity import counted, span

PUNCTUAL = 60.0
"""Seconds after its start from which a reservation in advance is late."""


def nodes(count: int) -> str:
    """Say a number of nodes: '1 node', '2 nodes'."""
    return counted(count, "node")


def at(time: float) -> str:
    """Return a time for a sentence, in UTC."""
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M} UTC"


def in_(time: float, now: float) -> str:
    """Say how far off a time is: 'now', 'in 50 s', 'in 5 min', 'in 3.5 h' or 'in 2 days'."""
    return f"in {span(time - now)}" if time > now else "now"


def of_holds(holds: Iterable[Hold], names: Mapping[int, str], now: float) -> Iterator[str]:
    """Yield a sentence for each request that nodes are held back for. `names`: of the requests, by
    id."""
    for one, (*own,) in itertools.groupby(holds, key=lambda hold: hold.request_id):
        count = sum(hold.free + hold.coming for hold in own)
        what = f"{nodes(count)} {'is' if count == 1 else 'are'}" if count else "What comes free is"
        yield (
            f"{what} held for {names[one]}, for {span(now - own[0].since)} now; all that"
            f" {names[one]} wants is there {in_(own[0].until, now)}, as far as leases tell."
        )


def of_ports(request: PendingRequest, feasibility: Feasibility) -> str:
    """Say how many matching nodes an isolated vcluster cannot have because of their switch ports;
    '' if there are none."""
    ports = feasibility.ports(request)
    if not ports.unusable:
        return ""
    return (
        f"{nodes(ports.matching)} match{'es' if ports.matching == 1 else ''}; {ports.unusable} of"
        f" them {'has' if ports.unusable == 1 else 'have'} no usable switch port, and the vcluster"
        " is isolated"
    )


LATE = "begins late: too few of its nodes are free yet; it goes before all others"
UNKNOWN = "nobody knows yet when they are"


def reserved(request: PendingRequest, now: float, expected: float | None = None) -> RequestRefusal:
    """Say when a reservation in advance begins. If its start has passed, say that it begins late,
    and by when its nodes are `expected` (None: unknown)."""
    start = request.starts_at or now
    if start + PUNCTUAL <= now:
        when = UNKNOWN if expected is None else f"they are expected by {at(expected)}"
        return RequestRefusal(request.id, "late", f"{LATE}, and {when}")
    _, _, why = request.reason.partition(CHOSEN)
    return RequestRefusal(request.id, "reserved", begins(start, why))


CHOSEN = "; chosen: "


def begins(start: float, why: str = "") -> str:
    """Return the sentence about a reservation's start. `why`: the reason for a start that COD has
    chosen; '': the owner has chosen it."""
    return f"is reserved from {at(start)} on" + (f"{CHOSEN}{why}" if why else "")


def waits(request: PendingRequest, code: str, why: str) -> RequestRefusal:
    """Return the refusal with which a request waits, with `code`. A request that may not wait is
    rejected with the code 'now' instead."""
    if request.may_wait:
        return RequestRefusal(request.id, code, f"waits: {why}")
    return RequestRefusal(request.id, "now", why)


def run_out(request: PendingRequest) -> RequestRefusal:
    """Return the refusal of a request whose vcluster's lease has run out. It gets nodes only if the
    lease is extended."""
    why = "the lease of its vcluster has run out"
    return waits(request, "busy", why)


def waiting(request: PendingRequest, coming: int, taking: int) -> RequestRefusal:
    """Return the refusal of a request that waits for `coming` nodes on their way and for `taking`
    nodes that are being reclaimed."""
    parts = []
    if taking:
        parts.append(f"{nodes(taking)} that other vclusters give back")
    if coming:
        parts.append(f"{nodes(coming)} on {'its' if coming == 1 else 'their'} way back")
    return RequestRefusal(
        request.id, "taking" if taking else "coming", "waits for " + " and ".join(parts)
    )


def moving(request: PendingRequest, coming: int, taking: int, portless: int) -> RequestRefusal:
    """Return the refusal of a move, with the nodes that it waits for. A move that waits for no node
    has ended. `portless`: nodes that have arrived without a usable switch port, which an isolated
    vcluster needs."""
    if portless and not coming and not taking:
        return RequestRefusal(
            request.id,
            "ports",
            f"waits: {nodes(portless)} of it ha{'s' if portless == 1 else 've'} no usable "
            "switch port, and its vcluster is isolated",
        )
    if not coming and not taking:
        return RequestRefusal(request.id, "ended", "none of the nodes that were to move is left")
    parts = [f"{nodes(taking)} that the other vcluster still holds"] if taking else []
    parts += [f"{nodes(coming)} on {'its' if coming == 1 else 'their'} way"] if coming else []
    return RequestRefusal(
        request.id, "taking" if taking else "coming", "waits for " + " and ".join(parts)
    )


def why_not(want: Want, feasibility: Feasibility, held: bool = False) -> RequestRefusal:
    """Return the refusal of a request that can have no nodes now: it waits, or is rejected if it
    never can. `held`: nodes are held back for it."""
    request = want.request
    anywhere = replace(want, fits=feasibility.anywhere(request))
    impossible = _impossible(anywhere, feasibility)
    if impossible and not _with_expected(anywhere, feasibility):
        return RequestRefusal(request.id, "impossible", impossible)
    if impossible:
        count = feasibility.expected
        why = (
            f"{impossible}. {nodes(count)} of the site"
            f" {'has' if count == 1 else 'have'} not reported yet or"
            f" wait{'s' if count == 1 else ''} for approval"
        )
        return waits(request, "busy", why)
    wanted = sum(one.count for one in request.tuples)
    ports = feasibility.ports(request)
    if ports.unusable and (ports.usable < wanted or _impossible(want, feasibility)):
        # the request may wait until more ports become known or work again
        why = f"{nodes(wanted)} wanted, {of_ports(request, feasibility)}"
        return waits(request, "ports", why)
    if maintained := feasibility.maintained(request):
        return waits(request, "maintenance", f"{_busy(anywhere)}; {maintained}")
    if held:
        return RequestRefusal(
            request.id,
            "busy",
            f"waits: {_busy(want)}; it has waited long, so what comes free is held for it",
        )
    if request.may_wait:
        return RequestRefusal(
            request.id,
            "busy",
            f"waits: {_busy(want)}; the rest is held, kept for others, or out of service",
        )
    return RequestRefusal(request.id, "now", f"{_busy(want)}, and it does not wait")


def _busy(want: Want) -> str:
    wanted = sum(one.count for one in want.request.tuples)
    counts = {type_id: count for fit in want.fits for type_id, count in fit.site_of.items()}
    own = sum(want.request.own.get(type_id, 0) for type_id in counts)
    site = sum(counts.values()) - own
    block = (
        " in one block"
        if any(fit.parted for fit in want.fits) and not want.request.may_spread
        else ""
    )
    besides = " besides its own" if own else ""
    return f"{nodes(wanted)} wanted, too few of the {site} matching{besides} are free{block}"


# ---------------------------------------------------------------- what can never be


def never(request: PendingRequest, feasibility: Feasibility) -> str:
    """Say why the site's nodes could never satisfy a request, even with those that are expected or
    out of service; '' if they could. Switch ports do not count: they may work later."""
    want = Want(replace(request, isolated=False), feasibility.anywhere(request))
    why = _impossible(want, feasibility)
    return "" if why and _with_expected(want, feasibility) else why


def _with_expected(want: Want, feasibility: Feasibility) -> bool:
    """Return whether a request that is impossible today may become possible when the expected nodes
    have reported their hardware."""
    if not feasibility.expected:
        return False
    rest = [
        (replace(one, count=one.count - feasibility.expected), fit)
        for one, fit in zip(want.request.tuples, want.fits, strict=True)
        if one.count > feasibility.expected
    ]
    if not rest:
        return True
    tuples, fits = zip(*rest, strict=True)
    less = replace(want, request=replace(want.request, tuples=tuples), fits=fits)
    return not _impossible(less, feasibility)


def _impossible(want: Want, feasibility: Feasibility) -> str:
    """Say why all nodes of the site together could not satisfy a request; '' if they could."""
    request = want.request
    least = min(fit.site if request.may_spread else fit.largest for fit in want.fits) - sum(
        request.own.values()
    )
    if least >= sum(one.count for one in request.tuples):
        return ""  # one place could serve all tuples: the usual case
    for number, fit in enumerate(want.fits):
        why = _too_few(want, feasibility, number, fit)
        if why:
            return why
    return _impossible_together(want, feasibility) if len(want.fits) > 1 else ""


def _impossible_together(want: Want, feasibility: Feasibility) -> str:
    request = want.request
    by_type = [
        KindDemand(one.count, tuple(sorted(feasibility.other_types(request, fit))))
        for one, fit in zip(request.tuples, want.fits, strict=True)
    ]
    types = {
        kind: count
        for fit in want.fits
        for kind, count in feasibility.other_types(request, fit).items()
    }
    if spread(by_type, types) is None:
        return f"its {len(want.fits)} tuples together want more matching nodes than the site has"
    blocks: dict[NodeKind, int] = {}
    for fit in want.fits:
        blocks |= feasibility.others(request, fit)
    try:
        fit_in_blocks = request.may_spread or whole(want.demands(), blocks) is not None
    except Exhausted:
        fit_in_blocks = True  # unknown, so the request is not rejected
    if fit_in_blocks:
        return ""
    return (
        f"its {len(want.fits)} tuples do not fit into the site's blocks, each in one: the request"
        " would have to be spread"
    )


def _too_few(want: Want, feasibility: Feasibility, number: int, fit: Fit) -> str:
    count = want.request.tuples[number].count
    where = f" (tuple {number + 1})" if len(want.fits) > 1 else ""
    besides = " besides its own" if want.request.own else ""
    have = sum(feasibility.other_types(want.request, fit).values())
    if have < count:
        lines = [
            f"{feasibility.name(type_id)} lacks {'; '.join(map(str, why[:3]))}"
            for type_id, why in sorted(feasibility.lacks(want.request.tuples[number]).items())
            if why and feasibility.has(type_id)
        ]
        lacks = "".join(f". {line}" for line in lines[:3])
        return f"{nodes(count)} wanted{where}, the site has {have} matching{besides}{lacks}"
    largest = max(feasibility.others(want.request, fit).values(), default=0)
    if largest < count and not want.request.may_spread:
        return (
            f"{nodes(count)} wanted{where} in one block, the largest that matches has"
            f" {largest}{besides}; all blocks together have {have}: the request would have to be"
            " spread"
        )
    return ""
