"""Callers, who are recognised by a token or by a browser's session, and flows that run for them.

`guarded` runs a flow if its caller has the rights, which are checked in the flow's own transaction;
`noted` runs a flow and records its change in the audit, in the same transaction. The flows to run
are passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, TypeVar

from cod.model import (
    SITE,
    ApiToken,
    Owned,
    Refused,
    Result,
    Right,
    SignInRules,
    SingleRight,
    User,
    WebSession,
    Who,
)
from cod.policy.people import audit, rights
from cod.store import histories, lists
from cod.store.engine import Tx, trial
from cod.store.people import access
from cod.store.people import audit as audit_rows

has_run = audit_rows.has_run
digest = access.digest
T = TypeVar("T")
RULES = SignInRules()
FEED = "calendar"
"""The scope of tokens in addresses of calendar feeds, which are valid for nothing else."""
SEEN_EVERY = 60.0
"""Seconds between two notes that a session is in use."""

# ---------------------------------------------------------------- who asks


def caller(tx: Tx, token: str, address: str, now: float, rules: SignInRules = RULES) -> Who | None:
    """Return the user or program that a token belongs to. Return None if the token is unknown or
    expired, if its user may do nothing, or if the user has not signed in lately by OpenID Connect
    (`rules`), whose provider cannot be asked about users."""
    found = access.by_token(tx, digest(token), now)
    return None if found is None or found.scope == FEED else _who(tx, found, address, now, rules)


def subscriber(tx: Tx, token: str, address: str, now: float, rules: SignInRules) -> Who | None:
    """Return the user whose calendar feed has the token in its address; None for a token that is
    unknown, has expired, or is for something else."""
    found = access.by_token(tx, digest(token), now)
    return None if found is None or found.scope != FEED else _who(tx, found, address, now, rules)


def _who(tx: Tx, found: ApiToken, address: str, now: float, rules: SignInRules) -> Who | None:
    name = f"token:{found.name}"
    if found.user_id is None:
        if found.scope == "metrics":
            return Who(name, writes=False, measures=True, address=address)
        return Who(name, admin=True, writes=found.scope == "admin", address=address)
    known = access.able_user(tx, found.user_id)
    if known is None or lapsed(known.user, rules, now):
        return None
    return rights.person(
        *known,
        name=name,
        address=address,
        writes=found.scope == "write",
        only=found.group_id,
    )


def lapsed(user: User, rules: SignInRules, now: float) -> bool:
    """Return whether the user's tokens wait for the user to sign in again."""
    seen = user.created_at if user.signed_in_at is None else user.signed_in_at
    return user.directory == "oidc" and bool(rules.oidc.tokens) and now - seen > rules.oidc.tokens


@dataclass(frozen=True, slots=True)
class SignedIn:
    """A valid session and its user. `stale`: the time of its last use has to be recorded
    (`seen`)."""

    who: Who
    user: User
    session: WebSession
    stale: bool


def session(
    tx: Tx, *, cookie: str, address: str, rules: SignInRules, now: float
) -> SignedIn | None:
    """Return the session whose cookie has the digest `cookie`, with its user's present
    rights; None if it is over. Writes nothing."""
    found = access.by_cookie(tx, cookie)
    if found is None or found.expires_at <= now or found.last_seen <= now - rules.idle:
        return None
    known = access.able_user(tx, found.user_id)
    if known is None:
        return None
    who = replace(rights.person(*known, address=address), session=found.id)
    return SignedIn(who, known.user, found, now - found.last_seen >= SEEN_EVERY)


# ---------------------------------------------------------------- what they may, and have changed


@dataclass(frozen=True, slots=True)
class RequiredRight:
    """A right that an API call requires, on the thing of that kind and name (see
    `store.people.access.owned`); or the single right that is enough. `field`: the part of the call
    that names the thing."""

    right: Right
    kind: str = ""
    key: str = ""
    single: SingleRight | None = None
    field: str = "name"


@dataclass(frozen=True, slots=True)
class Change:
    """A change for the audit.

    action   'vcluster resize'
    thing    name of the changed thing in the call's path; '': the answer or the body names it
    claim    the kind and name of the thing, by which its group is found
    look     returns the thing's values, which are compared before and after; None: nothing does
    asked    the call's own values, which are recorded where no difference shows
    details  returns the answer's values from the flow's result
    idle     returns whether the flow's result means that nothing was changed: then no row is added
    """

    action: str
    thing: str
    claim: RequiredRight
    look: Callable[[Tx], Mapping[str, Any]] | None
    asked: Mapping[str, Any]
    details: Callable[[Any], Mapping[str, Any]]
    idle: Callable[[Any], bool] | None = None


def guarded(
    tx: Tx,
    *,
    flow: Callable[[Tx], T],
    who: Who,
    claims: Sequence[RequiredRight],
    fresh: bool = False,
) -> T:
    """Run `flow` and return its result, if `who` has every right in `claims`. Raises `Refused`.
    `fresh`: the roles of `who` were read for this call a moment ago."""
    who = who if fresh else current(tx, who)
    for claim in claims:
        check(tx, who, claim)
    return flow(tx)


