"""The hosts of the site's database, each asked by itself, and how far each is behind the others."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from cod.core.database.writer import PATIENCE
from cod.model import DatabaseHost, HostPart
from cod.store.mariadb import host as mariadb


class DatabaseHosts:
    """The hosts of the database. `seen`: what they said at the last look; () before the first."""

    def __init__(self, urls: Mapping[str, str]) -> None:
        """`urls`: of the hosts, by HOST:PORT. A database in a file has none."""
        self._urls = {host: url for host, url in urls.items() if not url.startswith("sqlite")}
        self.seen: tuple[DatabaseHost, ...] = ()

    def look(self) -> tuple[DatabaseHost, ...]:
        """Ask all hosts at the same time, which takes `PATIENCE` where one hangs; return `seen`.

        A host is behind when it lacks the last signs of life of the server's parts, each of which
        renews its row by its own clock every few seconds.
        """
        if not self._urls:
            return ()
        ask = partial(mariadb.ask, patience=PATIENCE)
        with ThreadPoolExecutor(len(self._urls), "db-hosts") as threads:
            answers = list(threads.map(ask, self._urls, self._urls.values()))
        newest: dict[tuple[str, str], float] = {}
        for _, parts in answers:
            for each in parts or ():
                key = each.server, each.part
                newest[key] = max(each.seen_at, newest.get(key, each.seen_at))
        self.seen = tuple(replace(host, behind=_behind(parts, newest)) for host, parts in answers)
        return self.seen


def _behind(parts: list[HostPart] | None, newest: Mapping[tuple[str, str], float]) -> float | None:
    if parts is None:
        return None
    return max((newest[each.server, each.part] - each.seen_at for each in parts), default=0.0)
