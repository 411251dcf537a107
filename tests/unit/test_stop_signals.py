"""A part of the server that is told to stop by its supervisor, and by systemd or a terminal."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, sys
from twisted.python import log
log.startLogging(sys.stderr)
from twisted.internet import reactor
from cod.service.process import catch_stops
reactor.callWhenRunning(catch_stops, reactor)
def tell():
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
reactor.callWhenRunning(tell)
reactor.run()
print("ended")
"""


@pytest.mark.slow  # a process of its own
def test_two_signals_stop_a_part_once() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120
    )
    assert "ended" in done.stderr
    assert "ReactorNotRunning" not in done.stderr
