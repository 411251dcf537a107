"""The lifecycles of nodes and others, as tables.

A node's lifecycle (the paper's figure 2, with the parts that it leaves out)::

    off -> trampoline -> inactive | prime -> boot -> active -> (released, seized, boot failed) ->
    trampoline

*trampoline* is the state between two uses. A node is in this state from the moment when COD wants
it in the trampoline until its agent has reported and COD has decided what to do with the node. The
decision (`policy.nodes.lifecycle.settle`) changes the state in the same transaction. Every way back
to the reserve pool leads through this state, so a node cannot look free without having reported
and, where it held somebody's data, without having been wiped.

A node that is captured (saved as an image) takes the same way: active -> trampoline -> capture ->
trampoline -> boot. Until the node is active again its disk is marked *system*: the system on it is
booted again, and nothing is written to the disk.

A free node that is burnt in (tested) goes trampoline -> burnin -> trampoline -> inactive, or is
quarantined with the result. Only clean disks are written.

Three kinds of state (Ironic's distinction):

- *stable*: the node may stay in the state for ever;
- *motion*: the next event must come within `deadline` seconds (progress extends the deadline).
  Otherwise the event `timed_out` is applied and one of `retries` is spent; when none is left,
  `exhausted` is applied;
- *final*: only an administrator can move the node on.

The holder of a node (`nodes.vcluster_id`), its reservation and the content of its disks
(`nodes.disk`) are columns, not states. `cod states --dot` prints the diagram from these tables.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class NodeState(StrEnum):
    """State of a node. The values are used in the database, the API and the history."""

    EXPECTED = "expected"
    NEW = "new"
    REGISTERING = "registering"
    OFF = "off"
    TRAMPOLINE = "trampoline"
    INACTIVE = "inactive"
    WIPE = "wipe"
    PRIME = "prime"
    BOOT = "boot"
    ACTIVE = "active"
    CAPTURE = "capture"
    BURNIN = "burnin"
    QUARANTINED = "quarantined"
    RETIRED = "retired"


PHASES = {
    "wipe": "erasing",
    "zero": "clearing",
    "write": "writing",
    "verify": "checking",
    "pass on": "passing on",
    "compare": "comparing",
    "capture": "reading",
    "capture anew": "reading anew for another server",
    "memory": "testing memory",
    "disk": "testing disks",
    "network": "testing the network",
}
"""What people call the steps of an order by which an agent tells its progress."""


WORDS: dict[str, str] = {
    NodeState.ACTIVE: "in use",
    NodeState.PRIME: "installing",
    NodeState.TRAMPOLINE: "starting",
    NodeState.BOOT: "starting",
    NodeState.CAPTURE: "saving",
    NodeState.WIPE: "erasing",
    NodeState.BURNIN: "testing",
    NodeState.INACTIVE: "free",
    NodeState.OFF: "asleep",
    NodeState.EXPECTED: "expected",
    NodeState.NEW: "new",
    NodeState.REGISTERING: "waiting for approval",
    NodeState.QUARANTINED: "out of service",
    NodeState.RETIRED: "retired",
}
"""What people call a node's states, in the order in which they are shown."""


OTHER_WORDS: dict[str, str] = {
    "pending": "waiting",
    "releasing": "ending",
    "ingesting": "processing",
}
"""What people call states of virtual clusters, requests and images; where nothing else is said, as
they are named."""


