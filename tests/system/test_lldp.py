"""An LLDP frame over a cable: heard by the trampoline's listener, in network namespaces."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.test_lldp import ARISTA, CISCO
from tests.waiting import until

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]
LISTENER = """
import json, sys
from trampoline.lldp import LldpListener
listener = LldpListener()
for names in sys.stdin:
    print(json.dumps(listener.neighbours(names.split())), flush=True)
"""
SENDER = """
import socket, sys
sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
sender.bind((sys.argv[1], 0))
sender.send(bytes.fromhex(sys.argv[2]))
"""


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def names() -> Iterator[tuple[str, str]]:
    """A namespace with a machine (eth0, eth1), and one with its switches (sw0, sw1) at the cables'
    other ends."""
    machine, switch = (f"lldpt{os.getpid()}{end}" for end in "ms")
    for namespace in (machine, switch):
        ip("netns", "add", namespace)
    try:
        for number in (0, 1):
            peer = ("peer", "name", f"sw{number}", "netns", switch)
            ip("-n", machine, "link", "add", f"eth{number}", "type", "veth", *peer)
            ip("-n", machine, "link", "set", f"eth{number}", "up")
            ip("-n", switch, "link", "set", f"sw{number}", "up")
        yield machine, switch
    finally:
        for namespace in (machine, switch):
            ip("netns", "delete", namespace)


def run(namespace: str, script: str, *words: str) -> subprocess.Popen[str]:
    command = ["ip", "netns", "exec", namespace, sys.executable, "-c", script, *words]
    return subprocess.Popen(
        command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


def test_switches_are_heard_on_the_cables_that_they_are_at(names: tuple[str, str]) -> None:
    machine, switch = names
    with run(machine, LISTENER) as listener:
        assert listener.stdin is not None
        assert listener.stdout is not None

        def heard() -> dict[str, list[str]]:
            listener.stdin.write("eth0 eth1 gone\n")
            listener.stdin.flush()
            found: dict[str, list[str]] = json.loads(listener.stdout.readline())
            return found

        assert heard() == {}
        # else a real NIC drops it
        assert "01:80:c2:00:00:0e" in ip("-n", machine, "maddress", "show", "dev", "eth1")
        assert run(switch, SENDER, "sw0", CISCO.hex()).wait() == 0
        # the machine's own words are nobody's
        assert run(machine, SENDER, "eth1", ARISTA.hex()).wait() == 0
        until(lambda: heard() == {"eth0": ["leaf-3.rack", "Gi1/0/7"]}, "hearing the frame")
        # another switch on that cable: the first one stays
        assert run(switch, SENDER, "sw0", ARISTA.hex()).wait() == 0
        assert run(switch, SENDER, "sw1", ARISTA.hex()).wait() == 0
        until(lambda: "eth1" in heard(), "hearing the second frame")
        assert heard() == {
            "eth0": ["leaf-3.rack", "Gi1/0/7"],
            "eth1": ["44:4c:a8:00:00:01", "Ethernet17"],
        }
        listener.stdin.close()
