"""The driver `netmiko` against a stand-in: a real SSH server that plays a switch with the command
line of IOS. No switch of any of the platforms was at hand; what they show is from their makers'
documentation."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import paramiko
import pytest

from cod.model import SWITCH_PLATFORMS, Switch
from cod.power.driver import SignIn
from cod.switches.cli import NetmikoDriver, access_vlan, host_and_port, in_words
from cod.switches.driver import SwitchError, SwitchTarget
from cod.switches.platforms import PLATFORMS
from tests.net import switchsession
from tests.ports import free_port

InReactor = Callable[..., Any]
SHOWN = """Name: Gi1/0/7
Switchport: Enabled
Administrative Mode: {mode}
Operational Mode: {mode}
Access Mode VLAN: {vlan} (VLAN{vlan:04d})
"""


class Ios(paramiko.ServerInterface):
    """A switch: its ports' VLANs, its one account, and what was saved."""

    def __init__(self) -> None:
        self.key = paramiko.ECDSAKey.generate()
        self.vlans = {"Gi1/0/7": 10, "Gi1/0/8": 10}
        self.modes: dict[str, str] = {}
        self.deaf = self.over = False
        self.saved = 0
        self.lines: list[str] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.own = self.listener.getsockname()[1]
        self.threads = [threading.Thread(target=self._accept, daemon=True)]
        self.threads[0].start()

    def check_auth_password(self, username: str, password: str) -> int:
        good = (username, password) == ("cod", "secret")
        return paramiko.common.AUTH_SUCCESSFUL if good else paramiko.common.AUTH_FAILED

    def get_allowed_auths(self, username: str) -> str:
        return "password"

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.common.OPEN_SUCCEEDED

    def check_channel_pty_request(self, *_: Any) -> bool:
        return True

    def check_channel_shell_request(self, channel: paramiko.Channel) -> bool:
        return True

    def close(self) -> None:
        self.over = True
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", self.own), 1).close()  # it leaves accept()
        for thread in self.threads:
            thread.join(10)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            if self.over:
                connection.close()
                self.listener.close()
                return
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self.threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        transport = paramiko.Transport(connection)
        try:
            transport.add_server_key(self.key)
            transport.start_server(server=self)
            channel = transport.accept(20)
            if channel is not None:
                self._talk(channel)
        except (EOFError, OSError, paramiko.SSHException):
            pass
        finally:
            transport.close()
            transport.join(10)

    def _talk(self, channel: paramiko.Channel) -> None:
        mode, interface, waiting = "", "", ""
        channel.send(b"\r\nleaf#")
        while data := channel.recv(4096):
            waiting += data.decode().replace("\r\n", "\n").replace("\r", "\n")
            while "\n" in waiting:
                line, _, waiting = waiting.partition("\n")
                said, mode, interface, over = self._obey(line.strip(), mode, interface)
                if over:
                    return
                channel.send(
                    f"{line}\r\n{said}leaf{mode}#".replace("\n", "\r\n")
                    .replace("\r\r", "\r")
                    .encode()
                )

    def _obey(self, line: str, mode: str, interface: str) -> tuple[str, str, str, bool]:
        self.lines.append(line)
        if line == "exit" and not mode:
            return "", mode, interface, True
        if line in ("end", "exit"):
            return "", "", "", False
        if line == "configure terminal":
            return "", "(config)", "", False
        if mode and (found := re.fullmatch(r"interface (\S+)", line)):
            if found[1] not in self.vlans:
                return "% Invalid input detected at '^' marker.\n", mode, interface, False
            return "", "(config-if)", found[1], False
        if interface and (found := re.fullmatch(r"switchport access vlan (\d+)", line)):
            if int(found[1]) == 666:
                return "% Command rejected: VLAN 666 is reserved\n", mode, interface, False
            self.vlans[interface] = self.vlans[interface] if self.deaf else int(found[1])
            return "", mode, interface, False
        if found := re.fullmatch(r"show interfaces (\S+) switchport", line):
            if found[1] not in self.vlans:
                return "% Invalid input detected at '^' marker.\n", mode, interface, False
            shown = SHOWN.format(
                mode=self.modes.get(found[1], "static access"), vlan=self.vlans[found[1]]
            )
            return shown, mode, interface, False
        if line in ("write mem", "copy running-config startup-config"):
            self.saved += 1
            return "Building configuration...\n[OK]\n", mode, interface, False
        return "", mode, interface, False


@pytest.fixture
def ios() -> Iterator[Ios]:
    switch = Ios()
    yield switch
    switch.close()


def ask(
    reactor: Any,
    in_reactor: InReactor,
    ios: Ios,
    change: dict[str, int],
    *read: str,
    password: str = "secret",
    **columns: Any,
) -> tuple[Any, Any, str]:
    switch = Switch("leaf", "netmiko", f"127.0.0.1:{ios.port}", "net", "cisco_ios", **columns)
    return switchsession.ask(
        in_reactor,
        NetmikoDriver(reactor),
        SwitchTarget(switch, SignIn("cod", password)),
        change,
        *read,
    )


@pytest.mark.slow
def test_ports_are_changed_read_back_and_saved(
    reactor: Any, in_reactor: InReactor, ios: Ios
) -> None:
    refused, seen, about = ask(
        reactor, in_reactor, ios, {"Gi1/0/7": 20}, "Gi1/0/7", "Gi1/0/8", "Gi9/9", save=True
    )
    assert refused == {}
    assert (seen["Gi1/0/7"], seen["Gi1/0/8"]) == (20, 10)
    assert seen["Gi9/9"].sentence == "the switch has no port Gi9/9"
    assert seen["Gi9/9"].lasting
    assert about == "cisco_ios, prompt leaf"
    assert ios.saved == 1


