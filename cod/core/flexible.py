"""Flexible requests: they start at the best hours before a deadline at which the nodes are free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cod.core import advance_reservations, energy_curve, snapshot
from cod.model import AskedNodes, FlowContext, Refused, RequestTuple, Vcluster
from cod.policy.energy import flexible
from cod.policy.energy.curve import UNITS
from cod.policy.nodes import energy_accounting
from cod.policy.reservations import admission
from cod.policy.scheduler import leases, reasons
from cod.policy.scheduler.snapshot import PendingRequest
from cod.quantity import exact_span
from cod.store.engine import Tx
from cod.store.images import templates
from cod.store.nodes import energy
from cod.store.people import groups as group_rows


def place(
    tx: Tx,
    vcluster: Vcluster,
    tuples: Sequence[RequestTuple],
    asked: AskedNodes,
    before: float,
    context: FlowContext,
) -> tuple[float, str]:
    """Return the best start of a request whose duration has to be over at the time `before`, and a
    sentence why it was chosen. Raise `Refused` if the duration is missing or too long.

    The caller checks the start like that of any reservation (`core.advance_reservations.check`). If
    no start is possible, the start that is returned fails this check, which tells the reason.
    """
    site, now, duration = context.site, context.now, asked.duration
    if duration is None:
        raise Refused("invalid", "a request with a deadline has a duration", "duration")
    leases.check(duration, "duration")
    if before - duration <= now:
        raise Refused(
            "invalid",
            f"{exact_span(duration)} from now on are not over before {reasons.at(before)}",
            "before",
        )
    if vcluster.preemptible:
        return now + flexible.SOON, ""  # the check of this start refuses it with the reason
    owner = group_rows.get(tx, vcluster.group_id)
    seen = snapshot.look(tx, site, now, isolated=vcluster.isolated, times=True).site
    documents = templates.for_matching(tx, {one.template_id for one in tuples})
    seen = replace(seen, templates={**seen.templates, **documents})
    request = advance_reservations.unmade(tx, vcluster, owner, tuples, asked, duration, context)
    used = energy.node_seconds(tx, energy_accounting.month(now), [owner.id]).get(owner.id, 0.0)

    def over_hours(one: PendingRequest) -> str:
        limit = owner.hours_limit
        return "" if limit is None else admission.over_hours(seen, one, limit, used, now)

    begun = vcluster.leased_at or vcluster.created_at
    end = max(leases.latest(begun, owner, site.policy), vcluster.expires_at or 0.0)
    last = min(before, end) - duration
    if vcluster.expires_at is not None:  # its lease has to last until the start
        last = min(last, vcluster.expires_at - 1.0)
    curve = energy_curve.current(tx, site.energy)
    found = flexible.choose(seen, request, last, curve, site.policy, now, over_hours)
    if found is None:
        return now + flexible.SOON, ""  # likewise
    return found.start, _why(found, site.energy.curve_of)


def _why(found: flexible.Chosen, of: str) -> str:
    """Return why a start was chosen, with its mean price or carbon; `of`: which of the two."""
    if found.cost is None or found.at_once is None:
        return "the earliest start at which the nodes are free"
    unit = UNITS[of]
    if found.cost < found.at_once:
        return (
            f"the cheapest start before the deadline, with {found.cost:.4g} {unit} on the average;"
            f" from now on it would be {found.at_once:.4g}"
        )
    if found.cost == found.at_once:
        return f"no later start is cheaper than {found.cost:.4g} {unit}"
    return (
        f"the cheapest start before the deadline at which the nodes are free, with"
        f" {found.cost:.4g} {unit} on the average"
    )
