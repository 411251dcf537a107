"""Searches of nodes in their vcluster's LDAP tree, answered from the present rows.

The client's address decides which tree it sees: a node that runs its own system at this address
sees the tree of its vcluster, any other client sees none. The names and numbers in the filter
decide which rows are read, all of that vcluster. Then the filter is evaluated on the entries that
are made of these rows. NIS maps are made of the same entries.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from heapq import merge
from operator import itemgetter

from cod.core import volumes
from cod.model import SITE as SITES_OWN
from cod.model import LdapAnswer, LdapCode, LdapEntry, LdapSearch, NisDomain, NodeTree, Site
from cod.policy.people import ldap_filter, ldap_tree, nis
from cod.policy.people.ldap_tree import (
    CONTAINER,
    GROUP,
    KINDS,
    MAP,
    MOUNT,
    NETGROUP,
    PERSON,
    SUDO,
    Kind,
)
from cod.store import views
from cod.store.engine import Tx
from cod.store.people import ldap_rows
from cod.store.scheduler import vclusters

MOST = 2000
"""Entries of one answer; a client gets more by asking for pages."""
ROWS = 500
"""Rows that are read at once."""
NOTHING = LdapAnswer(LdapCode.NO_SUCH_OBJECT, text="there is no such entry for this address")
Numbered = Iterable[tuple[int, LdapEntry]]


def search(tx: Tx, *, address: str, search: LdapSearch, site: Site) -> LdapAnswer:
    """Return the answer to the search of a client at that address."""
    tree = ldap_rows.tree_at(tx, address)
    if tree is None:
        return NOTHING
    return _Search(tx, _as_installed(tx, tree, search.base, site), search, site).answer()


def _as_installed(tx: Tx, tree: NodeTree, wanted: str, site: Site) -> NodeTree:
    """Return the tree with the vcluster's name that the DN `wanted` contains: a node that was
    installed before its vcluster was renamed uses the former name."""

    def is_in(name: str) -> bool:
        base = ldap_tree.base(name, site.domain)
        return f",{ldap_filter.normal_dn(wanted)}".endswith(f",{base}")

    if is_in(tree.vcluster):
        return tree
    former = vclusters.former_names(tx, tree.vcluster_id)
    return next((replace(tree, vcluster=name) for name in former if is_in(name)), tree)


def nis_domain(tx: Tx, *, name: str, site: Site) -> NisDomain:
    """Return a vcluster's tree as NIS maps, with the networks that may read them. A vcluster that
    has ended has empty maps and no network."""
    view = views.vcluster(tx, name)
    domain = f"{view.vcluster.name}.{site.domain}".lower()
    tree = ldap_rows.tree_of(tx, view.vcluster.id)
    if tree is None:
        return NisDomain(domain, (), nis.maps((), {}), (), ())
    networks = tuple(
        str(network)
        for one in view.addresses
        for network in ipaddress.summarize_address_range(
            ipaddress.IPv4Address(one.first), ipaddress.IPv4Address(one.last)
        )
    )
    everything = LdapSearch(
        ldap_tree.base(tree.vcluster, site.domain), 2, nis.FILTER, nis.ATTRIBUTES
    )
    maps = nis.maps(
        (entry for _, _, entry in _Search(tx, tree, everything, site).found(0, 0)),
        volumes.automounts(tx, tree.vcluster_id, site),
    )
    return NisDomain(
        domain,
        networks,
        maps,
        tuple(nis.securenets(networks)),
        tuple(nis.access_rules(networks, domain)),
    )


def naming_context(tx: Tx, *, address: str, site: Site) -> str:
    """Return the base DN of the tree that a client at that address sees; '' if it sees none."""
    tree = ldap_rows.tree_at(tx, address)
    return "" if tree is None else ldap_tree.base(tree.vcluster, site.domain)


def root(
    context: str, search: LdapSearch, controls: tuple[str, ...], operations: tuple[str, ...]
) -> LdapEntry:
    """Return the root DSE (RFC 4512 section 5.1): what the server offers, and the base of the
    client's tree."""
    return ldap_tree.shown(
        LdapEntry(
            "",
            {
                "objectClass": ("top",),
                "supportedLDAPVersion": ("3",),
                "supportedControl": controls,
                "supportedExtension": operations,
                "vendorName": ("Cluster-on-Demand",),
                **(
                    {"namingContexts": (context,), "defaultNamingContext": (context,)}
                    if context
                    else {}
                ),
            },
        ),
        search,
    )


