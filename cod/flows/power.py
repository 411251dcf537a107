"""Power wishes: which to carry out now, and what came of it.

A wish (`store.nodes.wish_power`) belongs to one generation of its node. It is claimed, carried out at least once,
verified and closed. Claiming locks the node's row and looks at its generation in the same transaction: a power-off
that is late never reaches a machine that has got a new holder since. While a wish of a node is being carried out no
other of that node is claimed, and a claim outlives the longest attempt, so the newest wish has the last word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cod.model import PowerAction
from cod.policy import power as policy
from cod.store import nodes
from cod.store import power as store
from cod.store.engine import Tx


@dataclass(frozen=True, slots=True)
class PowerTask:
    """A claimed wish and whom to ask: the driver's name and its address of the node."""

    action: PowerAction
    node: str
    driver: str
    address: str


def claim(tx: Tx, server: str, room: Mapping[str, int], now: float, lease: float) -> list[PowerTask]:
    """Claim what is due for `lease` seconds: for each driver at most `room[driver]`.

    Closes, instead of claiming, wishes that a newer one of the same node replaces, wishes of a generation that is
    past, and wishes for a driver that is not in `room` at all.
    """
    left = dict(room)
    full = [driver for driver, count in left.items() if count <= 0]
    tasks = []
    for action in store.due(tx, now, sum(max(count, 0) for count in left.values()) + 100, full):
        task = _claim(tx, action, server, left, now, lease)
        if task is not None:
            left[task.driver] -= 1
            tasks.append(task)
    return tasks


def _claim(
    tx: Tx, action: PowerAction, server: str, left: Mapping[str, int], now: float, lease: float
) -> PowerTask | None:
    node = nodes.get(tx, action.node_id, lock=True)
    assert node is not None, "wishes have a foreign key"
    if node.generation != action.generation:
        store.close(tx, action, now, "dropped: the node has moved on")
    elif store.newest(tx, node.id) != action.id:
        store.close(tx, action, now, "dropped: a newer wish replaces it")
    elif node.power_driver not in left:
        store.close(tx, action, now, error := f"this site has no power driver {node.power_driver!r}")
        nodes.change(tx, node, reason=f"power: {error}")
    elif left[node.power_driver] > 0:
        claimed = store.claim(tx, action, server, now, now + lease)
        return PowerTask(claimed, node.name, node.power_driver, node.power_address) if claimed else None
    return None


def succeeded(tx: Tx, task: PowerTask, power: str, now: float) -> None:
    """The driver did it, and saw `power` ('on', 'off', or 'unknown' from a driver that cannot tell) afterwards."""
    node = nodes.get(tx, task.action.node_id, lock=True)
    if node is not None and store.close(tx, task.action, now):
        nodes.change(tx, node, power=power)


def failed(tx: Tx, task: PowerTask, error: str, lasting: bool, now: float) -> float | None:
    """The attempt failed with `error`: when it is tried again, or None when it is given up.

    It is given up when the error is `lasting`, or the budget is spent; then the node's `reason` shows it, too.
    """
    node = nodes.get(tx, task.action.node_id, lock=True)
    pause = None if lasting else policy.retry_after(task.action.attempts)
    if pause is not None:
        store.again(tx, task.action, now + pause, error)
        return now + pause
    given_up = store.close(tx, task.action, now, error)
    if given_up and node is not None and node.generation == task.action.generation:
        nodes.change(tx, node, reason=f"power: {error}", power="unknown")
    return None
