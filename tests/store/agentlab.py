"""A site with machines and agents, on a real database, with a clock that is moved by hand."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import insert, select

from cod.core.nodes import assignment, transitions
from cod.flows.agents import orders, progress, report
from cod.flows.agents import sessions as flow
from cod.flows.nodes import deadlines
from cod.model import BootSecret, Node, Peer, RequestTuple, Result, Site, Vcluster
from cod.orders import Erasure, Order
from cod.policy.nodes import lifecycle
from cod.states import NODE_RULES, Disk, NodeEvent, NodeState, Step
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.nodes import holding, nodes, secrets
from cod.store.people import groups
from cod.store.scheduler import requests
from tests.rows import add_vcluster

NOW = 1000.0
KEY = bytes(32)
TEMPLATE = (
    '<template cache="{cache}" verify="yes"><image target="disk" url="http://10.0.0.9/a.zst"'
    f' size="1000000" sha256="{"ab" * 32}" compression="zstd"/>{{more}}<personalise'
    ' seed="nocloud"><user-data>#cloud-config</user-data></personalise></template>'
)


def mac(number: int, nic: int = 0) -> str:
    return f"52:54:00:00:{nic:02x}:{number:02x}"


def hardware(
    *macs: str,
    uuid: str | None = None,
    mib: int = 2048,
    serial: str | None = None,
    product: str | None = None,
) -> str:
    said = {"uuid": uuid, "product": product, "serial": serial}
    facts = "".join(f' {key}="{value}"' for key, value in said.items() if value)
    system = f"<system{facts}/>"
    nics = "".join(
        f'<nic name="eth{n}" mac="{one}" link="up" boot="no"/>' for n, one in enumerate(macs)
    )
    return (
        f'<node version="1">{system}<firmware kind="uefi"/><memory mib="{mib}"/><cpu count="1"'
        f' sockets="1" arch="x86_64"/>{nics}<disk name="vda" size="4000000000" transport="virtio"'
        ' local="yes" rotational="no" removable="no"/><kernel release="6"/></node>'
    )


def uuid(number: int) -> str:
    return f"4c4c4544-0042-3510-8054-{number:012x}"


@dataclass
class Lab:
    """A site's database, a clock that is moved by hand, and machines."""

    tx: Tx
    site: Site
    now: float = NOW
    minted: int = 0

    def node(self, number: int) -> Node:
        node = nodes.by_mac(self.tx, mac(number))
        assert node is not None
        return node

    def machine(self, number: int, state: str = "new", **columns: Any) -> Node:
        """A machine in some state, as if it had come there; deadlines run from now."""
        deadline = NODE_RULES[NodeState(state)].deadline
        if state != "new":
            columns = {
                "attributes": hardware(mac(number)),
                "reported_at": self.now,
                "disk": Disk.CLEAN,
            } | columns
        return nodes.add(
            self.tx,
            name=f"node{number}",
            boot_mac=mac(number),
            now=self.now,
            cause="test",
            actor="test",
            state=state,
            deadline=None if deadline is None else self.now + deadline,
            power_driver="lab",
            **columns,
        )

    def mint(self, number: int, kind: str = "boot", lives: float = 300.0) -> str:
        self.minted += 1
        secret = BootSecret(
            f"s{self.minted}", mac(number), kind, "10.77.1.1", KEY[:16], KEY, KEY, self.now + lives
        )
        secrets.add(self.tx, secret)
        return secret.id

    def open(self, number: int, *args: str, **more: Any) -> Peer:
        """The agent connects, by default with a new boot's secret; arguments as of `knock`."""
        opened = self.knock(number, *args, **more)
        assert isinstance(opened, flow.Opened)
        return opened.peer

    def knock(
        self,
        number: int,
        secret: str | None = None,
        session: str = "",
        server: str = "a",
        *,
        power: str = "unknown",
        here: Collection[int] = (),
    ) -> flow.Opened | str:
        """What comes of it when the agent connects; `here`: nodes connected to that server."""
        made = BootSecret(
            session or f"session{number}.{self.minted}",
            mac(number),
            "session",
            "10.77.1.1",
            KEY[:16],
            KEY,
            KEY,
            0.0,
        )
        return flow.open(
            self.tx,
            secret or self.mint(number),
            made,
            server,
            self.site,
            self.now,
            power=power,
            here=here,
        ).value

    def again(self, number: int, server: str = "a") -> Peer:
        """The agent connects again, with its session's secret."""
        return self.open(number, self.mint(number, "session"), server=server)

    def report(self, peer: Peer, *macs: str, **more: Any) -> Result:
        document = hardware(*(macs or [peer.mac]), **more)
        return report.report(self.tx, peer, document, self.site, self.now)

    def boots(self, number: int) -> Peer:
        peer = self.open(number)
        value = self.report(peer).value
        assert isinstance(value, report.ReportAnswer)
        return value.peer

    def order(self, number: int) -> Order:
        return orders.current(self.tx, self.node(number), self.site, "10.77.1.1")

    def apply(self, number: int, step: Step) -> Node:
        """Apply a step to a node that nobody asked for."""
        return transitions.apply(
            self.tx,
            self.node(number),
            step,
            now=self.now,
            actor="test",
            policy=self.site.policy,
        )

    def release(self, number: int) -> None:
        """Take a node from its vcluster."""
        assignment.release(
            self.tx,
            [self.node(number)],
            cause="test",
            now=self.now,
            actor="test",
            policy=self.site.policy,
        )

    def done(self, peer: Peer, order_id: str, **figures: float) -> Result:
        return progress.done(self.tx, peer, order_id, figures, self.site, self.now)

    def erased(self, peer: Peer, order_id: str, *disks: Erasure) -> Result:
        return progress.done(self.tx, peer, order_id, {}, self.site, self.now, erased=disks)

    def look(self, peer: Peer, order_id: str, disks: str) -> Result:
        return progress.done(self.tx, peer, order_id, {}, self.site, self.now, disks=disks)

    def failed(self, peer: Peer, order_id: str, reason: str = "no disk") -> Result:
        return progress.failed(self.tx, peer, order_id, reason, self.site, self.now)

    def progress(
        self, peer: Peer, order_id: str, done: int, total: int = 100, phase: str = "write"
    ) -> None:
        progress.progress(self.tx, peer, order_id, phase, done, total, 5.0, self.site, self.now)

    def tick(self, seconds: float = 0.0) -> None:
        """Time passes; the servers a and b hold their connections all the while."""
        self.now += seconds
        for server in ("a", "b"):
            flow.held(self.tx, server, self.now)
        deadlines.run(self.tx, self.site, self.now)

    def template(
        self, cache: str = "no", more: str = "", revision: int = 1, document: str = TEMPLATE
    ) -> int:
        row = {
            "name": "debian",
            "revision": revision,
            "document": document.format(cache=cache, more=more),
            "digest": "0" * 64,
            "created_at": 0.0,
        }
        [made] = (
            self.tx.execute(insert(t.config_templates).values(**row)).inserted_primary_key or ()
        )
        return int(made)

    def vcluster(self, template_id: int, group: str = "physics", name: str = "vc") -> Vcluster:
        owner = groups.ensure(self.tx, group, 0.0)
        return add_vcluster(
            self.tx, name, owner.id, template_id, self.site.subnets[0], now=self.now, lease_time=1e6
        )

    def assign(self, number: int, vcluster: Vcluster, template_id: int | None = None) -> Node:
        """Give a node of the reserve to a vcluster, as the manager does."""
        request = requests.add(
            self.tx,
            vcluster_id=vcluster.id,
            kind="create",
            priority=0,
            now=self.now,
            tuples=[RequestTuple(1, "", template_id or vcluster.template_id)],
        )
        held = holding.take(
            self.tx,
            self.node(number),
            vcluster=vcluster,
            request_id=request.id,
            template_id=template_id or vcluster.template_id,
            hostname="n1",
            now=self.now,
        )
        wanted = holding.assignment(self.tx, held)
        assert wanted is not None
        step = lifecycle.assign(held, wanted)
        if held.state == "off":
            step = Step(NodeEvent.WOKEN, "woken", power="on")
        return transitions.apply(
            self.tx,
            held,
            step,
            now=self.now,
            actor="test",
            policy=self.site.policy,
        )

    def install(self, number: int) -> Any:
        i = t.install_images.c
        return self.tx.execute(
            select(i.state, i.generation).where(i.node_id == self.node(number).id)
        ).one_or_none()

    def events(self, number: int) -> list[str]:
        return [row["event"] for row in nodes.history(self.tx, self.node(number).id)]

    def wishes(self, number: int) -> list[str]:
        c = t.power_actions.c
        return list(
            self.tx.scalars(
                select(c.desired).where(c.node_id == self.node(number).id).order_by(c.id)
            )
        )