class NodeEvent(StrEnum):
    """Event of a node. Each (state, event) pair leads to one state: see `NODE_TRANSITIONS`."""

    ENTERED = "entered"  # an administrator entered a machine that has not reported
    SEEN = "seen"  # an expected machine reported for the first time
    REGISTERED = "registered"  # a new machine's agent reported
    APPROVED = "approved"  # an administrator, or the site's automatic approval, accepted it
    ASKED = "asked"  # it asked by DHCP to boot, unexpectedly: it was reset or switched on
    IDLED = "idled"  # reported, clean, and nobody needs it now
    WIPE_ORDERED = "wipe_ordered"
    PRIME_ORDERED = "prime_ordered"
    BOOT_ORDERED = "boot_ordered"  # its disk already holds the wanted template: priming is skipped
    # its vcluster's system is stopped for a while, to save its disk
    CAPTURE_WANTED = "capture_wanted"
    CAPTURE_ORDERED = "capture_ordered"
    REINSTALL_WANTED = "reinstall_wanted"  # its holder ordered a reinstall
    BURNIN_ORDERED = "burnin_ordered"
    WIPED = "wiped"
    PRIMED = "primed"
    CAPTURED = "captured"
    BURNED_IN = "burned_in"  # it passed its tests
    CANCELLED = "cancelled"  # a person cancelled the capture or the burn-in
    BOOTED = "booted"  # the OS's own DHCPACK (and the template's readiness check)
    BOOT_FAILED = "boot_failed"
    FAILED = "failed"  # the agent reported a failure, with the reason
    LOST = "lost"  # the agent's connection is gone past its heartbeat deadline
    RELEASED = "released"  # its vcluster gave it back, or it was reclaimed or seized
    POWERED_DOWN = "powered_down"
    WOKEN = "woken"
    TIMED_OUT = "timed_out"
    EXHAUSTED = "exhausted"  # the retry budget is spent
    QUARANTINED = "quarantined"  # by an administrator, or by a rule, which gives a reason
    RESTORED = "restored"  # out of quarantine or retirement
    RETIRED = "retired"


@dataclass(frozen=True, slots=True)
class StateRule:
    """Properties of a state.

    kind      'stable', 'motion' or 'final'
    deadline  seconds until `timed_out` (motion only); the site file may scale all of them
              (`policy.patience`)
    retries   how often the node may fail or time out on its way before it is `exhausted`
    about     one line for people
    """

    kind: str
    about: str
    deadline: float | None = None
    retries: int = 0


S, E = NodeState, NodeEvent

NODE_RULES: dict[NodeState, StateRule] = {
    S.EXPECTED: StateRule("stable", "entered by an administrator; has not reported"),
    S.NEW: StateRule("stable", "seen on the wire, has never reported"),
    S.REGISTERING: StateRule("stable", "reported; waits for an administrator's approval"),
    S.OFF: StateRule("stable", "cold reserve: powered down, free"),
    S.TRAMPOLINE: StateRule("motion", "starting: loading the installer", 600, 3),
    S.INACTIVE: StateRule("stable", "warm reserve: in the trampoline, clean, free"),
    S.WIPE: StateRule("motion", "its disks are being erased", 300, 2),
    S.PRIME: StateRule("motion", "its template's images are being written", 300, 2),
    S.BOOT: StateRule("motion", "rebooting into its vcluster", 600, 2),
    S.ACTIVE: StateRule("stable", "runs its vcluster's software"),
    S.CAPTURE: StateRule("motion", "its disks are being saved as an image", 300, 1),
    S.BURNIN: StateRule("motion", "its memory, disks and network are being tested", 300, 1),
    S.QUARANTINED: StateRule("final", "out of service, with a reason; an administrator decides"),
    S.RETIRED: StateRule("final", "no longer part of the site"),
}


class WrongEvent(Exception):
    """The event is not possible in that state: a late message, or a bug. Nothing was changed."""


class Transitions(dict[tuple[NodeState, NodeEvent], NodeState]):
    """The states that events lead to, by state and event. Raises `WrongEvent` for a state and an
    event that it does not have."""

    def __missing__(self, pair: tuple[NodeState, NodeEvent]) -> NodeState:
        state, event = pair
        raise WrongEvent(f"a node in state {state} takes no event {event}")