def current(tx: Tx, who: Who) -> Who:
    """Return `who` with the user's present roles: an upload may take hours from its first byte to
    its last. Raises `Refused` for a user who is disabled or deleted, also where another user has
    the id now."""
    if who.user_id is None:
        return who
    known = access.able_user(tx, who.user_id)
    if known is None or who.joined not in (None, known.user.created_at):
        raise Refused("forbidden", "this account is disabled, or no more")
    now = rights.person(*known, only=who.only)
    return replace(who, admin=now.admin, roles=now.roles, singles=now.singles)


def noted(
    tx: Tx,
    *,
    flow: Callable[[Tx], T],
    who: Who,
    change: Change,
    now: float,
    run: str | None = None,
) -> T:
    """Run `flow`, add a row to the audit that says what it changed, and return its result. If the
    flow refuses, nothing is changed and no row is added. `run`: a key by which `has_run` finds the
    row."""
    owned = access.owned(tx, change.claim.kind, change.claim.key)
    value, was, is_, details = _compared(tx, flow, change)
    if change.idle is not None and change.idle(_value_of(value)):
        return value
    owned = owned or access.owned(tx, change.claim.kind, change.claim.key)
    audit_rows.by(
        tx,
        who,
        change.action,
        change.thing or audit.named(details, change.asked),
        now=now,
        before=was,
        after=is_,
        group_id=min(owned.groups, default=None) if owned else None,
        run=run,
    )
    return value


@dataclass(frozen=True, slots=True)
class StoppedWork:
    """A vcluster, and its nodes in use whose work a change would stop."""

    vcluster: str
    group: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DryRun:
    """The effect that a change would have: values before and after, as the audit would store them,
    and the nodes whose work would stop, by vcluster."""

    before: dict[str, Any] | None
    after: dict[str, Any] | None
    stops: tuple[StoppedWork, ...]


def tried(tx: Tx, *, flow: Callable[[Tx], Any], who: Who, change: Change, now: float) -> DryRun:
    """Run `flow`, undo its writes, and return what it would have changed, as far as `who` may see
    that. Raises what `flow` raises."""
    newest = lists.last_event(tx)
    with trial(tx):
        before = _seen(tx, change)
        value, was, is_, _ = _compared(tx, flow, change)
        taken = histories.taken_out_of_use(tx, newest, now)
    if change.idle is not None and change.idle(_value_of(value)):
        was, is_ = {}, {}
    elif before is not None and was is None:
        was, is_ = audit.requested(before, change.asked)
    held = histories.holders(tx, taken, who.groups)
    stops = [
        StoppedWork(vcluster, group, tuple(node for *_, node in rows))
        for (vcluster, group), rows in groupby(held, key=lambda row: row[:2])
    ]
    if not who.admin:
        was, is_ = audit.for_owners(was), audit.for_owners(is_)
    return DryRun(was, is_, tuple(stops))


def _compared(
    tx: Tx, flow: Callable[[Tx], T], change: Change
) -> tuple[T, dict[str, Any] | None, dict[str, Any] | None, Mapping[str, Any]]:
    """Run the flow. Return its result, the differing values before and after, and the details of
    the answer."""
    before = _seen(tx, change)
    value = flow(tx)
    after = _seen(tx, change)
    if before is not None and after is None:
        after = _renamed(before, change.details(_value_of(value)))
    # a change that shows nowhere else is described by the answer
    shown = change.thing and (before is not None or after is not None)
    details = {} if shown else change.details(_value_of(value))
    was, is_ = audit.changed(before, details if before is None and after is None else after)
    if not was and not is_:
        was, is_ = None, audit.tidy(change.asked)
    return value, was, is_, details


def _seen(tx: Tx, change: Change) -> Mapping[str, Any] | None:
    try:
        return change.look(tx) if change.look else None
    except Refused:
        return None


def _value_of(value: Any) -> Any:
    return value.value if isinstance(value, Result) else value


def _renamed(before: Mapping[str, Any], details: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the values of a thing that was renamed, with the answer's details; None if the thing
    is gone."""
    if details.get("name") in (None, before.get("name")):
        return None
    return {name: details.get(name, value) for name, value in before.items()}


def check(tx: Tx, who: Who, claim: RequiredRight) -> None:
    """Raise `Refused` unless `who` has the right."""
    owned = access.owned(tx, claim.kind, claim.key)
    sentence = f"there is no {claim.kind} {claim.key!r}"
    if owned is None and (meant := access.in_full(tx, claim.kind, claim.key, who.groups)):
        sentence += f": is {' or '.join(map(repr, meant))} meant?"
        raise Refused("not_found", sentence, claim.field)
    if (claim.field, claim.key) == ("group", SITE):  # what a body means that names none
        sentence += " for you: name a group of yours"
    rights.require(who, claim.right, owned, sentence, claim.single, claim.field)


def offered(
    who: Who, right: Right, group_id: int | None = None, single: SingleRight | None = None
) -> bool:
    """Return whether to offer `who` an action that needs that right, or the single one, on a thing
    of the group (None: of the site). The right is checked again when the action runs."""
    return who.writes and rights.may(
        who, right, Owned(frozenset() if group_id is None else frozenset({group_id})), single
    )


def allows(tx: Tx, who: Who, claim: RequiredRight) -> bool:
    """Return whether `who` has the right now, on the thing itself. For pages, which show only
    actions that are allowed."""
    owned = access.owned(tx, claim.kind, claim.key)
    return who.writes and owned is not None and rights.may(who, claim.right, owned, claim.single)
