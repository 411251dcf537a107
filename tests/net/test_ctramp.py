"""The agent's program against the real confd on loopback, working on a file as its disk."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from cod.core.nodes import transitions
from cod.model import Node, Policy, Site, SiteRef
from cod.pool import Pool, in_transaction
from cod.states import NodeEvent
from cod.store.nodes import nodes
from cod.wire.confd import protocol
from tests.bootsecret import boot_secret
from tests.hardware import machine, nic
from tests.net.confd_woken import confd_server
from tests.waiting import until
from trampoline import ctramp, inventory
from trampoline.options import parse

MAC = "52:54:00:00:00:01"


SYSTEM, NETWORK = 0, 1  # numbers of boot options


class Firmware:
    """A UEFI firmware's variables: two boot options, and their order."""

    def __init__(self, root: Path) -> None:
        self._folder = root / "sys/firmware/efi/efivars"
        self._folder.mkdir(parents=True)
        for number, node in ((SYSTEM, b"\4\4"), (NETWORK, b"\3\x0b")):
            path = node + b"\4\0" + b"\x7f\xff\4\0"
            option = struct.pack("<IIH", 7, 1, len(path)) + "x\0".encode("utf-16-le") + path
            self._variable(f"Boot{number:04X}").write_bytes(option)

    def _variable(self, name: str) -> Path:
        return self._folder / f"{name}-8be4df61-93ca-11d2-aa0d-00e098032b8c"

    def order(self, *numbers: int) -> None:
        content = struct.pack(f"<I{len(numbers)}H", 7, *numbers)
        self._variable("BootOrder").write_bytes(content)

    def ordered(self) -> list[int]:
        content = self._variable("BootOrder").read_bytes()[4:]
        return [number for (number,) in struct.iter_unpack("<H", content)]


class World:
    """A confd that can be stopped and started, and one machine that has just booted the
    trampoline."""

    def __init__(
        self, folder: Path, engine: Engine, pool: Pool, reactor: Any, in_reactor: Any, site: Site
    ) -> None:
        self.folder, self.engine, self.pool, self.reactor, self.in_reactor = (
            folder,
            engine,
            pool,
            reactor,
            in_reactor,
        )
        self.site = site
        self.status: list[int] = []
        self.server = confd_server(reactor, pool, SiteRef(site), "one", ["127.0.0.1"], 0)
        in_reactor(self.server.startService)
        nic(machine(folder / "root"), "eth0", MAC, driver="e1000")
        self.disk = folder / "disk"
        self.disk.write_bytes(b"somebody's data" * 70_000)
        (folder / "secret").write_text(str(self._mint()))

    def _mint(self) -> protocol.Secret:
        return boot_secret(self.engine, self.site, MAC, disk="dirty")

    def options(self) -> ctramp.Options:
        return ctramp.Options(
            **parse(
                [
                    "--confd",
                    f"127.0.0.1:{self.server.port}",
                    "--mac",
                    MAC,
                    "--secret",
                    str(self.folder / "secret"),
                    "--root",
                    str(self.folder / "root"),
                    "--disk",
                    str(self.disk),
                    "--reboot-command",
                    f"touch {self.folder}/rebooted",
                    "--poweroff-command",
                    f"touch {self.folder}/off",
                ]
            )
        )

    def agent(self) -> threading.Thread:
        thread = threading.Thread(
            target=lambda: self.status.append(ctramp.main(self.options())), daemon=True
        )
        thread.start()
        return thread

    def stop(self) -> None:
        self.in_reactor(self.server.stopService)

    def restart(self) -> None:
        self.server = confd_server(
            self.reactor,
            self.pool,
            SiteRef(self.site),
            "one",
            ["127.0.0.1"],
            self.server.port,
        )
        self.in_reactor(self.server.startService)

    def node(self) -> Node:
        node = in_transaction(self.engine, nodes.by_mac, MAC)
        assert node is not None
        return node

    def happens(self, event: NodeEvent) -> None:
        """To the node, by an administrator's word."""
        in_transaction(
            self.engine,
            transitions.move,
            self.node(),
            event,
            now=time.time(),
            cause="test",
            actor="test",
        )

    def wait(self, condition: Callable[[], Any]) -> None:
        until(condition, self.node)


@pytest.fixture
def world(
    tmp_path: Path, engine: Engine, pool: Pool, reactor: Any, in_reactor: Any, site: Site
) -> Iterator[World]:
    subnet = replace(site.subnets[0], server="127.0.0.1", network="127.0.0.0/8")
    site = replace(site, subnets=(subnet,), policy=Policy(auto_approve=True, heartbeat=0.5))
    world = World(tmp_path, engine, pool, reactor, in_reactor, site)
    yield world
    if world.server.running:
        world.stop()


@pytest.mark.slow
def test_a_machine_reports_is_wiped_survives_a_restart_of_the_server_and_is_rebooted(
    world: World, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ctramp, "FIRST_PAUSE", 0.1)
    firmware = Firmware(world.folder / "root")
    firmware.order(SYSTEM, NETWORK)
    agent = world.agent()
    world.wait(lambda: world.node().state == "inactive")
    assert firmware.ordered() == [NETWORK, SYSTEM], "put right with the wipe"
    firmware.order(SYSTEM, NETWORK)
    assert world.node().disk == "clean"
    assert not any(world.disk.read_bytes())
    assert 'serial="disk"' in (world.node().attributes or "")

    world.stop()
    world.restart()
    world.wait(lambda: world.server.nodes)

    world.happens(NodeEvent.BOOT_ORDERED)
    agent.join(60)
    assert world.status == [0]
    assert (world.folder / "rebooted").exists()
    assert firmware.ordered() == [NETWORK, SYSTEM], "put right again as it leaves"
    assert not (world.folder / "off").exists()
    said = capfd.readouterr().out
    assert "wipe done" in said
    for file in ("secret", "secret.session"):
        assert (world.folder / file).read_text().split()[1] not in said