NODE_TRANSITIONS = Transitions(
    {
        (S.EXPECTED, E.SEEN): S.NEW,
        (S.NEW, E.ENTERED): S.EXPECTED,
        (S.NEW, E.REGISTERED): S.REGISTERING,
        (S.REGISTERING, E.APPROVED): S.TRAMPOLINE,
        (S.OFF, E.WOKEN): S.TRAMPOLINE,
        (S.OFF, E.ASKED): S.TRAMPOLINE,
        (S.TRAMPOLINE, E.IDLED): S.INACTIVE,
        (S.TRAMPOLINE, E.WIPE_ORDERED): S.WIPE,
        (S.TRAMPOLINE, E.PRIME_ORDERED): S.PRIME,
        (S.TRAMPOLINE, E.BOOT_ORDERED): S.BOOT,
        (S.TRAMPOLINE, E.CAPTURE_ORDERED): S.CAPTURE,
        (S.TRAMPOLINE, E.BURNIN_ORDERED): S.BURNIN,
        (S.TRAMPOLINE, E.TIMED_OUT): S.TRAMPOLINE,
        (S.TRAMPOLINE, E.EXHAUSTED): S.QUARANTINED,
        (S.INACTIVE, E.PRIME_ORDERED): S.PRIME,
        (S.INACTIVE, E.BOOT_ORDERED): S.BOOT,
        (S.INACTIVE, E.WIPE_ORDERED): S.WIPE,
        (S.INACTIVE, E.CAPTURE_ORDERED): S.CAPTURE,
        (S.INACTIVE, E.BURNIN_ORDERED): S.BURNIN,
        (S.INACTIVE, E.POWERED_DOWN): S.OFF,
        (S.INACTIVE, E.ASKED): S.TRAMPOLINE,
        (S.INACTIVE, E.LOST): S.TRAMPOLINE,
        (S.WIPE, E.WIPED): S.TRAMPOLINE,
        (S.WIPE, E.ASKED): S.TRAMPOLINE,
        (S.WIPE, E.FAILED): S.TRAMPOLINE,
        (S.WIPE, E.LOST): S.TRAMPOLINE,
        (S.WIPE, E.TIMED_OUT): S.TRAMPOLINE,
        (S.WIPE, E.EXHAUSTED): S.QUARANTINED,
        (S.PRIME, E.PRIMED): S.BOOT,
        (S.PRIME, E.ASKED): S.TRAMPOLINE,
        (S.PRIME, E.FAILED): S.TRAMPOLINE,
        (S.PRIME, E.LOST): S.TRAMPOLINE,
        (S.PRIME, E.RELEASED): S.TRAMPOLINE,
        (S.PRIME, E.REINSTALL_WANTED): S.TRAMPOLINE,
        (S.PRIME, E.TIMED_OUT): S.TRAMPOLINE,
        (S.PRIME, E.EXHAUSTED): S.QUARANTINED,
        (S.BOOT, E.BOOTED): S.ACTIVE,
        (S.BOOT, E.BOOT_FAILED): S.TRAMPOLINE,
        (S.BOOT, E.FAILED): S.TRAMPOLINE,
        (S.BOOT, E.RELEASED): S.TRAMPOLINE,
        (S.BOOT, E.REINSTALL_WANTED): S.TRAMPOLINE,
        (S.BOOT, E.TIMED_OUT): S.TRAMPOLINE,
        (S.BOOT, E.EXHAUSTED): S.QUARANTINED,
        (S.ACTIVE, E.RELEASED): S.TRAMPOLINE,
        (S.ACTIVE, E.CAPTURE_WANTED): S.TRAMPOLINE,
        (S.ACTIVE, E.REINSTALL_WANTED): S.TRAMPOLINE,
        (S.CAPTURE, E.CAPTURED): S.TRAMPOLINE,
        (S.CAPTURE, E.ASKED): S.TRAMPOLINE,
        (S.CAPTURE, E.FAILED): S.TRAMPOLINE,
        (S.CAPTURE, E.LOST): S.TRAMPOLINE,
        (S.CAPTURE, E.CANCELLED): S.TRAMPOLINE,
        (S.CAPTURE, E.TIMED_OUT): S.TRAMPOLINE,
        (S.CAPTURE, E.EXHAUSTED): S.TRAMPOLINE,  # the capture has failed, not the node
        (S.BURNIN, E.BURNED_IN): S.TRAMPOLINE,
        (S.BURNIN, E.ASKED): S.TRAMPOLINE,
        (S.BURNIN, E.FAILED): S.TRAMPOLINE,
        (S.BURNIN, E.LOST): S.TRAMPOLINE,
        (S.BURNIN, E.CANCELLED): S.TRAMPOLINE,
        (S.BURNIN, E.TIMED_OUT): S.TRAMPOLINE,
        # a machine that cannot finish its tests is not given to anybody
        (S.BURNIN, E.EXHAUSTED): S.QUARANTINED,
        (S.QUARANTINED, E.RESTORED): S.TRAMPOLINE,
        (S.RETIRED, E.RESTORED): S.TRAMPOLINE,
    }
)
# An administrator may quarantine any node, and retire a node that nobody uses and that is not on
# its way to a holder.
for _state in S:
    if _state not in (S.QUARANTINED, S.RETIRED):
        NODE_TRANSITIONS[_state, E.QUARANTINED] = S.QUARANTINED
