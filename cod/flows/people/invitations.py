"""Invitations: links with which a person creates an account, joins a group, or sets a new password;
each link works once.

The caller makes a link's secret, which is shown once; only its digest is passed in and stored.
"""

from __future__ import annotations

from cod.model import POSIX, Invitation, PosixRules, Refused, Role, SignInRules, User, Who
from cod.policy import notice_delivery
from cod.policy.people import signin
from cod.store.engine import Tx
from cod.store.people import audit, groups, invitations, people, signins

MOST = 200
"""Links into one group that can be used at a time."""


def invite(
    tx: Tx,
    *,
    digest: str,
    group: str | None = None,
    role: str = "",
    email: str = "",
    lifetime: float | None = None,
    rules: SignInRules,
    who: str,
    now: float,
) -> Invitation:
    """Invite somebody, into a group as `role` or to the site alone. `lifetime` in seconds; None:
    the site's."""
    into = None if group is None else groups.named(tx, group)
    if into is not None and len(invitations.open_ones(tx, now, frozenset({into.id}))) >= MOST:
        raise Refused(
            "conflict", f"{MOST} links into group {group} can still be used: take some back first"
        )
    return invitations.add(
        tx,
        digest,
        now,
        group_id=into.id if into else None,
        role=Role(role).value if into else "",
        email=notice_delivery.check_address(email),
        invited_by=who,
        expires_at=now + (lifetime or rules.invitation),
    )


def renew(
    tx: Tx,
    *,
    digest: str,
    user: str,
    lifetime: float | None = None,
    rules: SignInRules,
    who: str,
    now: float,
) -> Invitation:
    """Create a link with which the user sets a new password, and return it; earlier links become
    invalid. Raises `Refused`."""
    found = people.named(tx, user)
    if found.directory:
        raise Refused(
            "conflict", f"{user} signs in by {found.directory}, where their password is", "name"
        )
    invitations.remove_of_user(tx, found.id)
    return invitations.add(
        tx,
        digest,
        now,
        user_id=found.id,
        email=found.email,
        invited_by=who,
        expires_at=now + (lifetime or rules.invitation),
    )


def every(tx: Tx, groups: frozenset[int] | None, now: float) -> list[Invitation]:
    """Return the invitations into `groups` (None: all invitations) that can still be used."""
    return invitations.open_ones(tx, now, groups)


def revoke(tx: Tx, invitation_id: int) -> None:
    """Revoke a link. Raises `Refused`."""
    if not invitations.remove(tx, invitation_id):
        raise Refused("not_found", f"there is no invitation {str(invitation_id)!r}", "name")


def look(tx: Tx, *, digest: str, now: float) -> Invitation:
    """Return the invitation of a link, by the digest of its secret. Raises `Refused` for a link
    that was used, has run out, or was taken back."""
    found = invitations.by_digest(tx, digest, now)
    if found is None:
        raise Refused(
            "not_found",
            "this link does not work: it was used, has run out, or was taken back",
            "secret",
        )
    return found


def accept(
    tx: Tx,
    *,
    digest: str,
    name: str = "",
    full_name: str = "",
    email: str = "",
    password: str,
    address: str,
    posix: PosixRules = POSIX,
    now: float,
    run: str | None = None,
) -> User:
    """Create an account by a link, or set the new password of the link's user; return the user.
    `password` is the hash of the password. Raises `Refused`."""
    invitation = _spent(tx, digest, now)
    if invitation.user_id is not None:
        user = people.get(tx, invitation.user_id)
        if user is None or not user.able:
            raise Refused("forbidden", "this account is disabled: ask an administrator")
        people.change(tx, user.id, password=password)
        signins.end(tx, user.id)
        audit.add(
            tx,
            actor=f"user:{user.name}",
            address=address,
            action="password set",
            thing=user.name,
            run=run,
            now=now,
        )
        return user
    signin.check_name(name)
    if people.by_name(tx, name) or signin.is_reserved(name) or audit.was_deleted(tx, name):
        raise Refused(
            "conflict", f"there is or was a user {name!r}: choose another name, or sign in", "name"
        )
    user = people.add(
        tx,
        name,
        now,
        full_name=full_name,
        email=notice_delivery.check_address(email or invitation.email),
        password=password,
        posix=posix,
    )
    _joined(tx, invitation, user, address, now, run)
    return user


def join(tx: Tx, *, digest: str, who: Who, now: float, run: str | None = None) -> Invitation:
    """Add the user `who` to the link's group; return the invitation. Raises `Refused`."""
    user = people.get(tx, who.user_id) if who.user_id is not None else None
    found = _spent(tx, digest, now)
    if user is None or found.group_id is None or found.user_id is not None:
        raise Refused("conflict", "this link is not for somebody who has an account")
    _joined(tx, found, user, who.address, now, run)
    return found


def _spent(tx: Tx, digest: str, now: float) -> Invitation:
    found = look(tx, digest=digest, now=now)
    if not invitations.spend(tx, found.id, now):
        raise Refused("conflict", "somebody used this link at this moment", "secret")
    return found


def _joined(
    tx: Tx, invitation: Invitation, user: User, address: str, now: float, run: str | None
) -> None:
    """Put the user into the invitation's group, in no lower role than before. The row in the audit
    names the inviter."""
    after = {"user": user.name, "role": invitation.role, "invited_by": invitation.invited_by}
    if invitation.group_id is not None:
        order, had = list(Role), people.roles(tx, user.id).get(invitation.group_id)
        role = min(filter(None, (Role(invitation.role), had)), key=order.index)
        people.set_role(tx, invitation.group_id, user.id, role)
        after["role"] = role.value
    audit.add(
        tx,
        actor=f"user:{user.name}",
        address=address,
        action="invitation accept",
        thing=user.name,
        group_id=invitation.group_id,
        after=after,
        run=run,
        now=now,
    )
