"""An administrator's settings of a node: its name, place and tags, and its power control."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cod.model import Node, Refused, Site
from cod.policy.people import names
from cod.states import POWER_CONTROL
from cod.store.engine import Tx
from cod.store.nodes import blocks, nodes


def columns(
    tx: Tx,
    changes: Mapping[str, Any],
    site: Site,
    block_id: Callable[[Tx, str], int] = blocks.ensure,
) -> dict[str, Any]:
    """Return the columns for changed settings of a node. `changes` has `name`, `block` (created if
    need be, by `block_id`; '' for none), `position` and `power_account` ('' for none), all `tags`,
    and other columns, which are returned as they are; a value of None changes nothing. Raises
    `Refused`."""
    found = {column: value for column, value in changes.items() if value is not None}
    if "name" in found:
        names.check_label(found["name"])
    account = found.get("power_account")
    known = [each.name for each in site.accounts]
    if account and account not in known:
        raise Refused(
            "invalid",
            f"the site file has no [[account]] named {account!r}; it has "
            f"{', '.join(known) or 'none'}",
            "power_account",
        )
    if account is not None:
        found["power_account"] = account or None
    position = found.pop("position", None)
    if position:
        names.check_position(position)
    if position is not None:
        found["rack_position"] = position or None
    if "tags" in found:
        found["tags"] = "".join(f" {tag}" for tag in names.checked_tags(found["tags"]))
        found["tags"] += " " if found["tags"] else ""
    block = found.pop("block", None)
    if block is not None:  # comes last, because a refused change must not create a block
        found["block_id"] = block_id(tx, block) if block else None
    return found


def change(tx: Tx, node: Node, changed: Mapping[str, Any]) -> Node:
    """Set the columns `changed` of the node, and return the node. If its power driver changes,
    forget its known power and watts."""
    also: dict[str, Any] = {}
    if "power_driver" in changed:
        also |= {"power": "unknown", "watts": None}
    if node.waits_for == POWER_CONTROL and any("power" in column for column in changed):
        also |= {"waits_for": "", "waits_since": None}  # the new power control was not asked yet
    return nodes.change(tx, node, **changed, **also) if changed else node
