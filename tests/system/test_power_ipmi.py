"""The driver `ipmi` against a foreign BMC (OpenIPMI's ipmi_sim): what it says, what it is told,
what goes wrong."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.defer import TimeoutError as TookTooLong
from twisted.internet.process import reapAllProcesses
from twisted.internet.task import LoopingCall

from cod.power.driver import PowerError, SignIn, Target
from cod.power.ipmi import IpmiDriver
from cod.power.sweep.probe import Sweep
from tests.ports import free_port
from tests.system.bmcs import IpmiSim, Switchboard
from tests.waiting import until

pytestmark = pytest.mark.system

ADMIN = SignIn("admin", "secret")


@pytest.fixture
def switches(short_folder: Path) -> Iterator[Switchboard]:
    board = Switchboard(short_folder / "switches")
    yield board
    board.shutdown()
    board.server_close()


@pytest.fixture
def bmc(short_folder: Path, switches: Switchboard) -> Iterator[IpmiSim]:
    with IpmiSim(short_folder / "bmc", switches.path, "n1").run() as bmc:
        yield bmc


@pytest.fixture
def driver(reactor: Any, in_reactor: Callable[..., Any]) -> Iterator[IpmiDriver]:
    """The driver in a reactor that has no signals: its children are looked for."""
    reaping = LoopingCall(reapAllProcesses)
    reactor.callFromThread(reaping.start, 0.02)
    yield IpmiDriver(reactor)
    in_reactor(reaping.stop)


def test_a_machines_power_through_its_bmc(
    bmc: IpmiSim, switches: Switchboard, driver: IpmiDriver, in_reactor: Callable[..., Any]
) -> None:
    target = Target(bmc.address, ADMIN)
    assert in_reactor(driver.status, target) == "off"
    assert in_reactor(driver.boot_from_network, target) is True
    assert bmc.boot() == "pxe"
    in_reactor(driver.on, target)
    assert switches.power == {"n1": "on"}
    assert in_reactor(driver.status, target) == "on"
    in_reactor(driver.on, target)
    in_reactor(driver.cycle, target)
    until(lambda: in_reactor(driver.status, target) == "on", "it is on again")
    assert switches.said == ["on", "on", "off", "on"]
    assert in_reactor(driver.soft, target) is True
    assert switches.said[-1] == "soft"
    in_reactor(driver.on, target)
    in_reactor(driver.off, target)
    assert in_reactor(driver.status, target) == "off"
    in_reactor(driver.cycle, target)
    assert switches.said[-1] == "on", "a machine that is off is switched on"
    assert in_reactor(driver.watts, target) is None, "this BMC has no DCMI"


@pytest.mark.parametrize(
    ("sign_in", "suite", "sentence"),
    [
        (SignIn("admin", "wrong"), "3", "the BMC refuses the password"),
        (SignIn("nobody", "secret"), "3", "the BMC does not know the user"),
        (SignIn("admin", "secret"), "17", "the BMC refuses the cipher suite"),
        (SignIn("admin", "s" * 21), "3", "at most 20 bytes"),
        (None, "3", "needs an account"),
    ],
)
def test_what_no_second_try_can_mend(
    bmc: IpmiSim,
    driver: IpmiDriver,
    in_reactor: Callable[..., Any],
    sign_in: SignIn | None,
    suite: str,
    sentence: str,
) -> None:
    with pytest.raises(PowerError, match=sentence) as raised:
        in_reactor(driver.on, Target(bmc.address.replace("=3", f"={suite}"), sign_in))
    assert raised.value.lasting
    assert (
        sign_in is None or sign_in.password not in str(raised.value) or sign_in.password == "secret"
    )


def test_a_bmc_that_is_away_may_come_back(
    driver: IpmiDriver, in_reactor: Callable[..., Any], short_folder: Path, switches: Switchboard
) -> None:
    bmc = IpmiSim(short_folder / "late", switches.path, "n1")
    with pytest.raises(PowerError, match="the BMC does not answer") as raised:
        in_reactor(driver.status, Target(bmc.address, ADMIN))
    assert (raised.value.lasting, raised.value.silent) == (False, True)
    with bmc.run():
        assert in_reactor(driver.status, Target(bmc.address, ADMIN)) == "off"


def test_nobody_waits_for_a_child_that_was_given_up(
    driver: IpmiDriver, reactor: Any, in_reactor: Callable[..., Any]
) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        target = Target(f"127.0.0.1:{silent.getsockname()[1]}?suite=3", ADMIN)

        def attempt() -> Any:
            return Deferred.fromCoroutine(driver.status(target)).addTimeout(0.5, reactor)

        with pytest.raises(TookTooLong):
            in_reactor(attempt)
        silent.setblocking(False)
        while True:  # what came before it was killed
            try:
                silent.recv(1000)
            except BlockingIOError:
                break
        silent.settimeout(3)
        with pytest.raises(TimeoutError):  # ipmitool would ask again after two seconds
            silent.recv(1000)


def test_the_password_is_not_on_the_command_line(
    short_folder: Path, reactor: Any, driver: IpmiDriver, in_reactor: Callable[..., Any]
) -> None:
    told = short_folder / "told"
    program = short_folder / "ipmitool"
    program.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" >{told}\nprintenv >>{told}.env\necho "Chassis Power is'
        ' on"\n'
    )
    program.chmod(0o755)
    watched = IpmiDriver(reactor, str(program))
    assert in_reactor(watched.status, Target("bmc7", SignIn("admin", "pass word"), "uefi")) == "on"
    assert "pass" not in told.read_text()
    assert "IPMI_PASSWORD=pass word" in (short_folder / "told.env").read_text()
    assert told.read_text().splitlines()[-3:] == ["chassis", "power", "status"]
    in_reactor(watched.boot_from_network, Target("bmc7", ADMIN, "uefi"))
    assert told.read_text().splitlines()[-2:] == ["pxe", "options=efiboot"]


def test_without_ipmitool(reactor: Any, in_reactor: Callable[..., Any]) -> None:
    with pytest.raises(PowerError, match="no-such-program is not installed"):
        in_reactor(IpmiDriver(reactor, "no-such-program").status, Target("bmc7", ADMIN))


@pytest.mark.usefixtures("driver")
def test_a_sweep_asks_a_bmc_without_redfish_by_ipmi(
    bmc: IpmiSim, reactor: Any, in_reactor: Callable[..., Any]
) -> None:
    def swept(password: str) -> Any:
        accounts = {"rack1": SignIn("admin", password)}
        sweep = Sweep(reactor, accounts, {}, suite="3", https=free_port(), rmcp=bmc.port)
        return in_reactor(lambda: Deferred.fromCoroutine(sweep.look("127.0.0.1")))

    [system] = swept("secret").systems
    assert (system.driver, system.address, system.power) == ("ipmi", bmc.address, "off")
    assert system.uuids
    assert swept("wrong").trouble == "the BMC refuses the password (rack1)"
