"""The starts of waiting requests by way of the database: told by a process of their own, compared
with what happens."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, insert, select, update
from twisted.internet.task import Clock

from cod.core import request_starts
from cod.flows import views
from cod.flows.scheduler import plan, starts
from cod.flows.scheduler import vclusters as owner_flows
from cod.model import AskedVcluster, ExpectedStart, Site, SiteRef
from cod.policy.reservations.starts import predicted
from cod.service import parts
from cod.store import claims
from cod.store import tables as t
from cod.store.scheduler import requests
from cod.store.scheduler import starts as start_rows
from cod.workers.starts import AGAIN, CLAIM, PERIOD, REST, StartForecasts
from tests.contexts import flow_context
from tests.net.handpool import HandPool
from tests.store.manager_world import furnish, in_tx, run_pass

LEASE, NOW = 7200.0, 1000.0


class Processes(Clock):
    """A clock that also runs processes: at once, or when `finish` is called; `spoilt`: they
    fail."""

    def __init__(self) -> None:
        super().__init__()
        self.programs: list[list[str]] = []
        self.killed = 0
        self.spoilt = self.slow = False

    def spawnProcess(self, child: Any, name: str, words: list[str], environment: Any) -> None:
        self.programs.append(words)
        self._child, self._input = child, b""
        child.transport = self
        child.connectionMade()
        if not self.slow:
            self.finish()

    def write(self, data: bytes) -> None:
        self._input += data

    def closeStdin(self) -> None:
        pass

    def finish(self) -> None:
        if self.spoilt:
            self._child.errReceived(b"out of memory")
        else:
            self._child.outReceived(pickle.dumps(predicted(*pickle.loads(self._input))))
        ended = type("Ended", (), {"exitCode": 1 if self.spoilt else 0})()
        self._child.processEnded(type("Reason", (), {"value": ended})())

    def signalProcess(self, name: str) -> None:
        self.killed += 1
        self.spoilt = True
        self.finish()


class House:
    """A site of two nodes that one vcluster holds for two hours; another waits for both."""

    def __init__(self, engine: Engine, site: Site) -> None:
        self.engine, self.reactor, self.pool = engine, Processes(), HandPool(engine)
        self.site = replace(site, policy=replace(site.policy, lease_warnings=()))
        in_tx(engine, furnish, 2)
        self.reactor.advance(NOW)
        self.ask("one", 2)
        in_tx(engine, run_pass, self.site, NOW)
        self.request = self.ask("two", 2)
        self.teller = StartForecasts(
            self.reactor,
            self.pool,
            SiteRef(self.site),
            "a",
            self.reactor.seconds,
            parts.STARTS,
        )

    def ask(self, name: str, size: int) -> int:
        in_tx(
            self.engine,
            owner_flows.create,
            flow_context(self.site, self.reactor.seconds()),
            AskedVcluster(name=name, size=size, template="debian", group="site", lease=LEASE),
        )
        return max(int(one.id) for one in in_tx(self.engine, requests.every))

    def told(self) -> ExpectedStart | None:
        told: ExpectedStart | None = in_tx(self.engine, views.request, self.request).start
        return told

    def due(self) -> float:
        policy = self.site.policy
        return NOW + LEASE + policy.drain_grace + policy.turnaround

    def row(self) -> Any:
        row = t.request_starts.c
        return in_tx(
            self.engine,
            lambda tx: tx.execute(select(t.request_starts).where(row.request_id == self.request)),
        ).one_or_none()


@pytest.fixture
def house(engine: Engine, site: Site) -> House:
    return House(engine, site)


@pytest.mark.slow
def test_a_waiting_request_is_told_when_it_will_start(house: House) -> None:
    assert house.told() is None
    house.teller.startService()
    house.reactor.advance(PERIOD)
    told = house.told()
    assert told is not None
    assert told.at == pytest.approx(house.due(), abs=5.0)
    assert house.reactor.programs == [list(parts.STARTS)]
    said = in_tx(house.engine, request_starts.sentence, told, house.reactor.seconds())
    assert said.startswith("It is expected to start in 2")
    house.teller.stopService()


@pytest.mark.slow
def test_nothing_is_reckoned_while_nothing_changes(house: House) -> None:
    house.teller.startService()
    for _ in range(20):
        house.reactor.advance(PERIOD)
    assert len(house.reactor.programs) == 1
    house.reactor.advance(AGAIN)
    assert len(house.reactor.programs) == 2
    house.teller.stopService()


@pytest.mark.slow
def test_after_long_work_it_rests(house: House) -> None:
    house.reactor.slow = True
    house.teller.startService()
    house.reactor.advance(PERIOD)
    house.reactor.advance(20.0)
    house.reactor.finish()
    house.ask("three", 1)
    for _ in range(int(20 * REST / PERIOD) - 1):
        house.reactor.advance(PERIOD)
    assert len(house.reactor.programs) == 1
    house.reactor.advance(2 * PERIOD)
    assert len(house.reactor.programs) == 2
    house.reactor.finish()
    house.teller.stopService()


def test_it_ends_at_once_with_its_process(house: House) -> None:
    house.reactor.slow = True
    house.teller.startService()
    house.reactor.advance(PERIOD)
    ended: list[object] = []
    house.teller.stopService().addCallback(ended.append)
    assert (len(ended), house.reactor.killed) == (1, 1)
    assert house.told() is None


def test_a_process_that_fails_leaves_what_was_told(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    house.teller.startService()
    house.reactor.advance(PERIOD)
    before = house.told()
    house.reactor.spoilt = True
    house.reactor.advance(AGAIN)
    assert "out of memory" in caplog.text
    assert house.told() == before is not None
    house.teller.stopService()


def test_one_server_alone_tells(house: House) -> None:
    other = in_tx(house.engine, claims.hold, "starts", "b", NOW, 1e6, None)
    assert other is not None
    house.teller.startService()
    house.reactor.advance(PERIOD)
    assert house.reactor.programs == []
    house.teller.stopService()


def test_what_is_compared_with_an_earlier_look_is_of_one_moment(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On MariaDB lists are believed to be the same by their digests, which have to be theirs."""
    asked: list[Any] = []
    snapshot = house.pool.snapshot

    def note(flow: Any, *args: Any) -> Any:
        asked.append(flow)
        return snapshot(flow, *args)

    monkeypatch.setattr(house.pool, "snapshot", note)
    house.teller.startService()
    house.reactor.advance(PERIOD)
    assert asked == [starts.look]
    house.teller.stopService()


