"""Sign-in by an LDAP directory: somebody is looked for by their name, and whoever binds as what was found is they.

python-ldap speaks it (the extra `ldap`). Everything here blocks.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from cod import secretfile
from cod.model import Identity, Ldap, Refused

SILENCE = 10  # seconds that the directory may keep silent
# What stays the same about an entry: RFC 4530; Active Directory's; else its name.
STAYS = ("entryUUID", "objectGUID")
ATTRIBUTES = ("displayName", "cn", "mail", *STAYS)
AWAY = "the directory that people sign in by does not answer: try again, or ask an administrator"

log = logging.getLogger("cod.ldap")


def verify(rules: Ldap, name: str, password: str) -> Identity | None:
    """Who has that name and password there; None: nobody. Raises `Refused` where the directory cannot be asked."""
    try:
        import ldap
    except ImportError:
        log.error("[ldap] is set and python-ldap is not there: pip install 'cod[ldap]'")
        raise Refused("busy", AWAY) from None
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
    if found is None or not password:  # RFC 4513, 5.1.2: a bind without a password succeeds, and proves nothing
        return None
    dn, entry = found
    own = _connected(ldap, rules)
    try:
        own.simple_bind_s(dn, password)
    except ldap.INVALID_CREDENTIALS:
        return None
    finally:
        own.unbind_ext_s()
    return Identity(f"ldap:{_stays(dn, entry)}"[:255], "ldap", name, _text(entry, "displayName") or _text(entry, "cn"),
                    _text(entry, "mail"))


def _entry(ldap: Any, rules: Ldap, name: str) -> tuple[str, Mapping[str, list[bytes]]] | None:
    """The one entry that is called so."""
    from ldap.filter import escape_filter_chars

    password = secretfile.first_line(rules.password_file) if rules.password_file else ""
    reader = _connected(ldap, rules)
    try:
        reader.simple_bind_s(rules.user, password)
        found = reader.search_ext_s(
            rules.base, ldap.SCOPE_SUBTREE, rules.filter.replace("{name}", escape_filter_chars(name)),
            [*ATTRIBUTES], sizelimit=2)
    except (ldap.NO_SUCH_OBJECT, ldap.SIZELIMIT_EXCEEDED):
        return None
    finally:
        reader.unbind_ext_s()
    entries = [(dn, entry) for dn, entry in found if dn]  # referrals have none
    return entries[0] if len(entries) == 1 else None


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
    log.error("sign-in by %s failed: %s: %s", rules.url, type(error).__name__, ascii(str(error))[:300])
    return Refused("busy", AWAY)


def _stays(dn: str, entry: Mapping[str, list[bytes]]) -> str:
    for name in STAYS:
        if value := entry.get(name):
            return value[0].hex() if name == "objectGUID" else value[0].decode(errors="replace").lower()
    return dn.lower()


def _text(entry: Mapping[str, list[bytes]], name: str) -> str:
    return entry.get(name, [b""])[0].decode(errors="replace")
