"""A node's next step. Pure: rows and rules in, an event with its cause out.
`core.nodes.transitions.apply` carries it out.

`settle` is called whenever a node is in state *trampoline* and its agent reports: after a report, a
wipe, an approval, a rest. `on_trouble` is called when a step has failed. After trouble a node rests
before it is settled again (`rested`): otherwise a server that is being restarted could use up the
retries of all free nodes, one after the other, within seconds.
"""

from __future__ import annotations

from cod.model import Assignment, Burnin, Node, Policy
from cod.policy.hardware import wiping
from cod.policy.nodes import blame, template
from cod.policy.nodes import burnin as tests
from cod.policy.scheduler import feasibility
from cod.states import (
    IMAGE_SERVER,
    NODE_RULES,
    Disk,
    Fault,
    NodeEvent,
    NodeState,
    Step,
)

FIRST_REST = 5.0  # seconds after the first failure; four times as long after each further one
LONGEST_REST = 120.0
KEPT_FOR_NOBODY = "its disks are kept for nobody any more"
WAY_REST = 20.0  # seconds between two tries while a server, switch or BMC does not answer
IDLE = Step(NodeEvent.IDLED, "clean and free", {"reason": "", "released": 0})


def settle(
    node: Node,
    wanted: Assignment | None,
    capture: bool = False,
    burnin: Burnin | None = None,
    *,
    tables: bool = True,
) -> Step:
    """Return the next step of a node in state *trampoline* that has reported.

    wanted   the system that its holder is to have on it; None: it has no holder
    capture  its disk is to be saved as an image. This comes first, because nothing has written to
             the disk since the capture was requested
    burnin   the burn-in that the node has to pass before any grant; None: none
    tables   the site allows nodes to be kept for a group with only their partition tables erased
    """
    if capture:
        return Step(NodeEvent.CAPTURE_ORDERED, "its disk is to be saved as an image")
    if node.vcluster_id is not None and wanted is not None:
        # even if the hardware has changed: the disk has its holder's data
        if node.disk == Disk.SYSTEM:
            return Step(
                NodeEvent.BOOT_ORDERED, "back into its vcluster's system, which is as it was left"
            )
        unfit = lacks(wanted)
        if unfit:
            reason = f"its hardware has changed: its holder needs {unfit}"
            return Step(NodeEvent.WIPE_ORDERED, reason, {"reason": reason}, frees=True)
        return assign(node, wanted)
    if node.disk == Disk.DIRTY:
        return Step(NodeEvent.WIPE_ORDERED, "its disks may hold a vcluster's data")
    if node.disk == Disk.TABLES and not (tables and node.cached_group_id):
        return Step(NodeEvent.WIPE_ORDERED, KEPT_FOR_NOBODY)
    if burnin is not None:
        return tests.begin(node, burnin)
    return IDLE


def assign(node: Node, wanted: Assignment) -> Step:
    """Return the next step towards its holder's system for a node in the trampoline or the warm
    reserve."""
    fits = cached_fits(node, wanted)
    if template.parse(wanted.document).diskless is not None:
        # no priming will overwrite the disks
        own = fits or wiping.is_kept_for(node, wanted.group_id)
        if node.disk in (Disk.DIRTY, Disk.CACHED, Disk.TABLES) and not own:
            return Step(NodeEvent.WIPE_ORDERED, "its disks hold what this holder must not read")
        return Step(NodeEvent.BOOT_ORDERED, "its template boots from the network: nothing to prime")
    if fits:
        return Step(NodeEvent.BOOT_ORDERED, "its disk holds the template already: priming skipped")
    return Step(NodeEvent.PRIME_ORDERED, "to be primed for its vcluster")


def lacks(wanted: Assignment) -> str:
    """Return what the node's hardware, by its last report, lacks for its grant; '' if nothing.

    A grant is for nodes of a type. If the node's type has changed since (a memory module died), the
    node may no longer match."""
    if not wanted.hardware:
        return ""
    lacking = [
        feasibility.lacking(one, wanted.document, wanted.hardware)
        for one in wanted.requires or ("",)
    ]
    return "; ".join(map(str, min(lacking, key=len)[:3]))