def test_the_claim_is_kept_while_its_server_rests(house: House) -> None:
    house.reactor.slow = True
    house.teller.startService()
    house.reactor.advance(PERIOD)
    house.reactor.advance(CLAIM / 2)
    house.reactor.finish()
    for _ in range(int(REST * CLAIM / 2 / PERIOD) - 1):
        house.reactor.advance(PERIOD)
    claim = in_tx(house.engine, claims.find, "starts")
    assert claim is not None
    assert claim.expires_at > house.reactor.seconds()
    house.teller.stopService()


@pytest.mark.slow
def test_the_process_says_what_the_policy_says(house: House) -> None:
    seen = in_tx(house.engine, plan.look, house.site, NOW)
    question = starts.question(seen, house.site, NOW)
    done = subprocess.run(parts.STARTS, input=question, capture_output=True, check=True)
    assert pickle.loads(done.stdout) == predicted(seen.site, house.site.policy, NOW)
    assert parts.STARTS[0] == sys.executable


def test_who_has_lost_the_claim_meanwhile_tells_nothing(house: House) -> None:
    house.reactor.slow = True
    house.teller.startService()
    house.reactor.advance(PERIOD)
    house.reactor.advance(2 * CLAIM)
    late = house.reactor.seconds()
    over = in_tx(house.engine, claims.find, "starts")
    assert in_tx(house.engine, claims.hold, "starts", "b", late, 1e6, over=over) is not None
    house.reactor.finish()
    assert house.row() is None
    house.teller.stopService()


def test_a_process_that_cannot_be_made_does_not_keep_it_from_ending(house: House) -> None:
    def fail(*_: Any) -> None:
        raise OSError("no memory")

    house.reactor.spawnProcess = fail  # type: ignore[assignment, method-assign]
    house.teller.startService()
    house.reactor.advance(PERIOD)
    house.teller.stopService()
    assert house.row() is None


# ---------------------------------------------------------------- told against happened


def decide(house: House, state: str, at: float) -> None:
    rows = t.node_requests
    change = update(rows).where(rows.c.id == house.request).values(state=state, decided_at=at)
    in_tx(house.engine, lambda tx: tx.execute(change))


