"""Faults that can be planted in the server's code, and by which words each has to be found.

`python -m tests.world.faults` plants one after the other, and prints in which seed it was found;
`python -m tests.world.faults a commit` plants those of these words.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from sqlalchemy import delete, select, update

from cod.core import leases
from cod.core.networks import isolation
from cod.core.nodes import stories as node_stories
from cod.flows.agents import orders, progress
from cod.flows.nodes import deadlines
from cod.flows.nodes.switches import PortOutcome
from cod.model import AgentSession, BootSecret, ExportClient, Node, Peer, Result
from cod.net.bootserver.metadata import MetadataDocs
from cod.policy import stories, volumes
from cod.states import Disk, NodeEvent, NodeState, Step, StoryVerdict, VclusterState
from cod.store import claims
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.nodes import bindings, holding, nodes, secrets, sessions, switch_ports
from cod.store.nodes.dhcp_batch import BindingBatch
from cod.store.people import audit
from cod.store.scheduler import networks
from cod.switches import edge
from cod.web.api.resources.documents import documents
from tests.world.lives import live
from tests.world.plan import Act
from tests.world.world import Outcome

SEEDS = 40
"""Worlds, in their short form, in which a planted fault has to be found at the latest. What a seed
means changes with the program: a fault is looked for in all of them."""


@dataclass(frozen=True)
class Fault:
    """One fault. `found`: words of the sentence that has to tell of it; `seed`: the world in which
    it was found last, which is tried first; `dear`: such worlds last long; `also`: what would make
    up for it otherwise, as room, name and what is planted; `acts`: it is planted in worlds in which
    these happen, and all else goes well."""

    room: Any
    name: str
    planted: Any
    found: str
    seed: int
    dear: bool = False
    also: tuple[tuple[Any, str, Any], ...] = ()
    acts: tuple[Act, ...] = ()


def _raise(*_: Any, **__: Any) -> list[Any]:
    raise ValueError("a bug")


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


def _no_fence(tx: Tx, peer: Peer, order_id: str) -> tuple[Node, AgentSession, bool]:
    """Take an agent's word of an earlier order for one of the present order."""
    return *sessions.of_peer(tx, peer), True


def _unspent(tx: Tx, _spent: str, secret: BootSecret) -> None:
    """Store a session's secret, and keep the boot's."""
    secrets.add(tx, secret)


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


def _undone(tx: Tx, _: Any) -> None:
    """Undo, as documents have been carried out, what they say of a group."""
    tx.execute(update(t.groups).where(t.groups.c.name == "high").values(max_lease=None))


def _believed(wanted: int, found: Any, *_: Any) -> PortOutcome:
    """Take a port for one that is where it is wanted, whatever the switch says of it."""
    return PortOutcome(found if isinstance(found, int) else None, wanted)


_outcome = switch_ports.outcome


def _not_read_again(tx: Tx, port: Any, **columns: Any) -> bool:
    """Read no port again that once was where it is wanted."""
    is_there = columns.get("attempts") == 0
    return _outcome(tx, port, **columns | ({"next_at": None} if is_there else {}))


def _freed_at_once(tx: Tx, _: Any) -> None:
    """Free the networks of vclusters that are to end, whatever is in them still."""
    alive = select(t.vclusters.c.id).where(t.vclusters.c.state == VclusterState.ACTIVE)
    for table in (t.vcluster_networks, t.vcluster_blocks):
        tx.execute(delete(table).where(table.c.vcluster_id.not_in(alive)))


_STOPPED = (
    Act(5.0, "still acting", 0, 0.5),
    Act(10.0, "create", 1, 0.3),
    Act(150.0, "tag", 0, 0.9),  # until then things go wrong
)
"""What happens where a manager stops as it begins to grant nodes, and so does the next one."""


def _exchanged(who: int) -> tuple[Act, ...]:
    """Return what happens where one isolated vcluster follows another. `who`: while the switch
    hangs (0), refuses ports (7) or lies (14)."""
    return (
        Act(5.0, "isolate", 2, 0.3),
        Act(150.0, "exchange", who, 0.3),
        Act(300.0, "tag", 0, 0.9),  # until then things go wrong
    )


_FORGOTTEN = (
    Act(3.0, "forget", 0, 0.0),
    Act(5.0, "create", 1, 0.6),
    *(Act(38.0, "reset", number) for number in range(6)),
    Act(150.0, "tag", 0, 0.9),  # until then things go wrong
)
"""What happens where a virtual cluster is forgotten that has nodes, and each machine then boots."""

_FOLLOWED = (
    Act(5.0, "create", 1, 0.6),
    Act(14.0, "forget", 1, 0.0),
    Act(17.0, "delete", 0, 0.5),
    Act(20.0, "create", 2, 0.6),
    Act(150.0, "tag", 0, 0.9),  # until then things go wrong
)
"""What happens where nodes are given to another virtual cluster, and that is forgotten."""

CLEAN = SimpleNamespace(**dict(Disk.__members__) | {"DIRTY": Disk.CLEAN})