def cached_fits(node: Node, wanted: Assignment) -> bool:
    """Return whether the node's disk holds the wanted revision of the template unmodified, and is
    kept for the group that wants it."""
    return (
        node.disk == Disk.CACHED
        and node.cached_template_id == wanted.template_id
        and node.cached_group_id == wanted.group_id
    )


def may_keep_disk(node: Node, document: str) -> bool:
    """Return whether a node that leaves its vcluster, whose template is `document`, may keep its
    disk for the group's next use. The node must have run the primed system, with the same disks
    marked keep all the time, and must not have been captured."""
    primed = node.disk in (Disk.DIRTY, Disk.CACHED)
    return node.state == NodeState.ACTIVE and primed and template.parse(document).cache


def on_trouble(
    node: Node,
    event: NodeEvent,
    reason: str,
    policy: Policy,
    fault: Fault = Fault.MACHINE,
    former: blame.FormerFailures = blame.FormerFailures(),  # noqa: B008
) -> Step:
    """Return the step after `event` (failed, timed_out, lost, asked, boot_failed) in a state in
    which a node is at work: a retry, quarantine, or, if another node would fail as well, back to
    the reserve.

    fault   the cause of the trouble (`policy.nodes.blame`)
    former  former failures, which decide if the cause is unknown

    After a timeout the node is also power-cycled. A cached disk that does not boot counts as dirty.
    A capture that has used up its retries has failed, but the node itself is not to blame: it goes
    on with all its retries. Failures of the way (`Fault.WAY`) use up no retries.
    """
    attempts = node.attempts + (fault is not Fault.WAY)
    columns: dict[str, object] = {"reason": reason, "attempts": attempts}
    if fault is Fault.WAY:
        columns["waits_for"] = IMAGE_SERVER
    if node.state == NodeState.BOOT and node.disk == Disk.CACHED:
        columns["disk"] = Disk.DIRTY
    cycle = "cycle" if event is NodeEvent.TIMED_OUT and policy.power_cycle else None
    if fault in (Fault.ORDER, Fault.KEPT):
        return given_back(event, reason, cycle, fault, stops=reason)
    if fault is Fault.WAY or attempts <= NODE_RULES[NodeState(node.state)].retries:
        return Step(event, reason, columns, cycle, fault=fault)
    spent = f"{reason} (trouble {attempts} on its way, in state {node.state})"
    if node.state == NodeState.CAPTURE:
        return Step(
            NodeEvent.EXHAUSTED, spent, {"reason": f"not captured: {reason}", "attempts": 0}, cycle
        )
    stops = blame.verdict(former) if fault is Fault.UNKNOWN else ""
    if stops:
        why = f"{stops}; the last one: {reason}"
        return given_back(event, spent, cycle, fault, stops=why)
    return Step(NodeEvent.EXHAUSTED, spent, columns, fault=fault)


def given_back(
    event: NodeEvent, cause: str, power: str | None, fault: Fault, stops: str = ""
) -> Step:
    """Return the step that brings a blameless node back to the reserve, with all its retries.
    `stops`: why its request gets no other node in its place; '': it gets one."""
    return Step(
        event, cause, {"reason": cause, "attempts": 0}, power, frees=True, fault=fault, stops=stops
    )


def restored(node: Node, cause: str) -> Step:
    """Return the step that returns a node to service. What was done to its disks meanwhile is
    unknown: they count as dirty, unless COD never wrote them."""
    disk = Disk.FOREIGN if node.disk == Disk.FOREIGN else Disk.DIRTY
    kept = {"disk": disk, "cached_template_id": None, "cached_group_id": None}
    return Step(NodeEvent.RESTORED, cause, {"reason": "", "attempts": 0, **kept}, "cycle")


def rest(attempts: int) -> float:
    """Return the seconds that a node stays in the trampoline after `attempts` failures."""
    return min(FIRST_REST * 4 ** (attempts - 1), LONGEST_REST) if attempts else 0.0


def rested(node: Node, policy: Policy, now: float) -> bool:
    """Return whether the node has rested long enough to be settled. The site's `patience`
    multiplies rests and deadlines alike."""
    least = WAY_REST if node.waits_for else 0.0
    return now >= node.since + max(rest(node.attempts), least) * policy.patience
