"""A VCM's durable state, in one file that is replaced atomically: a crash leaves the old file or
the new one."""

from __future__ import annotations

import dataclasses
import json
import secrets
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cod.vcm.files import put
from cod.vcm.pool import ANY, Member, Nodeset
from cod.wire.nmp import bodies
from cod.wire.nmp.bodies import (
    Body,
    Grant,
    Lease,
    Named,
    NodeState,
    Reclaim,
    ReclaimOver,
    Refusal,
    Vcluster,
)


@dataclass(slots=True)
class OwnNode:
    """A node of the vcluster.

    added        the pool has it
    leaving      why it will be released; '' if it will not
    reclaim      the reclaim that it was named for; 0: none
    within       the time for which it was promised, in seconds since the epoch; infinity: it leaves
                 when its work has ended
    maintenance  it leaves only for a maintenance window
    """

    member: Member
    added: bool = False
    leaving: str = ""
    reclaim: int = 0
    within: float = 0.0
    maintenance: bool = False

    @property
    def lost(self) -> bool:
        """Return whether the node has left the vcluster."""
        return self.member.state == "lost"

    def stays(self) -> None:
        """Let a leaving node stay."""
        self.leaving, self.reclaim, self.within, self.maintenance = "", 0, 0.0, False


@dataclass(slots=True)
class OpenRequest:
    """A request for `count` nodes of a nodeset, by its key. `request`: its number; 0 until COD has
    told it."""

    count: int
    request: int = 0
    nodeset: Nodeset = ANY


@dataclass(slots=True)
class VcmState:
    """The VCM's state. `seen`: the last processed sequence number; `keys`: the number of requests
    ever made.

    birth   distinguishes this file's keys from those of an earlier file that was lost
    sure    the state is complete; otherwise COD is asked for all nodes, requests and reclaims
    warned  COD has warned of the lease's end, and nothing has been done about it
    ends    the end that COD has warned of, in seconds since the epoch; 0: no warning since the
            lease was extended

    Nodes are by the site's name, a lost one that has come back also by its host name; requests by
    key; reclaims without an answer by number.
    """

    vcluster: str = ""
    seen: int = 0
    keys: int = 0
    nodes: dict[str, OwnNode] = field(default_factory=dict)
    requests: dict[str, OpenRequest] = field(default_factory=dict)
    reclaims: dict[int, Reclaim] = field(default_factory=dict)
    birth: str = field(default_factory=lambda: secrets.token_hex(4))
    sure: bool = False
    warned: bool = False
    ends: float = 0.0

    def hosts(self) -> dict[str, OwnNode]:
        """Return the nodes by host name, without lost nodes, whose names other nodes may have
        got."""
        return {node.member.hostname: node for node in self.nodes.values() if not node.lost}

    def coming(self) -> Counter[str]:
        """Return how many nodes are requested, or granted and not yet added, by nodeset."""
        found = Counter(
            node.member.nodeset
            for node in self.nodes.values()
            if not (node.added or node.leaving or node.lost)
        )
        for asked in self.requests.values():
            found[asked.nodeset.name] += asked.count
        return found

    def promised(self) -> dict[str, float]:
        """Return, by host name, the time for which each node was promised that was named for a
        reclaim and has not left. Nodes that leave for maintenance are left out: the pool names them
        again."""
        return {
            host: node.within
            for host, node in self.hosts().items()
            if node.leaving and node.within and not node.maintenance
        }

    def new_key(self) -> str:
        """Return a key that no earlier request had."""
        self.keys += 1
        return f"{self.birth}-{self.keys}"

    def hear(self, body: Body) -> None:
        """Update the state by a message of COD."""
        if isinstance(body, Grant):
            asked = self.requests.pop(body.key, None)
            for member in body.members:
                self._comes(member, asked.nodeset.name if asked else "")
        elif isinstance(body, NodeState):
            self._came_to(body)
        elif isinstance(body, Refusal):
            self.requests.pop(body.key, None)
        elif isinstance(body, Reclaim):
            self.reclaims[body.reclaim] = body
            # it may be for fewer nodes than before: the promised nodes that take longest may stay
            promised = [node for node in self.of_reclaim(body.reclaim) if not node.lost]
            for node in sorted(promised, key=lambda node: node.within)[body.count :]:
                node.stays()
        elif isinstance(body, ReclaimOver):
            self.reclaims.pop(body.reclaim, None)
            for node in self.of_reclaim(body.reclaim) if body.state == "cancelled" else ():
                node.stays()
        elif isinstance(body, Lease):
            self.warned = body.event in ("warning", "draining")
            self.ends = body.expires if self.warned else 0.0

    def learn(self, now: Vcluster) -> None:
        """Replace the state by COD's complete answer, and forget what it does not contain."""
        by_node = {member.node: member for member in now.members}
        for name, node in list(self.nodes.items()):
            member = by_node.get(name)
            if member is None:
                node.member = replace(node.member, state="lost")
            elif node.lost or node.member.hostname != member.hostname:
                self._comes(member)
            else:
                node.member = _own(member, node.member.nodeset, node.member.since)
        for name, member in by_node.items():
            self.nodes.setdefault(name, OwnNode(_own(member)))
        pending = {request.request: request.key for request in now.requests if request.key}
        kept = {
            key: asked
            for key, asked in self.requests.items()
            if not asked.request or asked.request in pending
        }
        self.requests = {key: OpenRequest(1, number) for number, key in pending.items()} | kept
        self.reclaims = {reclaim.reclaim: reclaim for reclaim in now.reclaims}
        self.sure = True

    def _comes(self, member: bodies.Member, nodeset: str = "") -> None:
        """Add a node that the vcluster has got. If the node is known, it was given back or lost in
        between: the pool's records of it, perhaps under another name, are then removed on their
        own."""
        known = self.nodes.get(member.node)
        if known is not None and (known.lost or known.member.hostname != member.hostname):
            known.member = replace(known.member, state="lost")
            self.nodes[f"{member.node}/{known.member.hostname}"] = known
        self.nodes[member.node] = OwnNode(_own(member, nodeset))

    def forget(self, node: OwnNode) -> bool:
        """Forget a node that has left; return False if it is not in the state."""
        for name, one in self.nodes.items():
            if one is node:
                del self.nodes[name]
                return True
        return False

    def _came_to(self, reported: NodeState) -> None:
        node = self.nodes.get(reported.node)
        if node is not None:
            node.member = replace(
                node.member, state=reported.state, address=reported.address or node.member.address
            )
            # the node is being started again: the pool's work on it is gone
            if reported.state not in ("active", "lost"):
                node.added, node.member = False, replace(node.member, since=0.0)

    def of_reclaim(self, reclaim: int) -> list[OwnNode]:
        """Return the nodes that were named for that reclaim."""
        return [node for node in self.nodes.values() if node.reclaim == reclaim]


