"""The driver `pdu` against foreign outlets (snmpsim)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cod.power import pdu
from cod.power.driver import PowerError, SignIn, Target
from cod.power.pdu import PduDriver
from tests.system.bmcs import OUTLET, SnmpOutlets

pytestmark = pytest.mark.system

COMMUNITY = SignIn("", "private")
USER = SignIn("cod", "outlet-password")


@pytest.fixture(scope="module")
def outlets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SnmpOutlets]:
    with SnmpOutlets(tmp_path_factory.mktemp("outlets")).run() as outlets:
        yield outlets


@pytest.fixture
def driver(reactor: Any, monkeypatch: pytest.MonkeyPatch) -> PduDriver:
    monkeypatch.setattr(pdu, "DARK", 0.1)
    return PduDriver(reactor)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is waited for long: where there is no answer at all."""
    monkeypatch.setattr(pdu, "TIMEOUT", 0.5)
    monkeypatch.setattr(pdu, "RETRIES", 1)


@pytest.mark.parametrize("sign_in", [COMMUNITY, USER], ids=["v2c", "v3"])
def test_an_outlet_is_switched(
    outlets: SnmpOutlets, driver: PduDriver, in_reactor: Callable[..., Any], sign_in: SignIn
) -> None:
    target = Target(f"127.0.0.1:{outlets.port}/apc/1", sign_in)
    in_reactor(driver.off, target)
    assert in_reactor(driver.status, target) == "off"
    in_reactor(driver.on, target)
    assert in_reactor(driver.status, target) == "on"
    in_reactor(driver.cycle, target)
    assert in_reactor(driver.status, target) == "on"
    in_reactor(driver.off, target)
    assert in_reactor(driver.status, target) == "off"
    assert in_reactor(driver.soft, target) is False


def test_any_outlet_by_its_object(
    outlets: SnmpOutlets, driver: PduDriver, in_reactor: Callable[..., Any]
) -> None:
    target = Target(f"127.0.0.1:{outlets.port}/{OUTLET}.2?on=1&off=2", COMMUNITY)
    assert in_reactor(driver.status, target) == "on"
    other = Target(f"127.0.0.1:{outlets.port}/{OUTLET}.2?on=5&off=6", COMMUNITY)
    assert in_reactor(driver.status, other) == "unknown"


@pytest.mark.parametrize(
    ("path", "sign_in", "sentence", "lasting"),
    [
        ("apc/9", COMMUNITY, "has no outlet", True),
        ("apc/1", SignIn("cod", "wrong-password"), "does not answer", True),
        ("apc/1", SignIn("nobody", "outlet-password"), "does not answer", True),
        ("apc/1", SignIn("cod", ""), "cannot be asked", False),
        ("apc/1", None, "needs an account", True),
    ],
)
def test_what_goes_wrong(
    outlets: SnmpOutlets,
    driver: PduDriver,
    in_reactor: Callable[..., Any],
    path: str,
    sign_in: SignIn | None,
    sentence: str,
    lasting: bool,
) -> None:
    with pytest.raises(PowerError, match=sentence) as raised:
        in_reactor(driver.status, Target(f"127.0.0.1:{outlets.port}/{path}", sign_in))
    assert raised.value.lasting is lasting
    assert "password" not in str(raised.value)


@pytest.mark.usefixtures("hasty")
def test_a_community_that_the_outlets_do_not_know(
    outlets: SnmpOutlets, driver: PduDriver, in_reactor: Callable[..., Any]
) -> None:
    with pytest.raises(PowerError, match=r"does not answer .or not to this community") as raised:
        in_reactor(driver.status, Target(f"127.0.0.1:{outlets.port}/apc/1", SignIn("", "public")))
    assert not raised.value.lasting


def test_an_outlet_that_may_not_be_set(
    outlets: SnmpOutlets, driver: PduDriver, in_reactor: Callable[..., Any]
) -> None:
    with pytest.raises(PowerError, match="says"):
        in_reactor(driver.on, Target(f"127.0.0.1:{outlets.port}/apc/3", COMMUNITY))


@pytest.mark.usefixtures("hasty")
def test_outlets_that_are_away(
    driver: PduDriver, in_reactor: Callable[..., Any], tmp_path: Path
) -> None:
    gone = SnmpOutlets(tmp_path)
    with pytest.raises(PowerError, match="does not answer") as raised:
        in_reactor(driver.status, Target(f"127.0.0.1:{gone.port}/apc/1", COMMUNITY))
    assert not raised.value.lasting
