"""Public SSH keys of users."""

from __future__ import annotations

from cod.model import Refused, SshKey, Who
from cod.policy.people import rights
from cod.policy.people import sshkeys as policy
from cod.store.engine import Tx
from cod.store.people import groups, sshkeys


def mine(tx: Tx, who: Who) -> list[SshKey]:
    """Return the keys of the one who asks, in the order in which they came."""
    return [] if who.user_id is None else sshkeys.of_user(tx, who.user_id)


def one(tx: Tx, who: Who, key_id: int) -> SshKey:
    """Return one of them. Raises `Refused`."""
    found = next((key for key in mine(tx, who) if key.id == key_id), None)
    if found is None:
        raise Refused("not_found", f"you have no key {key_id}", "id")
    return found


def add(tx: Tx, *, who: Who, line: str, name: str = "", now: float) -> SshKey:
    """Keep a key of the one who asks: a line of a .pub file, `name` in place of its comment. Raises
    `Refused`."""
    user_id = rights.account(who)
    parsed = policy.parse(line)
    if not name.isprintable() or len(name) > policy.LONGEST_NAME:
        raise Refused(
            "invalid", f"a key's name is a line of at most {policy.LONGEST_NAME} characters", "name"
        )
    there = mine(tx, who)
    if any(key.fingerprint == parsed.fingerprint for key in there):
        raise Refused("conflict", "you have that key already", "key")
    if len(there) >= policy.MOST:
        raise Refused(
            "conflict",
            f"you have {len(there)} keys, which is as many as one can have: remove one",
            "key",
        )
    return sshkeys.add(
        tx,
        SshKey(
            0, user_id, name or parsed.name, parsed.algorithm, parsed.key, parsed.fingerprint, now
        ),
    )


def remove(tx: Tx, *, who: Who, key_id: int) -> None:
    """Forget a key of the one who asks. Nodes that have it keep it until they are primed anew.
    Raises `Refused`."""
    rights.account(who)
    sshkeys.remove(tx, one(tx, who, key_id).user_id, key_id)


def of_group(tx: Tx, group: str) -> list[tuple[str, SshKey]]:
    """(user, key) of those that the nodes of a group's vclusters let in. Raises `Refused`."""
    return sshkeys.of_group(tx, groups.named(tx, group).id)
