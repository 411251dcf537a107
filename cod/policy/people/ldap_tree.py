"""The LDAP tree of a vcluster: names of its entries, and their attributes (RFC 2307, RFC 2307bis).
Pure.

::

    dc=pool,dc=cod,dc=internal     the vcluster `pool` of the site whose domain is cod.internal
        ou=people                  users who may log in: posixAccount, ldapPublicKey
        ou=groups                  the vcluster's group, and each user's own: posixGroup with
                                   memberUid and member
        ou=netgroups               the netgroups `nodes` and `members`: nisNetgroup
        ou=sudoers                 rules of sudo: sudoRole
        ou=automount               mounts: automountMap, automount
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cod.model import LdapEntry, LdapSearch, NodeTree, NodeUser, PosixRules
from cod.policy.people import ldap_filter

Attributes = Mapping[str, tuple[str, ...]]
MASTER = "auto.master"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of entries: the unit that contains them ('': the tree's containers themselves), the
    attribute that names them, their object classes and attributes."""

    unit: str
    naming: str
    classes: tuple[str, ...]
    attributes: tuple[str, ...]

    def known(self) -> frozenset[str]:
        """Return the names of the attributes in lower case."""
        return frozenset(each.lower() for each in ("objectClass", *self.attributes))


CONTAINER = Kind("", "ou", ("top", "dcObject", "domain", "organizationalUnit"), ("dc", "ou"))
PERSON = Kind(
    "people",
    "uid",
    ("top", "person", "organizationalPerson", "inetOrgPerson", "posixAccount", "ldapPublicKey"),
    (
        "uid",
        "cn",
        "sn",
        "displayName",
        "mail",
        "uidNumber",
        "gidNumber",
        "homeDirectory",
        "loginShell",
        "gecos",
        "sshPublicKey",
    ),
)
GROUP = Kind(
    "groups",
    "cn",
    ("top", "groupOfNames", "posixGroup"),
    ("cn", "gidNumber", "memberUid", "member"),
)
NETGROUP = Kind("netgroups", "cn", ("top", "nisNetgroup"), ("cn", "nisNetgroupTriple"))
SUDO = Kind(
    "sudoers",
    "cn",
    ("top", "sudoRole"),
    ("cn", "sudoUser", "sudoHost", "sudoRunAsUser", "sudoRunAsGroup", "sudoCommand", "sudoOption"),
)
MAP = Kind("automount", "automountMapName", ("top", "automountMap"), ("automountMapName",))
MOUNT = Kind(
    "automount", "automountKey", ("top", "automount"), ("automountKey", "automountInformation")
)
KINDS = (CONTAINER, NETGROUP, SUDO, MAP, MOUNT, GROUP, PERSON)
"""All kinds, in the order in which a search returns them: kinds with few rows first."""


def base(vcluster: str, domain: str) -> str:
    """Return the distinguished name of a vcluster's tree."""
    return ",".join(f"dc={label}" for label in (vcluster, *domain.lower().split(".")))


def unit(kind: Kind, base: str) -> str:
    """Return the distinguished name of the unit that a kind's entries are in."""
    return f"ou={kind.unit},{base}"


# ---------------------------------------------------------------- entries


def containers(tree: NodeTree, base: str) -> list[LdapEntry]:
    """Return the entries of the tree's root and of its units."""
    units = sorted({kind.unit for kind in KINDS if kind.unit})
    head = {"objectClass": ("top", "dcObject", "domain"), "dc": (tree.vcluster,)}
    return [LdapEntry(base, head)] + [
        LdapEntry(
            f"ou={each},{base}", {"objectClass": ("top", "organizationalUnit"), "ou": (each,)}
        )
        for each in units
    ]


def person(user: NodeUser, keys: Sequence[str], rules: PosixRules, base: str) -> LdapEntry:
    """Return a user's account. `keys`: lines of authorized_keys."""
    shown = user.full_name.strip() or user.name
    return _entry(
        PERSON,
        user.name,
        base,
        {
            "uid": (user.name,),
            "cn": (shown,),
            "sn": (shown.split()[-1],),
            "displayName": (shown,),
            "mail": (user.email,) if user.email else (),
            "uidNumber": (str(user.uid),),
            "gidNumber": (str(user.gid),),
            "homeDirectory": (user.home or rules.home.format(name=user.name),),
            "loginShell": (user.shell or rules.shell,),
            "gecos": (_gecos(shown),),
            "sshPublicKey": tuple(keys),
        },
    )


def _gecos(name: str) -> str:
    """Return a full name for a field of the password file: in ASCII, without colons and commas,
    which separate fields."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return (
        " ".join(
            "".join(
                each if each.isprintable() and each not in ":," else " " for each in plain
            ).split()
        )
        or "-"
    )


def own_group(user: NodeUser, tree: NodeTree, base: str) -> LdapEntry | None:
    """Return the entry of the user's own primary group; None: another group is the user's primary
    group."""
    if user.gid != user.uid:
        return None
    return _entry(
        GROUP, own_group_name(user.name, tree), base, {"gidNumber": (str(user.gid),)}, named=True
    )


def primary_group(name: str, gid: int, base: str) -> LdapEntry:
    """Return the entry of a group of the site's directory that is a primary group of users."""
    return _entry(GROUP, name, base, {"gidNumber": (str(gid),)}, named=True)


