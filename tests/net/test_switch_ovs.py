"""The driver `ovs` and a real Open vSwitch: changes that are read back, and what goes wrong with
them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from cod.model import Switch
from cod.switches import ovs
from cod.switches.driver import SwitchError, SwitchTarget
from cod.switches.ovs import OvsDriver
from tests.net import switchsession
from tests.ovs import OpenVSwitch, needs_ovs
from tests.ports import free_port

pytestmark = [needs_ovs, pytest.mark.slow]
InReactor = Callable[..., Any]


@pytest.fixture
def switch(tmp_path: Path) -> Iterator[OpenVSwitch]:
    running = OpenVSwitch(tmp_path)
    try:
        running.start()
        running.add_ports("p1", "p2")
        yield running
    finally:
        running.stop()


class Side:
    """COD's side: one session a question."""

    def __init__(self, reactor: Any, in_reactor: InReactor) -> None:
        self.driver, self.in_reactor = OvsDriver(reactor), in_reactor

    def ask(self, switch: Switch, change: Mapping[str, int], *read: str) -> tuple[Any, Any, str]:
        return switchsession.ask(self.in_reactor, self.driver, SwitchTarget(switch), change, *read)


@pytest.fixture
def side(reactor: Any, in_reactor: InReactor) -> Side:
    return Side(reactor, in_reactor)


def at(address: str, **columns: Any) -> Switch:
    return Switch("leaf", "ovs", address, **columns)


def test_ports_are_changed_and_read_back(switch: OpenVSwitch, side: Side) -> None:
    refused, seen, about = side.ask(at(switch.address), {"p1": 20, "p2": 30}, "p1", "p2")
    assert (refused, seen) == ({}, {"p1": 20, "p2": 30})
    assert about == "Open vSwitch 3.1.0"
    assert (switch.tag("p1"), switch.tag("p2")) == ("20", "30")


def test_a_trunk_and_a_port_that_is_not_there_are_refused_for_good(
    switch: OpenVSwitch, side: Side
) -> None:
    switch.add_ports("up1", tag=None)
    switch.vsctl("set", "port", "up1", "trunks=10,20")
    switch.add_ports("up2")
    switch.vsctl("set", "port", "up2", "vlan_mode=native-untagged")
    switch.add_ports("bare", tag=None)
    _, seen, _ = side.ask(at(switch.address), {}, "up1", "up2", "bare", "p9")
    assert seen["bare"] == 0
    for name, sentence in (
        ("up1", "port up1 is a trunk"),
        ("up2", "port up2 is a trunk"),
        ("p9", "has no port p9"),
    ):
        assert sentence in seen[name].sentence
        assert seen[name].lasting


def test_a_switch_whose_daemon_does_not_run_accepts_and_does_not_apply(
    switch: OpenVSwitch, side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch.stop("daemon")
    monkeypatch.setattr(ovs, "APPLY", 0.5)
    with pytest.raises(SwitchError, match="ovs-vswitchd did not apply it"):
        side.ask(at(switch.address), {"p1": 20}, "p1")


def test_a_switch_that_is_away_and_an_address_that_is_none(tmp_path: Path, side: Side) -> None:
    with pytest.raises(SwitchError, match="does not answer at unix:"):
        side.ask(at(f"unix:{tmp_path}/gone.sock"), {}, "p1")
    with pytest.raises(SwitchError, match=r"does not answer at tcp:127\.0\.0\.1"):
        side.ask(at(f"tcp:127.0.0.1:{free_port()}"), {}, "p1")
    for address in ("leaf", "unix:relative", "tcp:host:x", "ssl:"):
        with pytest.raises(SwitchError, match="is not of the form") as raised:
            side.ask(at(address), {}, "p1")
        assert raised.value.lasting


def test_a_switch_that_goes_away_in_the_middle(switch: OpenVSwitch, side: Side) -> None:
    async def session() -> None:
        opened = await side.driver.open(SwitchTarget(at(switch.address)))
        switch.stop("database")
        await opened.read(["p1"])

    with pytest.raises(SwitchError, match="connection was lost"):
        side.in_reactor(lambda: Deferred.fromCoroutine(session()))


def test_over_tcp_and_over_tls(switch: OpenVSwitch, side: Side) -> None:
    plain, secret = free_port(), free_port()
    folder = switch.folder
    pki(folder)
    switch.stop("database", "daemon")
    switch.start_database(
        f"--remote=ptcp:{plain}:127.0.0.1",
        f"--remote=pssl:{secret}:127.0.0.1",
        f"--private-key={folder}/switch.key",
        f"--certificate={folder}/switch.pem",
        f"--ca-cert={folder}/ca.pem",
    )
    switch.start_daemon()
    assert side.ask(at(f"tcp:127.0.0.1:{plain}"), {"p1": 21}, "p1")[1] == {"p1": 21}
    files = {
        "ca_file": f"{folder}/ca.pem",
        "certificate": f"{folder}/cod.pem",
        "key": f"{folder}/cod.key",
    }
    address = f"ssl:127.0.0.1:{secret}"
    assert side.ask(at(address, **files), {"p1": 22}, "p1")[1] == {"p1": 22}
    # another authority's switch
    with pytest.raises(SwitchError, match=r"does not answer|connection was lost"):
        side.ask(at(address, **files | {"ca_file": f"{folder}/other.pem"}), {}, "p1")
    with pytest.raises(SwitchError, match="cannot be read"):
        side.ask(at(address, **files | {"key": f"{folder}/none.key"}), {}, "p1")


def pki(folder: Path) -> None:
    """Make two authorities, ca and other, and certificates of the first for the switch and for
    COD."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    for name in ("ca", "other"):
        openssl(
            *new,
            "-x509",
            "-days",
            "3",
            "-subj",
            f"/CN={name}",
            "-keyout",
            f"{name}.key",
            "-out",
            f"{name}.pem",
        )
    for name in ("switch", "cod"):
        openssl(*new, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        openssl(
            "x509",
            "-req",
            "-in",
            f"{name}.csr",
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
            "-days",
            "3",
            "-out",
            f"{name}.pem",
        )
