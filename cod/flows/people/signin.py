"""Signing in: attempts, which are slowed (`policy.people.signin` says how and why), and the
sessions of browsers.

A password is verified between two transactions, because that takes long. `attempt` counts it as
failed, and returns the hash to verify it against. Then `right` takes the count back, `failed`
records the failure in the audit, or `unverified` takes the count back because the password could
not be verified.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cod.core.people import directory
from cod.model import (
    POSIX,
    Identity,
    PosixRules,
    Refused,
    SignInRules,
    SlowDown,
    User,
    WebSession,
    Who,
)
from cod.policy.people import rights, signin
from cod.store.engine import Tx
from cod.store.people import access, audit, people, signins

check_password = signin.check_password
PASSWORD_RULE = signin.PASSWORD_RULE
seen = signins.seen


@dataclass(frozen=True, slots=True)
class Attempt:
    """The user who tries to sign in, and the hash to verify the password against. The hash is '' if
    the user is None (unknown) or may not sign in by password here."""

    user: User | None
    hash: str


def wrong() -> Refused:
    """Return the one refusal for every failed sign-in, whatever the reason."""
    return Refused("unauthorised", "name or password is wrong")


def tried(password: str) -> str:
    """Return the password to verify: `password`, or '', which nobody has, if `password` is longer
    than passwords can be. Normalising the accents of a long text takes quadratic time, and no other
    thread runs meanwhile."""
    return password if len(password) <= signin.LONGEST else ""


# ---------------------------------------------------------------- attempts


def attempt(tx: Tx, *, name: str, address: str, now: float) -> Attempt:
    """Count an attempt to sign in. Raises `SlowDown`, which tells how long to wait."""
    keys = _keys(tx, name, address, now)
    counts = _counts(tx, keys.all)
    if (wait := signin.wait(counts, now)) > 0:
        raise SlowDown(wait)
    _put(tx, signin.counted(keys, counts, now))
    user = people.by_name(tx, name)
    able = user is not None and user.able and not user.directory
    return Attempt(user, people.password(tx, user.id) if user and able else "")


def failed(tx: Tx, *, name: str, address: str, now: float, run: str | None = None) -> None:
    """Note that an attempt failed. The typed name is shown only if a user has that name: it may be
    a password."""
    user = people.by_name(tx, name)
    audit.add(
        tx,
        actor=f"user:{user.name}" if user else "nobody",
        address=address,
        action="sign-in failed",
        thing=user.name if user else "",
        run=run,
        now=now,
    )


def unverified(tx: Tx, *, name: str, address: str, now: float) -> None:
    """Take back the count of an attempt that was not verified: the directory does not answer, or
    too many passwords are being verified."""
    keys = _keys(tx, name, address, now)
    _put(tx, signin.taken_back(keys, _counts(tx, keys.all), now))


def right(
    tx: Tx, *, user_id: int, name: str, address: str, rehashed: str | None = None, now: float
) -> None:
    """Take back the count of an attempt that was right, and remember that the name signs in from
    this address. `rehashed`: a new hash of the password to store."""
    keys = _keys(tx, name, address, now)
    left = signin.forgiven(keys, _counts(tx, keys.all), now)
    _put(tx, left | {keys.known: signin.FailureCount(0, now, now)})
    if rehashed is not None:
        people.change(tx, user_id, password=rehashed)


def vouched(
    tx: Tx, *, identity: Identity, create: bool, address: str, posix: PosixRules = POSIX, now: float
) -> User:
    """Return the user whom a directory vouches for; with `create`, create an account for a new one.
    Raises `Refused`.

    Nobody gets access to an existing account by having its name in the directory: a new user of
    that name gets a number appended to it. POSIX numbers of the directory are used, unless somebody
    else has or had them here.
    """
    user = people.by_subject(tx, identity.subject)
    if user is None and not create:
        raise Refused("unauthorised", "there is no account for you here: ask an administrator")
    if user is None:
        return directory.create(tx, identity, address=address, posix=posix, now=now)
    if user.disabled_at is not None:
        raise wrong()
    directory.follow(tx, user, identity, now)
    return people.get(tx, user.id) or user


def begin(
    tx: Tx,
    *,
    user_id: int,
    address: str,
    browser: str,
    cookie: str,
    rules: SignInRules,
    now: float,
    run: str | None = None,
) -> WebSession:
    """Begin a session for a user who has proven their identity. `cookie` is the digest of the
    session's secret. Raises `Refused`."""
    user = people.get(tx, user_id)
    if user is None or not user.able:
        raise wrong()
    signins.purge(tx, now, rules.idle)
    signins.forget(tx, now - signin.FORGOTTEN_AFTER, now - signin.KNOWN_FOR)
    audit.add(
        tx,
        actor=f"user:{user.name}",
        address=address,
        action="sign-in",
        thing=user.name,
        run=run,
        now=now,
    )
    people.change(tx, user.id, signed_in_at=now)
    life = min(rules.life, rules.oidc.life) if user.directory == "oidc" else rules.life
    return signins.add(
        tx, cookie, user.id, now, expires_at=now + life, address=address[:45], browser=browser[:200]
    )


def _keys(tx: Tx, name: str, address: str, now: float) -> signin.Keys:
    """Return the keys under which attempts of that name from that address are counted."""
    known = signins.is_known(tx, signin.keys(name, address).known, now - signin.KNOWN_FOR)
    return signin.keys(name, address, known)


def _counts(tx: Tx, keys: Iterable[str]) -> dict[str, signin.FailureCount]:
    return {key: signin.FailureCount(*count) for key, count in signins.counts(tx, keys).items()}


def _put(tx: Tx, counts: Mapping[str, signin.FailureCount | None]) -> None:
    signins.put(
        tx,
        {
            key: None if count is None else (count.failures, count.last_at, count.open_at)
            for key, count in counts.items()
        },
    )


# ---------------------------------------------------------------- sessions


def sign_out(tx: Tx, *, cookie: str, address: str, now: float) -> None:
    """End the session whose cookie has the digest `cookie`, if there is one."""
    found = access.by_cookie(tx, cookie)
    if found is not None:
        user = people.get(tx, found.user_id)
        signins.end(tx, found.user_id, found.id)
        audit.add(
            tx,
            actor=f"user:{user.name if user else '?'}",
            address=address,
            action="sign-out",
            thing=user.name if user else "",
            now=now,
        )


def every(tx: Tx, *, who: Who, rules: SignInRules, now: float) -> list[WebSession]:
    """Return the valid sessions of the user `who`, the newest first."""
    return [] if who.user_id is None else signins.of_user(tx, who.user_id, now, rules.idle)


def end(tx: Tx, *, who: Who, session_id: int | None = None) -> int:
    """End the session `session_id` (None: all sessions) of the user `who`; return how many were
    ended. Raises `Refused` if the user has no such session."""
    count = signins.end(tx, rights.account(who), session_id)
    if session_id is not None and not count:
        raise Refused("not_found", f"you have no session {session_id}", "id")
    return count
