"""The clockwork that looks for certificates which end; and the authority's, whose end is put off at
a start."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from shutil import rmtree

import pytest
from sqlalchemy import Engine, select
from twisted.internet.task import Clock

from cod import init
from cod.security import ca as authority
from cod.security.ca import Ca
from cod.service import preparation
from cod.site import load
from cod.store import tables as t
from cod.workers.certificates import PERIOD, CertificateWatch
from tests.net.handpool import HandPool

pytestmark = pytest.mark.slow  # together with its like more than the quick run has time for

DAY = 86400.0
START = 20_000 * DAY


class Watched:
    """A watch on a clock that the test moves; the authority's end is `ends_at`, or cannot be
    read."""

    def __init__(self, engine: Engine) -> None:
        self.clock, self.pool = Clock(), HandPool(engine)
        self.clock.advance(START)
        self.ends_at: float | Exception = START + 5000 * DAY
        self.watch = CertificateWatch(self.clock, self.pool, self._ends_at, self.clock.seconds)

    def _ends_at(self) -> float:
        if isinstance(self.ends_at, Exception):
            raise self.ends_at
        return self.ends_at

    def told(self) -> list[str]:
        with self.pool.engine.connect() as tx:
            return list(tx.scalars(select(t.notices.c.kind).order_by(t.notices.c.id)))


@pytest.fixture
def watched(engine: Engine) -> Watched:
    return Watched(engine)


def test_it_looks_once_an_hour_and_not_before_the_clock_is_right(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watched.ends_at = START + 300 * DAY
    watched.watch.startService()
    watched.clock.advance(PERIOD - 1)
    assert watched.told() == []
    watched.clock.advance(1)
    assert watched.told() == ["authority"]
    assert caplog.messages == ["1 certificates end, or have ended: see the notices"]
    watched.clock.pump([PERIOD] * 5)
    assert watched.told() == ["authority"]
    watched.watch.stopService()
    watched.clock.advance(40 * DAY)
    assert watched.told() == ["authority"]


@pytest.mark.parametrize(
    "trouble", [OSError("ca.crt is not there"), ValueError("is no certificate")]
)
def test_what_cannot_be_read_is_said_and_looked_for_again(
    watched: Watched, caplog: pytest.LogCaptureFixture, trouble: Exception
) -> None:
    watched.ends_at = trouble
    watched.watch.startService()
    watched.clock.advance(PERIOD)
    assert f"certificates' ends are not looked for: {trouble}" in caplog.messages
    watched.ends_at = START
    watched.clock.advance(PERIOD)
    assert watched.told() == ["authority"]
    watched.watch.stopService()


def test_a_server_s_start_puts_the_authority_s_end_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "")  # what it sets is undone with the test
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path / "runtime"))
    init.found(tmp_path, tmp_path / "site.toml", {}, 1000.0)
    site, settings = load.load(tmp_path / "site.toml")
    rmtree(settings.authority, ignore_errors=True)
    Ca(settings.authority, site.name, datetime.now(UTC) - timedelta(days=6500))
    before = authority.ends_at(settings.authority)
    for _ in range(2):
        preparation.prepare(site, settings)
        assert caplog.text.count("its certificate is renewed") == 1
    assert authority.ends_at(settings.authority) > before + 6000 * DAY
