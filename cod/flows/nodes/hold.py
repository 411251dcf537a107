"""A site that is held: its manager plans nothing and no deadline passes, and no node in the
trampoline is erased or installed by itself.

A site is held after its restoration from a backup, when its database has lost its last commits, or
by an administrator. All nodes are held with the site. A node stays held until its machine has told
what its disks hold: a node that is free by the database may run a system that was installed since.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cod import notice_texts
from cod.core import leases, notices
from cod.core.nodes import transitions
from cod.model import FlowContext, Node, NodeStory, Policy, Refused
from cod.states import OWN_SYSTEM, WORKING, Disk, NodeEvent, NodeState, Step, StoryVerdict
from cod.store import claims, stories, watermarks
from cod.store.engine import Tx
from cod.store.nodes import nodes
from cod.store.notices import events

Progress = claims.Progress
BY_HAND = "an administrator holds it"
LOST = "its database has lost its last commits"
KEPT = "an administrator keeps it as it is: its machine and the database differ"
# Seconds, more than pass between a loss and its notice while a server writes: the ids of what was
# lost may have been given again since.
UNNOTICED = 60.0
# Nodes that are free by the database: while the site is held, that is not believed.
_FREE = (NodeState.INACTIVE, NodeState.OFF)


@dataclass(frozen=True, slots=True)
class SiteHold:
    """A hold of the site, and the nodes that are held.

    since  when the hold began; None: the site is not held, but single nodes may still be
    why    the reason, a sentence without a full stop
    nodes  held nodes with their stories, by name
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
    """Hold the site; a hold that lasts already goes on. Agents at work stop."""
    if not lasts(tx):
        _begin(tx, why, now)
    return show(tx)


def _begin(tx: Tx, why: str, now: float, since: float | None = None) -> None:
    claims.interrupt(tx, claims.MANAGER)  # a plan may take minutes to be carried out
    nodes.lock_all(tx)  # an agent's message that found the site not held may move its node now
    cause = f"the site is held: {why}"
    # an order may be out of date: the disks may hold a system by now, or another holder's
    for node in nodes.every(tx, sorted(WORKING), lock=True):
        step = Step(NodeEvent.FAILED, cause)
        # the policy's times do not matter: no deadline passes
        transitions.apply(tx, node, step, now=now, actor="hold", policy=Policy())
    stories.move_to_trampoline(tx, _FREE, actor="hold", cause=cause, now=now)
    stories.begin_hold(tx, why, now, since)
    stories.tell_anew(tx, now)


def show(tx: Tx) -> SiteHold:
    """Return the hold of the site, and the nodes that are held."""
    since, why = watermarks.at(tx, watermarks.HOLD), watermarks.about(tx, watermarks.HOLD)
    return SiteHold(since, why, tuple(stories.every(tx)))


def lasts(tx: Tx) -> bool:
    """Return whether the site is held."""
    return watermarks.at(tx, watermarks.HOLD) is not None


def end(tx: Tx, now: float) -> SiteHold:
    """End the hold. Nodes' deadlines are put off by the time that the hold lasted, and leases that
    have ended last a while longer. Nodes whose machines were silent or differ from the database
    stay held; return these nodes."""
    since = watermarks.at(tx, watermarks.HOLD)
    # checked, because two callers that end the hold at once have both read the mark
    if since is not None and watermarks.forget(tx, watermarks.HOLD):
        stories.forget_agreed(tx)
        nodes.put_off(tx, max(0.0, now - since))
        leases.reprieve(tx, now)
    return show(tx)


def observe(tx: Tx) -> tuple[bool, Progress | None]:
    """Return whether the site is held, and how far the database has come; None: it has no name."""
    return lasts(tx), claims.progress(tx)


def watch(tx: Tx, seen: Progress | None, *, name: str = "", now: float) -> bool:
    """Hold the site, or hold it anew, if the database is behind what a server has `seen` of it:
    then it has lost its last commits. Return whether it has. A database without a name gets `name`,
    unless that is ''. No message of a machine ever holds the site."""
    found = claims.progress(tx, lock=True)
    if found is None and name:
        claims.name_database(tx, name)
    if found is None or seen is None or not found.is_behind(seen):
        return False
    claims.count_loss(tx, seen)
    events.note_loss(tx, seen.epoch, now - UNNOTICED)
    # A hold that lasts begins anew: the database has forgotten that it had ended, perhaps, and what
    # was installed since. Deadlines have stood still since it began.
    since = watermarks.at(tx, watermarks.HOLD)
    watermarks.forget(tx, watermarks.HOLD)
    # It writes the row of the manager's claim: a host of a Galera cluster that only has not applied
    # the last commits yet refuses this commit, and is read again.
    _begin(tx, LOST, now, since)
    notices.add(tx, **notice_texts.site_held(LOST), group_id=None, now=now)
    return True


def counts(tx: Tx) -> dict[str, int] | None:
    """Return the number of nodes with each verdict; None where neither the site nor a node is
    held."""
    found = stories.counts(tx)
    return found if lasts(tx) or found.keys() - {StoryVerdict.AGREES} else None


def wake(tx: Tx, now: float) -> SiteHold:
    """Switch on the silent nodes that should be in the trampoline, so that they tell what their
    disks hold. A node that is on already is not reset."""
    found = show(tx)
    for node, _ in found.of(StoryVerdict.SILENT):
        if node.state == NodeState.TRAMPOLINE:
            nodes.wish_power(tx, node, "on", now)
    return found


def decide(tx: Tx, context: FlowContext, *, keep: Sequence[str], erase: Sequence[str]) -> SiteHold:
    """Carry out an administrator's decisions about held nodes, all or none; return the nodes that
    are still held. Raises `Refused` if a node is not held, or is in use and to be erased.

    keep   names of nodes whose disks stay as they are. A node in use stays in use; any other node
           goes out of service
    erase  names of nodes whose disks are erased, once the site is not held any more
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
    """End the hold of the node with that name, and return the node. Raise `Refused` if it is not
    held."""
    node = nodes.named(tx, name, lock=True)
    if not stories.holds(tx, node.id):
        raise Refused("conflict", f"node {name} is not held: its machine agrees with the database")
    stories.forget(tx, node.id)
    return node
