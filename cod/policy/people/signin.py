"""Rules for sign-in: the rate of attempts, passwords, names of people. Pure.

Every attempt is counted as a failure before it is verified, in up to three counts. A success takes
its own failure back:

=========  ======================================  ======================  =====================
count      attempts                                waits begin             failures counted
=========  ======================================  ======================  =====================
pair       with this name from this place          with the first failure  all of them
address    from this place, whatever the name      with the eleventh       all of them
name       with this name, from places where it    with the first failure  the first three of
           has not signed in lately                                        each place
=========  ======================================  ======================  =====================

The waits are 1, 2, 4 … 900 seconds. A count is forgotten a day after its last failure. An attempt
during a wait is refused without verification, and does not lengthen the wait.

The pair stops one attacker who tries one name, the address stops an attacker who tries many names,
and the name stops many attackers who try one name. The name counts only three failures of each
place: otherwise one attacker could keep the count of a name high for ever, and lock its owner out.
An attacker with very many addresses still can. Then the owner can sign in from places where they
have signed in within the last `KNOWN_FOR` seconds, since such places wait only for their own
failures, and from elsewhere by a link for a new password. A place is an IPv4 address, or the first
64 bits of an IPv6 address, since a single machine may have all addresses that begin with these.
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
    """The failures in one count. Attempts before `open_at` are refused."""

    failures: int = 0
    last_at: float = 0.0
    open_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of the counts of failures for an attempt to sign in.

    pair     of the name at the place
    address  of the place
    name     of the name anywhere; None: the name has signed in from the place lately
    known    of the row that says that the name has signed in from the place
    """

    pair: str
    address: str
    name: str | None
    known: str

    @property
    def all(self) -> tuple[str, ...]:
        """Return the keys of all counts that the attempt counts in."""
        return tuple(key for key in (self.pair, self.address, self.name) if key)


def keys(name: str, address: str, known: bool = False) -> Keys:
    """Return the keys of an attempt. Spellings of a name that a directory takes for the
    same name have the same keys. `known`: the name has signed in from this place lately."""
    # Directories compare names (RFC 4518) without regard to case, compatible forms of letters,
    # invisible characters and extra spaces.
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
    """Return the place of an address: an IPv4 address itself, or the /64 network of an IPv6
    address."""
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return _short(address) if address else "local"
    if isinstance(ip, IPv6Address):
        return str(ip.ipv4_mapped or ip_network((ip, 64), strict=False))
    return str(ip)


def wait(counts: dict[str, FailureCount], now: float) -> float:
    """Return the seconds to wait before an attempt with these counts is allowed; 0: none."""
    return max(
        (count.open_at - now for count in counts.values() if not _old(count, now)), default=0.0
    )


def counted(keys: Keys, counts: dict[str, FailureCount], now: float) -> dict[str, FailureCount]:
    """Return the counts that change by one more attempt, which counts as a failure until it has
    succeeded."""
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
    """Return the counts after a counted attempt has succeeded; None: the count is deleted.

    Except for the pair, only the attempt's own failure is taken back: signing in to one's own
    account between attempts gives no additional guesses at other accounts.
    """
    return {key: _less(count, now) for key, count in counts.items()} | {keys.pair: None}


def taken_back(
    keys: Keys, counts: dict[str, FailureCount], now: float
) -> dict[str, FailureCount | None]:
    """Return the counts after a counted attempt could not be verified, without that attempt; None:
    the count is deleted."""
    slow = counts.get(keys.pair, FailureCount()).failures > COUNTED_OF_A_PLACE  # see `counted`
    return {key: _less(count, now) for key, count in counts.items() if key != keys.name or not slow}


def _less(count: FailureCount, now: float) -> FailureCount | None:
    """Return a count without its last failure; None if that was the only one."""
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
    """Raise `Refused` unless `name` is a valid sign-in name."""
    if not _NAME.fullmatch(name):
        raise Refused(
            "invalid",
            f"{name[:64]!r} is no sign-in name: a letter, then a-z, 0-9, '.', '_', '-'; "
            "at most 32 of them",
            "name",
        )


def is_reserved(name: str) -> bool:
    """Return whether the server itself uses the name for callers on its own UNIX socket, in
    histories and in the audit. Users cannot get such a name by a link or from a directory; only an
    administrator may give it."""
    return _OF_THE_SERVER.fullmatch(name) is not None


def name_like(text: str) -> str:
    """Return a sign-in name made from a person's name or address at another service:
    'Ann.Example@example.org' -> 'ann.example'."""
    bare = re.sub(r"[^a-z0-9._-]+", "-", text.partition("@")[0].lower()).strip("-._")
    return (bare if bare[:1].isalpha() else f"u{bare}")[:32]


def check_password(password: str, name: str) -> None:
    """Raise `Refused` for a password that is easy to guess: too short, little more than the name, a
    repetition, or a row of the keyboard or alphabet."""
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
