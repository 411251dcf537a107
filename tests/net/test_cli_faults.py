"""`cod fault list`: what outside does not do its part."""

from __future__ import annotations

import time
from typing import Any

from cod import notice_texts
from cod.cli.nodes.fault import Fault, faults
from cod.core import notices
from cod.store.nodes import conflicts
from tests.net.apiserver import Served, add_node, as_json, run

ABOUT = "the file server does not answer"


def node(name: str, mac: str, **more: Any) -> dict[str, Any]:
    power = {"state": "on"}
    return {
        "name": name,
        "macs": [mac],
        "vcluster": "web",
        "reason": "",
        "since": 1.0,
        "power": power,
    } | more


def notice(kind: str, at: float, link: str, subject: str = "") -> dict[str, Any]:
    return {"kind": kind, "at": at, "link": link, "subject": subject}


NODES = [
    node("n1", "a"),
    node("n2", "b", reason="power: the BMC does not answer", since=50.0, vcluster=None),
    node("n3", "c", reason="its power driver says that it is off", power={"state": "off"}),
]
SWITCHES = [
    {"name": "leaf-1", "reason": "", "answered_at": 90.0},
    {"name": "leaf-2", "reason": "timed out", "answered_at": 70.0},
]
PORTS = [
    {"switch": "leaf-2", "node": "n1", "state": "pending"},
    {"switch": "leaf-2", "node": "n3", "state": "applied"},
]
ATTACHMENTS = [
    {"vcluster": "sim", "state": "waiting"},
    {"vcluster": "web", "state": "exported"},
]
VOLUMES = [
    {"name": "site/a", "fileserver": "nas", "state": "ready", "reason": "", "attachments": []},
    {
        "name": "site/b",
        "fileserver": "nas",
        "state": "trouble",
        "reason": ABOUT,
        "attachments": ATTACHMENTS,
    },
]
CONFLICTS = [
    {"kind": "dhcp", "at": 10.0, "mac": "b", "subnet": "lab", "about": "old"},
    {"kind": "moved", "at": 5000.0, "mac": "a", "subnet": "lab", "about": "moved"},
    {"kind": "dhcp", "at": 5000.0, "mac": "a", "subnet": "lab", "about": "takes an address"},
]
NOTICES = [
    notice("volume-trouble", 20.0, "/volumes/site/c", "volume site/c: nas does not follow"),
    notice("volume-trouble", 40.0, "/volumes/site/b"),
    notice("found-off", 60.0, "/nodes/n3"),
    notice("volume-recovered", 80.0, "/volumes/site/c", "volume site/c: nas follows again"),
]


def test_each_fault_says_since_when_whom_it_affects_and_who_waits() -> None:
    found = faults(SWITCHES, PORTS, VOLUMES, NODES, CONFLICTS, NOTICES, 5001.0)
    assert found == [
        Fault("another DHCP server on lab", 5000.0, None, ("n1",), ("web",), "takes an address"),
        Fault("switch leaf-2", 70.0, None, ("n1",), ("web",), "timed out"),
        Fault("power of n3", 60.0, None, ("n3",), ("web",), NODES[2]["reason"]),
        Fault("power of n2", 50.0, None, ("n2",), (), NODES[1]["reason"]),
        Fault("file server nas", 40.0, None, ("site/b",), ("sim",), ABOUT),
        Fault("volume site/c", 20.0, 80.0, ("site/c",), (), NOTICES[3]["subject"]),
    ]


def test_an_end_is_forgotten_after_a_day() -> None:
    assert faults([], [], [], [], [], NOTICES, 90_000.0) == []


def test_the_command_asks_a_server(served: Served) -> None:
    assert as_json(served, "fault", "list") == []
    add_node(served, "n1", 1, reason="power: the BMC does not answer")
    mac, now = "52:54:00:00:00:01", time.time()
    served.tx(conflicts.add, "dhcp", "takes an address", now, subnet="lab", mac=mac)
    for text in (
        notice_texts.volume_trouble("site/c", "nas", ABOUT),
        notice_texts.volume_trouble_over("site/c", "nas"),
    ):
        served.tx(notices.add, **text, group_id=None, now=now)
    lines = run(served, "fault", "list").stdout.splitlines()
    assert lines[0].split() == ["FAULT", "SINCE", "ENDED", "AFFECTS", "WAITING", "ABOUT"]
    assert [each["what"] for each in as_json(served, "fault", "list")] == [
        "another DHCP server on lab",
        "power of n1",
        "volume site/c",
    ]
