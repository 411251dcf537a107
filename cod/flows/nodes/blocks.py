"""Changes of blocks by administrators. A block is a named set of nodes that are near one another,
such as a rack; a node is in one block or in none. Administrators create a block and put nodes into
it, or have COD propose blocks of the nodes that are at one switch or relay (`proposal`), and accept
all or some of them (`apply`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from xml.etree import ElementTree

from cod.choices import NodeLabel
from cod.core.nodes import selection
from cod.filters.ranges import RangeFault, expanded
from cod.model import BlockView, Effect, NewMachine, NewRack, Page, Refused, Result, Who
from cod.model.names import natural_key
from cod.policy.hardware import topology
from cod.policy.people import names
from cod.quantity import counted
from cod.states import NodeState
from cod.store import lists
from cod.store.engine import Tx
from cod.store.nodes import blocks, nodes, switch_ports

RESERVED = ("proposal",)  # a block of this name would hide a route of the API
Proposal = topology.Proposal
MOST = 500  # new machines that are shown at once: as many as one action is for
WAKES = (Effect("wake", "manager"),)
ADMINISTRATOR = Who("administrator", admin=True)  # only administrators change blocks


def every(tx: Tx) -> list[BlockView]:
    """Return all blocks, by name."""
    types = blocks.types(tx)
    found = sorted(blocks.names(tx).items(), key=lambda each: each[1])
    return [BlockView(name, types.get(block_id, {})) for block_id, name in found]


def names_of(tx: Tx) -> list[str]:
    """Return the names of all blocks, in order."""
    return sorted(blocks.names(tx).values())


def nodes_of(tx: Tx, name: str | None = None) -> dict[str, list[str]]:
    """Return the names of the nodes of each block, by the block's name; with a `name`, only those
    of the block of that name."""
    names_ = blocks.names(tx, name)
    found: dict[str, list[str]] = {name: [] for name in names_.values()}
    for node in blocks.members(tx, None if name is None else next(iter(names_), 0)):
        if node.block_id is not None:
            found[names_[node.block_id]].append(node.name)
    return found


def show(tx: Tx, *, name: str) -> BlockView:
    """Return one block."""
    return _view(tx, name, _block(tx, name))


def create(tx: Tx, *, name: str) -> BlockView:
    """Create a block without nodes, and return it."""
    names.check_label(name)
    if name in RESERVED:
        raise Refused("invalid", f"a block cannot be called {name}", "name")
    if blocks.by_name(tx, name) is not None:
        raise Refused("conflict", f"there is a block {name!r} already", "name")
    return _view(tx, name, blocks.add(tx, name))


def delete(tx: Tx, *, name: str) -> None:
    """Delete a block that has no nodes."""
    block_id = _block(tx, name, lock=True)
    count = sum(blocks.types(tx, block_id).get(block_id, {}).values())
    if count:
        reason = f"block {name} has {counted(count, 'node')}: remove them first"
        raise Refused("conflict", reason, "name")
    if not blocks.delete(tx, block_id):
        raise Refused("conflict", f"nodes of block {name} are being reclaimed", "name")


def put(tx: Tx, *, name: str, nodes: Sequence[str]) -> Result[BlockView]:
    """Put nodes, given by names, ranges or patterns, into a block; each leaves its former block.
    Either all nodes are put or none."""
    block_id = _block(tx, name, lock=True)
    found = _nodes(tx, blocks.members(tx), nodes)
    blocks.put(tx, [node.id for node in found if node.block_id != block_id], block_id)
    return Result(_view(tx, name, block_id), WAKES)


def remove(tx: Tx, *, name: str, nodes: Sequence[str]) -> Result[BlockView]:
    """Take nodes, given by names, ranges or patterns, out of a block. Either all nodes are taken
    out or none. A pattern selects only nodes that are in the block."""
    block_id = _block(tx, name, lock=True)
    inside = blocks.members(tx, block_id)
    blocks.put(tx, [node.id for node in _nodes(tx, inside, nodes, f" in block {name}")], None)
    return Result(_view(tx, name, block_id), WAKES)


def proposal(tx: Tx) -> topology.Proposal:
    """Return the blocks that the network suggests for nodes without a block, and why."""
    names_ = blocks.names(tx)
    return topology.propose(
        (_sighting(each, names_) for each in blocks.seen(tx)), {*names_.values(), *RESERVED}
    )


def new_machines(tx: Tx) -> tuple[list[NewRack], int]:
    """Return the first `MOST` nodes that wait for approval, by the block in which they are or that
    the network suggests, and how many nodes wait."""
    page = Page(MOST, "name")
    listed = lists.nodes(tx, page, None, state=NodeState.REGISTERING)
    ports = {each.node: each.port for each in switch_ports.listed(tx) if each.node}
    suggested = _suggested(tx)
    racks: defaultdict[str, list[NewMachine]] = defaultdict(list)
    for view in listed:
        block, why = suggested.get(view.node.name, ("", ""))
        port = ports.get(view.node.name)
        place = f"{port.switch} {port.port}" if port else ""
        racks[view.block or block].append(NewMachine(view, place, why))
    known = blocks.members(tx)
    every = [node.name for node in known]
    ids = {name: id_ for id_, name in blocks.names(tx).items()}
    found = []
    for block, machines in sorted(racks.items(), key=lambda rack: (not rack[0], rack[0])):
        machines.sort(key=lambda one: natural_key(one.port or one.view.node.name))
        unnamed = all(names.is_provisional(one.view.node.name) for one in machines)
        inside = [node.name for node in known if node.block_id == ids.get(block, 0)]
        pattern = names.name_pattern(block, inside, every, len(machines))
        found.append(NewRack(block, pattern if block and unnamed else "", tuple(machines)))
    return found, listed.total or len(listed)


def _suggested(tx: Tx) -> dict[str, tuple[str, str]]:
    """Return the block that the network suggests for each node that waits for approval, and why, by
    the node's name. Only reports of these nodes are read: the switches of all other nodes are known
    by their labels."""
    names_ = blocks.names(tx)
    switches = nodes.labels_of(tx, NodeLabel.SWITCH)
    sightings = (_sighting(each, names_) for each in blocks.seen(tx, NodeState.REGISTERING))
    found = topology.propose(
        (replace(each, switch=switches.get(each.node, each.switch)) for each in sightings),
        {*names_.values(), *RESERVED},
    )
    return {place.node: (each.name, place.why) for each in found.blocks for place in each.places}


def apply(tx: Tx, *, only: Sequence[str] | None = None) -> Result[topology.Proposal]:
    """Carry out the present proposal, or only the blocks in it that are named in `only`; return the
    part that was carried out."""
    whole = proposal(tx)
    missing = set(only or ()) - {each.name for each in whole.blocks}
    if missing:
        raise Refused("not_found", f"no block {min(missing)!r} is proposed", "blocks")
    done = tuple(each for each in whole.blocks if only is None or each.name in only)
    ids = {node.name: node.id for node in blocks.members(tx)} if done else {}
    for each in done:
        blocks.put(tx, [ids[place.node] for place in each.places], blocks.ensure(tx, each.name))
    return Result(topology.Proposal(done, whole.unknown), WAKES if done else ())


def _sighting(seen: blocks.Seen, names_: dict[int, str]) -> topology.Sighting:
    nics = ElementTree.fromstring(seen.attributes).findall("nic") if seen.attributes else []
    nics.sort(key=lambda each: each.get("mac") != seen.boot_mac)  # the boot NIC comes first
    near = next((neighbour.attrib for nic in nics for neighbour in nic.findall("neighbour")), {})
    return topology.Sighting(
        seen.name,
        names_.get(seen.block_id or 0),
        seen.relay,
        seen.circuit,
        seen.remote,
        near.get("switch"),
        near.get("port"),
    )


def _nodes(
    tx: Tx, among: Sequence[blocks.Member], wanted: Sequence[str], where: str = ""
) -> list[blocks.Member]:
    by_name = {node.name: node for node in among}
    found: dict[int, blocks.Member] = {}
    for text in wanted:
        if "*" in text or "?" in text:
            named = [name for pattern in _patterns(text) for name in _fitting(by_name, pattern)]
        else:
            named = [text] if text in by_name else _named(tx, text)
        for name in named:
            if name not in by_name:
                raise Refused("not_found", f"there is no node {name!r}{where}", "nodes")
            found[by_name[name].id] = by_name[name]
    return list(found.values())


def _patterns(text: str) -> list[str]:
    """Return the patterns that `text` stands for; brackets in it are ranges."""
    try:
        return expanded(text, selection.MOST)
    except RangeFault as fault:
        raise Refused("invalid", f"{text}: {fault}", "nodes") from None


def _fitting(names_: Iterable[str], pattern: str) -> list[str]:
    """Return the names that match the pattern, or the pattern itself if none does: no node has this
    name."""
    return [name for name in names_ if fnmatchcase(name, pattern)] or [pattern]


def _named(tx: Tx, text: str) -> list[str]:
    """Return the names of the nodes that `text` means: a range, a block, a MAC, a serial number."""
    chosen = selection.named(tx, text, ADMINISTRATOR)
    for _, why in chosen.missing:
        raise Refused("not_found", why, "nodes")
    if not chosen.nodes:
        raise Refused("invalid", f"{text!r} means no node", "nodes")
    return [name for _, name in chosen.nodes]


def _block(tx: Tx, name: str, *, lock: bool = False) -> int:
    found = blocks.by_name(tx, name, lock=lock)
    if found is None:
        raise Refused("not_found", f"there is no block {name!r}", "name")
    return found


def _view(tx: Tx, name: str, block_id: int) -> BlockView:
    return BlockView(name, blocks.types(tx, block_id).get(block_id, {}))
