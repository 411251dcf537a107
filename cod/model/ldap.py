"""Records that the LDAP server's layers exchange: searches, filters, entries, answers (RFC
4511)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum


class LdapCode(IntEnum):
    """Result codes of RFC 4511 that COD returns."""

    SUCCESS = 0
    OPERATIONS_ERROR = 1
    PROTOCOL_ERROR = 2
    TIME_LIMIT = 3
    SIZE_LIMIT = 4
    AUTH_METHOD = 7
    CRITICAL_EXTENSION = 12
    NO_SUCH_OBJECT = 32
    INVALID_DN = 34
    INAPPROPRIATE_AUTHENTICATION = 48
    BUSY = 51
    UNWILLING = 53
    OTHER = 80


@dataclass(frozen=True, slots=True)
class LdapFilter:
    """One node of a search filter.

    kind       'and', 'or', 'not', 'equal', 'substrings', 'at_least', 'at_most', 'present', or
               'unknown' for a matching rule that COD does not support
    attribute  in lower case, without options; '' for the first three kinds
    values     values to compare with; for substrings the initial part, the middle parts, and the
               final part ('': no initial or final part)
    parts      the filters inside an 'and', 'or' or 'not'
    """

    kind: str
    attribute: str = ""
    values: tuple[str, ...] = ()
    parts: tuple[LdapFilter, ...] = ()


@dataclass(frozen=True, slots=True)
class LdapSearch:
    """A search.

    scope       0: the base alone; 1: one level below it; 2: the base and everything below it
    attributes  requested attributes in lower case; (): all
    size        the most entries to return; 0: no limit by the client
    types_only  return attributes without their values
    page        entries of a page (RFC 2696); None: all entries in one answer
    cookie      where the page begins; '': the first page
    """

    base: str
    scope: int
    filter: LdapFilter
    attributes: tuple[str, ...] = ()
    size: int = 0
    types_only: bool = False
    page: int | None = None
    cookie: str = ""


@dataclass(frozen=True, slots=True)
class LdapEntry:
    """An entry: its distinguished name, and its attributes' values by name."""

    dn: str
    attributes: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class LdapAnswer:
    """The result of a search. `cookie`: where the next page begins, '' after the last page; `text`:
    a message for people."""

    code: LdapCode
    entries: tuple[LdapEntry, ...] = ()
    text: str = ""
    cookie: str = ""


@dataclass(frozen=True, slots=True)
class NodeTree:
    """The vcluster of the node that searches, with the values that its LDAP tree needs."""

    vcluster_id: int
    vcluster: str
    group_id: int
    group: str
    gid: int | None


@dataclass(frozen=True, slots=True)
class NodeUser:
    """A user with an account on a vcluster's nodes. `role`: the user's role in the vcluster's
    group; 'viewer' or '' for a site administrator who has the account only as such. `shell`,
    `home`: '': the site's default."""

    id: int
    name: str
    full_name: str
    email: str
    uid: int
    gid: int
    role: str
    shell: str = ""
    home: str = ""


@dataclass(frozen=True, slots=True)
class NisDomain:
    """A vcluster's accounts for NIS.

    name      name of the NIS domain
    networks  the vcluster's addresses, as ADDRESS/BITS
    maps      lines "KEY VALUE" of each map, by the map's name
    securenets    lines of ypserv's file securenets
    access_rules  lines of ypserv's file ypserv.conf
    """

    name: str
    networks: tuple[str, ...]
    maps: Mapping[str, list[str]]
    securenets: tuple[str, ...]
    access_rules: tuple[str, ...]