for _state in (S.EXPECTED, S.NEW, S.REGISTERING, S.OFF, S.TRAMPOLINE, S.INACTIVE, S.QUARANTINED):
    NODE_TRANSITIONS[_state, E.RETIRED] = S.RETIRED

# The machine runs its vcluster's system, or is on its way to it; or the agent writes, reads or
# tests its disks.
OWN_SYSTEM = frozenset({S.BOOT, S.ACTIVE})
WORKING = frozenset({S.WIPE, S.PRIME, S.CAPTURE, S.BURNIN})
WRITING = WORKING - {S.CAPTURE}  # to the node's disks

# Of the machine, COD knows only its packets and what an administrator entered.
UNREPORTED = frozenset({S.EXPECTED, S.NEW})

# No administrator has accepted the machine into the site.
UNAPPROVED = UNREPORTED | {S.REGISTERING}

# States that are not believed after a restore from a backup: such nodes go to the trampoline.
UNBELIEVED = frozenset({S.INACTIVE, S.OFF, S.TRAMPOLINE, S.BOOT, *WORKING})

# Targets: a node that reaches one of these states gets its whole retry budget back.
ARRIVED = frozenset({S.INACTIVE, S.ACTIVE, S.OFF, S.REGISTERING, S.RETIRED})


class CaptureState(StrEnum):
    """A capture's life: wanted (until the node's agent is told) -> running -> one of the last
    three, which are final.

    After trouble on the way a running capture is wanted again, as long as the node has retries
    left.
    """

    WANTED = "wanted"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class BurninState(StrEnum):
    """A burn-in's life: wanted (until the node's agent is told) -> running -> one of the last
    three, which are final.

    After trouble on the way a running burn-in is wanted again, as long as the node has retries
    left.
    """

    WANTED = "wanted"
    RUNNING = "running"
    PASSED = "passed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class VclusterState(StrEnum):
    """A virtual cluster's life: pending (asked for) -> active (nodes granted) -> releasing ->
    ended.

    An active vcluster whose lease has run out drains for a while (`vclusters.drain_until`) before
    its nodes are seized.
    """

    PENDING = "pending"
    ACTIVE = "active"
    RELEASING = "releasing"
    ENDED = "ended"


class RequestState(StrEnum):
    """A node request's life; the last three are final.

    A request for a node in place of one that failed is stopped where another would fail like it:
    it gets nothing until it is tried again, which makes it pending, or withdrawn.
    """

    PENDING = "pending"
    STOPPED = "stopped"
    GRANTED = "granted"
    REJECTED = "rejected"
    WITHDRAWN = "withdrawn"


# States of requests that are not decided yet.
UNDECIDED = frozenset({RequestState.PENDING, RequestState.STOPPED})


class ReclaimState(StrEnum):
    """A reclaim's life; the last two are final. Cancelled: what it was for has been met otherwise,
    or is gone."""

    OPEN = "open"
    DONE = "done"
    CANCELLED = "cancelled"


class WindowState(StrEnum):
    """A maintenance window's life: planned -> running -> over, or cancelled before it began."""

    PLANNED = "planned"
    RUNNING = "running"
    OVER = "over"
    CANCELLED = "cancelled"


