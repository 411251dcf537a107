"""BMCs that switch machines of a real lab: QEMU comes and goes as the driver says."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.process import reapAllProcesses
from twisted.internet.task import LoopingCall

from cod.lab import control, processes, record
from cod.lab.spec import LabDisk, counted
from cod.power.driver import PowerDriver, SignIn, Target
from cod.power.ipmi import IpmiDriver
from cod.power.redfish import RedfishDriver
from tests.system.bmcs import IpmiSim, SushyEmulator
from tests.waiting import until

pytestmark = [
    pytest.mark.system,
    pytest.mark.in_turn(2),
    pytest.mark.slow,
    pytest.mark.xdist_group("lab"),
]

ADMIN = SignIn("admin", "secret")


@pytest.fixture
def lab(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A lab with one machine, n1, that is off."""
    monkeypatch.setenv("COD_LAB_ROOT", str(short_folder))
    name = f"bmc-{os.getpid()}"
    control.up(counted(name, 1, 0, disk=LabDisk(16 << 20), memory=128))
    yield name
    control.down(name)


@pytest.fixture
def ask(reactor: Any, in_reactor: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Runs a driver's method in a reactor that has no signals: its children are looked for."""
    reaping = LoopingCall(reapAllProcesses)
    reactor.callFromThread(reaping.start, 0.02)
    yield in_reactor
    in_reactor(reaping.stop)


def walk(lab: str, driver: PowerDriver, target: Target, ask: Callable[..., Any]) -> None:
    """On, cycled and off, looking at the machine's process each time."""
    assert ask(driver.status, target) == "off"
    ask(driver.boot_from_network, target)
    ask(driver.on, target)
    until(lambda: ask(driver.status, target) == "on", "on shows", every=0.3)
    first = record.load(lab).nodes["n1"]
    assert first.alive()
    ask(driver.cycle, target)
    until(
        lambda: ask(driver.status, target) == "on" and "n1" in record.load(lab).nodes,
        "on again",
        every=0.3,
    )
    second = record.load(lab).nodes["n1"]
    assert second != first
    assert not processes.identify(first.pid)
    ask(driver.off, target)
    until(lambda: ask(driver.status, target) == "off", "off shows", every=0.3)
    assert not second.alive()


def test_an_ipmi_bmc_of_a_lab_machine(
    lab: str, short_folder: Path, reactor: Any, ask: Callable[..., Any]
) -> None:
    with IpmiSim(short_folder / "b", record.socket_path(lab), "n1").run() as bmc:
        walk(lab, IpmiDriver(reactor), Target(bmc.address, ADMIN), ask)


def test_a_redfish_bmc_of_a_lab_machine(
    lab: str, short_folder: Path, reactor: Any, ask: Callable[..., Any]
) -> None:
    with SushyEmulator(short_folder / "b", record.socket_path(lab), "n1").run() as bmc:
        walk(lab, RedfishDriver(reactor), Target(bmc.address, ADMIN), ask)
