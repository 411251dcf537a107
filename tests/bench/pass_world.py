"""A site of any size in a database, for measuring the resource manager's pass: written in bulk,
repeatable by seed.

40 types in 4 blocks each. 300 vclusters (fewer in a small world) of 20 groups in 10 priorities hold
four fifths of the nodes, each in a few blocks, with surplus beyond their creation size; a tenth of
what they hold is inside its inertia. The rest is warm or cold (half of it with cached software), on
its way back, or set aside. Pending requests are of all priorities, for new vclusters and old ones,
want 1 to 16 nodes each of one of 30 kinds of hardware, and altogether more than is free once there
are enough of them: then low priorities lose nodes to high ones, and most requests wait.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from sqlalchemy import Engine, Table, func, insert, select, update

from cod.model import Energy, Policy, Site, Subnet, ipv4
from cod.policy.hardware.match import canonical
from cod.policy.nodes import energy_accounting
from cod.store import tables as t
from cod.store.engine import Tx

NOW = 1_800_000_000.0
DAY = 86400.0
TYPES, BLOCKS_OF_A_TYPE, GROUPS, PRIORITIES, TEMPLATES = 40, 4, 20, 10, 20
BLOCK_SIZE = 1024
FIRST_ADDRESS = ipv4("10.1.0.0")
# per cent of the nodes
STATES = {"active": 80, "inactive": 8, "off": 7, "wipe": 3, "quarantined": 2}
BATCH = 5000  # rows inserted at once

SUBNET = Subnet(
    name="lab",
    network="10.0.0.0/8",
    server="10.0.0.1",
    boot_pool=("10.0.1.0", "10.0.255.255"),
    block_pool=("10.1.0.0", "10.255.255.255"),
    block_size=BLOCK_SIZE,
    interface="br0",
)
SITE = Site(
    name="bench",
    domain="bench.test",
    subnets=(SUBNET,),
    policy=Policy(inertia=300.0),
    energy=Energy(manage=True, warm_low=4, warm_high=1_000_000),
)

# (logical CPUs, clock in MHz, NIC speeds in Mb/s, disk in GB): five models, each with eight sizes
# of memory
MODELS = (
    (16, 2400, (1000,), 240),
    (32, 2100, (10000,), 480),
    (64, 2600, (10000, 10000), 960),
    (96, 3000, (25000, 25000), 1920),
    (128, 2800, (100000, 25000), 3840),
)
MEMORY_GIB = (16, 32, 64, 128, 256, 512, 1024, 2048)


class Hardware(NamedTuple):
    """What makes a type."""

    gib: int
    cpus: int
    mhz: int
    speeds: tuple[int, ...]
    disk: int

    @property
    def cost(self) -> float:
        """Cheaper, the less it has."""
        return self.gib / 16 + self.cpus / 4


class Want(NamedTuple):
    """What a request wants of each node: at least that much memory, so many CPUs, and NICs of a
    speed."""

    gib: int
    cpus: int
    nics: int = 1
    speed: int = 1000

    def xml(self) -> str:
        """Return the requirements document of the want."""
        nics = f'<nic><speed min="{self.speed}"/></nic>' * self.nics
        return (
            f'<requires><memory><mib min="{self.gib}GiB"/></memory><cpu><count'
            f' min="{self.cpus}"/></cpu>{nics}</requires>'
        )


HARDWARE = [Hardware(gib, *model) for model in MODELS for gib in MEMORY_GIB]
WANTS = [Want(gib, cpus) for gib in (16, 64, 256, 1024) for cpus in (16, 32, 64, 96, 128)] + [
    Want(gib, 16, nics, speed)
    for gib in (32, 128)
    for nics, speed in ((1, 10000), (1, 25000), (1, 100000), (2, 10000), (2, 25000))
]


@dataclass(frozen=True)
class Size:
    """How large a world is."""

    nodes: int
    requests: int
    holders: int = 300  # vclusters that hold nodes, at most

    def __str__(self) -> str:
        return f"{self.nodes:,} nodes, {self.requests:,} requests"


def report(hardware: Hardware, number: int) -> str:
    """The hardware report of one machine of a type."""
    nics = "".join(
        f'<nic name="eth{place}" mac="{mac(number)}" driver="ixgbe" link="up" speed="{speed}" '
        f'boot="{"no" if place else "yes"}"/>'
        for place, speed in enumerate(hardware.speeds)
    )
    flags = "".join(f"<flag>{flag}</flag>" for flag in ("aes", "avx2", "avx512f", "vmx"))
    return (
        f'<node version="1"><system uuid="{number:08x}-0000-4000-8000-000000000000" vendor="Bench"'
        f' product="Bench" serial="S{number:08}"/><firmware kind="uefi"/><memory'
        f' mib="{hardware.gib * 1024 - 300}"/><cpu count="{hardware.cpus}" sockets="2" model="Bench'
        f' {hardware.cpus}" mhz="{hardware.mhz}" arch="x86_64">{flags}</cpu>{nics}<disk'
        f' name="nvme0n1" size="{hardware.disk * 10**9}" transport="nvme" local="yes"'
        f' rotational="no" removable="no" model="Bench {hardware.disk}"'
        f' serial="D{number:08}"/><kernel release="6.1.0-31-amd64"/></node>'
    )


def mac(number: int) -> str:
    """The MAC of the node with that number."""
    return (0x020000000000 + number).to_bytes(6, "big").hex(":")


def fill(engine: Engine, size: Size, seed: int = 1) -> None:
    """Write the world into an empty database."""
    world = _World(size, random.Random(seed))
    for step in (world.software, world.machines, world.owners, world.nodes):
        with engine.begin() as tx:
            step(tx)
    ask(engine, size, size.requests, seed)


FAIR = replace(SITE, policy=replace(SITE.policy, fair_half_life=7 * DAY, node_limit=100_000))


def entitle(engine: Engine, size: Size) -> None:
    """Give each group shares, usage, a guarantee, shares and guarantees of three types, limits by
    type and node-hours, and what it used of these in the month so far: the site of `FAIR`."""
    with engine.begin() as tx:
        for n in range(1, GROUPS + 1):
            tx.execute(
                update(t.groups)
                .where(t.groups.c.id == n)
                .values(
                    shares=float(n),
                    faded_usage=3600.0 * (n * 7 % GROUPS),
                    faded_at=NOW,
                    guarantee=size.nodes // 40,
                    node_limit=size.nodes // 8,
                    hours_limit=1e7,
                )
            )
            _put(
                tx,
                t.group_type_limits,
                [
                    {"group_id": n, "type_id": 1 + kind, "nodes": size.nodes // 100}
                    for kind in range(n % TYPES)
                ],
            )
        _put(
            tx,
            t.group_type_terms,
            [
                {"group_id": n, "type_id": kind, "guarantee": size.nodes // 5000, "shares": n + 1.0}
                for n in range(1, GROUPS + 1)
                for kind in (1, 2, 3)
            ],
        )
        today = int(NOW // DAY)
        _put(
            tx,
            t.energy_use,
            [
                {"day": day, "group_id": n, "type_id": kind, "seconds": DAY * n}
                for day in range(energy_accounting.month(NOW), today + 1)
                for n in range(1, GROUPS + 1)
                for kind in range(1, TYPES + 1)
            ],
        )


def ask(engine: Engine, size: Size, count: int, seed: int = 1) -> None:
    """Add `count` pending requests to a world of that size."""
    with engine.begin() as tx:
        after = tx.scalar(select(func.max(t.node_requests.c.id)))
        assert after is not None
        _World(size, random.Random(f"requests {seed}")).requests(tx, after, count)


def _put(tx: Tx, table: Table, rows: Sequence[dict[str, Any]]) -> None:
    for start in range(0, len(rows), BATCH):
        tx.execute(insert(table), rows[start : start + BATCH])


class _World:
    """Writes the tables in the order of their foreign keys."""

    def __init__(self, size: Size, dice: random.Random) -> None:
        self._size, self._dice = size, dice
        self._holders = min(size.holders, size.nodes // 10)
        self._kinds = [
            (type_id, block_id)
            for type_id in range(1, TYPES + 1)
            for block_id in range(
                (type_id - 1) * BLOCKS_OF_A_TYPE + 1, type_id * BLOCKS_OF_A_TYPE + 1
            )
        ]
        self._states = list(self._laid_out())

    def software(self, tx: Tx) -> None:
        """Groups and templates."""
        _put(
            tx,
            t.groups,
            [
                {"id": n, "name": f"group{n}", "priority": n % PRIORITIES, "created_at": 0.0}
                for n in range(1, GROUPS + 1)
            ],
        )
        _put(
            tx,
            t.config_templates,
            [
                {
                    "id": n,
                    "name": f"system{n}",
                    "revision": 1,
                    "digest": "0" * 64,
                    "created_at": 0.0,
                    "document": (
                        f'<template name="system{n}" cache="yes"><requires><memory><mib'
                        f' min="{2 ** (n % 4)}GiB"/></memory></requires><image target="disk"'
                        f' name="image{n}"/></template>'
                    ),
                }
                for n in range(1, TEMPLATES + 1)
            ],
        )

    def machines(self, tx: Tx) -> None:
        """Types, cheaper the less they have, and blocks."""
        for type_id, hardware in enumerate(HARDWARE, 1):
            attributes = canonical(report(hardware, 0))
            digest = hashlib.blake2b(attributes.encode(), digest_size=32).hexdigest()
            tx.execute(
                insert(t.node_types).values(
                    id=type_id,
                    name=f"type{type_id}",
                    digest=digest,
                    created_at=0.0,
                    cost=hardware.cost,
                    attributes=attributes,
                )
            )
        _put(
            tx,
            t.node_blocks,
            [{"id": block_id, "name": f"rack{block_id}"} for _, block_id in self._kinds],
        )

    def _laid_out(self) -> Iterator[tuple[str, int]]:
        """Each node's state, and who holds it or held it last. Nodes go round the kinds; a holder
        has a few of them."""
        rounds = -(-self._size.nodes // len(self._kinds))
        for number in range(self._size.nodes):
            turn, kind = divmod(number, len(self._kinds))
            state = self._dice.choices(list(STATES), list(STATES.values()))[0]
            yield (
                state,
                1 + (kind * self._holders // len(self._kinds) + turn * 7 // rounds) % self._holders,
            )

    def _vcluster(self, number: int, group_id: int, nodes: int, **columns: Any) -> dict[str, Any]:
        return {
            "id": number,
            "name": f"v{number}",
            "live_name": f"v{number}",
            "group_id": group_id,
            "template_id": 1 + number % TEMPLATES,
            "size": nodes,
            "creation_size": max(1, nodes * 3 // 5),
            "subnet": SUBNET.name,
            "lease_time": 7 * DAY,
            "created_at": NOW - DAY,
            **columns,
        }

    def _blocks(self, tx: Tx, vclusters: Iterable[int]) -> None:
        firsts = ((number, FIRST_ADDRESS + number * BLOCK_SIZE) for number in vclusters)
        _put(
            tx,
            t.vcluster_blocks,
            [
                {
                    "vcluster_id": number,
                    "subnet": SUBNET.name,
                    "first_address": first,
                    "last_address": first + BLOCK_SIZE - 1,
                }
                for number, first in firsts
            ],
        )

    def owners(self, tx: Tx) -> None:
        """The vclusters that hold nodes, and for each the request that it got them by."""
        held = Counter(holder for state, holder in self._states if state == "active")
        ids = range(1, self._holders + 1)
        _put(
            tx,
            t.vclusters,
            [
                self._vcluster(
                    n, 1 + n % GROUPS, held[n], state="active", expires_at=NOW + 2 * DAY + n
                )
                for n in ids
            ],
        )
        self._blocks(tx, ids)
        _put(
            tx,
            t.node_requests,
            [
                {
                    "id": n,
                    "vcluster_id": n,
                    "kind": "create",
                    "state": "granted",
                    "priority": (1 + n % GROUPS) % PRIORITIES,
                    "submitted_at": NOW - DAY,
                    "decided_at": NOW - DAY,
                }
                for n in ids
            ],
        )

    def nodes(self, tx: Tx) -> None:
        """Nodes with their NICs, and what follows the holder of those that are held."""
        rows = [
            self._node(number, state, last) for number, (state, last) in enumerate(self._states, 1)
        ]
        _put(tx, t.nodes, rows)
        _put(tx, t.nics, [{"mac": row["boot_mac"], "node_id": row["id"]} for row in rows])
        held = [row for row in rows if row["vcluster_id"]]
        _put(
            tx,
            t.node_permissions,
            [
                {"node_id": row["id"], "group_id": 1 + row["vcluster_id"] % GROUPS, "right": "use"}
                for row in held
            ],
        )
        _put(
            tx,
            t.install_images,
            [
                {
                    "node_id": row["id"],
                    "generation": 1,
                    "template_id": row["template_id"],
                    "state": "done",
                    "at": NOW - DAY,
                }
                for row in held
            ],
        )
        used: dict[int, int] = {}
        bindings = []
        for row in held:
            place = used[row["vcluster_id"]] = used.get(row["vcluster_id"], 0) + 1
            bindings.append(
                {
                    "address": FIRST_ADDRESS + row["vcluster_id"] * BLOCK_SIZE + place,
                    "mac": row["boot_mac"],
                    "kind": "vcluster",
                    "node_id": row["id"],
                    "subnet": SUBNET.name,
                    "hostname": row["hostname"],
                    "state": "bound",
                    "expires_at": 4e9,
                }
            )
        _put(tx, t.bindings, bindings)

    def _node(self, number: int, state: str, last: int) -> dict[str, Any]:
        type_id, block_id = self._kinds[(number - 1) % len(self._kinds)]
        holder = last if state == "active" else None
        cached = state in ("inactive", "off") and self._dice.random() < 0.5
        settled = self._dice.random() < 0.9
        return {
            "id": number,
            "name": f"node{number}",
            "state": state,
            "since": NOW - DAY,
            "generation": 1,
            "deadline": NOW + DAY if state == "wipe" else None,
            "boot_mac": mac(number),
            "firmware": "uefi",
            "type_id": type_id,
            "block_id": block_id,
            "subnet": SUBNET.name,
            "attributes": report(HARDWARE[type_id - 1], number),
            "reported_at": NOW - DAY,
            "disk": "cached" if cached else "dirty" if holder or state == "wipe" else "clean",
            "cached_template_id": 1 + last % TEMPLATES if cached else None,
            "cached_group_id": 1 + last % GROUPS if cached else None,
            "vcluster_id": holder,
            "request_id": holder,
            "template_id": 1 + holder % TEMPLATES if holder else None,
            "hostname": f"n{number}" if holder else None,
            "assigned_at": (NOW - DAY if settled else NOW - 100) if holder else None,
            "power": "off" if state == "off" else "on",
            "power_driver": "lab",
            "power_address": f"lab#{number}",
        }

    def requests(self, tx: Tx, after: int, count: int) -> None:
        """Pending requests: one in three of a vcluster that is there, the others of new ones."""
        vclusters, requests, tuples = [], [], []
        for number in range(after + 1, after + 1 + count):
            nodes = self._dice.choices((1, 2, 4, 8, 16), (8, 4, 2, 1, 0.5))[0]
            kind = "create" if number % 3 else "grow"
            vcluster_id = number if number % 3 else self._dice.randint(1, self._holders)
            group_id = 1 + vcluster_id % GROUPS
            if kind == "create":
                vclusters.append(
                    self._vcluster(number, group_id, nodes, state="pending", creation_size=nodes)
                )
            requests.append(
                {
                    "id": number,
                    "vcluster_id": vcluster_id,
                    "kind": kind,
                    "state": "pending",
                    "priority": group_id % PRIORITIES,
                    "submitted_at": NOW - self._dice.random() * DAY,
                    "may_wait": True,
                    "may_spread": self._dice.random() < 0.05,
                }
            )
            tuples += [
                {
                    "request_id": number,
                    "position": position,
                    "count": part,
                    "template_id": 1 + vcluster_id % TEMPLATES,
                    "attributes": self._dice.choice(WANTS).xml(),
                }
                for position, part in enumerate(self._parts(nodes))
            ]
        _put(tx, t.vclusters, vclusters)
        self._blocks(tx, [one["id"] for one in vclusters])
        _put(tx, t.node_requests, requests)
        _put(tx, t.request_tuples, tuples)

    def _parts(self, count: int) -> tuple[int, ...]:
        """One tuple, or (one request in ten that wants several nodes) two."""
        return (
            (count // 2, count - count // 2)
            if count > 1 and self._dice.random() < 0.1
            else (count,)
        )