FAULTS = {
    "a wipe is skipped": Fault(holding, "Disk", CLEAN, "was not wiped since", 1),
    "a flow raises": Fault(deadlines, "run", _raise, "a bug", 1),
    "a fence is removed": Fault(progress, "_spoken", _no_fence, "and its disk holds", 10),
    "a commit is doubled": Fault(audit, "has_run", lambda *_, **__: False, "and carried out", 15),
    "a lease does not end": Fault(leases, "expire", _nothing, "its lease ended", 1),
    "an address is given twice": Fault(
        BindingBatch, "free", lambda _, __, pool, *___: pool[9], "which m", 1
    ),
    "an order goes to another's agent": Fault(orders, "waiting", _to_another, "another's", 1),
    "a secret is accepted twice": Fault(secrets, "put", _unspent, "is accepted again", 2),
    "a quarantine is forgotten": Fault(
        deadlines, "_due", _forgets_quarantine, "no administrator has asked", 1
    ),
    "a right stays with the last holder": Fault(
        holding, "_clear_rights", _nothing, "may be used by", 1
    ),
    "an address stays with the last holder": Fault(
        bindings, "release", _nothing, "1 addresses of a vcluster", 1
    ),
    "a node is told another's metadata": Fault(
        MetadataDocs, "_of", _of_anybody, "is told that it is", 1
    ),
    "a volume is exported to all": Fault(
        volumes,
        "clients",
        lambda blocks: (ExportClient("10.80.0.0/16", False),) if list(blocks) else (),
        "can mount volume",
        3,
    ),
    "a system boots outside its VLAN": Fault(
        isolation, "elsewhere", lambda *_: "", "in VLAN 1, and its own is", 3
    ),
    "a VLAN is given away": Fault(
        networks, "free", _freed_at_once, "is given to another, and m", 1, acts=_exchanged(0)
    ),
    "a switch that refuses is believed": Fault(
        edge,
        "_outcome",
        _believed,
        "loading the installer",
        1,
        dear=True,
        also=((switch_ports, "outcome", _not_read_again),),
        acts=_exchanged(7),
    ),
    "a switch that lies is believed": Fault(
        switch_ports,
        "outcome",
        _not_read_again,
        "loading the installer",
        1,
        dear=True,
        acts=_exchanged(14),
    ),
    "a claim is not checked": Fault(
        claims, "confirm", _nothing, "is the manager", 2, acts=_STOPPED
    ),
    "a forgotten disk is believed to be known": Fault(
        stories,
        "judge",
        lambda *_: (StoryVerdict.AGREES, "its disks are blank"),
        "and its disk holds",
        2,
        acts=_FORGOTTEN,
    ),
    "a forgotten installation is taken for the present one": Fault(
        stories,
        "judge",
        lambda *_: (StoryVerdict.AGREES, "its disks are blank"),
        "its agent has told so",
        2,
        also=((stories, "is_mark_of", lambda *_: True),),
        acts=_FOLLOWED,
    ),
    "a forgotten node's port is moved": Fault(
        node_stories,
        "by_switch",
        lambda *_: False,
        "and its node is held",
        1,
        acts=(
            Act(3.0, "forget", 1, 0.9),
            Act(4.0, "isolate", 2, 0.6),
            Act(150.0, "tag", 0, 0.9),  # until then things go wrong
        ),
    ),
    "documents are applied by halves": Fault(documents, "_agrees", _undone, "by halves", 1),
    "a deadline is forgotten": Fault(nodes, "overdue", lambda *_: [], "not at rest", 8, dear=True),
}


@dataclass(frozen=True)
class FoundFault:
    """A world in which a planted fault was found. `worlds`, `steps`: of all that were run until
    then, this one included."""

    outcome: Outcome
    worlds: int
    steps: int

    def __str__(self) -> str:
        here = f"seed {self.outcome.seed}, {self.outcome.seconds:.0f} s"
        return f"{here}, {self.outcome.steps:,} steps; {self.steps:,} in {self.worlds} worlds"


def found(fault: Fault, seeds: Iterable[int] = ()) -> FoundFault | None:
    """Plant a fault in one world after the other; of those `seeds`, if there are any. Return the
    first in which it was found; None: it was found in none."""
    steps = 0
    usual = sorted(range(1, SEEDS + 1), key=lambda seed: (seed != fault.seed, seed))
    with ExitStack() as planted:
        for place in ((fault.room, fault.name, fault.planted), *fault.also):
            planted.enter_context(patch.object(*place))
        for number, seed in enumerate(seeds or usual, 1):
            outcome = live(seed, acts=fault.acts, calm=bool(fault.acts), short=True)
            steps += outcome.steps
            if any(fault.found in one for one in outcome.troubles):
                return FoundFault(outcome, number, steps)
    return None


def main() -> None:
    """Print in which world each fault is found, from seed 1 on, and after how many seconds of its
    time; of those alone whose names hold the words of the command line, if there are any."""
    words = " ".join(sys.argv[1:])
    for name, fault in FAULTS.items():
        if words in name:
            there = found(fault, range(1, SEEDS + 1))
            print(f"{name}: {there or f'not found in {SEEDS} worlds'}", flush=True)


if __name__ == "__main__":
    main()
