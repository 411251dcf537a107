"""Consoles through a foreign BMC (OpenIPMI's ipmi_sim) and ipmitool, from the machine's serial port
to the API."""

from __future__ import annotations

import os
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine
from twisted.internet.process import reapAllProcesses
from twisted.internet.task import LoopingCall

from cod.client import Client
from cod.model import Account, ConsoleRules, Site, SiteRef
from cod.pool import Pool
from cod.power import recorder
from cod.power.driver import PowerError, SignIn, Target
from cod.power.loading import consoles
from cod.power.recorder import Recorder
from cod.power.sol import SolConsoles, SolLine
from cod.states import NodeState
from tests.net.apiserver import add_node, serving
from tests.system.bmcs import IpmiSim, Switchboard
from tests.waiting import until

pytestmark = pytest.mark.system

ADMIN = SignIn("admin", "secret")


class Serial:
    """A machine's serial port: what the test says, the BMC hears."""

    def __init__(self) -> None:
        self._machine, self._port = os.openpty()
        tty.setraw(self._port)
        self.name = os.ttyname(self._port)

    def say(self, data: bytes) -> None:
        os.write(self._machine, data)

    def hears(self, length: int) -> bytes:
        """What the BMC says, as many bytes."""
        heard = b""
        while len(heard) < length:
            heard += os.read(self._machine, length - len(heard))
        return heard

    def close(self) -> None:
        os.close(self._machine)
        os.close(self._port)


@pytest.fixture
def serial() -> Iterator[Serial]:
    serial = Serial()
    yield serial
    serial.close()


@pytest.fixture
def bmc(short_folder: Path, serial: Serial) -> Iterator[IpmiSim]:
    board = Switchboard(short_folder / "switches")
    with IpmiSim(short_folder / "bmc", board.path, "n1", serial.name).run() as bmc:
        yield bmc
    board.shutdown()
    board.server_close()


@pytest.fixture
def reaping(reactor: Any, in_reactor: Callable[..., Any]) -> Iterator[None]:
    """The reactor has no signals: its children are looked for."""
    loop = LoopingCall(reapAllProcesses)
    reactor.callFromThread(loop.start, 0.02)
    yield
    in_reactor(loop.stop)


class Ear:
    """Somebody who follows a console."""

    def __init__(self, reactor: Any, in_reactor: Callable[..., Any], target: Target) -> None:
        self.heard, self.opened, self.over, self._in_reactor = b"", False, "", in_reactor
        self.line: SolLine
        in_reactor(self._begin, SolConsoles(reactor), target)

    def _begin(self, consoles: SolConsoles, target: Target) -> None:
        self.line = consoles.follow(target, self._hear, self._open)
        self.line.ended.addCallbacks(
            lambda _: self._end("closed"), lambda failure: self._end(failure.value)
        )

    def _hear(self, data: bytes) -> None:
        self.heard += data

    def _open(self) -> None:
        self.opened = True

    def _end(self, how: Any) -> None:
        self.over = how

    def close(self) -> None:
        self._in_reactor(self.line.close)
        until(lambda: self.over, "ipmitool has ended")
        assert self.over == "closed"

    def refused(self) -> PowerError:
        until(lambda: self.over, "ipmitool has ended", 60)
        assert isinstance(self.over, PowerError)
        return self.over


def test_the_serial_port_is_heard_as_it_is(
    bmc: IpmiSim, serial: Serial, reactor: Any, in_reactor: Callable[..., Any], reaping: None
) -> None:
    first = Ear(reactor, in_reactor, Target(bmc.address, ADMIN))
    until(lambda: first.opened, "the console is heard", 60)
    serial.say(b"\x1b[1;31mLinux\x1b[0m \xff\x00\xfe~.\r\n")
    until(lambda: first.heard.endswith(b"\n"), "the line comes")
    assert first.heard == b"\x1b[1;31mLinux\x1b[0m \xff\x00\xfe~.\r\n"

    second = Ear(reactor, in_reactor, Target(bmc.address, ADMIN))
    busy = second.refused()
    assert "somebody else has this console" in str(busy)
    assert not busy.lasting
    assert not second.opened

    assert all(
        b"secret" not in Path(f"/proc/{pid}/cmdline").read_bytes()
        for pid in [first.line.transport.pid]
    )
    typed = b"~.ls\r~x~.\x03~~\r~~.\r"
    in_reactor(first.line.type, typed)
    assert serial.hears(len(typed)) == typed, "what ipmitool would obey is typed as well"
    first.close()
    third = Ear(reactor, in_reactor, Target(bmc.address, ADMIN))
    until(
        lambda: third.opened,
        "the BMC was told that the first has gone, and lets the next one in",
        60,
    )
    third.close()


