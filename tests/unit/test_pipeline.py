"""The meter of a pipeline: bytes done, and the rate."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cod.wire import xmldoc
from cod.wire.confd.messages import Progress, encode
from trampoline.pipeline import Meter


def test_what_is_taken_back_makes_no_rate_that_the_server_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A disk that shows data after it was discarded is gone through again."""
    clock = [0.0]
    monkeypatch.setattr("trampoline.pipeline.time", SimpleNamespace(monotonic=lambda: clock[0]))
    meter, told = Meter("wipe", 300), list[Progress]()

    def tell(phase: str, done: int, total: int, rate: float) -> None:
        told.append(Progress("1.1", phase, done, total, rate))

    for count in (200, 10, -150):
        clock[0] += 4.0
        meter.add(count)
        meter.tell(tell)
    assert [one.done for one in told] == [200, 210, 60]
    for one in told:
        xmldoc.parse(encode(one), "confd")