class _Search:
    """One search in one tree."""

    def __init__(self, tx: Tx, tree: NodeTree, search: LdapSearch, site: Site) -> None:
        self._tx, self._tree, self._search, self._site = tx, tree, search, site
        self._rules = site.posix
        self._base = ldap_tree.base(tree.vcluster, site.domain)
        self._wanted = ldap_filter.normal_dn(search.base)
        self._admins = self._rules.administrators or tree.group == SITES_OWN
        naming, _, rest = self._wanted.partition("=")
        # the name of the entry at which the search begins, if it begins at an entry
        self._named = {naming: frozenset({rest.partition(",")[0]})}
        inside = self._wanted.count(",") > self._base.count(",") + 1
        narrowed = ldap_filter.narrowed(search.filter).values
        self._narrowed = ldap_filter.Narrowed({**narrowed, **self._named} if inside else narrowed)

    def answer(self) -> LdapAnswer:
        """Return the answer: the matching entries, at most a page of them."""
        if not ("," + self._wanted).endswith("," + self._base):
            return NOTHING
        asked, code = self._search, LdapCode.SUCCESS
        start = _cookie(asked.cookie) if asked.cookie else (0, 0, 0)
        if start is None:
            return LdapAnswer(
                LdapCode.UNWILLING, text="the cookie of this page is not one that this server gave"
            )
        place, after, given = start
        most = min(MOST, MOST if asked.page is None else asked.page)
        if asked.page == 0:  # RFC 2696: the client wants no more
            return LdapAnswer(LdapCode.SUCCESS)
        limit = asked.size - given if asked.size else most + 1
        found: list[LdapEntry] = []
        for kind, number, entry in self.found(place, after):
            if len(found) >= limit or (len(found) >= most and asked.page is None):
                code = LdapCode.SIZE_LIMIT
                break
            if len(found) >= most:
                return LdapAnswer(
                    LdapCode.SUCCESS, tuple(found), "", f"{place}:{after}:{given + len(found)}"
                )
            found.append(ldap_tree.shown(entry, asked))
            place, after = kind, number
        return LdapAnswer(code, tuple(found)) if found or code or self._exists() else NOTHING

    def found(self, place: int, after: int) -> Iterator[tuple[int, int, LdapEntry]]:
        """Yield matching entries, each with the index of its kind in `KINDS` and its number within
        the kind. Begin at the kind with the index `place`, with the first number above `after`."""
        for number, kind in enumerate(KINDS[place:], place):
            if self._may_hold(kind):
                for own, entry in _MAKES[kind](self, after if number == place else 0):
                    if ldap_tree.matching(entry, self._search, self._wanted):
                        yield number, own, entry

    def _may_hold(self, kind: Kind) -> bool:
        """Return whether entries of that kind can be in the search's scope, and can match."""
        unit = ldap_filter.normal_dn(ldap_tree.unit(kind, self._base))
        near = (
            kind is CONTAINER
            or f",{self._wanted}".endswith(f",{unit}")
            or (self._search.scope == 2 and self._wanted == self._base)
        )
        return near and ldap_filter.possible(
            self._search.filter, {each.lower() for each in kind.classes}, kind.known()
        )

    def _exists(self) -> bool:
        """Return whether the entry at which the search begins exists."""
        if self._wanted in (self._base, *(f"ou={kind.unit},{self._base}" for kind in KINDS)):
            return True
        self._narrowed = ldap_filter.Narrowed(self._named)
        return any(
            ldap_filter.normal_dn(entry.dn) == self._wanted
            for kind in KINDS
            if kind.naming.lower() in self._named
            for _, entry in _MAKES[kind](self, 0)
        )

    # ------------------------------------------------------------ kinds

    def containers(self, after: int) -> Numbered:
        """Return the tree's head and its units."""
        return _numbered(ldap_tree.containers(self._tree, self._base), after)

    def people(self, after: int) -> Numbered:
        """Yield the users' accounts."""
        names, uids, gids = (self._narrowed.of(each) for each in ("uid", "uidnumber", "gidnumber"))
        keyed = ldap_tree.wants(self._search, "sshpublickey")
        while True:
            rows = ldap_rows.users(
                self._tx,
                self._tree.group_id,
                self._admins,
                names=names,
                uids=_numbers(uids),
                gids=_numbers(gids),
                after=after,
                limit=ROWS,
            )
            keys = ldap_rows.keys(self._tx, [row.id for row in rows]) if keyed and rows else {}
            for row in rows:
                yield row.id, ldap_tree.person(row, keys.get(row.id, ()), self._rules, self._base)
            if len(rows) < ROWS:
                return
            after = rows[-1].id

    def groups(self, after: int) -> Numbered:
        """Yield the groups with numbers above `after`, in the order of their numbers. Number 1 is
        the group that holds the vcluster, with its members. The others are users' primary groups: a
        group of the user's own, or one that the site's directory gives to several users. Each has
        the id of its (first) user plus 1 as its number, and lists no members, since it is the
        users' entries that name it."""
        tree, names, gids = self._tree, self._narrowed.of("cn"), self._narrowed.of("gidnumber")
        if (
            after == 0
            and (names is None or tree.group.lower() in names)
            and (gids is None or str(tree.gid) in gids)
        ):
            listed = any(ldap_tree.wants(self._search, each) for each in ("memberuid", "member"))
            yield (
                1,
                ldap_tree.group(
                    tree, ldap_rows.members(self._tx, tree.group_id) if listed else (), self._base
                ),
            )
        if self._narrowed.of("memberuid", "member") is not None:
            return
        after = max(after - 1, 0)
        yield from merge(self._own_groups(after), self._shared_groups(after), key=itemgetter(0))

    def _own_groups(self, after: int) -> Numbered:
        names, gids = self._narrowed.of("cn"), self._narrowed.of("gidnumber")
        names = None if names is None else names | {name.removesuffix("-user") for name in names}
        while True:
            rows = ldap_rows.users(
                self._tx,
                self._tree.group_id,
                self._admins,
                names=names,
                gids=_numbers(gids),
                after=after,
                limit=ROWS,
            )
            for row in rows:
                own = ldap_tree.own_group(row, self._tree, self._base)
                if own is not None:
                    yield row.id + 1, own
            if len(rows) < ROWS:
                return
            after = rows[-1].id

    def _shared_groups(self, after: int) -> Numbered:
        """Yield primary groups of the directory. Each has the number of its first user's own group,
        which does not exist."""
        tree, seen = self._tree, {self._tree.group}
        for first, name, gid in ldap_rows.primary_groups(self._tx, tree.group_id, self._admins):
            if name not in seen and gid != tree.gid and first > after:
                yield first + 1, ldap_tree.primary_group(name, gid, self._base)
            seen.add(name)

    def netgroups(self, after: int) -> Numbered:
        """Return the netgroups."""
        return _numbered(
            ldap_tree.netgroups(
                self._tree,
                ldap_rows.hosts(self._tx, self._tree.vcluster_id),
                ldap_rows.members(self._tx, self._tree.group_id),
                self._site.domain,
                self._base,
            ),
            after,
        )

    def sudo(self, after: int) -> Numbered:
        """Return the rules of sudo."""
        people = ldap_rows.users(self._tx, self._tree.group_id, self._admins, limit=MOST)
        return _numbered(ldap_tree.sudo_rules(self._tree, people, self._rules, self._base), after)

    def maps(self, after: int) -> Numbered:
        """Return the maps of the automounter."""
        return _numbered(ldap_tree.automounts(self._automounts(), self._base)[0], after)

    def mounts(self, after: int) -> Numbered:
        """Return the entries of the automounter's maps."""
        return _numbered(ldap_tree.automounts(self._automounts(), self._base)[1], after)

    def _automounts(self) -> dict[str, dict[str, str]]:
        return volumes.automounts(self._tx, self._tree.vcluster_id, self._site)


_MAKES: dict[Kind, Callable[[_Search, int], Numbered]] = {
    CONTAINER: _Search.containers,
    PERSON: _Search.people,
    GROUP: _Search.groups,
    NETGROUP: _Search.netgroups,
    SUDO: _Search.sudo,
    MAP: _Search.maps,
    MOUNT: _Search.mounts,
}


def _numbered(entries: Iterable[LdapEntry], after: int) -> Numbered:
    return ((number, entry) for number, entry in enumerate(entries, 1) if number > after)


def _numbers(texts: frozenset[str] | None) -> set[int] | None:
    """Return the numbers that a filter's texts stand for, without those that the database cannot
    have; None: the filter names none."""
    if texts is None:
        return None
    return {int(text) for text in texts if text.isascii() and text.isdigit() and len(text) < 12}


def _cookie(text: str) -> tuple[int, int, int] | None:
    """Return the three numbers of a page's cookie: index of the kind, number of the last entry, and
    count of entries. Return None for any other text."""
    parts = text.split(":")
    if len(parts) != 3 or not all(
        part.isascii() and part.isdigit() and len(part) < 16 for part in parts
    ):
        return None
    kind, number, count = map(int, parts)
    return (kind, number, count) if kind < len(KINDS) else None
