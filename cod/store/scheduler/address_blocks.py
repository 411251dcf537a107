"""Private blocks of addresses: the blocks of vclusters, and free blocks."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from sqlalchemy import delete, exc, insert, select

from cod.model import AddressBlock, AddressRange, Subnet, ipv4
from cod.store import tables as t
from cod.store.engine import Among, Tx, slices
from cod.store.rows import Rows

_b = t.vcluster_blocks.c
ROWS = Rows(
    AddressBlock,
    t.vcluster_blocks,
    elsewhere={"first": _b.first_address, "last": _b.last_address},
)
_OF_EACH = select(_b.vcluster_id, *ROWS.columns).where(Among(_b.vcluster_id, "holders"))
_ROUNDS = 5  # another server may take the same block first


def of(tx: Tx, vcluster_id: int) -> list[AddressBlock]:
    """Return the vcluster's blocks, in order."""
    return ROWS.every(tx, _b.vcluster_id == vcluster_id, order=_b.first_address)


def of_each(tx: Tx, vcluster_ids: Collection[int]) -> dict[int, list[AddressBlock]]:
    """Return the blocks of those vclusters, by vcluster; vclusters without blocks are left out."""
    found: dict[int, list[AddressBlock]] = {}
    for part in slices(list(vcluster_ids)):
        for row in tx.execute(_OF_EACH, {"holders": part}):
            found.setdefault(row[0], []).append(ROWS.read(row, 1))
    return found


def room(tx: Tx, vcluster_id: int) -> int:
    """Return how many nodes the vcluster has addresses for."""
    return sum(block.room for block in of(tx, vcluster_id))


def free_room(tx: Tx, subnet: Subnet) -> int:
    """Return how many nodes the free blocks of a subnet have addresses for."""
    return sum(run.room for run in _free_runs(tx, subnet))


def claim(tx: Tx, vcluster_id: int, subnet: Subnet, nodes: int) -> bool:
    """Give the vcluster the lowest free blocks of `subnet` that have addresses for `nodes` further
    nodes. Return False, and give none, if too few are free."""
    for attempt in range(_ROUNDS):
        rows: list[dict[str, object]] = []
        room = 0
        for first in (
            start for run in _free_runs(tx, subnet) for start in run.addresses[:: subnet.block_size]
        ):
            if room >= nodes:
                break
            block = AddressRange(first, first + subnet.block_size - 1)
            room += block.room
            rows.append(
                {
                    "first_address": block.first,
                    "last_address": block.last,
                    "vcluster_id": vcluster_id,
                    "subnet": subnet.name,
                }
            )
        if room < nodes:
            return False
        if not rows:
            return True
        try:
            with tx.begin_nested():
                tx.execute(insert(t.vcluster_blocks), rows)
            return True
        except exc.IntegrityError:
            if attempt == _ROUNDS - 1:
                raise
    return False


def add(tx: Tx, vcluster_id: int, block: AddressBlock) -> None:
    """Give the vcluster that free block."""
    tx.execute(
        insert(t.vcluster_blocks).values(
            first_address=block.first,
            last_address=block.last,
            vcluster_id=vcluster_id,
            subnet=block.subnet,
        )
    )


def give_back(tx: Tx, vcluster_id: int, kept: int = 0) -> None:
    """Free the vcluster's blocks in which no address is bound, the highest first, as long as the
    others have addresses for `kept` nodes; with 0, free all blocks. While a volume is exported to
    the vcluster, free none: another vcluster would get addresses that the export still names."""
    if not kept:
        tx.execute(delete(t.vcluster_blocks).where(_b.vcluster_id == vcluster_id))
        return
    exported = select(t.volume_attachments.c.id).where(
        t.volume_attachments.c.vcluster_id == vcluster_id
    )
    if tx.scalar(exported.limit(1)) is not None:
        return
    blocks = of(tx, vcluster_id)
    room = sum(block.room for block in blocks)
    for block in reversed(blocks[1:]):
        used = (
            select(t.bindings.c.address)
            .where(t.bindings.c.address.between(block.first, block.last))
            .limit(1)
        )
        if room - block.room >= kept and tx.scalar(used) is None:
            room -= block.room
            tx.execute(delete(t.vcluster_blocks).where(_b.first_address == block.first))


def _free_runs(tx: Tx, subnet: Subnet) -> Iterator[AddressRange]:
    """Yield the free parts of the block pool, in order. Each is a run of whole blocks."""
    lowest, highest = (ipv4(address) for address in subnet.block_pool)
    size = subnet.block_size
    end = highest + 1 - (highest + 1 - lowest) % size
    taken = tx.execute(
        select(_b.first_address, _b.last_address)
        .where(_b.last_address >= lowest, _b.first_address < end)
        .order_by(_b.first_address)
    )
    start = lowest
    for first, last in [*taken.all(), (end, end)]:
        until = first - (first - lowest) % size  # blocks of another size may have been given before
        if until > start:
            yield AddressRange(start, until - 1)
        start = max(start, last + 1 + (lowest - last - 1) % size)