def own_group_name(user: str, tree: NodeTree) -> str:
    """Return the name of the user's own group: the user's name, unless the vcluster's group has
    that name."""
    return f"{user}-user" if user == tree.group else user


def group(tree: NodeTree, members: Iterable[str], base: str) -> LdapEntry:
    names = tuple(members)
    return _entry(
        GROUP,
        tree.group,
        base,
        {
            "gidNumber": (str(tree.gid),),
            "memberUid": names,
            "member": tuple(f"uid={name},{unit(PERSON, base)}" for name in names),
        },
        named=True,
    )


def netgroups(
    tree: NodeTree, hosts: Iterable[str], members: Iterable[str], domain: str, base: str
) -> list[LdapEntry]:
    """Return the netgroups of the vcluster's nodes and of its people."""
    nodes = tuple(f"({host}.{tree.vcluster}.{domain},-,)" for host in hosts)
    people = tuple(f"(-,{name},)" for name in members)
    return [
        _entry(NETGROUP, name, base, {"nisNetgroupTriple": triples}, named=True)
        for name, triples in (("members", people), ("nodes", nodes))
    ]


def sudo_rules(
    tree: NodeTree, users: Iterable[NodeUser], rules: PosixRules, base: str
) -> list[LdapEntry]:
    """Return the entries of sudo rules by the site's `sudo` setting. No password is asked for,
    because accounts have none on nodes.

    Owners and site administrators are named by their numbers, so that a local account of the image
    with the same name gains no rights. Members are covered by their group: SSSD caches rules for a
    while, but looks up groups at each login.
    """
    if rules.sudo == "none":
        return []
    whole = rules.sudo == "members"
    # owners, and administrators of the site
    single = [f"#{user.uid}" for user in users if user.role != "member"]
    found = {"members": [f"%{tree.group}"] if whole else [], "owners": single}
    return [
        _entry(
            SUDO,
            name,
            base,
            {
                "sudoUser": tuple(who),
                "sudoHost": ("ALL",),
                "sudoRunAsUser": ("ALL",),
                "sudoRunAsGroup": ("ALL",),
                "sudoCommand": ("ALL",),
                "sudoOption": ("!authenticate",),
            },
            named=True,
        )
        for name, who in found.items()
        if who
    ]


def automounts(
    maps: Mapping[str, Mapping[str, str]], base: str
) -> tuple[list[LdapEntry], list[LdapEntry]]:
    """Return the entries of the maps, and the entries inside them. There is always a master map."""
    heads, mounts = [], []
    for name, found in {MASTER: {}, **maps}.items():
        head = _entry(MAP, name, base, {}, named=True)
        heads.append(head)
        mounts += [
            LdapEntry(
                f"automountKey={key},{head.dn}",
                {
                    "objectClass": MOUNT.classes,
                    "automountKey": (key,),
                    "automountInformation": (where,),
                },
            )
            for key, where in found.items()
        ]
    return heads, mounts


def _entry(
    kind: Kind, name: str, base: str, attributes: Attributes, *, named: bool = False
) -> LdapEntry:
    """Return an entry of a unit; `named`: its naming attribute is not among the attributes yet."""
    own = {kind.naming: (name,)} if named else {}
    values = {key: value for key, value in attributes.items() if value}
    return LdapEntry(
        f"{kind.naming}={name},{unit(kind, base)}", {"objectClass": kind.classes, **own, **values}
    )


# ---------------------------------------------------------------- searches


def in_scope(dn: str, base: str, scope: int) -> bool:
    """Return whether the entry `dn` is in a search's scope below `base`; both names are in normal
    form."""
    if scope == 0 or dn == base:
        return dn == base and scope != 1
    if not dn.endswith(f",{base}"):
        return False
    return scope == 2 or "," not in dn[: -len(base) - 1]


def wants(search: LdapSearch, attribute: str) -> bool:
    """Return whether a search returns an attribute (in lower case) or uses it in its filter."""
    return (
        not search.attributes
        or "*" in search.attributes
        or attribute in search.attributes
        or _asks(search, attribute)
    )


def _asks(search: LdapSearch, attribute: str) -> bool:
    left = [search.filter]
    while left:
        one = left.pop()
        if one.attribute == attribute:
            return True
        left += one.parts
    return False


def lowered(entry: LdapEntry) -> dict[str, tuple[str, ...]]:
    """Return an entry's values by attribute names in lower case, as filters compare them."""
    return {name.lower(): values for name, values in entry.attributes.items()}


def shown(entry: LdapEntry, search: LdapSearch) -> LdapEntry:
    """Return the entry with only the attributes that a search requests."""
    every = (
        not search.attributes
        or "*" in search.attributes
        or (not entry.dn and "+" in search.attributes)
    )
    return LdapEntry(
        entry.dn,
        {
            name: () if search.types_only else values
            for name, values in entry.attributes.items()
            if every or name.lower() in search.attributes
        },
    )


def matching(entry: LdapEntry, search: LdapSearch, base: str) -> bool:
    """Return whether a search finds the entry. `base`: the search's base in normal form."""
    return in_scope(ldap_filter.normal_dn(entry.dn), base, search.scope) and ldap_filter.matches(
        search.filter, lowered(entry)
    )
