"""Power wishes: which to carry out now, and their outcomes.

A wish (`store.nodes.nodes.wish_power`) belongs to one generation of its node. It is claimed,
carried out at least once, verified and closed, within `policy.nodes.power.BUDGET`. Claiming locks
the node's row and compares its generation in the same transaction: a late power-off never reaches a
machine that has got a new holder since. While one wish of a node is being carried out, no other
wish of this node is claimed, and a claim outlives the longest attempt. So the newest wish is always
carried out last.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from cod import notice_texts
from cod.core import notices
from cod.core.networks import isolation
from cod.core.nodes import boot_nonces
from cod.model import Meter, Node, PowerAction, Refused, Site
from cod.policy.nodes import power as policy
from cod.states import NODE_RULES, OWN_SYSTEM, POWER_CONTROL, NodeState
from cod.store.engine import Tx
from cod.store.nodes import nodes
from cod.store.nodes import power as store
from cod.store.scheduler import vclusters

prune = store.prune
hands_nonce = policy.hands_nonce
PORT_PAUSE = 0.5  # seconds between two checks whether a switch port is in the VLAN of the boot
TROUBLE, FOUND_OFF = policy.TROUBLE, policy.FOUND_OFF
AGAIN = "; it is tried again"
LINGERS = 5.0  # seconds that a command of a server that died may still take


@dataclass(frozen=True, slots=True)
class PowerTask:
    """A claimed wish, and by which driver, address and account to carry it out.

    agent     the node runs an agent that has been told to power down
    firmware  'bios' or 'uefi', None where that is not known
    """

    action: PowerAction
    node: str
    driver: str
    address: str
    account: str | None
    agent: bool
    firmware: str | None


def command(task: PowerTask, power: str) -> str | None:
    """Return the power command for the task's machine, 'on', 'off', 'soft' or 'cycle'; None if it
    needs none. `power`: the machine's present power, 'on', 'off' or 'unknown'."""
    return policy.command(task.action.desired, task.action.stage, power, task.agent)


def began(tx: Tx, server: str, now: float) -> None:
    """Shorten the claims of a server whose edge has just started: the wishes that it claimed before
    are not being carried out. They last `LINGERS` seconds more, because a command that was sent may
    still be under way."""
    store.shorten(tx, server, now + LINGERS)


def claim(
    tx: Tx,
    server: str,
    room: Mapping[str, int],
    now: float,
    lease: float,
    silent: frozenset[int] = frozenset(),
    lane: Mapping[str, int] | None = None,
) -> list[PowerTask]:
    """Claim due wishes for `lease` seconds, at most `room[driver]` for each driver. At most
    `lane[driver]` of these are wishes of the nodes `silent`, whose BMCs do not answer; these come
    last.

    Closes, instead of claiming, wishes that a newer one of the same node replaces, wishes of a
    generation that is past, and wishes for a driver that is not in `room` at all.
    """
    tasks = _claim_due(tx, server, room, now, lease, but=silent)
    if silent and lane is not None:
        claimed = Counter(task.driver for task in tasks)
        rest = {name: min(lane[name], count - claimed[name]) for name, count in room.items()}
        tasks += _claim_due(tx, server, rest, now, lease, only=silent)
    return tasks


def _claim_due(
    tx: Tx,
    server: str,
    room: Mapping[str, int],
    now: float,
    lease: float,
    *,
    only: frozenset[int] | None = None,
    but: frozenset[int] = frozenset(),
) -> list[PowerTask]:
    left = dict(room)
    full = [driver for driver, count in left.items() if count <= 0]
    tasks = []
    limit = sum(max(count, 0) for count in left.values()) + 100
    for action in store.due(tx, now, limit, full, only=only, but=but):
        task = _claim(tx, action, server, left, now, lease)
        if task is not None:
            left[task.driver] -= 1
            tasks.append(task)
    return tasks


