"""Facts that are copied from a user's entry in the site's directory: name and address, numbers,
keys, the account on nodes, and the roles that groups of the directory give."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from cod.core.people import posix as numbers
from cod.model import Identity, PosixRules, Refused, Role, SshKey, User
from cod.policy import notice_delivery
from cod.policy.people import directory, signin
from cod.policy.people import sshkeys as keys
from cod.store.engine import Tx
from cod.store.people import audit, groups, invitations, people, sshkeys


def create(
    tx: Tx, identity: Identity, *, address: str = "", actor: str = "", posix: PosixRules, now: float
) -> User:
    """Create a user for a person of a directory, and return the user. Nobody gets access to an
    existing account by having its name in the directory: a new user of that name gets a number
    appended to it. `actor`: the author for the audit; '': the user signs in."""
    user = people.add(
        tx,
        _free(tx, identity.name),
        now,
        directory=identity.directory,
        subject=identity.subject,
        posix=posix,
    )
    audit.add(
        tx,
        actor=actor or f"user:{user.name}",
        address=address,
        action="user create",
        thing=user.name,
        now=now,
        after={"directory": identity.directory, "subject": identity.subject},
    )
    if kept := follow(tx, user, identity, now):
        _note(tx, identity, "number kept", user, now, after={"why": kept})
    return people.get(tx, user.id) or user


def _free(tx: Tx, wanted: str) -> str:
    """Return a sign-in name similar to `wanted` that no user has or had."""
    stem = signin.name_like(wanted)
    stem = f"user-{stem}"[:32] if signin.is_reserved(stem) else stem
    names = (f"{stem[:28]}{number}" if number > 1 else stem for number in range(1, 1000))
    return next(
        name
        for name in names
        if people.by_name(tx, name) is None and not audit.was_deleted(tx, name)
    )


def follow(tx: Tx, user: User, identity: Identity, now: float, *, take: bool = False) -> list[str]:
    """Copy the facts of the directory to the user; return sentences why POSIX numbers are not
    copied, because another user has or had them here.

    take  take away roles and keys that the directory gave before and does not give any more. A
          sign-in takes nothing away, because a faulty empty answer about one person cannot be told
          from a correct one
    """
    kept = numbers.follow_directory(tx, user, identity.uid, identity.gid, now)
    columns: dict[str, Any] = {
        "full_name": identity.full_name[:200] or user.full_name,
        "email": user.email,
        "absent_at": None,
    }
    with suppress(Refused):  # an invalid address is ignored
        columns["email"] = notice_delivery.check_address(identity.email) or user.email
    if identity.directory == "ldap":
        columns |= {
            "shell": directory.shell(identity.shell),
            "home": directory.home(identity.home),
            "primary_group": _primary_group(tx, identity),
        }
        _follow_keys(tx, user, identity, now, take)
    changed = {name: value for name, value in columns.items() if value != getattr(user, name)}
    if changed:
        people.change(tx, user.id, **changed)
    _follow_roles(tx, user, identity, now, take)
    return kept


def _primary_group(tx: Tx, identity: Identity) -> str:
    """Return the name that nodes show for the user's primary group; '' if a user or a group here
    has this name, because nodes show groups of these names, too."""
    name = directory.primary_group(identity.primary_group)
    taken = name and (people.by_name(tx, name) or groups.by_name(tx, name))
    return "" if taken else name


def _follow_keys(tx: Tx, user: User, identity: Identity, now: float, take: bool) -> None:
    """Give the user the directory's keys, beside the keys that the user added; ignore invalid
    keys. With `take`, remove keys that the directory gave before and does not give any more."""
    if identity.keys is None or not (identity.keys or take):
        return
    existing = {key.fingerprint: key for key in sshkeys.of_user(tx, user.id)}
    wanted: dict[str, keys.PublicKey] = {}
    for line in identity.keys[: keys.MOST]:
        with suppress(Refused):
            parsed = keys.parse(line)
            wanted[parsed.fingerprint] = parsed
    for mark, key in list(existing.items()):
        if key.given and mark not in wanted:
            sshkeys.remove(tx, user.id, key.id)
            del existing[mark]
            _note(tx, identity, "key delete", user, now, before={"fingerprint": mark})
    for mark, parsed in wanted.items():
        if mark not in existing and len(existing) < keys.MOST:
            existing[mark] = sshkeys.add(
                tx,
                SshKey(
                    0, user.id, parsed.name, parsed.algorithm, parsed.key, mark, now, given=True
                ),
            )
            _note(tx, identity, "key create", user, now, after={"fingerprint": mark})


def loses(tx: Tx, user: User, identity: Identity) -> bool:
    """Return whether the user would lose a role, or all keys of the directory, by its answer
    `identity`."""
    if identity.keys == () and any(key.given for key in sshkeys.of_user(tx, user.id)):
        return True
    if identity.roles is None:
        return False
    held = people.given_roles(tx, user.id)
    admin, wanted = directory.given(identity.roles)
    losses = directory.losses(held, directory.changes(held, wanted))
    return bool(losses) or (user.admin_given and not admin)


def _follow_roles(tx: Tx, user: User, identity: Identity, now: float, take: bool) -> None:
    """Give the user the roles that groups of the directory give, and, with `take`, take away the
    others that the directory gave. Invitations that the user created end with the role that allowed
    them."""
    if identity.roles is None:
        return
    held = people.given_roles(tx, user.id)
    admin, wanted = directory.given(identity.roles)
    changed = directory.changes(held, wanted)
    losses = directory.losses(held, changed)
    for name, role in changed.items():
        group = groups.by_name(tx, name)
        if group is None or (name in losses and not take):  # `cod doctor` finds unknown groups
            continue
        before = people.roles(tx, user.id).get(group.id)
        people.set_role(tx, group.id, user.id, role, given=True)
        if role is not Role.OWNER and not user.admin:
            invitations.remove_by(tx, user.name, group.id)
        _note(
            tx,
            identity,
            "member delete" if role is None else "member set",
            user,
            now,
            group_id=group.id,
            before={"role": before.value} if before else None,
            after={"role": role.value} if role else None,
        )
    if admin and not user.admin:
        people.change(tx, user.id, admin=True, admin_given=True)
    elif take and not admin and user.admin_given:
        people.change(tx, user.id, admin=False, admin_given=False)
        owned = [group for group, role in people.roles(tx, user.id).items() if role is Role.OWNER]
        invitations.remove_by(tx, user.name, but=owned)
    else:
        return
    _note(tx, identity, "user change", user, now, after={"admin": admin})


def _note(tx: Tx, identity: Identity, action: str, user: User, now: float, **rest: Any) -> None:
    audit.add(tx, actor=identity.directory, action=action, thing=user.name, now=now, **rest)
