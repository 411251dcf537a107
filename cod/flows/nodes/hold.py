"""A site that is held: its manager plans nothing and no deadline passes, and no node in the
trampoline is erased or installed by itself.

A site is held from the moment in which it is restored from a backup, by an administrator, or when
its database has lost its last commits. Each node is held with it, until its machine has told what
it holds: a node that the database says is free may run a system that was installed since.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cod import notice_texts
from cod.core import leases, notices
from cod.core.nodes import transitions
from cod.model import FlowContext, Node, NodeStory, Policy, Refused
from cod.states import OWN_SYSTEM, Disk, NodeEvent, NodeState, Step, StoryVerdict
from cod.store import claims, stories, watermarks
from cod.store.engine import Tx
from cod.store.nodes import nodes

BY_HAND = "an administrator holds it"
LOST = "its database has lost its last commits"
KEPT = "an administrator keeps it as it is: its machine and the database differ"
# A free node is not believed to be free, whether or not somebody would grant it.
_FREE = (NodeState.INACTIVE, NodeState.OFF)
# An order to write may be one of before: the disks may hold a system by now.
_WRITTEN = (NodeState.WIPE, NodeState.PRIME, NodeState.BURNIN)


@dataclass(frozen=True, slots=True)
class SiteHold:
    """A hold of the site. `since` is None where it is over, and nodes are held one by one; `why`
    is a sentence without a full stop.

    nodes  with their stories, by name; of a hold that is over those that are still held
    """

    since: float | None
    why: str
    nodes: tuple[tuple[Node, NodeStory], ...]

    def of(self, verdict: StoryVerdict) -> list[tuple[Node, NodeStory]]:
        """Return the nodes with that verdict."""
        return [each for each in self.nodes if each[1].verdict == verdict]

    def names(self, verdict: StoryVerdict) -> list[str]:
        """Return the names of the nodes with that verdict."""
        return [node.name for node, _ in self.of(verdict)]


def start(tx: Tx, now: float, why: str = BY_HAND) -> SiteHold:
    """Hold the site; a hold that lasts already goes on. Nodes that are being written to stop."""
    if not lasts(tx):
        claims.interrupt(tx, claims.MANAGER)  # a plan may take minutes to be carried out
        cause = f"the site is held: {why}"
        for node in nodes.every(tx, _WRITTEN, lock=True):
            step = Step(NodeEvent.FAILED, cause)
            # any rules would do: no deadline passes
            transitions.apply(tx, node, step, now=now, actor="hold", policy=Policy())
        stories.move_to_trampoline(tx, _FREE, actor="hold", cause=cause, now=now)
        stories.begin_hold(tx, why, now)
    return show(tx)


def show(tx: Tx) -> SiteHold:
    """Return the hold of the site, and the nodes that are held."""
    since, why = watermarks.at(tx, watermarks.HOLD), watermarks.about(tx, watermarks.HOLD)
    return SiteHold(since, why, tuple(stories.every(tx)))


def lasts(tx: Tx) -> bool:
    """Return whether the site is held."""
    return watermarks.at(tx, watermarks.HOLD) is not None


def end(tx: Tx, now: float) -> SiteHold:
    """End the hold. Deadlines of nodes are put off by the time it lasted, and leases that are over
    last a while longer. Nodes whose machines were silent or differ stay held, one by one; return
    these."""
    since = watermarks.at(tx, watermarks.HOLD)
    # first, and looked at: of two who end it at once, both have read the mark
    if since is not None and watermarks.forget(tx, watermarks.HOLD):
        stories.forget_agreed(tx)
        nodes.put_off(tx, max(0.0, now - since))
        leases.reprieve(tx, now)
    return show(tx)


def watch(tx: Tx, *, claim: claims.Claim, now: float) -> bool:
    """Hold the site where the manager's claim is older in the database than its owner knows: what
    was committed last is lost. Return whether it is. What a machine says never holds the site."""
    if not claims.went_back(tx, claim):
        return False
    if not lasts(tx):
        start(tx, now, LOST)
        notices.add(tx, **notice_texts.site_held(LOST), group_id=None, now=now)
    return True


def counts(tx: Tx) -> dict[str, int] | None:
    """Return how many nodes there are of each verdict; None where nothing is held."""
    found = stories.counts(tx)
    return found if lasts(tx) or found.keys() - {StoryVerdict.AGREES} else None


def wake(tx: Tx, now: float) -> SiteHold:
    """Switch on the silent nodes that are to be in the trampoline, so that they tell what they
    hold. One that is on stays as it is."""
    found = show(tx)
    for node, _ in found.of(StoryVerdict.SILENT):
        if node.state == NodeState.TRAMPOLINE:
            nodes.wish_power(tx, node, "on", now)
    return found


def decide(tx: Tx, context: FlowContext, *, keep: Sequence[str], erase: Sequence[str]) -> SiteHold:
    """Carry out an administrator's word about held nodes, by name; return what is held then. All or
    nothing: raises `Refused` where one is not held, or is to be erased and in use.

    keep   the node is as it should be: one in use goes on, any other is out of service with its
           disks
    erase  what its machine holds is not wanted: it is erased, once the hold of the site is over
    """
    for name in keep:
        _keep(tx, context, _held(tx, name))
    for name in erase:
        _erase(tx, context, _held(tx, name))
    return show(tx)


def _keep(tx: Tx, context: FlowContext, node: Node) -> None:
    if node.state not in OWN_SYSTEM and node.state != NodeState.QUARANTINED:
        step = Step(NodeEvent.QUARANTINED, f"{context.actor}: {KEPT}", {"reason": KEPT})
        transitions.apply_for(tx, context, node, step)


def _erase(tx: Tx, context: FlowContext, node: Node) -> None:
    if node.state in OWN_SYSTEM:
        raise Refused("conflict", f"node {node.name} is in use: release it, which erases it")
    dirty = {"disk": Disk.DIRTY, "cached_template_id": None, "cached_group_id": None}
    if node.state == NodeState.QUARANTINED:
        columns = {"reason": "", "attempts": 0, **dirty}
        step = Step(NodeEvent.RESTORED, f"{context.actor}: to be erased", columns, "cycle")
        transitions.apply_for(tx, context, node, step)
    else:
        nodes.change(tx, node, **dirty)


def _held(tx: Tx, name: str) -> Node:
    """Return the node, which is held no longer."""
    node = nodes.named(tx, name, lock=True)
    if not stories.holds(tx, node.id):
        raise Refused("conflict", f"node {name} is not held: its machine agrees with the database")
    stories.forget(tx, node.id)
    return node
