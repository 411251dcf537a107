"""The database's hosts, and the lease that says which of them is the writer."""

from __future__ import annotations

import re
from dataclasses import dataclass

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
