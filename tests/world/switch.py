"""The switch of a world, by the interface that drivers have: the VLAN that each machine's port is
in, and how the switch refuses, hangs, changes nothing, acts late, answers late and lies.

Each VLAN of isolated virtual clusters has a router, which relays DHCP: what a machine asks comes
from the VLAN that its port is in, whatever the switch says of that.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from ipaddress import IPv4Network
from typing import Any

from sqlalchemy import select
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from cod.choices import SwitchDriverKind
from cod.model import Isolation, Switch
from cod.store import tables as t
from cod.store.engine import Tx
from cod.switches.driver import SwitchError, SwitchTarget
from tests.world.clock import SimReactor

SWITCH = Switch("leaf", SwitchDriverKind.OVS, "10.77.0.9", verify=60.0)
HOME = SWITCH.provisioning_vlan
NETWORKS, PREFIX = IPv4Network("10.90.0.0/16"), 28
VLANS = (2001, 2040)
# VLANs and subnets of one size are given from the lowest on: each VLAN has one subnet for ever
ROUTERS = {
    vlan: str(subnet[1])
    for vlan, subnet in zip(
        range(VLANS[0], VLANS[1] + 1), NETWORKS.subnets(new_prefix=PREFIX), strict=False
    )
}
WAYS = ("refuses", "hangs", "refuses ports", "changes nothing", "acts late", "answers late", "lies")
LATE = 120.0  # seconds, longer than a server waits


def isolation(server: str, others: tuple[str, ...]) -> Isolation:
    """Return the site's rules of isolated virtual clusters, as that server reads them."""
    return Isolation(
        VLANS,
        str(NETWORKS),
        default_size=PREFIX,
        largest_size=PREFIX,
        server=server,
        router="first",
        others=others,
    )


def port_of(number: int) -> str:
    """Return the name of a machine's port."""
    return f"p{number}"


class SimSwitch:
    """What the switch has.

    way     how it is: 'well' or one of `WAYS`
    vlans   the VLAN of each port that is not in the provisioning VLAN, or was not once
    untold  ports that the switch, or a foreign hand, has put where the servers do not know them
    """

    def __init__(self, world: Any) -> None:
        self.world, self.way = world, "well"
        self.vlans: dict[str, int] = {}
        self.untold: set[str] = set()
        self.rng = random.Random(f"{world.seed} switch")

    def drivers(self, reactor: SimReactor) -> dict[str, Any]:
        """Return the drivers of one process."""
        return dict.fromkeys(SwitchDriverKind.names(), _Driver(self, reactor))

    def vlan(self, number: int) -> int:
        """Return the VLAN that a machine is in."""
        return self.vlans.get(port_of(number), HOME)

    def stray(self, number: int, vlan: int) -> None:
        """Put a machine's port into another VLAN, as somebody at the switch's own console."""
        self.vlans[port_of(number)] = vlan
        self.untold.add(port_of(number))

    def put(self, wanted: Mapping[str, int], *, late: bool = False) -> None:
        """Put ports into their VLANs. `late`: the asker may have given up, and asked for others."""
        if not late:
            self.world.loss.moves(wanted)
        self.vlans |= wanted
        if late:
            self.world.seen["switch: ports changed late"] += len(wanted)
            self.untold |= wanted.keys()
        else:
            self.untold -= wanted.keys()

    def differs(self, tx: Tx) -> str:
        """Return in what the switch and the database differ; '' in nothing."""
        p, n, w = t.switch_ports.c, t.nodes.c, t.vcluster_networks.c
        query = select(p.port, p.wanted_vlan, p.seq == p.applied_seq, w.vlan)
        query = query.join_from(t.switch_ports, t.nodes, n.id == p.node_id)
        query = query.outerjoin(t.vcluster_networks, w.vcluster_id == n.vcluster_id)
        for port, wanted, is_done, own in tx.execute(query):
            there = self.vlans.get(port, HOME)
            if there != (wanted or HOME) or not is_done or there not in (HOME, own):
                return f"port {port} is in VLAN {there}, wanted in {wanted}; its node's: {own}"
        return ""


class _Driver:
    """The driver of one process; its sessions are with the one switch."""

    def __init__(self, switch: SimSwitch, reactor: SimReactor) -> None:
        self._switch, self._reactor = switch, reactor

    async def open(self, target: SwitchTarget) -> _Session:
        if self._switch.way == "refuses":
            self._switch.world.seen["switch: refuses"] += 1
            raise SwitchError("it refuses")
        await deferLater(self._reactor, self._switch.rng.uniform(0.0, 0.5))
        return _Session(self._switch, self._reactor)


class _Session:
    """A session, during which the switch may begin to be another way."""

    about = "a switch"

    def __init__(self, switch: SimSwitch, reactor: SimReactor) -> None:
        self._switch, self._reactor = switch, reactor
        self._said: dict[str, int] = {}

    async def read(self, ports: Collection[str]) -> dict[str, int | SwitchError]:
        switch = self._switch
        if switch.way == "hangs":
            await Deferred()
        await deferLater(self._reactor, switch.rng.uniform(0.0, 0.5))
        for port in ports:
            if port not in self._said:
                switch.untold.discard(port)
        return {port: self._said.get(port, switch.vlans.get(port, HOME)) for port in ports}

    async def change(self, wanted: Mapping[str, int]) -> dict[str, SwitchError]:
        switch, way = self._switch, self._switch.way
        if way != "well":
            switch.world.seen[f"switch: {way}"] += 1
        if way == "refuses ports":
            return {port: SwitchError("not this port") for port in wanted}
        if way == "acts late":
            switch.world.clock.later(
                switch.rng.uniform(5.0, LATE), switch.put, dict(wanted), late=True
            )
        if way in ("hangs", "acts late"):
            await Deferred()
        await deferLater(self._reactor, switch.rng.uniform(0.0, switch.world.plan.switch))
        if way == "lies":
            self._said |= wanted
            switch.untold |= wanted.keys()
        elif way != "changes nothing":
            switch.world.seen["switch: ports changed"] += len(wanted)
            switch.put(wanted)
        if way == "answers late":
            await deferLater(self._reactor, LATE)
        return {}

    async def close(self) -> None:
        """Keep nothing."""
