"""The reactor's time goes on evenly, whatever is done to the clock of the host."""

from __future__ import annotations

import time

import pytest
from twisted.internet.epollreactor import EPollReactor

from cod.service.process import keep_time


def test_timers_do_not_see_that_the_clock_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    reactor = EPollReactor()
    keep_time(reactor)
    try:
        before = reactor.seconds()
        assert before == pytest.approx(time.time(), abs=60.0)
        call = reactor.callLater(5.0, lambda: None)
        real = time.time
        for ahead in (-1e6, 1e6):
            monkeypatch.setattr(time, "time", lambda ahead=ahead: real() + ahead)
            assert before <= reactor.seconds() < before + 600.0
            assert (reactor.timeout() or 0.0) <= 5.0
        call.cancel()
    finally:
        for reader in reactor.removeAll():
            reader.connectionLost(None)
        reactor._poller.close()
