"""What a node's power driver says when it is asked about a boot."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock

from cod.model import Meter, Site, SiteRef
from cod.power.driver import PowerError
from cod.power.status import AT_ONCE, PATIENCE, PowerStatus

NODE = Meter(1, "n1", "ipmi", "bmc", None)


class Asked:
    """A power driver that answers `answer`."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def status(self, _target: Any) -> Any:
        if isinstance(self.answer, Exception):
            return fail(self.answer)
        return succeed(self.answer) if self.answer else Deferred()


@pytest.mark.parametrize(
    ("answer", "driver", "said"),
    [
        ("on", "ipmi", "on"),
        ("off", "ipmi", "off"),
        (PowerError("no route"), "ipmi", "unknown"),
        (ValueError("a bug"), "ipmi", "unknown"),
        ("off", "of another site", "unknown"),
        ("", "ipmi", "unknown"),
    ],
)
def test_a_driver_that_cannot_tell_says_neither(
    site: Site, answer: Any, driver: str, said: str
) -> None:
    asked, clock = Asked(answer), Clock()
    heard: list[Any] = []
    drivers: Any = {"ipmi": asked}
    status = PowerStatus(clock, drivers, SiteRef(site))
    Deferred.fromCoroutine(status.of(replace(NODE, driver=driver))).addCallback(heard.append)
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
    status, heard = PowerStatus(clock, drivers, SiteRef(site)), list[str]()
    for _ in range(3 * AT_ONCE):
        Deferred.fromCoroutine(status.of(NODE)).addCallback(heard.append)
    assert len(asked.open) == AT_ONCE
    answered = [asked.open.pop(0) for _ in range(AT_ONCE)]
    for each in answered:
        each.callback("on")
    assert (heard, len(asked.open)) == (["on"] * AT_ONCE, AT_ONCE)
    clock.advance(PATIENCE)
    assert heard[AT_ONCE:] == ["unknown"] * 2 * AT_ONCE  # those that waited, too
    assert not asked.open
    Deferred.fromCoroutine(status.of(NODE)).addCallback(heard.append)
    asked.open[0].callback("off")
    assert heard[-1] == "off"
