"""Faults that can be planted in the server's code, and by which words each has to be found.

`python -m tests.world.faults` plants one after the other, and prints in which seed it was found.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from cod.core import leases
from cod.core.networks import isolation
from cod.flows.agents import orders, progress
from cod.flows.nodes import deadlines
from cod.model import ExportClient, Node, Peer, Result
from cod.net.bootserver.metadata import MetadataDocs
from cod.policy import volumes
from cod.states import Disk, NodeEvent, NodeState, Step
from cod.store.engine import Tx
from cod.store.nodes import bindings, holding, nodes, secrets, sessions
from cod.store.nodes.dhcp_batch import BindingBatch
from cod.store.people import audit
from tests.world.lives import live
from tests.world.world import Outcome

SEEDS = 12
"""Worlds in which a planted fault has to be found at the latest."""


@dataclass(frozen=True)
class Fault:
    """One fault. `found`: words of the sentence that has to tell of it; `dear`: the worlds in which
    it is found last long."""

    room: Any
    name: str
    planted: Any
    found: str
    dear: bool = False


def _raise(*_: Any, **__: Any) -> list[Any]:
    raise ValueError("a bug")


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


def _no_fence(tx: Tx, peer: Peer, order_id: str) -> Node | None:
    """Take an agent's word of an earlier order for one of the present order."""
    return sessions.of_peer(tx, peer)[0]


_waiting = orders.waiting


def _to_another(*args: Any, **kw: Any) -> Result[list[tuple[int, int, Any]]]:
    """Change the orders of two agents."""
    result = _waiting(*args, **kw)
    sent = result.value
    if len(sent) > 1:
        mixed = [
            (one[0], one[1], other[2]) for one, other in zip(sent, sent[1:] + sent[:1], strict=True)
        ]
        return Result(mixed, result.effects)
    return result


_of = MetadataDocs._of


def _of_anybody(docs: MetadataDocs, address: str) -> Any:
    """Return what the node that asked first may know."""
    return _of(docs, next(iter(docs._known), address))


_due = deadlines._due


def _forgets_quarantine(tx: Tx, *args: Any) -> Iterator[tuple[Node, Step | None]]:
    """Bring nodes back that were set aside."""
    yield from _due(tx, *args)
    for node in nodes.every(tx, [NodeState.QUARANTINED]):
        columns = {"reason": "", "attempts": 0, "disk": Disk.DIRTY}
        yield node, Step(NodeEvent.RESTORED, "forgotten", columns, "cycle")


CLEAN = SimpleNamespace(**dict(Disk.__members__) | {"DIRTY": Disk.CLEAN})

FAULTS = {
    "a wipe is skipped": Fault(holding, "Disk", CLEAN, "was not wiped since"),
    "a flow raises": Fault(deadlines, "run", _raise, "a bug"),
    "a fence is removed": Fault(progress, "_current", _no_fence, "and its disk holds"),
    "a commit is doubled": Fault(audit, "has_run", lambda *_, **__: False, "carried out 2 times"),
    "a lease does not end": Fault(leases, "expire", _nothing, "its lease ended"),
    "an address is given twice": Fault(
        BindingBatch, "free", lambda _, __, pool, *___: pool[9], "which m"
    ),
    "an order goes to another's agent": Fault(orders, "waiting", _to_another, "another's"),
    "a secret is accepted twice": Fault(
        secrets, "spend_all", _nothing, "is accepted again", dear=True
    ),
    "a quarantine is forgotten": Fault(
        deadlines, "_due", _forgets_quarantine, "no administrator has asked"
    ),
    "a right stays with the last holder": Fault(
        holding, "_clear_rights", _nothing, "may be used by"
    ),
    "an address stays with the last holder": Fault(
        bindings, "release", _nothing, "1 addresses of a vcluster"
    ),
    "a node is told another's metadata": Fault(
        MetadataDocs, "_of", _of_anybody, "is told that it is"
    ),
    "a volume is exported to all": Fault(
        volumes,
        "clients",
        lambda blocks: (ExportClient("10.80.0.0/16", False),) if list(blocks) else (),
        "can mount volume",
    ),
    "a system boots outside its VLAN": Fault(
        isolation, "elsewhere", lambda *_: "", "in VLAN 1, and its own is"
    ),
    "a deadline is forgotten": Fault(nodes, "overdue", lambda *_: [], "not at rest", dear=True),
}


def found(fault: Fault, seeds: int = SEEDS) -> Outcome | None:
    """Return what came of the first world in which the planted fault was found; None: of none."""
    with patch.object(fault.room, fault.name, fault.planted):
        for seed in range(1, seeds + 1):
            outcome = live(seed)
            if any(fault.found in one for one in outcome.troubles):
                return outcome
    return None


def main() -> None:
    """Print in which world each fault is found, and after how many seconds of virtual time."""
    for name, fault in FAULTS.items():
        outcome = found(fault)
        if outcome is None:
            print(f"{name}: not found in {SEEDS} seeds", flush=True)
        else:
            print(f"{name}: seed {outcome.seed}, {outcome.seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
