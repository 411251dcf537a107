"""Blocks of addresses of vclusters. A vcluster has addresses for its nodes and for the nodes that
are reserved for it in advance. A waiting request has no addresses."""

from __future__ import annotations

from cod.core import volumes
from cod.core.networks import isolation as core_isolation
from cod.model import Refused, Site, Subnet, Vcluster
from cod.policy.nodes import isolation
from cod.states import RequestState
from cod.store.engine import Tx
from cod.store.scheduler import address_blocks, networks, requests, vclusters


def check(tx: Tx, vcluster: Vcluster, size: int, site: Site, field: str = "size") -> None:
    """Raise `Refused` if the vcluster could not have addresses for `size` nodes even if all other
    vclusters freed theirs. The vcluster gets the addresses later, with its nodes (`extend`)."""
    subnet = next((one for one in site.subnets if one.name == vcluster.subnet), None)
    if subnet is not None and not vcluster.isolated:
        if size <= subnet.room:
            return
        room = max(subnet.room, address_blocks.room(tx, vcluster.id))
    else:
        room = address_blocks.room(tx, vcluster.id)
        if not room and (network := networks.of(tx, vcluster.id)) is not None:
            room = isolation.nodes(network).room
    if size > room:
        raise _too_small(vcluster, room, size, field, subnet)


def _too_small(
    vcluster: Vcluster, room: int, size: int, field: str, subnet: Subnet | None
) -> Refused:
    if vcluster.isolated:
        sentence = (
            f"vcluster {vcluster.name} is isolated, and its network has addresses for {room} "
            f"nodes, not for {size}: only a new one can have a larger network"
        )
    elif subnet is None:
        sentence = (
            f"vcluster {vcluster.name} has addresses for {room} nodes, and no subnet to get "
            "more from"
        )
    else:
        sentence = (
            f"subnet {subnet.name} has addresses for {room} nodes of vclusters, not for {size}: "
            "ask for fewer, or enlarge block_pool in the site file"
        )
    return Refused("conflict", sentence, field)


def extend(
    tx: Tx, vcluster: Vcluster, size: int, site: Site, field: str = "size", *, now: float
) -> None:
    """Give the vcluster blocks of its subnet until it has addresses for `size` nodes, and have its
    volumes exported to the new addresses. An isolated vcluster without a network gets its network.
    Raise `Refused` if too few addresses are free."""
    room = address_blocks.room(tx, vcluster.id)
    if not room and vcluster.isolated:
        core_isolation.claim(tx, vcluster, site)
        volumes.addresses_changed(tx, vcluster.id, now)
        room = address_blocks.room(tx, vcluster.id)
    if size <= room:
        return
    subnet = next((one for one in site.subnets if one.name == vcluster.subnet), None)
    if subnet is None or vcluster.isolated:
        raise _too_small(vcluster, room, size, field, subnet)
    if not address_blocks.claim(tx, vcluster.id, subnet, size - room):
        free = address_blocks.free_room(tx, subnet)
        raise Refused(
            "conflict",
            f"vcluster {vcluster.name} has addresses for {room} nodes, and the free blocks of"
            f" subnet {subnet.name} have addresses for {free} more, not for {size - room}: delete a"
            " vcluster, or enlarge block_pool in the site file",
            field,
        )
    volumes.addresses_changed(tx, vcluster.id, now)


def room(tx: Tx, holder: Vcluster | None, site: Site, *, isolated: bool) -> int:
    """Return for how many more nodes the vcluster `holder` can have addresses. Where `holder` is
    None, return the same for a new vcluster, `isolated` or not."""
    if holder is None and isolated and site.isolation is not None:
        return isolation.room(site.isolation.largest_size, site.isolation)
    if holder is None:
        return max(address_blocks.free_room(tx, subnet) for subnet in site.subnets)
    own = (
        ()
        if holder.isolated
        else [subnet for subnet in site.subnets if subnet.name == holder.subnet]
    )
    free = sum(address_blocks.free_room(tx, subnet) for subnet in own)
    return address_blocks.room(tx, holder.id) + free - holder.size


def trim(tx: Tx, vcluster_id: int) -> None:
    """Free the blocks that a vcluster needs neither for its nodes nor for the nodes it asks for,
    which may have blocks already. A vcluster without nodes keeps its first block, because it may
    get nodes again."""
    vcluster = vclusters.get(tx, vcluster_id)
    if vcluster is not None and vcluster.ended_at is None:
        needed = vcluster.size + asked(tx, vcluster_id)
        address_blocks.give_back(tx, vcluster_id, kept=max(needed, 1))


def asked(tx: Tx, vcluster_id: int) -> int:
    """Return how many nodes a vcluster asks for, beyond its size."""
    pending = requests.every(tx, states=[RequestState.PENDING], vcluster_id=vcluster_id)
    return sum(
        sum(one.count for one in request.tuples) - request.granted
        for request in pending
        if request.kind in ("grow", "move")
    )
