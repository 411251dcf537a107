"""The curve of price or carbon: read from a file and over HTTP; what is bad changes nothing and is
told."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine
from twisted.internet.defer import Deferred

from cod.core import energy_curve as core
from cod.flows.nodes import energy, faults
from cod.model import Energy, Site, SiteRef
from cod.net import energy_curve
from cod.net.energy_curve import CurveReader
from cod.policy.energy.curve import Curve
from tests.net.handpool import HandPool
from tests.net.test_webhooks import speaking
from tests.ports import free_port
from tests.store.manager_world import in_tx

pytestmark = pytest.mark.slow

NOW = 1_796_083_200.0  # 2026-12-01T00:00Z
DAILY = "".join(f"{hour},{100 + hour}\n" for hour in range(24))
OK = b"HTTP/1.1 200 OK\r\n"


class Desk:
    """A reader whose clock the test moves, and what it has put down."""

    def __init__(self, engine: Engine, reactor: Any, in_reactor: Callable[..., Any]) -> None:
        self.engine, self._in_reactor = engine, in_reactor
        self.now = NOW
        self.site = SiteRef(Site("test", "cod.test", ()))
        self.pool = HandPool(engine)
        self.reader = CurveReader(reactor, self.pool, self.site, lambda: self.now)

    def look(self, **rules: Any) -> None:
        self.site.current = replace(self.site.current, energy=Energy(**rules))
        self._in_reactor(lambda: Deferred.fromCoroutine(self.reader.look()))

    @property
    def rules(self) -> Energy:
        return self.site.current.energy

    def curve(self) -> Curve | None:
        return in_tx(self.engine, core.current, self.rules)

    def shown(self) -> Any:
        return in_tx(self.engine, core.shown, self.rules, self.now)

    def faults(self) -> list[str]:
        found = in_tx(self.engine, lambda tx: faults.every(tx, now=self.now))
        return [one.about for one in found if one.kind == "energy-curve" and one.ended is None]


@pytest.fixture
def desk(engine: Engine, reactor: Any, in_reactor: Callable[..., Any]) -> Desk:
    return Desk(engine, reactor, in_reactor)


def test_a_file_is_read_when_it_is_due_and_the_last_good_one_stays(
    desk: Desk, tmp_path: Path
) -> None:
    path = tmp_path / "curve.csv"
    path.write_text(DAILY)
    rules = {"curve_file": str(path), "curve_poll": 900.0, "curve_stale": 3600.0}
    desk.look(**rules)
    curve = desk.curve()
    assert curve is not None
    assert (curve.at(NOW), desk.shown().value, desk.faults()) == (100, 100, [])
    path.write_text("0,1\n1,zebra\n")
    desk.now += 899
    desk.look(**rules)
    assert desk.shown().fault == "", "it is not due"
    desk.now += 1
    desk.look(**rules)
    assert desk.shown().fault == "what came is no curve: line 2: 'zebra' is no number"
    assert (desk.curve(), desk.shown().read_at, desk.faults()) == (curve, NOW, [])
    desk.now = NOW + 3600
    desk.look(**rules)
    assert desk.faults() == [f"{path}: what came is no curve: line 2: 'zebra' is no number"]
    assert desk.curve() == curve, "an old curve is better than none"
    path.write_text(DAILY.replace("100", "90"))
    desk.now += 900
    desk.look(**rules)
    assert (desk.shown().fault, desk.faults()) == ("", [])
    path.unlink()
    desk.now += 900
    desk.look(**rules)
    assert desk.shown().fault == "it cannot be read: No such file or directory"
    desk.look()
    assert (desk.curve(), desk.shown(), desk.faults()) == (None, None, []), "the site has none now"


def test_dates_that_are_over_are_a_fault(desk: Desk, tmp_path: Path) -> None:
    path = tmp_path / "curve.csv"
    path.write_text("2026-12-01T00:00Z,300\n2026-12-01T01:00Z,200\n")
    desk.look(curve_file=str(path), curve_stale=86400.0)
    assert desk.faults() == []
    desk.now += 7200
    assert desk.faults() == [f"{path}: it says nothing about the hours from now on"]
    assert desk.shown().value is None


def test_neither_a_device_nor_a_pipe_is_read(desk: Desk, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/zero", str(tmp_path / "pipe"), str(tmp_path)):
        desk.look(curve_file=path)
        assert desk.shown().fault in ("it is no file", "it cannot be read: Is a directory")
    big = tmp_path / "big"
    big.write_text(DAILY + "#" * 70_000)
    desk.look(curve_file=str(big))
    assert desk.shown().fault == "what came is no curve: it is longer than 65000 bytes"


def test_a_curve_is_asked_for_over_http(desk: Desk) -> None:
    body = DAILY.encode()
    with speaking(OK + b"Content-Length: %d\r\n\r\n" % len(body), body) as port:
        desk.look(curve_url=f"http://127.0.0.1:{port}/carbon?zone=X", curve_of="price")
        assert (desk.shown().fault, desk.shown().value, desk.shown().unit) == ("", 100, "per kWh")


@pytest.mark.parametrize(
    ("pieces", "forever", "why"),
    [
        ([b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n"], b"", "answered 302"),
        ([b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"], b"", "answered 500"),
        ([b"hello\r\n\r\n"], b"", "it cannot be had"),
        ([OK + b"Content-Length: 10\r\n\r\n0,1"], b"", "cut off"),
        ([OK + b"\r\n"], b"0,1\n" * 1000, "cut off"),
        ([OK], b"X-More: 1\r\n" * 1000, "it cannot be had"),
        ([OK + b"\r\n" + DAILY.encode()], b"", "cut off"),
        ([OK + b"Content-Length: 6\r\n\r\n<html>"], b"", "no curve: line 1"),
    ],
)
def test_a_hostile_server_changes_nothing(
    desk: Desk, pieces: list[bytes], forever: bytes, why: str
) -> None:
    with speaking(*pieces, forever=forever) as port:
        desk.look(curve_url=f"http://127.0.0.1:{port}/")
        assert why in desk.shown().fault
        assert desk.curve() is None
        assert len(desk.faults()) == 1, "it was never read"


def test_a_server_that_says_nothing_is_given_up(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(energy_curve, "ATTEMPT", 0.2)
    with speaking() as port:
        desk.look(curve_url=f"http://127.0.0.1:{port}/")
    assert desk.shown().fault == "no answer within 0 s"


def test_a_server_that_is_not_there_is_told(desk: Desk) -> None:
    desk.look(curve_url=f"http://127.0.0.1:{free_port()}/")
    assert "refused" in desk.shown().fault


def test_emissions_are_counted_by_the_hour(desk: Desk, tmp_path: Path) -> None:
    """Half an hour at 100 and half an hour at 101 g are 100.5 g for a kWh; where the curve says
    nothing, or is a price, the site's constant holds."""
    path = tmp_path / "curve.csv"
    path.write_text(DAILY)
    desk.look(curve_file=str(path), carbon=7.0)
    for rules, grams in (
        (desk.rules, 100.5),
        (replace(desk.rules, curve_of="price"), 7.0),
        (replace(desk.rules, curve_file=None), 7.0),
    ):
        found = in_tx(desk.engine, core.carbon, rules, NOW + 1800, NOW + 5400)
        assert found == pytest.approx(grams)
    report = in_tx(
        desk.engine,
        lambda tx: energy.report(
            tx, since=None, until=None, by="group", rules=desk.rules, now=desk.now
        ),
    )
    assert report.curve is not None
    assert (report.curve.of, report.curve.value, report.curve.unit) == ("carbon", 100, "gCO2/kWh")
