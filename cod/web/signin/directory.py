"""Sign-in by an LDAP directory: somebody is looked for by their name, and whoever binds as what was
found is they. Later it is asked whether it still knows them.

python-ldap speaks it (the extra `ldap`). Everything here blocks.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any

from cod.model import Identity, Ldap, Refused
from cod.security import secretfile

SILENCE = 10  # seconds that the directory may keep silent
# What stays the same about an entry: RFC 4530; Active Directory's; else its name.
STAYS = ("entryUUID", "objectGUID")
LONGEST = 255  # characters of a subject
_EXTENSIBLE = re.compile(r":=\s*\{name\}")  # RFC 4515: such a match knows no '*'
ATTRIBUTES = ("displayName", "cn", "mail", "uidNumber", "gidNumber", *STAYS)
AWAY = "the directory that people sign in by does not answer: try again, or ask an administrator"

log = logging.getLogger("cod.ldap")


def verify(rules: Ldap, name: str, password: str) -> Identity | None:
    """Return the directory's user of that name; None where the name or the password is wrong.
    Raises `Refused` where the directory cannot be asked."""
    ldap = _module()
    try:
        return _verified(ldap, rules, name, password)
    except ldap.INVALID_CREDENTIALS as error:
        if not rules.user:
            return None
        raise _away(rules, error) from None
    except (ldap.LDAPError, secretfile.Unreadable) as error:
        raise _away(rules, error) from None


def _verified(ldap: Any, rules: Ldap, name: str, password: str) -> Identity | None:
    found = _entry(ldap, rules, name)
    # RFC 4513, 5.1.2: a bind without a password succeeds, and proves nothing
    if found is None or not password:
        return None
    dn, entry = found
    own = _connected(ldap, rules)
    try:
        own.simple_bind_s(dn, password)
    except ldap.INVALID_CREDENTIALS:
        return None
    finally:
        own.unbind_ext_s()
    return Identity(
        f"ldap:{_stays(dn, entry)}"[:LONGEST],
        "ldap",
        name,
        _text(entry, "displayName") or _text(entry, "cn"),
        _text(entry, "mail"),
        _number(entry, "uidNumber"),
        _number(entry, "gidNumber"),
    )


def _module() -> Any:
    """python-ldap, which only sites need that have a directory. Raises `Refused`."""
    try:
        import ldap
    except ImportError:
        log.error("[ldap] is set and python-ldap is not there: pip install 'cod[ldap]'")
        raise Refused("busy", AWAY) from None
    return ldap


def known(rules: Ldap, subjects: Iterable[str]) -> frozenset[str]:
    """Return which of these `Identity.subject` the directory knows, and lets in by the site's
    filter. Raises `Refused` where it cannot be asked, or shows nobody at all: then it is not to be
    believed."""
    ldap = _module()
    try:
        return _known(ldap, rules, subjects)
    except (ldap.LDAPError, secretfile.Unreadable) as error:
        raise _away(rules, error) from None


def _known(ldap: Any, rules: Ldap, subjects: Iterable[str]) -> frozenset[str]:
    # Whose name it is, is not asked: names change. What else the filter wants, of groups or locks,
    # still goes.
    whoever = (
        "(objectClass=*)"
        if _EXTENSIBLE.search(rules.filter)
        else rules.filter.replace("{name}", "*")
    )
    reader = _reading(ldap, rules)
    try:
        if not _found(ldap, reader, rules.base, whoever):
            raise ldap.NO_RESULTS_RETURNED(f"it shows nobody below {rules.base}")
        return frozenset(each for each in subjects if _is_known(ldap, reader, rules, each, whoever))
    finally:
        reader.unbind_ext_s()


def _is_known(ldap: Any, reader: Any, rules: Ldap, subject: str, whoever: str) -> bool:
    name = subject.removeprefix("ldap:")
    if len(subject) >= LONGEST:  # a name that was cut off cannot be asked for
        return True
    if "=" not in name:  # an entry's number, as `_stays` has it
        octets = re.sub("(..)", r"\\\1", name)  # RFC 4515: a backslash before each two digits
        mine = f"(entryUUID={name})" if "-" in name else f"(objectGUID={octets})"
        return _found(ldap, reader, rules.base, f"(&{mine}{whoever})")
    try:
        return _found(ldap, reader, name, whoever, ldap.SCOPE_BASE)
    except ldap.NO_SUCH_OBJECT:
        return False


def _found(ldap: Any, reader: Any, base: str, wanted: str, scope: int | None = None) -> bool:
    """Return whether the directory has an entry that matches. Raises `ldap.NO_SUCH_OBJECT` where
    not even the base is."""
    scope = ldap.SCOPE_SUBTREE if scope is None else scope
    try:
        found = reader.search_ext_s(base, scope, wanted, ["1.1"], sizelimit=1)
    except ldap.SIZELIMIT_EXCEEDED:
        return True
    return any(dn for dn, _ in found)


def _entry(ldap: Any, rules: Ldap, name: str) -> tuple[str, Mapping[str, list[bytes]]] | None:
    """Return the one entry that is called so."""
    from ldap.filter import escape_filter_chars

    reader = _reading(ldap, rules)
    try:
        found = reader.search_ext_s(
            rules.base,
            ldap.SCOPE_SUBTREE,
            rules.filter.replace("{name}", escape_filter_chars(name)),
            [*ATTRIBUTES],
            sizelimit=2,
        )
    except (ldap.NO_SUCH_OBJECT, ldap.SIZELIMIT_EXCEEDED):
        return None
    finally:
        reader.unbind_ext_s()
    entries = [(dn, entry) for dn, entry in found if dn]  # referrals have none
    return entries[0] if len(entries) == 1 else None


def _reading(ldap: Any, rules: Ldap) -> Any:
    """Return a connection as whom the site looks for people."""
    password = secretfile.first_line(rules.password_file) if rules.password_file else ""
    reader = _connected(ldap, rules)
    try:
        reader.simple_bind_s(rules.user, password)
    except BaseException:
        reader.unbind_ext_s()
        raise
    return reader


def _connected(ldap: Any, rules: Ldap) -> Any:
    line = ldap.initialize(rules.url)
    line.set_option(ldap.OPT_NETWORK_TIMEOUT, SILENCE)
    line.set_option(ldap.OPT_TIMEOUT, SILENCE)
    line.set_option(ldap.OPT_REFERRALS, 0)
    if rules.tls != "none":
        line.set_option(ldap.OPT_X_TLS_REQUIRE_CERT, ldap.OPT_X_TLS_DEMAND)
        if rules.ca_file:
            line.set_option(ldap.OPT_X_TLS_CACERTFILE, rules.ca_file)
        line.set_option(ldap.OPT_X_TLS_NEWCTX, 0)
    if rules.tls == "starttls":
        line.start_tls_s()
    return line


def _away(rules: Ldap, error: Exception) -> Refused:
    log.error(
        "sign-in by %s failed: %s: %s", rules.url, type(error).__name__, ascii(str(error))[:300]
    )
    return Refused("busy", AWAY)


def _stays(dn: str, entry: Mapping[str, list[bytes]]) -> str:
    for name in STAYS:
        if value := entry.get(name):
            return (
                value[0].hex()
                if name == "objectGUID"
                else value[0].decode(errors="replace").lower()
            )
    return dn.lower()


def _number(entry: Mapping[str, list[bytes]], name: str) -> int | None:
    """Return a POSIX number; None where the directory has none, or something else."""
    text = _text(entry, name)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 11 else None


def _text(entry: Mapping[str, list[bytes]], name: str) -> str:
    return entry.get(name, [b""])[0].decode(errors="replace")