class ConflictKind(StrEnum):
    """Subject of a conflict on record."""

    DECLINED = "declined"  # a machine found its address in use
    EXHAUSTED = "exhausted"  # a pool of addresses
    LIMITED = "limited"  # new machines of a subnet are refused for a while
    IDENTITY = "identity"
    MOVED = "moved"  # a node boots elsewhere than it did
    HARDWARE = "hardware"
    ARCHITECTURE = "architecture"
    DHCP = "dhcp"  # another DHCP server
    NAMESAKE = "namesake"  # volumes with the same name
    SWITCH = "switch"


class Fault(StrEnum):
    """The cause for which a node did not reach its target: see `policy.nodes.blame`."""

    MACHINE = "machine"
    ORDER = "order"
    KEPT = "kept"
    WAY = "way"
    UNKNOWN = "unknown"


IMAGE_SERVER = "the image server"
POWER_CONTROL = "power control"
KERBEROS = "the command for keytabs"
"""Parts of the site that a node waits for while they do not answer (`nodes.waits_for`). A switch is
"switch NAME". Power control is the node's BMC or outlet."""


class StoryVerdict(StrEnum):
    """Result of comparing a machine's report with the database, since its site was held."""

    SILENT = "silent"
    AGREES = "agrees"
    DIFFERS = "differs"


class Disk(StrEnum):
    """Content of a node's local disks, as far as COD knows. Only CLEAN may be handed on to anybody
    without a wipe; CACHED and TABLES to their group."""

    # content that COD never wrote: not touched before approval, wiped when first primed. On a node
    # with a running system: since the system was written, the marks of kept disks have changed or
    # the database was restored from a backup, so all disks are wiped at the release
    FOREIGN = "foreign"
    # may hold data of a vcluster: wiped before anything else. `nodes.cached_group_id`: the only
    # group whose data the disks may hold; null: of any group
    DIRTY = "dirty"
    CLEAN = "clean"  # wiped, nothing written since
    # holds `nodes.cached_template_id`, unmodified, kept for `nodes.cached_group_id`
    CACHED = "cached"
    # the partition tables are zeroed, the data is not: kept for `nodes.cached_group_id`
    TABLES = "tables"
    # holds the system of the node's holder, which was stopped for a capture and boots again: never
    # overwritten by priming
    SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class Step:
    """A planned change of a node: an event, its cause, the columns that change with it, and a power
    command.

    frees     its holder cannot use the node: the node is taken from it, and it gets another instead
    notified  its holder and administrators have been notified already
    fault     cause of the trouble that the step reacts to; None: there is no trouble
    erased    how the node's disks were erased, as JSON, for its history
    connects  its agent connects anew in this transaction, so there is no earlier report to forget
    stops     why no other node takes its place for the time being; '': another does

    Decided by `policy.nodes.lifecycle`, carried out by `core.nodes.transitions.apply`.
    """

    event: NodeEvent
    cause: str
    columns: dict[str, Any] = field(default_factory=dict)
    power: str | None = None
    frees: bool = False
    fault: Fault | None = None
    stops: str = ""
    notified: bool = False
    erased: str | None = None
    connects: bool = False


def dot() -> str:
    """Return the lifecycle as a Graphviz digraph: stable states as ellipses, states in motion as
    boxes, final ones as octagons."""
    shapes = {"stable": "ellipse", "motion": "box", "final": "octagon"}
    lines = ["digraph node_lifecycle {", "  rankdir=LR;"]
    for state, rule in NODE_RULES.items():
        label = (
            state
            if rule.deadline is None
            else f"{state}\\n{rule.deadline:.0f} s, {rule.retries} retries"
        )
        lines.append(f'  "{state}" [shape={shapes[rule.kind]}, label="{label}"];')
    arrows: dict[tuple[NodeState, NodeState], list[str]] = {}
    for (state, event), target in NODE_TRANSITIONS.items():
        arrows.setdefault((state, target), []).append(event)
    for (source, target), events in arrows.items():
        label = "\\n".join(events)
        lines.append(f'  "{source}" -> "{target}" [label="{label}"];')
    return "\n".join([*lines, "}"])
