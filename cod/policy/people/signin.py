"""Rules for sign-in: the rate of attempts, passwords, names of people. Pure.

Every attempt is counted before it is verified, under up to three names, and a success takes its own
count back:

=========  ======================================  ======================  =====================
counted    what                                    waits begin             counts
=========  ======================================  ======================  =====================
pair       this name from this place               with the first failure  all of them
address    this place, whatever the name           with the eleventh       all of them
name       this name, from places that it is not   with the first failure  the first three of
           known to sign in from                                           each place
=========  ======================================  ======================  =====================

The waits are 1, 2, 4 … 900 seconds; a count is forgotten a day after its last failure. An attempt
that comes too early is turned away unverified and lengthens nothing.

Why three: the pair stops one attacker, the address one that tries many names, the name many that
try one. Why the name counts but three failures of a place: otherwise one attacker could keep the
count of a name high for ever, and its owner out. An attacker with very many addresses can; then the
owner still gets in from where they have signed in within the last `KNOWN_FOR` seconds, since those
places wait for their own failures alone, and by a link for a new password from elsewhere. A place
is an IPv4 address, or 64 bits of an IPv6 one, since that is what a single machine can have.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address, ip_network

from cod.model import Refused

LONGEST_WAIT = 900.0
FORGOTTEN_AFTER = 86_400.0
KNOWN_FOR = 60 * 86_400.0
FREE_OF_ADDRESS = 10
COUNTED_OF_A_PLACE = 3
SHORTEST, LONGEST = 12, 1000  # characters of a password
PASSWORD_RULE = f"At least {SHORTEST} characters; a few words with spaces do well."
LONGEST_NAME = 200
_NAME = re.compile(r"[a-z][a-z0-9._-]{0,31}")
_OF_THE_SERVER = re.compile(r"root|uid[0-9]*")
_ROWS = (
    "abcdefghijklmnopqrstuvwxyz",
    "01234567890123456789",
    "qwertyuiopasdfghjklzxcvbnm",
    "qwertzuiopasdfghjklyxcvbnm",
)


@dataclass(frozen=True, slots=True)
class FailureCount:
    """Failures under one name since they were last forgotten; no attempt is listened to before
    `open_at`."""

    failures: int = 0
    last_at: float = 0.0
    open_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Keys:
    """The names that an attempt is counted under; `name` is None from a place that somebody signed
    in from as that."""

    pair: str
    address: str
    name: str | None
    known: str

    @property
    def all(self) -> tuple[str, ...]:
        """Return the keys under which the attempt counts."""
        return tuple(key for key in (self.pair, self.address, self.name) if key)


def keys(name: str, address: str, known: bool = False) -> Keys:
    """Return the names that an attempt is counted under. However a name is written that a directory
    takes for the same, it is counted as one."""
    # As directories compare names (RFC 4518): without case, kinds of letters, what is not seen, and
    # spare spaces.
    seen = "".join(
        letter for letter in name[:LONGEST_NAME] if letter.isprintable() or letter.isspace()
    )
    here, name = place(address), " ".join(unicodedata.normalize("NFKC", seen).casefold().split())
    both = _short(f"{name}\0{here}")
    shown = name if _NAME.fullmatch(name) else _short(name)
    return Keys(
        f"pair:{both}", f"address:{here}", None if known else f"name:{shown}", f"known:{both}"
    )


def place(address: str) -> str:
    """Return what stands for an address: itself, or the /64 network of an IPv6 one."""
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return _short(address) if address else "local"
    if isinstance(ip, IPv6Address):
        return str(ip.ipv4_mapped or ip_network((ip, 64), strict=False))
    return str(ip)


def wait(counts: dict[str, FailureCount], now: float) -> float:
    """Return seconds until an attempt with these counts is listened to; 0: now."""
    return max(
        (count.open_at - now for count in counts.values() if not _old(count, now)), default=0.0
    )


def counted(keys: Keys, counts: dict[str, FailureCount], now: float) -> dict[str, FailureCount]:
    """Return the counts after one more attempt that has not succeeded (yet), those that change."""
    fresh = {
        key: FailureCount() if _old(count := counts.get(key, FailureCount()), now) else count
        for key in keys.all
    }
    slow = fresh[keys.pair].failures >= COUNTED_OF_A_PLACE
    return {
        key: _more(count, FREE_OF_ADDRESS if key == keys.address else 0, now)
        for key, count in fresh.items()
        if key != keys.name or not slow
    }


def forgiven(
    keys: Keys, counts: dict[str, FailureCount], now: float
) -> dict[str, FailureCount | None]:
    """Return the counts after an attempt that was counted has succeeded; None: the count goes.

    Only its own: who has an account does not get more guesses at others' by signing in to it
    between.
    """
    return {key: _less(count, now) for key, count in counts.items()} | {keys.pair: None}


def taken_back(
    keys: Keys, counts: dict[str, FailureCount], now: float
) -> dict[str, FailureCount | None]:
    """Return the counts after an attempt that was counted could not be verified; None: the count
    goes. Earlier failures stay."""
    slow = counts.get(keys.pair, FailureCount()).failures > COUNTED_OF_A_PLACE  # see `counted`
    return {key: _less(count, now) for key, count in counts.items() if key != keys.name or not slow}


def _less(count: FailureCount, now: float) -> FailureCount | None:
    """Return a count without its last failure; None where that was the only one."""
    if count.failures <= 1:
        return None
    return FailureCount(count.failures - 1, count.last_at, min(count.open_at, now))


def _more(count: FailureCount, free: int, now: float) -> FailureCount:
    failures = count.failures + 1
    pause = 0.0 if failures <= free else min(2.0 ** min(failures - free - 1, 30), LONGEST_WAIT)
    return FailureCount(failures, now, now + pause)


def _old(count: FailureCount, now: float) -> bool:
    return now - count.last_at > FORGOTTEN_AFTER


def _short(text: str) -> str:
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=16).hexdigest()


# ---------------------------------------------------------------- names and passwords


def check_name(name: str) -> None:
    """Raise `Refused` unless a user may be called so."""
    if not _NAME.fullmatch(name):
        raise Refused(
            "invalid",
            f"{name[:64]!r} is no sign-in name: a letter, then a-z, 0-9, '.', '_', '-'; "
            "at most 32 of them",
            "name",
        )


def is_reserved(name: str) -> bool:
    """Return whether the server itself uses the name: for callers on its own UNIX socket, in
    histories and in the audit. Nobody takes such a name by a link or from a directory; an
    administrator may give it."""
    return _OF_THE_SERVER.fullmatch(name) is not None


def name_like(text: str) -> str:
    """Return a sign-in name that looks like what somebody is called elsewhere:
    'Ann.Example@example.org' -> 'ann.example'."""
    bare = re.sub(r"[^a-z0-9._-]+", "-", text.partition("@")[0].lower()).strip("-._")
    return (bare if bare[:1].isalpha() else f"u{bare}")[:32]


def check_password(password: str, name: str) -> None:
    """Raise `Refused` for a password that is guessed first: short, the name, one that repeats or
    runs along a row."""
    if problem := _weakness(password, name):
        raise Refused("invalid", problem, "password")


def _weakness(password: str, name: str) -> str:
    bare = password.casefold()
    if len(password) < SHORTEST:
        return f"a password has at least {SHORTEST} characters; a few words with spaces do well"
    if len(password) > LONGEST:
        return f"a password has at most {LONGEST} characters"
    if len(set(bare.replace(name.casefold(), ""))) < 5:
        return "that password is little more than the name, or one thing again and again"
    if any(bare in row or bare[::-1] in row for row in _ROWS):
        return "that password only runs along the keyboard or the alphabet"
    return ""