def _claim(
    tx: Tx, action: PowerAction, server: str, left: Mapping[str, int], now: float, lease: float
) -> PowerTask | None:
    node = nodes.known(tx, action.node_id, lock=True)
    if dropped := _dropped(tx, action, node, left):
        store.close(tx, action, now, dropped)
        if store.newest(tx, node.id) is None:
            _heard(tx, node)  # no wish asks its driver any more, so it does not wait for it
    elif isolation.delays_power(tx, node, action.desired):
        store.again(
            tx, action, now + PORT_PAUSE, "waits until the switch port is in its VLAN", action.stage
        )
    elif left[node.power_driver] > 0:
        claimed = store.claim(tx, action, server, now, now + lease)
        if claimed is not None:
            return PowerTask(
                claimed,
                node.name,
                node.power_driver,
                node.power_address,
                node.power_account,
                agent=node.state == NodeState.OFF,
                firmware=node.firmware,
            )
    return None


def boot_uri(tx: Tx, task: PowerTask, nonce: str, site: Site, now: float) -> str:
    """Return the URI from which the task's machine has to boot; it contains `nonce`, which the
    caller chose at random. Return '' where the boot needs no nonce.

    Raises `Refused` when COD does not know in which subnet the node boots.
    """
    node = nodes.get(tx, task.action.node_id, lock=True)
    if node is None or node.state in OWN_SYSTEM or not policy.needs_nonce(node, site.accounts):
        return ""
    names = (node.home_subnet, node.subnet)
    known = [each for name in names for each in site.subnets if each.name == name]
    if len(site.subnets) == 1:  # it may have been renamed since
        known.append(site.subnets[0])
    if not known:
        why = f"the subnet in which {node.name} boots is not known, so it is handed no nonce"
        raise Refused("conflict", why)
    boot_nonces.order(tx, node, nonce, now)
    return (
        f"http://{known[0].server}:{site.boot.http_port}/boot/once/{nonce}/{site.boot.uefi_loader}"
    )


def _dropped(tx: Tx, action: PowerAction, node: Node, left: Mapping[str, int]) -> str:
    """Return why the wish is dropped; '' where it is to be carried out."""
    if node.generation != action.generation:
        if node.reason.startswith(TROUBLE) and node.reason.endswith(AGAIN):
            nodes.change(tx, node, reason="")
        return "dropped: the node has moved on"
    if store.newest(tx, node.id) != action.id:
        return "dropped: a newer wish replaces it"
    if node.power_driver in left:
        return ""
    error = f"this site has no power driver {node.power_driver!r}"
    nodes.change(tx, node, reason=f"power: {error}")
    return error


def succeeded(tx: Tx, task: PowerTask, power: str, now: float, patience: float = 1.0) -> None:
    """Record that the driver has carried the wish out, and saw `power` afterwards: 'on', 'off', or
    'unknown' from a driver that cannot tell."""
    node = nodes.get(tx, task.action.node_id, lock=True)
    if node is not None and store.close(tx, task.action, now):
        _goes_on(tx, node, now, patience)
        # a system that ran before the node lost its power runs no longer
        ended = power != "unknown" and task.action.desired in ("cycle", "off", "soft")
        seen_at = now if power != "unknown" else node.power_seen_at
        nodes.change(
            tx,
            node,
            power=power,
            power_seen_at=seen_at,
            boot_unordered=node.boot_unordered and not ended,
            reason="" if node.reason.startswith(TROUBLE) else node.reason,
        )


def failed(
    tx: Tx,
    task: PowerTask,
    error: str,
    now: float,
    *,
    lasting: bool = False,
    ignored: bool = False,
    silent: bool = False,
    patience: float = 1.0,
) -> float | None:
    """Record that an attempt to carry out the wish failed with `error`. Return when it is tried
    again, or None if the wish is given up: the error is lasting, or the budget is spent.

    lasting  trying again is useless
    ignored  the command was accepted but had no effect: the next command is stronger
    silent   the driver got no answer. The wish of a node that COD moves, or that is asleep, is
             tried until the driver answers
    The node's `reason` shows each error until the wish is carried out, unless it shows another
    trouble.
    """
    action = task.action
    node = nodes.get(tx, action.node_id, lock=True)
    current = node if node is not None and node.generation == action.generation else None
    trouble = f"{TROUBLE}{policy.without_address(error, task.address)}"
    elapsed = now - action.wished_at
    if silent and current is not None and _may_wait(current, action):
        pause = policy.retry_silent(action.attempts, elapsed)
        if store.again(tx, action, now + pause, error, action.stage):
            current = _show(tx, current, trouble + AGAIN)
            if not current.waits_for:
                nodes.change(tx, current, waits_for=POWER_CONTROL, waits_since=now)
        return now + pause
    if current is not None:
        current = _goes_on(tx, current, now, patience)
    retry = None if lasting else policy.retry_after(action.attempts, elapsed)
    if retry is not None:
        # False where another edge has claimed the wish: then this error is out of date
        again = store.again(tx, action, now + retry, error, action.stage + int(ignored))
        if again and current is not None:
            _show(tx, current, trouble + AGAIN)
        return now + retry
    if store.close(tx, action, now, error) and current is not None:
        nodes.change(tx, current, reason=trouble, power="unknown")
    return None