@pytest.mark.slow
def test_a_trunk_a_refusal_and_a_name_that_is_none(
    reactor: Any, in_reactor: InReactor, ios: Ios
) -> None:
    ios.modes["Gi1/0/8"] = "trunk"
    refused, seen, _ = ask(reactor, in_reactor, ios, {"Gi1/0/7": 666}, "Gi1/0/8", "p; reload")
    assert (
        refused["Gi1/0/7"].sentence
        == "the switch refuses: % Command rejected: VLAN 666 is reserved"
    )
    assert "is a trunk" in seen["Gi1/0/8"].sentence
    assert "is no name of a port" in seen["p; reload"].sentence
    assert not any("reload" in line for line in ios.lines), "nothing of it was said to the switch"


@pytest.mark.slow
def test_a_wrong_password_another_key_and_a_switch_that_is_away(
    reactor: Any, in_reactor: InReactor, ios: Ios
) -> None:
    with pytest.raises(SwitchError, match="refuses the account net") as raised:
        ask(reactor, in_reactor, ios, {}, password="wrong1")
    assert "wrong1" not in raised.value.sentence
    own = f"{ios.key.get_name()} {ios.key.get_base64()}"
    assert ask(reactor, in_reactor, ios, {}, "Gi1/0/7", host_key=own)[1] == {"Gi1/0/7": 10}
    other = paramiko.ECDSAKey.generate()
    with pytest.raises(SwitchError, match="another SSH key"):
        ask(reactor, in_reactor, ios, {}, host_key=f"{other.get_name()} {other.get_base64()}")
    ios.port = free_port()
    with pytest.raises(SwitchError, match="does not answer"):
        ask(reactor, in_reactor, ios, {})


@pytest.mark.parametrize(
    ("platform", "shown", "vlan"),
    [
        ("cisco_ios", SHOWN.format(mode="static access", vlan=20), 20),
        (
            "cisco_nxos",
            (
                "Name: Ethernet1/7\n  Switchport: Enabled\n  Operational Mode: access\n"
                "  Access Mode VLAN: 30 (VLAN0030)\n"
            ),
            30,
        ),
        (
            "arista_eos",
            (
                "Name: Et7\nSwitchport: Enabled\nAdministrative Mode: static access\n"
                "Operational Mode: static access\nAccess Mode VLAN: 40 (iso)\n"
            ),
            40,
        ),
        (
            "aruba_aoscx",
            "interface 1/1/7\n    no shutdown\n    no routing\n    vlan access 50\n    exit\n",
            50,
        ),
        ("aruba_aoscx", "interface 1/1/7\n    no shutdown\n    no routing\n    exit\n", 1),
        (
            "aruba_osswitch",
            (
                "  VLAN ID Name                 | Status     Voice Jumbo Mode\n"
                "  ------- -------------------- + ---------- ----- ----- --------\n"
                "  60      VLAN60               | Port-based No    No    Untagged\n"
            ),
            60,
        ),
        ("dell_os10", "!\ninterface ethernet1/1/7\n no shutdown\n switchport access vlan 70\n", 70),
        (
            "juniper_junos",
            (
                "set interfaces ge-0/0/7 unit 0 family ethernet-switching interface-mode access\n"
                "set interfaces ge-0/0/7 unit 0 family ethernet-switching vlan members 80\n"
            ),
            80,
        ),
        ("cumulus", '{\n  "access": 90,\n  "learning": "on"\n}\n', 90),
    ],
)
def test_what_platforms_show_of_a_port(platform: str, shown: str, vlan: int) -> None:
    assert access_vlan(PLATFORMS[platform], "p", shown) == vlan


@pytest.mark.parametrize(
    ("platform", "shown"),
    [
        (
            "cisco_nxos",
            "Name: Ethernet1/7\n  Operational Mode: trunk\n  Access Mode VLAN: 1 (default)\n",
        ),
        ("aruba_aoscx", "interface 1/1/7\n    vlan trunk native 1\n    vlan trunk allowed all\n"),
        (
            "dell_os10",
            "interface ethernet1/1/7\n switchport mode trunk\n switchport access vlan 1\n",
        ),
        (
            "juniper_junos",
            "set interfaces ge-0/0/7 unit 0 family ethernet-switching interface-mode trunk\n",
        ),
        ("cumulus", '{"untagged": 1, "vlan": {"10": {}}}'),
    ],
)
def test_trunks_are_told(platform: str, shown: str) -> None:
    found = access_vlan(PLATFORMS[platform], "p", shown)
    assert isinstance(found, SwitchError)
    assert "is a trunk" in found.sentence


def test_each_platform_of_the_site_file_has_its_lines() -> None:
    assert set(PLATFORMS) == set(SWITCH_PLATFORMS)


def test_addresses() -> None:
    assert host_and_port("leaf") == ("leaf", 22)
    assert host_and_port("leaf:2222") == ("leaf", 2222)
    assert host_and_port("[fd00::1]:2222") == ("fd00::1", 2222)
    assert host_and_port("fd00::1") == ("fd00::1", 22)
    for wrong in ("", "leaf:0", "leaf:x", "ssh://leaf"):
        with pytest.raises(SwitchError, match="is not of the form"):
            host_and_port(wrong)


def test_what_a_library_says_is_cut_at_words() -> None:
    assert in_words("TCP connection\n\n to device  failed.") == "TCP connection to device failed."
    cut = in_words("authentication, " * 40)
    assert cut.endswith("authentication …")
    assert 150 < len(cut) <= 200
    assert len(in_words("x" * 300)) <= 200
