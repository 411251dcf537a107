"""A small site with something of everything to look at, written into a database: for tests of
pages, and to see them.

    python -m tests.portal_site FOLDER [PORT]   founds it in FOLDER and serves its portal on
    loopback (8443) until it is
                                                interrupted; the port that it was founded with is
                                                the site's for good

Two groups and the site itself; 36 nodes of three types in four blocks, in every state; vclusters
that run, wait, drain and have ended; requests, reclaims, notices, energy, history. Times are around
`now`.
"""

from __future__ import annotations

import hashlib
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import Table, insert, update

from cod import consolefiles
from cod.client import Client
from cod.model import UNTIL_LEFT, Role, ipv4
from cod.policy.hardware.equal import canonical
from cod.policy.nodes.console import tenure
from cod.policy.people.names import full
from cod.pool import in_transaction
from cod.security import password_hash
from cod.states import NODE_RULES, NodeState, WindowState
from cod.store import claims
from cod.store import tables as t
from cod.store.database import connect
from cod.store.engine import Tx
from cod.store.nodes import blocks, nodes
from cod.store.people import groups, people
from cod.store.scheduler import maintenance as rows
from tests.conftest import upgrade
from tests.ports import free_port
from tests.upkeep import open_stands
from tests.waiting import answers, until

COD = Path(sys.executable).with_name("cod")

PASSWORD = "correct horse battery"
HOUR, DAY = 3600.0, 86400.0
SITE_TEXT = """\
name = "machine-room"
domain = "cluster.example"

[[subnet]]
name = "lab"
network = "10.77.0.0/16"
server = "10.77.0.1"
router = "10.77.0.1"
interface = "lo"
boot_pool = ["10.77.1.0", "10.77.4.255"]
block_pool = ["10.77.128.0", "10.77.255.254"]
"""


class Hardware(NamedTuple):
    """What makes one of its types."""

    name: str
    gib: int
    cpus: int
    mhz: int
    speed: int
    disk: int
    cost: float


HARDWARE = (
    Hardware("small", 16, 8, 2400, 1000, 240, 1.0),
    Hardware("large", 128, 32, 2600, 10000, 960, 4.0),
    Hardware("huge", 1024, 96, 2900, 100000, 3840, 20.0),
)
GROUPS = {"physics": 20, "web": 10}  # name -> priority
SITE_GROUP = "site"
STATES = (
    ("active",) * 12
    + ("prime",) * 3
    + ("boot", "wipe", "capture")
    + ("inactive",) * 5
    + ("off",) * 8
    + ("trampoline", "registering", "new", "quarantined", "retired")
)
VCLUSTERS = (  # name, group, state, size, seconds until its lease ends
    ("batch", "physics", "active", 9, 3 * DAY),
    ("notebooks", "physics", "active", 4, 2 * HOUR),
    ("farm", "web", "active", 5, 9 * DAY),
    ("staging", "web", "pending", 4, None),
    ("summer-school", "physics", "ended", 6, -30 * DAY),
)
TROUBLE = "its disk /dev/sda did not read back what was written at 1.2 GiB"
SMART = {"smart_used_percent": 37.0, "smart_power_on_hours": 21400.0, "smart_media_errors": 3.0}
TEMPLATE = """\
<template name="{name}">
  <description>{about}</description>
  <requires><memory><mib min="4GiB"/></memory></requires>
  <image target="disk" name="{image}"/>
  <boot mode="disk"/>
  <personalise seed="nocloud"/>
</template>
"""
SOFTWARE = (
    ("debian", "debian-12", None, "Debian 12 with nothing but SSH."),
    ("execution-host", "execd", "physics", "A Grid Engine execution host that joins by name."),
    ("web-server", "nginx", "web", "nginx with the <farm>'s & the shop's pages."),
)


