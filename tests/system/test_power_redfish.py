"""The driver `redfish` against a foreign BMC (sushy-tools' emulator), which takes up to eleven
seconds for a switch."""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cod.power.driver import PowerError, SignIn, Target
from cod.power.redfish import RedfishDriver
from tests.system.bmcs import UUID, SushyEmulator, Switchboard
from tests.waiting import until

pytestmark = pytest.mark.system

ADMIN = SignIn("admin", "secret")


@pytest.fixture(scope="module")
def bmc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SushyEmulator]:
    folder = tmp_path_factory.mktemp("r")
    board = Switchboard(Path(f"/tmp/cod-{folder.parent.name[-8:]}-{id(folder) % 10000}.sock"))
    try:
        with SushyEmulator(folder / "bmc", board.path, "n1").run() as bmc:
            bmc.board = board  # type: ignore[attr-defined]
            yield bmc
    finally:
        board.shutdown()
        board.server_close()
        board.path.unlink()


@pytest.fixture
def driver(reactor: Any) -> RedfishDriver:
    return RedfishDriver(reactor)


def test_a_machines_power_through_its_bmc(
    bmc: SushyEmulator, driver: RedfishDriver, in_reactor: Callable[..., Any]
) -> None:
    """The way of a wake, a seizure and a shutdown, as the edge walks it."""
    target, board = Target(bmc.address, ADMIN), bmc.board  # type: ignore[attr-defined]
    assert in_reactor(driver.status, target) == "off"
    assert in_reactor(driver.boot_from_network, target) is True
    assert bmc.boot == "Pxe"
    in_reactor(driver.on, target)
    until(lambda: in_reactor(driver.status, target) == "on", "on shows", every=0.3)
    assert board.power == {"n1": "on"}
    in_reactor(driver.cycle, target)  # no PowerCycle here: off, seen to be off, on
    until(lambda: in_reactor(driver.status, target) == "on", "on shows", every=0.3)
    assert "off" in board.said
    assert board.power == {"n1": "on"}
    assert in_reactor(driver.soft, target) is True
    until(lambda: in_reactor(driver.status, target) == "off", "off shows", every=0.3)
    assert in_reactor(driver.watts, target) is None


def test_a_bmc_that_cannot_keep_a_uri_is_not_believed_to(
    bmc: SushyEmulator, driver: RedfishDriver, in_reactor: Callable[..., Any]
) -> None:
    """The emulator fetches the URI itself, and refuses one that nobody serves."""
    with pytest.raises(PowerError, match="takes no HttpBootUri") as raised:
        in_reactor(driver.boot_from_uri, Target(bmc.address, ADMIN), "http://127.0.0.1:1/x.efi")
    assert raised.value.lasting


def test_the_one_system_may_be_named(
    bmc: SushyEmulator, driver: RedfishDriver, in_reactor: Callable[..., Any]
) -> None:
    named = bmc.address.replace("?", f"/redfish/v1/Systems/{UUID}?")
    assert in_reactor(driver.status, Target(named, ADMIN)) in ("on", "off")
    with pytest.raises(PowerError, match="HTTP 404") as raised:
        in_reactor(driver.status, Target(named.replace(UUID, "no-such"), ADMIN))
    assert raised.value.lasting


@pytest.mark.parametrize("sign_in", [SignIn("admin", "wrong"), SignIn("nobody", "secret"), None])
def test_who_is_not_let_in(
    bmc: SushyEmulator,
    driver: RedfishDriver,
    in_reactor: Callable[..., Any],
    sign_in: SignIn | None,
) -> None:
    with pytest.raises(PowerError, match="refuses user or password") as raised:
        in_reactor(driver.status, Target(bmc.address, sign_in))
    assert raised.value.lasting


def test_whose_certificate_is_trusted(
    bmc: SushyEmulator, driver: RedfishDriver, in_reactor: Callable[..., Any]
) -> None:
    base = bmc.address.partition("?")[0]
    der = ssl.PEM_cert_to_DER_cert(bmc.certificate.read_text())
    fingerprint = hashlib.sha256(der).hexdigest()
    colons = ":".join(fingerprint[n : n + 2] for n in range(0, 64, 2)).upper()
    for option in (
        f"ca={bmc.certificate}",
        f"fingerprint={fingerprint}",
        f"fingerprint={colons}",
        "insecure=yes",
    ):
        assert in_reactor(driver.status, Target(f"{base}?{option}", ADMIN)) in ("on", "off"), option
    wrong = fingerprint[:-1] + ("0" if fingerprint[-1] != "0" else "1")
    for option in ("", f"?fingerprint={wrong}"):
        with pytest.raises(PowerError, match="not one that is trusted") as raised:
            in_reactor(driver.status, Target(base + option, ADMIN))
        assert raised.value.lasting, option