@pytest.mark.parametrize(
    ("sign_in", "sentence"),
    [
        (SignIn("admin", "wrong"), "the BMC refuses the password"),
        (None, "needs an account"),
    ],
)
def test_what_no_second_try_can_mend(
    bmc: IpmiSim,
    reactor: Any,
    in_reactor: Callable[..., Any],
    reaping: None,
    sign_in: SignIn | None,
    sentence: str,
) -> None:
    refusal = Ear(reactor, in_reactor, Target(bmc.address, sign_in)).refused()
    assert sentence in str(refusal)
    assert refusal.lasting


def test_a_bmc_without_a_console_says_so(
    short_folder: Path, reactor: Any, in_reactor: Callable[..., Any], reaping: None
) -> None:
    board = Switchboard(short_folder / "switches")
    with IpmiSim(short_folder / "bmc", board.path, "n1").run() as bmc:
        refusal = Ear(reactor, in_reactor, Target(bmc.address, ADMIN)).refused()
    assert str(refusal).startswith("the BMC gives no console")
    board.shutdown()
    board.server_close()


# ---------------------------------------------------------------- to the API


@contextmanager
def recording(
    reactor: Any, engine: Engine, in_reactor: Callable[..., Any], site: Site, folder: Path
) -> Iterator[Client]:
    """An API, and a recorder beside it."""
    password = folder / "password"
    password.write_text("secret\n")
    password.chmod(0o600)
    site = replace(
        site,
        consoles=ConsoleRules(record=True),
        accounts=(Account("rack", "admin", str(password)),),
    )
    pool = Pool(engine, reactor)
    with serving(pool, reactor, in_reactor, site, consoles=folder / "consoles") as served:
        service = Recorder(
            reactor,
            pool,
            consoles(reactor),
            "here",
            served.clock,
            SiteRef(site),
            folder / "consoles",
        )
        add_node(
            served,
            "n1",
            1,
            state=NodeState.INACTIVE,
            power_driver="ipmi",
            power_address=(folder / "address").read_text(),
            power_account="rack",
        )
        in_reactor(service.startService)
        try:
            yield served.local
        finally:
            in_reactor(service.stopService)
    pool.close()


def test_what_a_machine_says_can_be_read(
    bmc: IpmiSim,
    serial: Serial,
    reactor: Any,
    engine: Engine,
    in_reactor: Callable[..., Any],
    reaping: None,
    site: Site,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recorder, "LOOK", 0.5)
    (tmp_path / "address").write_text(bmc.address)
    with recording(reactor, engine, in_reactor, site, tmp_path) as api:

        def console() -> Any:
            return api.get("/nodes/n1/console")

        until(lambda: console()["state"] == "recording", lambda: console(), 60)
        serial.say("\x1b[2J\x1b[1;1HGRUB\r\n\x1b[32mLinux\x1b[0m süß \r\nlogin: ".encode())
        until(lambda: "login" in console()["text"], lambda: console(), 60)
        assert console()["text"] == "\nGRUB\nLinux süß \nlogin: "
        at = console()["end"]
        serial.say(b"root\r\n")
        until(
            lambda: api.get("/nodes/n1/console", since=at)["text"] == "root\n",
            lambda: console(),
            60,
        )
    files = list((tmp_path / "consoles").rglob("*.log"))
    assert [each.stat().st_mode & 0o777 for each in files] == [0o640]
    assert b"\x1b[32m" in files[0].read_bytes(), "what is kept is what was said"
    other = Ear(reactor, in_reactor, Target(bmc.address, ADMIN))
    until(lambda: other.opened, "the recorder has given the console back", 60)
    other.close()
