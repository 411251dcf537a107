"""The checklist of a person's first steps, and people who are in no group yet."""

from __future__ import annotations

from cod.model import FirstStep, Owned, Right, User, Who
from cod.policy.people import rights
from cod.store.engine import Tx
from cod.store.people import first_steps, people, sshkeys

FEW = 8


def checklist(tx: Tx, *, who: Who) -> list[FirstStep]:
    """Return the first steps of the user `who`, in order. Return none if the user may not request
    nodes, has done all steps, or has dismissed the checklist."""
    groups = [group for group in who.roles if rights.may(who, Right.USE, Owned(frozenset({group})))]
    if (
        who.user_id is None
        or not who.writes
        or not groups
        or first_steps.dismissed(tx, who.user_id)
    ):
        return []
    steps = [
        FirstStep("key", bool(sshkeys.of_user(tx, who.user_id))),
        FirstStep("template", first_steps.has_template(tx, groups)),
        FirstStep("request", first_steps.has_cluster(tx, who.user_id, groups, ready=False)),
        FirstStep("nodes", first_steps.has_cluster(tx, who.user_id, groups, ready=True)),
    ]
    return [] if all(step.done for step in steps) else steps


def dismiss(tx: Tx, *, who: Who, now: float) -> None:
    """Stop showing the checklist to the user `who`. Raises `Refused`."""
    people.change(tx, rights.account(who), checklist_over_at=now)


def to_ask(tx: Tx, who: Who) -> list[User] | None:
    """Return administrators who can put the user `who` into a group; None if the user is in a group
    or needs none."""
    if who.user_id is None or who.admin or who.roles or who.singles:
        return None
    return first_steps.administrators(tx, FEW)


def without_group(tx: Tx) -> list[User]:
    """Return the newest people who are in no group."""
    return first_steps.without_group(tx, FEW)