def report(hardware: Hardware, number: int) -> str:
    """The hardware report of one of its machines."""
    return (
        f'<node version="1"><system uuid="{number:08x}-0000-4000-8000-000000000000"'
        f' vendor="Supermicro" product="{hardware.name}" serial="S{number:06}"/><firmware'
        f' kind="{"uefi" if number % 3 else "bios"}"/><memory'
        f' mib="{hardware.gib * 1024 - 300}"/><cpu count="{hardware.cpus}" sockets="2" model="Xeon"'
        f' mhz="{hardware.mhz}" arch="x86_64"><flag>aes</flag><flag>avx2</flag></cpu><nic'
        f' name="eth0" mac="{mac(number)}" driver="ixgbe" link="up" speed="{hardware.speed}"'
        f' boot="yes"/><disk name="sda" size="{hardware.disk * 10**9}" transport="sata" local="yes"'
        f' rotational="no" removable="no" model="Disk" serial="D{number:06}"/><kernel'
        ' release="6.1.0-31-amd64"/></node>'
    )


def mac(number: int) -> str:
    """The MAC of the node with that number."""
    return (0x020000000000 + number).to_bytes(6, "big").hex(":")


def furnish(tx: Tx, now: float, seed: int = 1) -> None:
    """Write the site into an empty database."""
    world = _World(tx, now, random.Random(seed))
    for step in (
        world.software,
        world.hardware,
        world.owners,
        world.nodes,
        world.waiting,
        world.told,
        world.counted,
        world.tested,
    ):
        step()


def populate(tx: Tx, now: float) -> None:
    """Furnish, with volumes; an administrator, an owner, a member and a viewer (of physics) sign in
    with `PASSWORD`."""
    furnish(tx, now)
    world = _World(tx, now, random.Random(1))
    world.kept()
    world.planned()
    world.recurring()
    world.maintained()
    kept = password_hash.hashed(PASSWORD)
    group = groups.by_name(tx, "physics")
    assert group is not None
    for name in ("administrator", "owner", "member", "viewer"):
        user = people.add(
            tx, name, now, admin=name == "administrator", password=kept, email=f"{name}@example.org"
        )
        if not user.admin:
            people.set_role(tx, group.id, user.id, Role(name))