def test_what_was_told_first_is_compared_with_what_happens(house: House) -> None:
    house.teller.startService()
    house.reactor.advance(PERIOD)
    first = house.row()
    in_tx(
        house.engine,
        lambda tx: starts.tell(
            tx,
            [start_rows.StartRow(house.request, first.starts_at + 900.0, "", None, None)],
            NOW + 60,
        ),
    )
    decide(house, "granted", first.starts_at + 240.0)
    in_tx(house.engine, starts.settle, first.starts_at + 300.0)
    row = house.row()
    assert (row.first_at, row.starts_at) == (first.starts_at, first.starts_at + 900.0)
    assert row.began_at == first.starts_at + 240.0
    assert house.told() is None
    errors, told = in_tx(house.engine, starts.gauges, first.starts_at + 300.0)
    assert errors == {"0.5": 240.0, "0.8": 240.0, "0.95": 240.0}
    assert told == {"yes": 1, "no": 0}
    house.teller.stopService()


def test_a_request_that_has_begun_meanwhile_is_told_nothing(house: House) -> None:
    decide(house, "granted", NOW)
    told = [start_rows.StartRow(house.request, NOW + 600.0, "", None, None)]
    in_tx(house.engine, starts.tell, told, NOW + 60)
    assert house.row() is None


def test_who_is_told_a_start_later_is_compared_with_that(house: House) -> None:
    for at, when in ((None, NOW), (NOW + 600.0, NOW + 60), (NOW + 900.0, NOW + 120)):
        told = [start_rows.StartRow(house.request, at, "" if at else "no lease", None, None)]
        in_tx(house.engine, starts.tell, told, when)
    row = house.row()
    assert (row.first_at, row.first_told_at) == (NOW + 600.0, NOW + 60)
    assert (row.starts_at, row.told_at) == (NOW + 900.0, NOW + 120)


@pytest.mark.slow
@pytest.mark.parametrize("state", ["withdrawn", "rejected"])
def test_a_request_that_ends_otherwise_is_forgotten(house: House, state: str) -> None:
    told = [start_rows.StartRow(house.request, NOW + 600.0, "", None, None)]
    in_tx(house.engine, starts.tell, told, NOW)
    decide(house, state, NOW + 60)
    in_tx(house.engine, starts.settle, NOW + 120)
    assert house.row() is None


def test_what_is_old_is_forgotten(house: House) -> None:
    decide(house, "granted", NOW)
    in_tx(house.engine, lambda tx: tx.execute(insert(t.request_starts).values(**OLD)))
    in_tx(house.engine, starts.settle, NOW + request_starts.KEPT - 1)
    assert len(in_tx(house.engine, start_rows.begun, 0.0)) == 1
    in_tx(house.engine, starts.settle, NOW + request_starts.KEPT + 1)
    assert in_tx(house.engine, start_rows.begun, 0.0) == []


OLD = {"request_id": 2, "told_at": 1.0, "why": "", "began_at": NOW}


def test_a_start_that_hardly_moves_is_not_told_anew(house: House) -> None:
    told = start_rows.StartRow(house.request, NOW + 600.0, "", 2, NOW + 300)
    in_tx(house.engine, starts.tell, [told], NOW)
    assert in_tx(house.engine, starts.changed, [told._replace(starts_at=NOW + 620.0)]) == []
    moved = told._replace(starts_at=NOW + 700.0)
    assert in_tx(house.engine, starts.changed, [moved]) == [moved]


def test_people_read_how_right_starts_usually_are(house: House) -> None:
    now = 1e6
    rows = [
        {
            "request_id": 100 + number,
            "told_at": 0.0,
            "why": "",
            "first_at": 5000.0,
            "first_told_at": 1000.0,
            "began_at": 5000.0 + 30.0 * number,
        }
        for number in range(10)
    ]
    in_tx(house.engine, lambda tx: tx.execute(insert(t.request_starts), rows[:9]))
    assert in_tx(house.engine, request_starts.usually, now) is None
    in_tx(house.engine, lambda tx: tx.execute(insert(t.request_starts), rows[9:]))
    assert in_tx(house.engine, request_starts.usually, now) == 240.0
    start = ExpectedStart(now + 7200.0, "", now, 1, now + 3600.0)
    assert in_tx(house.engine, request_starts.sentence, start, now) == (
        "It is expected to start in 2 h (1970-01-12 15:46 UTC); what is told is usually right"
        " within 4 min. With 1 node it would start in 1 h."
    )
    nobody = ExpectedStart(None, "no lease that ends would free enough nodes", now)
    assert in_tx(house.engine, request_starts.sentence, nobody, now) == (
        "Nobody can tell when it starts: no lease that ends would free enough nodes."
    )
