"""Sign-in by an LDAP directory. The server searches the directory for the user by name, and then
binds as the found entry with the user's password. Later it asks whether the directory still has the
user.

The extra `ldap` brings python-ldap for that. All functions here block.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cod.model import GivenRole, Identity, Ldap, Refused, Role
from cod.security import secretfile

SILENCE = 10  # seconds after which an unanswered question to the directory fails
LONGEST_LOOK = 1800.0  # seconds; a fast directory needs two minutes for ten thousand people
PROMPT = 0.05  # seconds that each search adds to `LONGEST_LOOK`, for many people and groups
# Attributes that identify an entry for ever: RFC 4530's; Active Directory's. Else it is the name.
STAYS = ("entryUUID", "objectGUID")
LONGEST = 255  # characters of a subject
_EXTENSIBLE = re.compile(r":=\s*\{name\}")  # RFC 4515: such a match knows no '*'
TAKEN = {"keys": "sshPublicKey", "shell": "loginShell", "home": "homeDirectory"}
"""Attributes that `Ldap.take` names."""
MEMBERS = ("member", "uniqueMember")
"""Attributes of groups whose values are distinguished names."""
GROUPS = {"group", "groupofnames", "groupofuniquenames"}
"""Classes of entries that are groups. posixGroup is missing, because people may have it, too."""
MOST = 10_000  # members of a group that are read
ATTRIBUTES = ("displayName", "cn", "mail", "uidNumber", "gidNumber", *STAYS)
AWAY = "the directory that people sign in by does not answer: try again, or ask an administrator"

log = logging.getLogger("cod.ldap")


def verify(rules: Ldap, name: str, password: str) -> Identity | None:
    """Return the directory's user with that name; None if the name or the password is wrong. Raises
    `Refused` if the directory cannot be asked."""
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
    with _DirectoryReader(ldap, rules) as reader:
        found = reader.called(name)
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
        return reader.identity(dn, entry, name)


def _module() -> Any:
    """Return the module of python-ldap, which only sites with a directory need. Raises
    `Refused`."""
    try:
        import ldap
    except ImportError:
        log.error("[ldap] is set and python-ldap is not there: pip install 'cod[ldap]'")
        raise Refused("busy", AWAY) from None
    return ldap


@dataclass(frozen=True, slots=True)
class DirectoryAnswer:
    """The directory's answer about people.

    known    identities by subject, for those of the requested subjects that the directory has and
             that the site's filter lets in; None: the directory cannot be searched for this subject
    others   people whose names were requested, and members of the groups that give roles
    missing  requested names that the directory does not have
    """

    known: Mapping[str, Identity | None]
    others: tuple[Identity, ...] = ()
    missing: tuple[str, ...] = ()


def read(
    rules: Ldap,
    subjects: Iterable[str],
    names: Iterable[str] = (),
    *,
    members: bool = False,
    monotonic: Callable[[], float] = time.monotonic,
) -> DirectoryAnswer:
    """Return what the directory knows about people: people with the `Identity.subject` in
    `subjects`, people with these `names`, and, with `members`, the members of the groups that give
    roles.

    Raises `Refused` if the directory cannot be asked, has not answered everything after
    `LONGEST_LOOK`, or shows nobody at all, because such a directory cannot be believed.
    """
    ldap = _module()
    try:
        with _DirectoryReader(ldap, rules, monotonic=monotonic) as reader:
            if not reader.shows_somebody():
                raise ldap.NO_RESULTS_RETURNED(f"it shows nobody below {rules.base}")
            known = {
                each: None if found is True else reader.identity(*found)
                for each in subjects
                if (found := reader.of_subject(each))
            }
            called = {name: reader.called(name) for name in names}
            others = [reader.identity(*found, name) for name, found in called.items() if found]
            seen = set(known) | {each.subject for each in others}
            for found in reader.members() if members else ():
                if _subject(*found) not in seen:
                    seen.add(_subject(*found))
                    others.append(reader.identity(*found))
            missing = tuple(name for name, found in called.items() if not found)
            return DirectoryAnswer(known, tuple(others), missing)
    except (ldap.LDAPError, secretfile.Unreadable) as error:
        raise _away(rules, error) from None


Entry = tuple[str, Mapping[str, list[bytes]]]
"""An entry: its distinguished name and its attributes."""


class _DirectoryReader:
    """A connection that is bound as the site's own user, and the searches over it."""

    def __init__(
        self,
        ldap: Any,
        rules: Ldap,
        connection: Any = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        from ldap.dn import str2dn
        from ldap.filter import escape_filter_chars

        self._ldap, self._rules, self._escaped = ldap, rules, escape_filter_chars
        self._parts = str2dn
        self._monotonic, self._end = monotonic, monotonic() + LONGEST_LOOK
        self._connection = connection or _reading(ldap, rules)
        self._group_names: dict[int, str] = {}
        # Errors of a directory that does not show a group. A group that is misnamed or in another
        # domain keeps nobody out.
        self._hidden = (
            ldap.NO_SUCH_OBJECT,
            ldap.INSUFFICIENT_ACCESS,
            ldap.INVALID_DN_SYNTAX,
            ldap.REFERRAL,
        )
        self._missing = set[str]()  # hidden groups that were logged
        taken = (attribute for key, attribute in TAKEN.items() if key in rules.take)
        self._attributes = [*ATTRIBUTES, rules.name_attribute, *taken]
        # The site's filter for any name, because names change. Its other conditions, such as those
        # about groups or locks, stay.
        self._whoever = (
            "(objectClass=*)"
            if _EXTENSIBLE.search(rules.filter)
            else rules.filter.replace("{name}", "*")
        )

    def __enter__(self) -> _DirectoryReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.unbind_ext_s()

    # ------------------------------------------------ people

    def called(self, name: str) -> Entry | None:
        """Return the only entry with that sign-in name; None if there is none, or more than one."""
        wanted = self._rules.filter.replace("{name}", self._escaped(name))
        return self._one(self._rules.base, self._ldap.SCOPE_SUBTREE, wanted)

    def of_subject(self, subject: str) -> Entry | Literal[True] | None:
        """Return the entry with that `Identity.subject`, if the site's filter lets it in. Return
        True if the directory cannot be searched for the subject, because it was cut off."""
        name = subject.removeprefix("ldap:")
        if len(subject) >= LONGEST:  # a name that was cut off
            return True
        if "=" not in name:  # an entry's UUID, as in `_stays`
            octets = re.sub("(..)", r"\\\1", name)  # RFC 4515: a backslash before each two digits
            mine = f"(entryUUID={name})" if "-" in name else f"(objectGUID={octets})"
            wanted = f"(&{mine}{self._whoever})"
            return self._one(self._rules.base, self._ldap.SCOPE_SUBTREE, wanted)
        return self._one(name, self._ldap.SCOPE_BASE, self._whoever)

    def shows_somebody(self) -> bool:
        """Return whether the site's filter lets anybody in."""
        try:
            found = self._search(
                self._rules.base, self._ldap.SCOPE_SUBTREE, self._whoever, ["1.1"], 1
            )
        except self._ldap.SIZELIMIT_EXCEEDED:
            return True
        return bool(found)

    def members(self) -> Iterator[Entry]:
        """Yield the members of the groups that give roles, at most `MOST` of each attribute of a
        group."""
        base, attributes = self._ldap.SCOPE_BASE, [*self._attributes, "objectClass"]
        for group in self._rules.groups:
            for is_name, text in self._members_of(group.dn):
                one = (
                    self.called(text)
                    if is_name
                    else self._one(text, base, self._whoever, attributes=attributes)
                )
                if one is not None and self._may_sign_in(*one):
                    yield one

    def _members_of(self, dn: str) -> Iterator[tuple[bool, str]]:
        """Yield whether it is a sign-in name, and the name or the distinguished name, of each
        member of a group."""
        wanted = [*MEMBERS, "memberUid"]
        try:
            found = self._search(dn, self._ldap.SCOPE_BASE, "(objectClass=*)", wanted, 1)
        except self._hidden:
            return  # `_roles` says so
        for _, entry in found:
            # Active Directory returns large groups in pieces, "member;range=0-1499". Only the
            # first piece is read here; other members get their roles when they sign in.
            for attribute, values in entry.items():
                for value in values[:MOST]:
                    yield attribute.lower() == "memberuid", value.decode(errors="replace")

    def _may_sign_in(self, dn: str, entry: Mapping[str, list[bytes]]) -> bool:
        """Return whether the entry is below the base of the site's searches, and not a group:
        groups have names, too, and a filter may let them in."""
        place, base = self._place(dn), self._place(self._rules.base)
        classes = {value.decode(errors="replace").lower() for value in entry.get("objectClass", ())}
        return place[-len(base) :] == base and not classes & GROUPS

    def _place(self, dn: str) -> list[list[tuple[str, str]]]:
        return [
            sorted((name.lower(), value.lower()) for name, value, _ in part)
            for part in self._parts(dn)
        ]

    def identity(self, dn: str, entry: Mapping[str, list[bytes]], name: str = "") -> Identity:
        """Return the identity of an entry. `name` is the sign-in name that was typed; '': take the
        entry's name."""
        own = _text(entry, self._rules.name_attribute)
        gid = _number(entry, "gidNumber")
        return Identity(
            _subject(dn, entry),
            "ldap",
            name or own or dn.partition("=")[2].partition(",")[0],
            _text(entry, "displayName") or _text(entry, "cn"),
            _text(entry, "mail"),
            _number(entry, "uidNumber"),
            gid,
            shell=_text(entry, TAKEN["shell"]),
            home=_text(entry, TAKEN["home"]),
            primary_group=self._group_name(gid),
            keys=self._keys(entry),
            roles=self._roles(dn, own),
        )

    def _keys(self, entry: Mapping[str, list[bytes]]) -> tuple[str, ...]:
        """Return the entry's SSH keys; none if the site does not take keys from the directory."""
        values = entry.get(TAKEN["keys"], []) if "keys" in self._rules.take else []
        return tuple(value.decode(errors="replace").strip() for value in values)

    # ------------------------------------------------ groups

    def _group_name(self, gid: int | None) -> str:
        if gid is None or not self._rules.group_base:
            return ""
        if gid not in self._group_names:
            wanted = f"(&(objectClass=posixGroup)(gidNumber={gid}))"
            found = self._one(
                self._rules.group_base, self._ldap.SCOPE_SUBTREE, wanted, attributes=["cn"]
            )
            self._group_names[gid] = "" if found is None else _text(found[1], "cn")
        return self._group_names[gid]

    def _roles(self, dn: str, name: str) -> tuple[GivenRole, ...] | None:
        """Return the roles that groups give to the entry. Return None if the directory hides one of
        the groups: that group may have been moved, so nobody loses a role."""
        dn, name = self._escaped(dn), self._escaped(name)
        wanted = "".join(f"({attribute}={dn})" for attribute in MEMBERS)
        wanted = f"(|{wanted}(memberUid={name}))" if name else f"(|{wanted})"
        found = []
        for group in self._rules.groups:
            try:
                is_in = self._search(group.dn, self._ldap.SCOPE_BASE, wanted, ["1.1"], 1)
            except self._hidden as error:
                if group.dn not in self._missing:
                    self._missing.add(group.dn)
                    log.error(
                        "[[ldap_group]] the directory does not show %s (%s): roles stay",
                        group.dn,
                        type(error).__name__,
                    )
                return None
            if is_in:
                role = Role.OWNER if group.role == "administrator" else Role(group.role)
                found.append(GivenRole(group.group, role))
        return tuple(found)

    # ------------------------------------------------ searches

    def _one(
        self, base: str, scope: int, wanted: str, *, attributes: list[str] | None = None
    ) -> Entry | None:
        """Return the entry that matches; None if no entry matches, or more than one."""
        try:
            found = self._search(base, scope, wanted, attributes or self._attributes, 2)
        except (
            self._ldap.NO_SUCH_OBJECT,
            self._ldap.SIZELIMIT_EXCEEDED,
            self._ldap.INVALID_DN_SYNTAX,
        ):
            return None
        return found[0] if len(found) == 1 else None

    def _search(
        self, base: str, scope: int, wanted: str, attributes: list[str], most: int
    ) -> list[Entry]:
        if self._monotonic() > self._end:
            raise self._ldap.TIMEOUT("it has not told everything in time")
        self._end += PROMPT
        found = self._connection.search_ext_s(base, scope, wanted, attributes, sizelimit=most)
        return [(dn, entry) for dn, entry in found if dn]  # referrals have none


def _reading(ldap: Any, rules: Ldap) -> Any:
    """Return a connection that is bound as the site's own user."""
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


def _subject(dn: str, entry: Mapping[str, list[bytes]]) -> str:
    return f"ldap:{_stays(dn, entry)}"[:LONGEST]


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
    """Return a POSIX number; None if the entry has none, or its value is no number."""
    text = _text(entry, name)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 11 else None


def _text(entry: Mapping[str, list[bytes]], name: str) -> str:
    return entry.get(name, [b""])[0].decode(errors="replace")
