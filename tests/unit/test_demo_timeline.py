"""What the demo shows of disks that are erased and written: each step by itself, with its own bytes
and rate."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import pytest
from rich.console import Console

from cod.demo.timeline import Timeline
from trampoline.pipeline import Meter


class Api:
    """A client that knows one node."""

    def __enter__(self) -> Api:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def get(self, path: str) -> Mapping[str, str]:
        return {"boot_mac": "52:54:00:00:00:01"}


def at(phase: str, done: int, rate: float) -> dict[str, Any]:
    return {
        "node": "node1",
        "state": "prime",
        "phase": phase,
        "done": done << 20,
        "total": 2048 << 20,
        "rate": rate,
    }


def test_erasing_and_writing_are_apart() -> None:
    out = io.StringIO()
    shown = Timeline(lambda: Api(), {"52:54:00:00:00:01": "alpha"}, Console(file=out, width=200))  # type: ignore[return-value]
    shown._advance(at("wipe", 2048, 1997e6))
    shown._advance(at("write", 200, 80e6))
    shown._advance(at("write", 300, 80e6))  # too soon for another line
    lines = [line.partition("| ")[2] for line in out.getvalue().splitlines()]
    assert lines == ["erasing 2048 of 2048 MiB, 1997 MB/s", "writing 200 of 2048 MiB, 80 MB/s"]


def test_a_step_that_is_done_keeps_its_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("trampoline.pipeline.time.monotonic", lambda: now)
    told: list[tuple[str, int, int, float]] = []
    meter = Meter("write", 1000)
    for seconds, count in ((2.0, 400), (2.0, 600), (30.0, 0)):
        now += seconds
        meter.add(count)
        meter.tell(lambda *words: told.append(words))
    assert told == [
        ("write", 400, 1000, 200.0),
        ("write", 1000, 1000, 250.0),
        ("write", 1000, 1000, 1000 / 34),
    ], "not 0 while the disk catches up, and in the end the rate of all of it"
