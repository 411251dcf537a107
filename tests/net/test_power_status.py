"""What a node's power driver says when it is asked about a boot."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock

from cod.flows.nodes.power import Meter
from cod.model import Site, SiteRef
from cod.power.driver import PowerError
from cod.power.status import AT_ONCE, PATIENCE, PowerStatus


class Asked:
    """A pool that knows one node, and its power driver, which answers `answer`."""

    def __init__(self, answer: Any, driver: str = "ipmi") -> None:
        self.answer, self.driver = answer, driver

    def run_together(self, _flow: Any, mac: str) -> Deferred[Meter | None]:
        known = Meter(1, "n1", self.driver, "bmc", None) if mac == "a" else None
        return succeed(known)

    def status(self, _target: Any) -> Any:
        if isinstance(self.answer, Exception):
            return fail(self.answer)
        return succeed(self.answer) if self.answer else Deferred()


@pytest.mark.parametrize(
    ("answer", "driver", "mac", "said"),
    [
        ("on", "ipmi", "a", "on"),
        ("off", "ipmi", "a", "off"),
        (PowerError("no route"), "ipmi", "a", "unknown"),
        (ValueError("a bug"), "ipmi", "a", "unknown"),
        ("off", "of another site", "a", "unknown"),
        ("off", "ipmi", "b", "unknown"),
        ("", "ipmi", "a", "unknown"),
    ],
)
def test_a_driver_that_cannot_tell_says_neither(
    site: Site, answer: Any, driver: str, mac: str, said: str
) -> None:
    asked, clock = Asked(answer, driver), Clock()
    heard: list[Any] = []
    drivers: Any = {"ipmi": asked}
    status = PowerStatus(clock, asked, drivers, SiteRef(site))
    Deferred.fromCoroutine(status.of(mac)).addCallback(heard.append)
    assert heard == ([] if answer == "" else [said])
    clock.advance(PATIENCE)
    assert heard == [said]


class Slow(Asked):
    """A driver whose answers are given by hand."""

    def __init__(self) -> None:
        super().__init__("")
        self.open: list[Deferred[str]] = []

    def status(self, _target: Any) -> Deferred[str]:
        self.open.append(Deferred(self.open.remove))
        return self.open[-1]


def test_so_many_questions_are_open_and_the_others_wait(site: Site) -> None:
    asked, clock = Slow(), Clock()
    drivers: Any = {"ipmi": asked}
    status, heard = PowerStatus(clock, asked, drivers, SiteRef(site)), list[str]()
    for _ in range(3 * AT_ONCE):
        Deferred.fromCoroutine(status.of("a")).addCallback(heard.append)
    assert len(asked.open) == AT_ONCE
    answered = [asked.open.pop(0) for _ in range(AT_ONCE)]
    for each in answered:
        each.callback("on")
    assert (heard, len(asked.open)) == (["on"] * AT_ONCE, AT_ONCE)
    clock.advance(PATIENCE)
    assert heard[AT_ONCE:] == ["unknown"] * 2 * AT_ONCE  # those that waited, too
    assert not asked.open
    Deferred.fromCoroutine(status.of("a")).addCallback(heard.append)
    asked.open[0].callback("off")
    assert heard[-1] == "off"