def _show(tx: Tx, node: Node, trouble: str) -> Node:
    """Show the error on its node, unless another trouble is shown there."""
    if node.reason and not node.reason.startswith(TROUBLE):
        return node
    return nodes.change(tx, node, reason=trouble)


def _may_wait(node: Node, action: PowerAction) -> bool:
    """Return whether the wish is kept for as long as the driver gets no answer. A wish of a node in
    use is not kept, because nobody would expect its effect hours later."""
    at_work = NODE_RULES[NodeState(node.state)].kind == "motion"
    return node.generation == action.generation and (at_work or node.state == NodeState.OFF)


def _goes_on(tx: Tx, node: Node, now: float, patience: float) -> Node:
    """Record that the node's driver answers: a node that waited for it has a whole deadline from
    now."""
    whole = NODE_RULES[NodeState(node.state)].deadline
    if node.waits_for == POWER_CONTROL and whole is not None:
        nodes.set_deadline(tx, node, max(node.deadline or 0.0, now + whole * patience))
    return _heard(tx, node)


def _heard(tx: Tx, node: Node) -> Node:
    if node.waits_for != POWER_CONTROL:
        return node
    return nodes.change(tx, node, waits_for="", waits_since=None)


# ---------------------------------------------------------------- measuring


def meters(tx: Tx, drivers: Collection[str], after: int, share: float, most: int) -> list[Meter]:
    """Return the next nodes to ask, by id from `after` on: `share` of all, but no more than
    `most`."""
    count = math.ceil(store.count_measured(tx, drivers) * share)
    return [policy.meter(node) for node in store.measured(tx, drivers, after, min(count, most))]


def measured(tx: Tx, meter: Meter, watts: float | None) -> None:
    """Record the power that the node draws, in watts; None when it cannot be measured (any
    more)."""
    store.set_watts(tx, meter.node_id, meter.driver, watts)


def seen(tx: Tx, meter: Meter, power: str, now: float) -> None:
    """Record that the node's driver reads its power as 'on' or 'off', unless COD is switching it.

    If an active node is off twice in a row, its group and the administrators are told once, and its
    `reason` says so until the node is on again, of which they are told, too. A node that is off
    once may have been reset by its owner.
    """
    node = nodes.get(tx, meter.node_id, lock=True)
    if node is None or policy.meter(node) != meter or store.newest(tx, node.id) is not None:
        return
    if node.power_seen_at == now:  # an earlier run of this flow has been committed
        return
    reason, wanted_off = node.reason, node.power_wanted in ("off", "soft")
    if power == "on" and reason == FOUND_OFF:
        reason = ""
        _tell(tx, node, notice_texts.found_on(node.name), now)
    elif (
        power == node.power == "off"
        and node.state == NodeState.ACTIVE
        and not wanted_off
        and reason != FOUND_OFF
    ):
        reason = FOUND_OFF
        _tell(tx, node, notice_texts.found_off(node.name), now)
    nodes.change(tx, node, power=power, power_seen_at=now, reason=reason)


def _tell(tx: Tx, node: Node, text: notice_texts.NoticeText, now: float) -> None:
    """Tell the group that holds the node, and the administrators."""
    vcluster = vclusters.get(tx, node.vcluster_id) if node.vcluster_id is not None else None
    for group_id in {vcluster.group_id if vcluster else None, None}:
        notices.add(tx, **text, group_id=group_id, now=now)