class _World:
    """Writes the tables in the order of their foreign keys."""

    def __init__(self, tx: Tx, now: float, dice: random.Random) -> None:
        self._tx, self._now, self._dice = tx, now, dice
        self._groups = {name: number for number, name in enumerate((SITE_GROUP, *GROUPS), 1)}
        self._vclusters = {row[0]: number for number, row in enumerate(VCLUSTERS, 1)}
        # Whose the nodes are that somebody holds, one after the other.
        self._holders = [
            name
            for name, _group, state, size, _left in VCLUSTERS
            if state == "active"
            for _ in range(size)
        ]

    def _put(self, table: Table, rows: Sequence[dict[str, Any]]) -> None:
        for row in rows:
            self._tx.execute(insert(table).values(**row))

    def software(self) -> None:
        """Groups, images and templates."""
        self._put(
            t.groups,
            [
                {
                    "id": number,
                    "name": name,
                    "priority": GROUPS.get(name, 0),
                    "created_at": self._now - 90 * DAY,
                    "default_lease": 7 * DAY,
                    "email": f"{name}@example.org",
                }
                for name, number in self._groups.items()
            ],
        )
        for number, (name, image, group, about) in enumerate(SOFTWARE, 1):
            document = TEMPLATE.format(
                name=name, image=image, about=about.replace("&", "&amp;").replace("<", "&lt;")
            )
            owner = self._groups.get(group or "")
            name, image = (full(group or "", one) for one in (name, image))
            self._put(
                t.images,
                [
                    {
                        "id": number,
                        "name": image,
                        "group_id": owner,
                        "state": "ready",
                        "format": "qcow2",
                        "content": "disk",
                        "size": 4 << 30,
                        "used": (3 << 28) * number,
                        "stored": (1 << 28) * number,
                        "sha256": hashlib.sha256(image.encode()).hexdigest(),
                        "created_at": self._now - 40 * DAY,
                        "digest": hashlib.blake2b(image.encode(), digest_size=32).hexdigest(),
                    }
                ],
            )
            self._put(
                t.config_templates,
                [
                    {
                        "id": number,
                        "name": name,
                        "revision": 1,
                        "group_id": owner,
                        "document": document,
                        "digest": hashlib.blake2b(document.encode(), digest_size=32).hexdigest(),
                        "created_at": self._now - 39 * DAY,
                    }
                ],
            )

    def hardware(self) -> None:
        """Types and blocks."""
        for number, hardware in enumerate(HARDWARE, 1):
            attributes = canonical(report(hardware, 0))
            self._put(
                t.node_types,
                [
                    {
                        "id": number,
                        "name": hardware.name,
                        "attributes": attributes,
                        "cost": hardware.cost,
                        "digest": hashlib.blake2b(attributes.encode(), digest_size=32).hexdigest(),
                        "created_at": self._now,
                        "watts_off": 4.0,
                        "watts_idle": 20.0 + 3 * hardware.cpus,
                        "watts_busy": 60.0 + 6 * hardware.cpus,
                    }
                ],
            )
        self._put(
            t.node_blocks, [{"id": number, "name": f"rack{number}"} for number in range(1, 5)]
        )

    def owners(self) -> None:
        """Vclusters, and the requests that made them."""
        for number, (name, group, state, size, left) in enumerate(VCLUSTERS, 1):
            first = ipv4("10.77.128.0") + 256 * number
            ended = state == "ended"
            self._put(
                t.vclusters,
                [
                    {
                        "id": number,
                        "name": name,
                        "live_name": None if ended else name,
                        "group_id": self._groups[group],
                        "state": state,
                        "template_id": 2 if group == "physics" else 3,
                        "size": size,
                        "creation_size": max(1, size - 2),
                        "subnet": "lab",
                        "lease_time": 7 * DAY,
                        "expires_at": None if left is None else self._now + left,
                        "ready_at": self._now - DAY if state == "active" else None,
                        "created_at": self._now - 2 * DAY,
                        "ended_at": self._now - 30 * DAY if ended else None,
                    }
                ],
            )
            if not ended:
                self._put(
                    t.vcluster_blocks,
                    [
                        {
                            "vcluster_id": number,
                            "subnet": "lab",
                            "first_address": first,
                            "last_address": first + 255,
                        }
                    ],
                )
            waits = state == "pending"
            self._request(number, number, GROUPS[group], "create", size, waits)

    def _request(
        self,
        number: int,
        vcluster: int,
        priority: int,
        kind: str,
        count: int,
        waits: bool,
        **columns: Any,
    ) -> None:
        reason = "waits for nodes: 4 of type huge are wanted, 1 is free" if waits else ""
        self._put(
            t.node_requests,
            [
                {
                    "id": number,
                    "vcluster_id": vcluster,
                    "kind": kind,
                    "state": "pending" if waits else "granted",
                    "reason": reason,
                    "priority": priority,
                    "submitted_at": self._now - 20 * 60,
                    "decided_at": None if waits else self._now - 19 * 60,
                }
                | columns
            ],
        )
        self._put(
            t.request_tuples,
            [
                {
                    "request_id": number,
                    "position": 0,
                    "count": count,
                    "template_id": 1,
                    "attributes": (
                        '<requires><memory><mib min="512GiB"/></memory></requires>' if waits else ""
                    ),
                }
            ],
        )

    def nodes(self) -> None:
        """Nodes in every state, with their NICs, their addresses and their history."""
        holders = iter(self._holders)
        for number, state in enumerate(STATES, 1):
            held = state in ("active", "prime", "boot", "wipe", "capture")
            self._node(number, state, next(holders, None) if held and state != "wipe" else None)

    def _node(self, number: int, state: str, holder: str | None) -> None:
        hardware = 0 if number % 4 else number % 3
        known = state != "new"
        vcluster = self._vclusters.get(holder or "")
        busy = state in ("prime", "wipe", "capture")
        rule = NODE_RULES[NodeState(state)]
        self._put(
            t.nodes,
            [
                {
                    "id": number,
                    "name": f"node{number:02d}",
                    "state": state,
                    "since": self._now - 60 * number,
                    "boot_mac": mac(number),
                    "firmware": "uefi" if number % 3 else "bios",
                    "generation": 3,
                    "deadline": self._now + rule.deadline if rule.deadline else None,
                    "type_id": 1 + hardware if known else None,
                    "block_id": 1 + number % 4 if known else None,
                    "subnet": "lab",
                    "attributes": report(HARDWARE[hardware], number) if known else None,
                    "reported_at": self._now - HOUR if known else None,
                    "last_seen": self._now - number,
                    "disk": (
                        "dirty"
                        if held_or(state, holder)
                        else "foreign"
                        if state in ("new", "registering")
                        else "clean"
                    ),
                    "vcluster_id": vcluster,
                    "request_id": vcluster,
                    "template_id": 2 if vcluster else None,
                    "hostname": f"n{number}" if vcluster else None,
                    "assigned_at": self._now - 600 if vcluster else None,
                    "progress_done": (number % 5 + 1) << 28 if busy else 0,
                    "progress_total": 2 << 30 if busy else 0,
                    "progress_rate": 2e8 if busy else 0.0,
                    "power": "off" if state == "off" else "on",
                    "power_driver": "ipmi" if number % 2 else "none",
                    "power_address": f"10.78.0.{number}" if number % 2 else "",
                    "watts": 4.0 if state == "off" else 95.0,
                    "reason": TROUBLE if state == "quarantined" else "",
                }
            ],
        )
        self._put(t.nics, [{"mac": mac(number), "node_id": number}])
        self._history(number, state, vcluster)
        if vcluster:
            self._put(
                t.node_permissions,
                [
                    {
                        "node_id": number,
                        "group_id": self._groups[VCLUSTERS[vcluster - 1][1]],
                        "right": "use",
                    }
                ],
            )
            self._put(
                t.bindings,
                [
                    {
                        "address": ipv4("10.77.128.0") + 256 * vcluster + number,
                        "mac": mac(number),
                        "kind": "vcluster",
                        "node_id": number,
                        "subnet": "lab",
                        "hostname": f"n{number}",
                        "state": "bound",
                        "expires_at": UNTIL_LEFT,
                    }
                ],
            )

    def _history(self, number: int, state: str, vcluster: int | None) -> None:
        """What happened to a node in the last two days, to where it is now."""
        steps = [
            ("registered", "new", "registering", 46),
            ("approved", "registering", "trampoline", 45),
            ("idled", "trampoline", "inactive", 44),
            ("prime_ordered", "inactive", "prime", 20),
            ("primed", "prime", "boot", 19.9),
            ("booted", "boot", "active", 19.8),
        ]
        steps = [*steps[: 6 if vcluster else 3], ("timed_out", "trampoline", state, number / 60)]
        self._put(
            t.node_history,
            [
                {
                    "node_id": number,
                    "at": self._now - HOUR * hours,
                    "event": event,
                    "from_state": before,
                    "to_state": after,
                    "generation": place,
                    "vcluster_id": vcluster if place > 2 else None,
                    "cause": "as the story goes",
                    "actor": "agent",
                }
                for place, (event, before, after, hours) in enumerate(steps)
            ],
        )

    def waiting(self) -> None:
        """A request for more that waits, and the reclaim that it has caused."""
        self._request(10, 1, GROUPS["physics"], "grow", 2, True)
        self._put(
            t.reclaims,
            [
                {
                    "id": 1,
                    "vcluster_id": 3,
                    "request_id": 10,
                    "type_id": 1,
                    "block_id": 1,
                    "count": 1,
                    "state": "open",
                    "deadline": self._now + 600,
                    "created_at": self._now - 60,
                }
            ],
        )

    def maintained(self) -> None:
        """Rack 1 is in maintenance in three weeks."""
        begins = self._now + 21 * DAY
        window = rows.add(
            self._tx,
            state=WindowState.PLANNED,
            begins_at=begins,
            ends_at=begins + 10 * HOUR,
            reason="a new power feed",
            names="@rack1",
            filter="",
            drain=False,
            stay_out=False,
            bit=1,
            warned=None,
            created_at=self._now,
            created_by="user:administrator",
        )
        rack = blocks.by_name(self._tx, "rack1")
        inside = [one.id for one in nodes.every(self._tx) if one.block_id == rack]
        rows.put(self._tx, window, inside)

    def planned(self) -> None:
        """Reservations in advance of two groups, a move, a lease without an end and one that is
        over."""
        self._request(
            11,
            1,
            GROUPS["physics"],
            "grow",
            4,
            True,
            reason="",
            starts_at=self._now + 2 * DAY,
            duration=1.5 * DAY,
        )
        self._request(
            12,
            3,
            GROUPS["web"],
            "grow",
            6,
            True,
            reason="",
            starts_at=self._now + 9 * HOUR,
            duration=20 * HOUR,
        )
        self._request(
            13,
            1,
            GROUPS["physics"],
            "move",
            2,
            True,
            reason="",
            source_id=2,
            deadline=self._now + 3 * HOUR,
        )
        for number, columns in (
            (3, {"expires_at": None}),
            (2, {"expires_at": self._now - HOUR, "drain_until": self._now + 5 * HOUR}),
        ):
            self._tx.execute(
                update(t.vclusters).where(t.vclusters.c.id == number).values(**columns)
            )

    def recurring(self) -> None:
        """Write a series of the group physics, with starts that are over and starts to come."""
        first = self._now - 10 * DAY
        asked = {"size": 4, "template": "physics/execution-host", "also": [], "mounts": []}
        columns = {"id": 1, "name": "course", "group_id": self._groups["physics"]}
        columns |= {"asked": json.dumps(asked), "starts_at": first, "duration": 10 * HOUR}
        day = time.strftime("%a", time.gmtime(first)).lower()
        columns |= {"zone": "Europe/Berlin", "days": day, "created_at": first - DAY}
        self._put(t.reservation_series, [columns])
        refused = {2: "4 of 4 nodes are not free then", 1: "", 0: "", 3: ""}
        self._put(
            t.series_occurrences,
            [
                {
                    "series_id": 1,
                    "starts_at": (at := first + number * 7 * DAY),
                    "vcluster": time.strftime("course-%Y-%m-%d", time.gmtime(at)),
                    "refused": why,
                }
                for number, why in refused.items()
            ],
        )

    def told(self) -> None:
        """Notices, and what the nodes have used."""
        self._put(
            t.notices,
            [
                {
                    "at": self._now - HOUR,
                    "kind": "ready",
                    "group_id": 2,
                    "vcluster_id": 1,
                    "subject": "batch is ready",
                    "about": "All 9 nodes of cluster batch are active.",
                },
                {
                    "at": self._now - 60,
                    "kind": "reclaim",
                    "group_id": 3,
                    "vcluster_id": 3,
                    "subject": "1 node of farm is wanted",
                    "about": "A request of higher priority wants 1 node of type small.",
                },
            ],
        )
        today = int(self._now // DAY)
        self._put(
            t.energy_use,
            [
                {
                    "day": day,
                    "group_id": group,
                    "type_id": 1,
                    "seconds": DAY * 4,
                    "joules": 4e7 + 1e7 * self._dice.random(),
                    "always_on": 6e7,
                }
                for day in range(today - 29, today + 1)
                for group in range(4)
            ],
        )

    def kept(self) -> None:
        """Volumes on a file server that the site file does not name: nobody asks it for
        anything."""
        row = {
            "group_id": self._groups["physics"],
            "fileserver": "nas",
            "size": 200 << 30,
            "enforced": "btrfs",
            "sequence": 3,
            "applied": 3,
            "next_at": self._now,
            "made_at": self._now - DAY,
            "created_at": self._now - DAY,
        }
        self._put(
            t.volumes,
            [
                row
                | {
                    "id": number,
                    "name": f"physics/{name}",
                    "kind": "data",
                    "path": f"/srv/cod/physics/{name}",
                    "export_id": number,
                }
                for number, name in enumerate(["data", "results"], 1)
            ],
        )
        self._put(
            t.volume_attachments,
            [
                {
                    "volume_id": 1,
                    "vcluster_id": 1,
                    "mount": "/data",
                    "read_only": False,
                    "delete_after": None,
                    "sequence": 2,
                    "created_at": self._now - DAY,
                }
            ],
        )
        self._put(
            t.volume_snapshots,
            [
                {
                    "volume_id": 1,
                    "name": "before-the-paper",
                    "sequence": 3,
                    "made_at": self._now - HOUR,
                    "created_at": self._now - HOUR,
                }
            ],
        )

    def tested(self) -> None:
        """Burn-ins of a node: one that passed, and one that did not."""
        disk = {"test": "disk", "part": "sda (serial D000013)", "kind": "ssd", "about": ""}
        for days, outcome in ((20, "passed"), (2, "failed")):
            about = "" if outcome == "passed" else "read error at byte 1,234,567,680"
            self._put(
                t.burnins,
                [
                    {
                        "node_id": 13,
                        "state": outcome,
                        "cause": "on demand",
                        "tests": "memory,disk",
                        "seconds": 600,
                        "erase": False,
                        "actor": "administrator",
                        "asked_at": self._now - days * DAY,
                        "started_at": self._now - days * DAY + 60,
                        "ended_at": self._now - days * DAY + 700,
                        "reason": about,
                        "results": json.dumps(
                            [
                                {
                                    "test": "memory",
                                    "part": "memory",
                                    "kind": "",
                                    "outcome": "passed",
                                    "about": "",
                                    "figures": {"tested_percent": 92.0, "mb_s": 5200.0},
                                },
                                disk
                                | {
                                    "outcome": outcome,
                                    "about": about,
                                    "figures": {"read_mb_s": 480.0, "write_mb_s": 450.0} | SMART,
                                },
                            ]
                        ),
                    }
                ],
            )

    def counted(self) -> None:
        """The pool over time: two days in hours, a month in days."""
        states, held = [], []
        for span, count in ((3600, 48), (86400, 31)):
            last = int(self._now // span) * span
            for start in range(last - count * span, last + span, span):
                busy = 8 + round(4 * self._dice.random())
                row = {"span": span, "start": start, "type_id": 1}
                states += [
                    row | {"state": state, "seconds": nodes * span}
                    for state, nodes in (
                        ("active", busy),
                        ("inactive", 3),
                        ("off", 24 - busy),
                        ("quarantined", 1),
                    )
                ]
                held += [
                    row | {"vcluster_id": vcluster, "seconds": nodes * span}
                    for vcluster, nodes in ((1, busy - 4), (2, 4), (3, 2))
                ]
        self._tx.execute(insert(t.pool_states), states)
        self._tx.execute(insert(t.pool_held), held)
        self._put(t.marks, [{"name": "pool", "at": self._now - 30}])


def held_or(state: str, holder: str | None) -> bool:
    """Return whether a node in that state holds data of somebody."""
    return holder is not None or state == "wipe"


CONSOLE = (
    b"\x1b[2J\x1b[1;1HSeaBIOS (version 1.16.2)\r\niPXE 1.21.1 -- Open Source Network Boot"
    b" Firmware\r\nBooting from local disk...\r\n\r\n[    0.000000] \x1b[1mLinux version"
    b" 6.1.0\x1b[0m\r\n"
    + b"".join(
        b"[%5d.%06d] \x1b[32m  OK  \x1b[0m Started service %d.\r\n" % (n, 7 * n, n)
        for n in range(1, 60)
    )
    + b"\r\nn1 login: "
)


def recorded(tx: Tx, folder: Path, now: float) -> None:
    """What the nodes with a BMC wrote on their consoles since they were given to their
    vclusters."""
    claims.hold(tx, "consoles", "head", now, DAY)
    for node in nodes.every(tx):
        if node.vcluster_id is not None and node.power_driver == "ipmi":
            own = tenure(node.vcluster_id, node.assigned_at)
            consolefiles.append(folder, node.id, own, CONSOLE, 2**20)
            consolefiles.note(folder, node.id, consolefiles.State("recording", "", now))


# ---------------------------------------------------------------- served


class Portal:
    """The site, founded in `folder` and served on loopback by a real server process; a context
    manager.

    url  of the portal; `client` is its administrator's, over the UNIX socket
    """

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.folder, self.port = folder, port or free_port()
        self.site_file = folder / "site.toml"
        self._server: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    @property
    def pid(self) -> int:
        """Return the process id of the server."""
        assert self._server is not None
        return self._server.pid

    def client(self) -> Client:
        return Client(str(self.folder / "data/run/api.sock"), timeout=60)

    def found(self, fill: Callable[[Tx, float], None] = populate) -> None:
        """Write the site file and the database."""
        self.folder.mkdir(parents=True, exist_ok=True)
        server = (
            f'[console]\nrecord = true\n\n[server]\ndata_dir = "{self.folder}/data"\n\n'
            f'[api]\nlisten = ["127.0.0.1:{self.port}"]\n\n'
        )
        self.site_file.write_text(SITE_TEXT.replace("[[subnet]]", server + "[[subnet]]", 1))
        database = f"sqlite:///{self.folder}/data/cod.db"
        (self.folder / "data").mkdir(exist_ok=True)
        engine = connect(database)
        upgrade(engine)
        in_transaction(engine, fill, time.time())
        in_transaction(engine, recorded, self.folder / "data/consoles", time.time())
        engine.dispose()

    def __enter__(self) -> Portal:
        open_stands.append(self)
        self._start()
        return self

    def _start(self) -> None:
        with open(self.folder / "server.log", "ab") as log:
            self._server = subprocess.Popen(
                [str(COD), "--site", str(self.site_file), "serve", "--only", "web"],
                stdout=log,
                stderr=log,
            )
        until(self._answers, f"no answer; see {self.folder}/server.log", 180)

    def tend(self) -> None:
        """See `tests.upkeep`. Start a server that has ended or does not answer."""
        assert self._server is not None
        if self._server.poll() is not None or not self._answers():
            self._server.kill()
            self._server.wait()
            self._start()

    def _answers(self) -> bool:
        return answers(self.folder / "data/run/api.sock")

    def __exit__(self, *_exception: object) -> None:
        open_stands.remove(self)
        assert self._server is not None
        self._server.terminate()
        self._server.wait(120)


if __name__ == "__main__":
    with_site = Portal(Path(sys.argv[1]).resolve(), int(sys.argv[2]) if sys.argv[2:] else 8443)
    if not with_site.site_file.exists():
        with_site.found()
    with with_site, suppress(KeyboardInterrupt):
        print(f"{with_site.url} (administrator or owner, {PASSWORD!r}; Ctrl-C ends it)", flush=True)
        print(f"cod --site {with_site.site_file} ...", flush=True)
        signal.pause()
