"""NIS maps of a vcluster, made from the entries of its LDAP tree. Pure.

A map is a list of lines "KEY VALUE", the input of makedbm(8).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping

from cod.model import LdapEntry, LdapFilter
from cod.policy.people import ldap_tree
from cod.policy.people.ldap_tree import GROUP, NETGROUP, PERSON

SHOWN = (PERSON, GROUP, NETGROUP)
FILTER = LdapFilter(
    "or", parts=tuple(LdapFilter("equal", "objectclass", (kind.classes[-1],)) for kind in SHOWN)
)
ATTRIBUTES = tuple(
    each.lower() for kind in SHOWN for each in kind.attributes if each != "sshPublicKey"
)
"""Attributes that the maps are made from. NIS has no place for SSH keys."""
LONGEST = 800
"""Most bytes of members in one line."""
ALWAYS = (
    "passwd.byname",
    "passwd.byuid",
    "group.byname",
    "group.bygid",
    "netgroup",
    "netgroup.byuser",
    "netgroup.byhost",
    ldap_tree.MASTER,
)
"""Maps that exist even when they are empty: a client asks for each."""


def maps(
    entries: Iterable[LdapEntry], automounts: Mapping[str, Mapping[str, str]]
) -> dict[str, list[str]]:
    """Return the lines of each map. Passwords are `*`, with which no login is possible."""
    found: dict[str, list[str]] = {name: [] for name in ALWAYS}

    def one(entry: LdapEntry, name: str) -> str:
        return entry.attributes.get(name, ("",))[0]

    for entry in entries:
        classes = entry.attributes["objectClass"]
        if classes == PERSON.classes:
            fields = ("uidNumber", "gidNumber", "gecos", "homeDirectory", "loginShell")
            line = ":".join((one(entry, "uid"), "*", *(one(entry, field) for field in fields)))
            found["passwd.byname"].append(f"{one(entry, 'uid')} {line}")
            found["passwd.byuid"].append(f"{one(entry, 'uidNumber')} {line}")
        elif classes == GROUP.classes:
            name, number = one(entry, "cn"), one(entry, "gidNumber")
            lines = [
                f"{called}:*:{number}:{piece}"
                for called, piece in _pieces(name, entry.attributes.get("memberUid", ()), ",")
            ]
            found["group.byname"] += [f"{line.partition(':')[0]} {line}" for line in lines]
            # a number can have only one line; further pieces are found only by their names
            found["group.bygid"].append(f"{number} {lines[0]}")
        elif classes == NETGROUP.classes:
            triples = entry.attributes.get("nisNetgroupTriple", ())
            pieces = _pieces(one(entry, "cn"), triples, " ")
            for (called, piece), (following, _) in zip(
                pieces, [*pieces[1:], ("", "")], strict=True
            ):
                found["netgroup"].append(f"{called} {piece} {following}".rstrip())
            for triple in triples:
                host, user, _ = triple.strip("()").split(",")
                for place, key in (("byhost", host), ("byuser", user)):
                    if key not in ("", "-"):  # keys are NAME.DOMAIN; * is any
                        found[f"netgroup.{place}"].append(f"{key}.* {one(entry, 'cn')}")
    for name, mounts in automounts.items():
        found[name] = [f"{key} {where}" for key, where in mounts.items()]
    return found


def _pieces(name: str, values: Iterable[str], separator: str) -> list[tuple[str, str]]:
    """Return (name, joined values) for each line that an entry is divided into, at least one; the
    names of further lines are NAME.2, NAME.3 and so on.

    Lines must be short because makedbm leaves out values of more than 1,024 bytes. A group in
    several lines has several names and one number; a netgroup includes the netgroup of the next
    line.
    """
    pieces = [""]
    for value in values:
        if pieces[-1] and len(pieces[-1]) + len(value) > LONGEST:
            pieces.append("")
        pieces[-1] += separator + value if pieces[-1] else value
    return [
        (name if place == 1 else f"{name}.{place}", piece) for place, piece in enumerate(pieces, 1)
    ]


def securenets(networks: Iterable[str]) -> list[str]:
    """Return the lines of ypserv's securenets file that let those networks in."""
    return [f"{one.netmask} {one.network_address}" for one in map(ipaddress.IPv4Network, networks)]


def access_rules(networks: Iterable[str], domain: str) -> list[str]:
    """Return the rules of ypserv.conf(5) that show the domain to those networks."""
    return [
        f"{one.network_address}/{one.netmask} : {domain} : * : none"
        for one in map(ipaddress.IPv4Network, networks)
    ]
