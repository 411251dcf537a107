"""The database's hosts, and the lease that says which of them is the writer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

_URL = re.compile(r"(?P<before>[\w+]+://(?:[^@]*@)?)(?P<hosts>[^/?]*)(?P<after>.*)", re.DOTALL)
_PORT = ":3306"


def database_urls(url: str) -> dict[str, str]:
    """Return the URL of each host that a database URL names, by HOST:PORT, in the URL's order:
    ``mysql+pymysql://cod@db1,db2:3307/cod`` has the hosts ``db1:3306`` and ``db2:3307``.

    Raises `ValueError` with a message for people.
    """
    found = _URL.fullmatch(url)
    if found is None:
        raise ValueError("should be a URL such as sqlite:////var/lib/cod/cod.db")
    hosts = found["hosts"].split(",")
    urls = {_with_port(each): f"{found['before']}{each}{found['after']}" for each in hosts}
    if len(urls) < len(hosts) or (len(hosts) > 1 and not all(hosts)):
        raise ValueError("should name each host once, with commas between them")
    if len(hosts) > 1 and not url.startswith(("mysql+pymysql:", "mariadb+pymysql:")):
        raise ValueError("should begin with mysql+pymysql:// where it names several hosts")
    return urls


def _with_port(host: str) -> str:
    return host if re.search(r":\d+$", host) else host + _PORT


@dataclass(frozen=True, slots=True)
class DatabaseLease:
    """The row of `database_lease`, which names the writer among the database's hosts.

    host     HOST:PORT as in the database's URL; '': none yet
    epoch    increased by 1 with each change of the host
    beat     increased by 1 with each renewal
    seconds  a process that has seen neither number change for so long may take the lease over
    """

    host: str
    epoch: int
    beat: int
    seconds: float


@dataclass(frozen=True, slots=True)
class DatabaseHost:
    """A host of the database, as it described itself when it was asked last.

    name          HOST:PORT as in the database's URL
    reason        why the host did not answer; '': it did
    is_writable   the host accepts writes, which a replica does not
    cluster_size  nodes of its Galera cluster; 0: it is in none
    node_state    of a Galera node, e.g. Synced
    lossy         settings with which a power cut may lose a reported commit
    behind        seconds of the other hosts' newest commits that the host lacks; None: not known
    is_writer     the site's servers write to it
    """

    name: str
    reason: str = ""
    is_writable: bool = False
    cluster_size: int = 0
    node_state: str = ""
    lossy: tuple[str, ...] = ()
    behind: float | None = None
    is_writer: bool = False

    @property
    def role(self) -> Literal["primary", "replica", "galera", ""]:
        """Return 'primary', 'replica' or 'galera'; '' if the host did not answer."""
        if self.reason:
            return ""
        if self.cluster_size:
            return "galera"
        return "primary" if self.is_writable else "replica"