@pytest.mark.slow
def test_an_agent_goes_to_the_other_server_when_its_own_dies(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ctramp, "FIRST_PAUSE", 0.1)
    second = confd_server(
        world.reactor,
        world.pool,
        SiteRef(world.site),
        "two",
        ["127.0.0.2"],
        0,
    )
    world.in_reactor(second.startService)
    both = f"127.0.0.1:{world.server.port},127.0.0.2:{second.port}"
    options = replace(world.options(), confd=both)
    agent = threading.Thread(target=lambda: world.status.append(ctramp.main(options)), daemon=True)
    agent.start()
    world.wait(lambda: world.node().state == "inactive")
    assert world.server.nodes, "the first that is named is asked first"
    assert not second.nodes

    world.stop()
    world.wait(lambda: second.nodes)
    world.happens(NodeEvent.BOOT_ORDERED)
    agent.join(60)
    assert world.status == [0]
    assert (world.folder / "rebooted").exists()
    world.in_reactor(second.stopService)


@pytest.mark.slow
def test_an_agent_that_is_started_again_goes_on_with_the_session(world: World) -> None:
    # nobody there: `once` is over
    ctramp.run(replace(world.options(), once=True, confd="127.0.0.1:1"))
    session = world.folder / "secret.session"
    assert not session.exists()
    first = ctramp.Shell(world.options(), MAC)
    connection = threading.Thread(
        target=first.converse, args=("127.0.0.1", world.server.port), daemon=True
    )
    connection.start()
    world.wait(lambda: world.node().state == "inactive")
    assert session.stat().st_mode & 0o777 == 0o600
    first.agent.leave = "reboot"  # ends the first one's connection at its next heartbeat
    connection.join(60)
    assert not connection.is_alive()

    second = ctramp.Shell(world.options(), MAC)  # the boot's secret is spent
    connection = threading.Thread(
        target=second.converse, args=("127.0.0.1", world.server.port), daemon=True
    )
    connection.start()
    world.wait(lambda: second.was_welcomed)
    second.agent.leave = "reboot"
    connection.join(60)  # it speaks on the standard output, which the next test may read
    assert not connection.is_alive()


# ---------------------------------------------------------------- the shell's own


@pytest.mark.parametrize(("words", "same_wwn"), [("", "refuse"), ("cod.same_wwn=paths", "paths")])
def test_the_kernels_command_line_tells_which_disks_are_local(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, same_wwn: str
) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cmdline").write_text(f"quiet {words}\n")
    secret = tmp_path / "secret"
    secret.write_text(str(protocol.Secret("a1", bytes(32))))
    monkeypatch.setattr(inventory, "disks", lambda root, same_wwn: (root, same_wwn))
    shell = ctramp.Shell(ctramp.Options(root=tmp_path, secret=secret), MAC)
    assert shell._disks() == (tmp_path, same_wwn)


@pytest.mark.parametrize(
    "address", ["", "127.0.0.1", "confd.example:8070", "127.0.0.1:", ":8070", "127.0.0.1:x"]
)
def test_an_unusable_address_is_named(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cmdline").write_text(f"quiet cod.confd={address}\n")
    assert ctramp.main(ctramp.Options(mac=MAC, root=tmp_path)) == 2
    assert f"cod.confd={address!r} is not ADDRESS:PORT" in capsys.readouterr().out


@pytest.mark.parametrize("secret", ["", "just-one-word", "id nothex", "a b c"])
def test_an_unusable_secret_is_not_shown(
    secret: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "secret"
    file.write_text(secret)
    assert ctramp.main(ctramp.Options(mac=MAC, confd="127.0.0.1:1", secret=file)) == 2
    said = capsys.readouterr().out
    assert "no usable secret" in said
    assert not secret or secret not in said


def test_the_kernels_command_line_is_read(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cmdline").write_text(
        "BOOT_IMAGE=vmlinuz quiet cod.confd=10.77.0.1:8070 cod.mac=AA:bb x=1=2\n"
    )
    words = ctramp.command_line(tmp_path)
    assert (words["cod.confd"], words["cod.mac"], words["quiet"], words["x"]) == (
        "10.77.0.1:8070",
        "AA:bb",
        "",
        "1=2",
    )
    assert ctramp.command_line(tmp_path / "nowhere") == {}


def test_pauses_double_to_a_limit_and_are_spread() -> None:
    assert [ctramp.pause(failures, 1.0) for failures in range(1, 8)] == [1, 2, 4, 8, 16, 20, 20]
    assert [ctramp.pause(failures, 0.0) for failures in range(1, 4)] == [0.25, 0.5, 1]
    assert ctramp.pause(10_000, 1.0) == 20


def test_a_server_that_closes_at_once_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "secret").write_text(str(protocol.Secret("a", b"k" * 32)))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        threading.Thread(target=lambda: server.accept()[0].close(), daemon=True).start()
        options = ctramp.Options(
            f"127.0.0.1:{port}", MAC, tmp_path / "secret", machine(tmp_path / "root"), once=True
        )
        assert ctramp.main(options) == 0
    assert f"trampoline: 127.0.0.1:{port}: " in capsys.readouterr().out
