"""Watches whether secondaries follow the site's zones. Each secondary is asked for its serials
(SOA). The site's administrators are told of a secondary that does not answer, serves none of the
zones, or has old copies, and when the trouble is over.

NOTIFY alone does not show this: a secondary may answer it and then fail to fetch the zone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from time import time
from typing import Any

import prometheus_client as prometheus
from twisted.internet.task import Cooperator

from cod.flows.boot import zones
from cod.model import SiteRef
from cod.net.dns.query_client import QueryClient
from cod.periodic import Periodic
from cod.pool import Pool
from cod.wire import dns as wire

PERIOD = 60.0  # seconds between two rounds; a round has that long for answers
PAUSE = 0.05  # seconds between a hundredth of a second's questions: machines boot by this process
LATE = 300.0  # seconds in which a secondary has to have a change, or to answer again
FEW = 5  # zones that a sentence names

SERIAL = prometheus.Gauge(
    "cod_dns_secondary_serial",
    "Serial of the site's zone at a secondary, as it last answered",
    ["secondary"],
    multiprocess_mode="mostrecent",
)
ZONES = prometheus.Gauge(
    "cod_dns_secondary_zones",
    "Zones at a secondary: current, behind, refused, silent",
    ["secondary", "state"],
    multiprocess_mode="mostrecent",
)

log = logging.getLogger("cod.dns")

Secondary = tuple[str, int]


class SecondaryWatch(Periodic):
    """The watch of one server. `name`: the server's, since each server may reach other
    secondaries."""

    def __init__(
        self,
        reactor: Any,
        pool: Pool,
        site: SiteRef,
        name: str,
        clock: Callable[[], float] = time,
        *,
        period: float = PERIOD,
    ) -> None:
        super().__init__(reactor, pool, log, "asking secondaries for serials", period)
        self._site, self._name, self._clock = site, name, clock
        self._queries = QueryClient(reactor)
        self._asking = Cooperator(scheduler=partial(reactor.callLater, PAUSE))
        # since when each zone has had its serials, the oldest first
        self._serials: dict[str, list[tuple[float, int]]] = {}
        self._answers: dict[Secondary, dict[str, int | None]] = {}
        self._asked: dict[Secondary, list[str]] = {}
        self._wrong: dict[Secondary, float] = {}
        self._reported: dict[Secondary, bool] = {}
        self._begun = False

    def startService(self) -> None:
        self._queries.start()
        self._asking.start()
        super().startService()

    def stopService(self) -> Any:
        """Stop. Questions without an answer are asked again at the next start."""
        self._asking.stop()
        self._queries.stop()
        return super().stopService()

    async def look(self) -> None:
        """Evaluate the answers of the last round, and begin another."""
        site, now = self._site.current, self._clock()
        found = await self._pool.read(zones.every, site) if site.dns.secondaries else []
        if not self._begun:  # the site file may have named others before
            await self._pool.run(
                zones.forget_secondaries,
                server=self._name,
                known=[f"{address}@{self._name}" for address, _ in site.dns.secondaries],
                now=now,
            )
            self._begun = True
        self._keep({zone.name: serial for zone, serial in found}, now)
        for secondary in site.dns.secondaries:
            if secondary in self._asked:
                await self._judge(secondary, now)
        self._answers = {secondary: {} for secondary in site.dns.secondaries}
        self._asked = {secondary: list(self._serials) for secondary in site.dns.secondaries}
        self._wrong = {one: at for one, at in self._wrong.items() if one in self._asked}
        self._queries.forget()
        self._asking.cooperate(self._round(self._answers))

    def _round(self, answers: dict[Secondary, dict[str, int | None]]) -> Iterator[None]:
        """Ask for all serials, one question a step. The next round ends this one."""
        for secondary, names in self._asked.items():
            for name in names:
                if answers is not self._answers:
                    return
                self._ask(secondary, name)
                yield

    def _ask(self, secondary: Secondary, name: str) -> None:
        answers = self._answers[secondary]

        def answered(data: bytes) -> None:
            answers[name] = wire.serial(data, name)

        self._queries.ask(partial(wire.serial_question, name), secondary, answered)

    def _keep(self, serials: Mapping[str, int], now: float) -> None:
        kept: dict[str, list[tuple[float, int]]] = {}
        for name, serial in serials.items():
            had = self._serials.get(name, [])
            if not had or had[-1][1] != serial:
                had = [*had, (now, serial)]
            while len(had) > 1 and had[1][0] <= now - LATE:
                had = had[1:]
            kept[name] = had
        self._serials = kept

    async def _judge(self, secondary: Secondary, now: float) -> None:
        asked = [name for name in self._asked[secondary] if name in self._serials]
        answers = self._answers[secondary]
        refused = [name for name in asked if name in answers and answers[name] is None]
        silent = [name for name in asked if name not in answers]
        behind = [name for name in asked if self._is_behind(name, answers.get(name), now)]
        count = {"refused": len(refused), "silent": len(silent), "behind": len(behind)}
        count["current"] = len(asked) - sum(count.values())
        for state, number in count.items():
            ZONES.labels(secondary[0], state).set(number)
        own = answers.get(self._site.current.domain)
        if own is not None:
            SERIAL.labels(secondary[0]).set(own)
        wrong = ""
        if asked and len(silent) == len(asked):
            wrong = "it does not answer"
        elif asked and len(refused) + len(silent) == len(asked):
            wrong = "it refuses questions about all of the site's zones"
        elif behind:
            names = ", ".join(sorted(behind)[:FEW])
            wrong = f"it has copies of more than {LATE:.0f} s ago of {len(behind)} zones: {names}"
            wrong += " and more" * (len(behind) > FEW)
        since = self._wrong.setdefault(secondary, now) if wrong else self._wrong.pop(secondary, now)
        # a copy that is behind has been behind for `LATE` seconds already
        reportable = not wrong or bool(behind) or now - since >= LATE
        if reportable and self._reported.get(secondary) != bool(wrong):
            await self._pool.run(
                zones.tell_of_secondary,
                secondary=f"{secondary[0]}@{self._name}",
                wrong=wrong,
                now=now,
            )
            self._reported[secondary] = bool(wrong)

    def _is_behind(self, name: str, has: int | None, now: float) -> bool:
        """Return whether a copy is older than the zone was `LATE` seconds ago (RFC 1982)."""
        at, serial = self._serials[name][0]
        return has is not None and at <= now - LATE and 0 < (serial - has) % 2**32 < 2**31
