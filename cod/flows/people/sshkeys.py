"""Public SSH keys of users."""

from __future__ import annotations

from collections.abc import Iterable

from cod.model import Refused, SshKey, Who
from cod.policy.people import rights
from cod.policy.people import sshkeys as policy
from cod.store.engine import Tx
from cod.store.people import groups, people, sshkeys

in_group = sshkeys.of_group


def mine(tx: Tx, who: Who) -> list[SshKey]:
    """Return the keys of the user `who`, in the order in which they were added."""
    return [] if who.user_id is None else sshkeys.of_user(tx, who.user_id)


def of_user(tx: Tx, user: str) -> list[SshKey]:
    """Return the keys of that user. Raises `Refused`."""
    return sshkeys.of_user(tx, people.named(tx, user).id)


def one(tx: Tx, who: Who, key_id: int) -> SshKey:
    """Return one key of the user `who`. Raises `Refused`."""
    return _one(mine(tx, who), "you have", key_id)


def one_of_user(tx: Tx, *, user: str, key_id: int) -> SshKey:
    """Return one key of that user. Raises `Refused`."""
    return _one(of_user(tx, user), f"{user} has", key_id)


def _one(keys: Iterable[SshKey], have: str, key_id: int) -> SshKey:
    found = next((key for key in keys if key.id == key_id), None)
    if found is None:
        raise Refused("not_found", f"{have} no key {key_id}", "id")
    return found


def add(tx: Tx, *, who: Who, line: str, name: str = "", now: float) -> SshKey:
    """Add a key for the user `who`: a line of a .pub file, with `name` in place of the line's
    comment. Raises `Refused`."""
    return _add(tx, rights.account(who), "you have", line, name, now)


def add_for_user(tx: Tx, *, user: str, line: str, name: str = "", now: float) -> SshKey:
    """Add a key for that user, as `add` does. Raises `Refused`."""
    return _add(tx, people.named(tx, user).id, f"{user} has", line, name, now)


def _add(tx: Tx, user_id: int, have: str, line: str, name: str, now: float) -> SshKey:
    parsed = policy.parse(line)
    if not name.isprintable() or len(name) > policy.LONGEST_NAME:
        raise Refused(
            "invalid", f"a key's name is a line of at most {policy.LONGEST_NAME} characters", "name"
        )
    existing = sshkeys.of_user(tx, user_id)
    if any(key.fingerprint == parsed.fingerprint for key in existing):
        raise Refused("conflict", f"{have} that key already", "key")
    if len(existing) >= policy.MOST:
        raise Refused(
            "conflict",
            f"{have} {len(existing)} keys, which is as many as one can have: remove one",
            "key",
        )
    return sshkeys.add(
        tx,
        SshKey(
            0, user_id, name or parsed.name, parsed.algorithm, parsed.key, parsed.fingerprint, now
        ),
    )


def remove(tx: Tx, *, who: Who, key_id: int) -> None:
    """Delete a key of the user `who`. Nodes that have the key keep it until they are primed anew.
    Raises `Refused`."""
    rights.account(who)
    _remove(tx, one(tx, who, key_id))


def remove_of_user(tx: Tx, *, user: str, key_id: int) -> None:
    """Delete a key of that user, as `remove` does. Raises `Refused`."""
    _remove(tx, one_of_user(tx, user=user, key_id=key_id))


def _remove(tx: Tx, key: SshKey) -> None:
    if key.given:  # the next comparison with the directory would add it again
        raise Refused("conflict", "this key comes from the site's directory: remove it there", "id")
    sshkeys.remove(tx, key.user_id, key.id)


def of_group(tx: Tx, group: str) -> list[tuple[str, SshKey]]:
    """Return the keys with which users can log in to the nodes of a group's vclusters, as (user,
    key). Raises `Refused`."""
    return sshkeys.of_group(tx, groups.named(tx, group).id)