def _own(member: bodies.Member, nodeset: str = "", since: float = 0.0) -> Member:
    """Return the node as the pool sees it, without its type's attributes."""
    values = {
        field.name: getattr(member, field.name) for field in dataclasses.fields(bodies.Member)
    }
    return Member(**{**values, "attributes": ""}, nodeset=nodeset, since=since)


class BadState(Exception):
    """The file cannot be read; the text says what to do."""


def load(path: Path, vcluster: str) -> VcmState | None:
    """Return the state in the file; None if there is no file. Raises `BadState`."""
    try:
        known = json.loads(path.read_bytes())
        state = _state(known)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, OSError) as error:
        sentence = (
            f"{path} cannot be read ({error}): remove it, and COD is asked for the vcluster's nodes"
        )
        raise BadState(sentence) from None
    if state.vcluster != vcluster:
        raise BadState(
            f"{path} is of vcluster {state.vcluster!r}, not {vcluster!r}: name another state file"
        )
    return state


def _state(known: dict[str, Any]) -> VcmState:
    return VcmState(
        vcluster=known["vcluster"],
        seen=int(known["seen"]),
        keys=int(known["keys"]),
        nodes={
            name: OwnNode(**{**node, "member": Member(**node["member"])})
            for name, node in known["nodes"].items()
        },
        requests={
            key: OpenRequest(**{**asked, "nodeset": Nodeset(**asked.get("nodeset", {}))})
            for key, asked in known["requests"].items()
        },
        reclaims={
            int(number): Reclaim(
                **{**reclaim, "nodes": tuple(Named(**node) for node in reclaim["nodes"])}
            )
            for number, reclaim in known["reclaims"].items()
        },
        birth=str(known["birth"]),
        sure=bool(known["sure"]),
        warned=bool(known["warned"]),
        ends=float(known.get("ends", 0.0)),
    )


def save(state: VcmState, path: Path) -> None:
    """Write the state to its file. The file is on disk when this function returns."""
    put(path, json.dumps(state, default=_plain).encode())


def _plain(one: Any) -> dict[str, Any]:
    """Return a dataclass's fields without copying their values. `dataclasses.asdict` copies them,
    and takes three times as long."""
    return {name: getattr(one, name) for name in one.__dataclass_fields__}
