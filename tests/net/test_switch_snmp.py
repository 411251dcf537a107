"""The driver `snmp` against snmpsim, which keeps what is set and knows no more of a switch than its
tables."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from cod.model import Switch
from cod.power.driver import SignIn
from cod.switches import snmp
from cod.switches.driver import SwitchError, SwitchTarget
from cod.switches.snmp import EGRESS, PVID, UNTAGGED, SnmpDriver, SnmpSession, changed, has
from tests.net import switchsession
from tests.ports import free_port
from tests.waiting import until

InReactor = Callable[..., Any]
SIM = Path(sys.executable).parent / "snmpsim-command-responder"
# Ports 1 to 3 are ge1, ge2 and the uplink ge3 (tagged in 10 and 20); interfaces have other numbers
# than bridge ports. Port 4 is an aggregate. VLAN 10 has the forwarding table 7: it knows MACs 1 on
# ge2, 3 on the uplink, 4 on the aggregate, 5 on no port.
RECORD = """\
1.3.6.1.2.1.1.1.0|4|A simulated switch
1.3.6.1.2.1.2.2.1.2.101|4|Gigabit port 1
1.3.6.1.2.1.2.2.1.2.102|4|Gigabit port 2
1.3.6.1.2.1.2.2.1.2.103|4|Gigabit port 3
1.3.6.1.2.1.2.2.1.2.104|4|Port channel 4
1.3.6.1.2.1.2.2.1.3.101|2|6
1.3.6.1.2.1.2.2.1.3.102|2|6
1.3.6.1.2.1.2.2.1.3.103|2|6
1.3.6.1.2.1.2.2.1.3.104|2|161
1.3.6.1.2.1.17.1.4.1.2.1|2|101
1.3.6.1.2.1.17.1.4.1.2.2|2|102
1.3.6.1.2.1.17.1.4.1.2.3|2|103
1.3.6.1.2.1.17.1.4.1.2.4|2|104
1.3.6.1.2.1.17.7.1.2.2.1.2.7.82.84.0.0.0.1|2|2
1.3.6.1.2.1.17.7.1.2.2.1.2.7.82.84.0.0.0.3|2|3
1.3.6.1.2.1.17.7.1.2.2.1.2.7.82.84.0.0.0.4|2|4
1.3.6.1.2.1.17.7.1.2.2.1.2.7.82.84.0.0.0.5|2|0
1.3.6.1.2.1.17.7.1.2.2.1.2.20.82.84.0.0.0.6|2|1
1.3.6.1.2.1.17.7.1.4.2.1.3.0.10|66|7
1.3.6.1.2.1.17.7.1.4.3.1.2.10|4x:writecache|hexvalue=f0
1.3.6.1.2.1.17.7.1.4.3.1.2.20|4x:writecache|hexvalue=20
1.3.6.1.2.1.17.7.1.4.3.1.4.10|4x:writecache|hexvalue=d0
1.3.6.1.2.1.17.7.1.4.3.1.4.20|4x:writecache|hexvalue=00
1.3.6.1.2.1.17.7.1.4.5.1.1.1|66:writecache|value=10
1.3.6.1.2.1.17.7.1.4.5.1.1.2|66:writecache|value=10
1.3.6.1.2.1.17.7.1.4.5.1.1.3|66:writecache|value=10
1.3.6.1.2.1.31.1.1.1.1.101|4|ge1
1.3.6.1.2.1.31.1.1.1.1.102|4|ge2
1.3.6.1.2.1.31.1.1.1.1.103|4|ge3
"""


def test_lists_of_ports() -> None:
    assert [port for port in range(1, 20) if has(bytes.fromhex("810080"), port)] == [1, 8, 17]
    assert changed(b"", 9, True) == b"\0\x80"
    assert changed(b"\xff", 1, False) == b"\x7f"
    assert changed(changed(b"\x10", 12, True), 12, False) == b"\x10\0"


@pytest.fixture
def switch(tmp_path: Path) -> Iterator[Switch]:
    if importlib.util.find_spec("snmpsim") is None or not SIM.exists():
        pytest.skip("snmpsim is not installed")
    data, port = tmp_path / "data", free_port(socket.SOCK_DGRAM)
    data.mkdir()
    (data / "private.snmprec").write_text(RECORD)
    command = [
        str(SIM),
        f"--data-dir={data}",
        f"--cache-dir={tmp_path / 'cache'}",
        f"--agent-udpv4-endpoint=127.0.0.1:{port}",
    ]
    if os.geteuid() == 0:
        command += ["--process-user=root", "--process-group=root"]
    log = tmp_path / "log"
    with open(log, "wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        until(
            lambda: b"Listening at" in log.read_bytes() or process.poll() is not None,
            lambda: log.read_text(),
        )
        yield Switch("leaf", "snmp", f"127.0.0.1:{port}", "net", provisioning_vlan=10)
    finally:
        process.kill()
        process.wait()


def ask(
    reactor: Any,
    in_reactor: InReactor,
    switch: Switch,
    change: dict[str, int],
    *read: str,
    community: str = "private",
) -> tuple[Any, Any, str]:
    return switchsession.ask(
        in_reactor, SnmpDriver(reactor), SwitchTarget(switch, SignIn("", community)), change, *read
    )


@pytest.mark.slow
def test_ports_are_changed_and_read_back(
    reactor: Any, in_reactor: InReactor, switch: Switch, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused, seen, about = ask(
        reactor, in_reactor, switch, {"ge1": 20}, "ge1", "ge2", "Gigabit port 2", "ge3", "ge9"
    )
    assert refused == {}
    assert (seen["ge1"], seen["ge2"], seen["Gigabit port 2"], about) == (
        20,
        10,
        10,
        "A simulated switch",
    )
    assert "port ge3 is a trunk" in seen["ge3"].sentence
    assert "has no port ge9" in seen["ge9"].sentence
    refused, seen, _ = ask(reactor, in_reactor, switch, {"ge2": 666, "ge1": 10}, "ge1", "ge2")
    assert refused["ge2"].sentence == "the switch has no VLAN 666: make it there"
    assert seen == {"ge1": 10, "ge2": 10}
    monkeypatch.setattr(snmp, "TIMEOUT", 0.2)
    monkeypatch.setattr(snmp, "RETRIES", 0)
    with pytest.raises(SwitchError, match=r"does not answer .or not to this community"):
        ask(reactor, in_reactor, switch, {}, community="wrong")


@pytest.mark.slow
def test_a_mac_is_found_on_access_ports_alone(
    reactor: Any, in_reactor: InReactor, switch: Switch
) -> None:
    macs = [f"52:54:00:00:00:0{number}" for number in range(1, 7)]
    target = SwitchTarget(switch, SignIn("", "private"))
    found = in_reactor(lambda: Deferred.fromCoroutine(SnmpDriver(reactor).locate(target, macs)))
    assert found == {macs[0]: ("ge2", "Gigabit port 2")}


def test_objects_are_those_of_the_mib() -> None:
    base = "1.3.6.1.2.1.17.7.1.4"  # dot1qVlan
    assert (f"{base}.3.1.2", f"{base}.3.1.4", f"{base}.5.1.1") == (EGRESS, UNTAGGED, PVID)


def test_a_table_that_leads_in_a_circle_ends() -> None:
    session: Any = SnmpSession.__new__(SnmpSession)
    session._snmp = SimpleNamespace(next_cmd=None)
    after = {"1.2": "1.2.1", "1.2.1": "1.2.2", "1.2.2": "1.2.1"}

    async def ask(_command: object, oid: Any) -> Any:
        await asyncio.sleep(0)
        return [(after[oid], 7)]

    session._object = lambda oid, *_value: oid
    session._ask = ask
    with pytest.raises(SwitchError, match="leads in a circle"):
        asyncio.run(asyncio.wait_for(session._walk("1.2"), 5))
