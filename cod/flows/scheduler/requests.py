"""Requests for nodes. All doors (portal, REST, command line, a VCM) come through `submit`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cod.core import admission, advance_reservations, flexible, node_hours
from cod.core import requests as core_requests
from cod.core.networks import address_blocks
from cod.model import (
    AskedNodes,
    Effect,
    FlowContext,
    Refused,
    RequestTuple,
    RequestView,
    Result,
    Who,
)
from cod.policy.people import rights
from cod.policy.scheduler import leases, reasons
from cod.states import UNDECIDED, RequestState
from cod.store import views
from cod.store.engine import Tx
from cod.store.images import templates
from cod.store.people import groups as group_rows
from cod.store.people import people
from cod.store.scheduler import requests, vclusters, watchers

MOST_TUPLES = 100


def submit(
    tx: Tx, context: FlowContext, *, vcluster: str, asked: AskedNodes, possible: bool = False
) -> Result[RequestView]:
    """Request more nodes for an active vcluster, which are granted all at once; return the request.
    Raises `Refused`.

    possible  refuse a request that no machines of the site could ever meet (`core.admission`);
              otherwise the manager's pass rejects such a request
    """
    site, now = context.site, context.now
    if before := admission.asked_before(tx, context.key, vcluster):
        return Result(views.request(tx, before.id))
    check_size(asked.tuples)
    holder = admission.active(tx, vcluster, lock=True)
    default = RequestTuple(0, holder.attributes, holder.template_id)
    tuples = admission.tuples(tx, asked.tuples, "tuples", default, holder.group_id, site.types)
    if not tuples:
        raise Refused("invalid", "a request is for one node at least", "wanted")
    starts_at, why = asked.starts_at, ""
    if asked.before is not None:
        if starts_at is not None:
            raise Refused("invalid", "a request has a start or a deadline, not both", "before")
        starts_at, why = flexible.place(tx, holder, tuples, asked, asked.before, context)
    count = sum(one.count for one in tuples)
    size = holder.size + address_blocks.asked(tx, holder.id) + count
    if starts_at is None and asked.duration is None:
        address_blocks.check(tx, holder, size, site, "count")
        if possible:
            field = "tuples.0.count" if len(tuples) == 1 else "tuples"
            admission.check_possible(
                tx, holder, tuples, spread=asked.spread, site=site, field=field
            )
    else:
        address_blocks.extend(tx, holder, size, site, "count", now=now)
        advance_reservations.check(tx, holder, tuples, asked, starts_at, asked.duration, context)
    owner = group_rows.get(tx, holder.group_id)
    if starts_at is None and owner.hours_limit is not None:
        node_hours.check(tx, owner, count, leases.end(holder, now), now, field="tuples")
    admission.check_waiting(tx, owner, site.policy)
    request = requests.add(
        tx,
        vcluster_id=holder.id,
        kind="grow",
        priority=owner.priority,
        tuples=tuples,
        now=now,
        key=context.key,
        may_wait=asked.wait,
        may_spread=asked.spread,
        starts_at=starts_at,
        duration=asked.duration,
        asked=asked,
    )
    if why and starts_at is not None:
        request = replace(request, reason=reasons.begins(starts_at, why))
        requests.explain(tx, {request.id: request.reason})
    # the view needs only the names of the templates from the database
    run = {one.template_id: templates.ROWS.known(tx, one.template_id) for one in tuples}
    names = [f"{run[one.template_id].name}@{run[one.template_id].revision}" for one in tuples]
    return Result(RequestView(request, holder.name, tuple(names)), (Effect("wake", "manager"),))


def check_size(wanted: Sequence[object]) -> None:
    """Raise `Refused` where there are too many tuples: each is looked up by itself."""
    if len(wanted) > MOST_TUPLES:
        raise Refused(
            "invalid", f"a request has at most {MOST_TUPLES} tuples, not {len(wanted)}", "tuples"
        )


def withdraw(
    tx: Tx, *, request_id: int, reason: str, now: float, seen: frozenset[int] | None = None
) -> Result[RequestView]:
    """Withdraw a request that waits or is stopped; return it as the groups in `seen` (None: all)
    see it. The first request of a vcluster cannot be withdrawn: delete the vcluster instead. Nodes
    of a move that have not been granted stay in their vcluster, or are free."""
    request = requests.numbered(tx, request_id)
    if request.kind == "create":
        raise Refused(
            "conflict", "this request made its vcluster: delete the vcluster instead", "id"
        )
    vcluster = (
        vclusters.get(tx, request.vcluster_id, lock=True) if request.kind == "replace" else None
    )
    if vcluster is not None and vcluster.size == 1 and request.state in UNDECIDED:
        raise Refused(
            "conflict", f"vcluster {vcluster.name} would have no node left; delete it instead", "id"
        )
    if not core_requests.take_back(tx, request, reason, now):
        raise Refused(
            "conflict", f"request {request_id} does not wait: it is {request.state}", "id"
        )
    if vcluster is not None:  # the lost node is not replaced
        vclusters.change(tx, vcluster, now, size=vcluster.size - 1)
    return Result(views.request(tx, request.id, seen), (Effect("wake", "manager"),))


def change(
    tx: Tx,
    *,
    request_id: int,
    count: int,
    spread: bool | None = None,
    now: float,
    seen: frozenset[int] | None = None,
) -> Result[RequestView]:
    """Let a vcluster that waits for its first nodes begin with `count` nodes, which are no more
    than it requested. `spread`: the nodes may be of several types and blocks; None: as requested.
    A new request with the same place in the queue replaces the old one. Return the new request, as
    `withdraw` does. Raises `Refused`."""
    request = requests.numbered(tx, request_id, lock=True)
    if request.state != RequestState.PENDING:
        raise Refused(
            "conflict", f"request {request_id} does not wait: it is {request.state}", "id"
        )
    if request.kind != "create" or len(request.tuples) != 1:
        why = "only the first request of a vcluster with nodes of one kind can be changed"
        raise Refused("conflict", why, "id")
    if request.starts_at is not None:
        why = "a cluster that is reserved in advance cannot be changed: delete it, and reserve anew"
        raise Refused("conflict", why, "id")
    (wanted,) = request.tuples
    if not 1 <= count <= wanted.count:
        raise Refused(
            "invalid", f"the request is for {wanted.count} nodes: ask for 1 to so many", "count"
        )
    vcluster = vclusters.known(tx, request.vcluster_id, lock=True)
    watching = watchers.of(tx, request.id)
    for user_id in watching:  # these users watch the new request instead
        watchers.remove(tx, request.id, user_id)
    core_requests.take_back(tx, request, "it was changed", now)
    vclusters.change(tx, vcluster, now, size=count, creation_size=count)
    made = requests.add(
        tx,
        vcluster_id=vcluster.id,
        kind="create",
        priority=request.priority,
        tuples=[replace(wanted, count=count)],
        now=request.submitted_at,
        may_wait=request.may_wait,
        may_spread=request.may_spread if spread is None else spread,
        asked=request,
    )
    watchers.put(tx, made.id, watching)
    return Result(views.request(tx, made.id, seen), (Effect("wake", "manager"),))


def watch(tx: Tx, context: FlowContext, *, request_id: int, on: bool) -> Result[RequestView]:
    """Have the asking user told by e-mail when the request is decided; with `on` False, not any
    more. Raises `Refused`."""
    user_id = rights.account(context.who)
    request = requests.numbered(tx, request_id, lock=True)
    if not on:
        watchers.remove(tx, request_id, user_id)
    elif request.state not in UNDECIDED:
        raise Refused("conflict", f"request {request_id} is {request.state} already", "id")
    else:
        user = people.get(tx, user_id)
        if user is None or not user.email:
            raise Refused(
                "conflict", "your account has no e-mail address: an administrator enters it", "id"
            )
        watchers.put(tx, request_id, [user_id])
    return Result(views.request(tx, request_id, context.who.groups))


def watches(tx: Tx, who: Who, request_id: int) -> bool:
    """Return whether `who` is told when the request is decided."""
    return who.user_id is not None and who.user_id in watchers.of(tx, request_id)


def retry(
    tx: Tx, *, request_id: int, template: str = "", seen: frozenset[int] | None = None
) -> Result[RequestView]:
    """Try a stopped request again, and return it as `withdraw` does. If `template` (its full name,
    or 'name@revision') is given, the nodes will run this template. Raises `Refused`."""
    request = requests.numbered(tx, request_id, lock=True)
    if request.state != RequestState.STOPPED:
        raise Refused("conflict", f"request {request_id} is {request.state}, not stopped", "id")
    vcluster = vclusters.known(tx, request.vcluster_id)
    if template:
        chosen = templates.usable(tx, template, vcluster.group_id)
        requests.use_template(tx, request_id, chosen.id)
    requests.turn(tx, request_id, RequestState.STOPPED, RequestState.PENDING)
    return Result(views.request(tx, request_id, seen), (Effect("wake", "manager"),))
