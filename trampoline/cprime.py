"""cprime: makes a node's disk what an order says.

Everything that can be checked in advance is checked before the disk is changed: a disk is large
enough, the layout fits, the image server answers, and the manifest is the one that was ordered.
Then follow: wipe, partition table, images (fetched, unpacked, checked and written in one
overlapping pass), the read-back if the order requests it, the table fitted to the disk's real end,
the seed partition.

    python -m trampoline.cprime --order FILE --disk FILE [--dry-run]
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cod.orders import Erasure, ImageSource, Namesake, Order, PassOn
from cod.wire.manifest import Manifest
from trampoline import bootcode, efiboot, images, installer, namesakes, partitions, seed
from trampoline.chunkserver import ChunkRing, ChunkServer
from trampoline.disks import choose, erasable
from trampoline.errors import OrderError, PrimeError
from trampoline.fetch import PATIENT, Patience
from trampoline.images import Piece, Writing
from trampoline.inventory import Disk
from trampoline.partitions import Span
from trampoline.pipeline import Meter
from trampoline.target import Target
from trampoline.wipe import clear_all, wipe_all

__all__ = ["Plan", "PrimeError", "Progress", "Written", "plan", "prime", "wipe"]

Progress = Callable[[str, int, int, float], None]
"""progress(phase, done, total, rate): bytes, bytes, bytes per second. Called in the caller's thread
at least each second; phase is 'wipe', 'zero', 'write', 'verify' or 'pass on'. An exception that it
raises ends the work and is passed on."""


@dataclass(frozen=True, slots=True)
class Written:
    """Outcome of priming: the target's `path`, bytes written to it, bytes fetched, seconds in each
    phase.

    disk_signature    by which a BIOS machine finds the disk at later boots; 0: none
    erased            how disks were erased before
    namesakes         volumes of other disks with the names of volumes that were written
    bytes_from_nodes  of the fetched bytes, those from other nodes
    bytes_passed_on   bytes sent to other nodes
    """

    path: str
    bytes_written: int
    bytes_fetched: int
    wipe_seconds: float
    write_seconds: float
    verify_seconds: float
    disk_signature: int = 0
    erased: tuple[Erasure, ...] = ()
    namesakes: tuple[Namesake, ...] = ()
    bytes_from_nodes: int = 0
    bytes_passed_on: int = 0


@dataclass(frozen=True, slots=True)
class ChunkRoom:
    """Limits for chunks that are kept for other nodes: bytes of memory, and the address at which
    they are served ('': all addresses of the machine)."""

    memory: int = 64 << 20
    address: str = ""


DEFAULT_ROOM = ChunkRoom()


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps of an order on this machine.

    erase   disks that are wiped first
    spans   partitions that are made, of the order's layout
    pieces  images and their places
    later   images for partitions in the map that the whole disk's image brings; their places are
            known when that image is written
    seed    the seed's partition; None for none. Number 0: the first free number
    """

    target: Disk
    erase: tuple[Disk, ...]
    table: str
    spans: tuple[Span, ...]
    pieces: tuple[Piece, ...]
    seed: Span | None
    later: tuple[Piece, ...] = ()

    def lines(self) -> list[str]:
        """Return the lines, for people."""
        return [
            *(f"erase {disk.path} ({disk.size} bytes)" for disk in self.erase),
            *(
                [f"write a {self.table} partition table to {self.target.path}"]
                if self.spans
                else []
            ),
            *(
                f"partition {s.number}: {s.type}, {s.size} bytes at {s.start} {s.name}".rstrip()
                for s in self.spans
            ),
            *(
                f"write {p.to_write} of {p.source.size} bytes at {p.offset} of {self.target.path}:"
                f" {p.source.url} ({p.source.compression}, {p.source.installer})"
                for p in self.pieces
            ),
            *(
                f"write {p.to_write} of {p.source.size} bytes into partition {p.source.target} of "
                f"the image's map: {p.source.url} ({p.source.compression}, {p.source.installer})"
                for p in self.later
            ),
            *(
                [f"seed partition: {self.seed.size} bytes at {self.seed.start}"]
                if self.seed
                else []
            ),
        ]


def plan(order: Order, disks: Sequence[Disk], patience: Patience = PATIENT) -> Plan:
    """Return the steps that `prime` would take. Fetches the images' manifests, but changes no disk.
    Raises PrimeError."""
    mine = erasable(disks, order.keep)
    room = seed.least_size(order.seed) if order.seed else 0
    need = max((source.size for source in order.images), default=0)
    if order.partitions:
        need = partitions.least_size(order.partitions, room)
    target = choose(order.disk, mine, need, order.sector)
    reach = target.size
    if order.table == "mbr":  # its entries count sectors in 32 bits
        reach = partitions.addressed(target.size, target.sector)
    spans = partitions.place(order.partitions, reach, room) if order.partitions else []
    places = {str(span.number): (span.start, span.size) for span in spans} or {
        "disk": (0, target.size)
    }
    whole = not spans and any(source.target == "disk" for source in order.images)
    # their places are known once the image of the whole disk, with its map, is written
    later = [source for source in order.images if whole and source.target != "disk"]
    last = Span(0, partitions.tail(reach, room), room, "data", "cidata") if room else None
    return Plan(
        target=target,
        erase=tuple(mine) if order.wipe else (),
        table=order.table,
        spans=tuple(spans),
        pieces=tuple(
            _piece(source, places, patience) for source in order.images if source not in later
        ),
        seed=last,
        later=tuple(Piece(source, 0, 0, _manifest(source, patience)) for source in later),
    )


def _piece(source: ImageSource, places: dict[str, tuple[int, int]], patience: Patience) -> Piece:
    if source.target not in places:
        raise OrderError(
            f"the order has an image for target {source.target!r}, which its layout does not have"
        )
    offset, room = places[source.target]
    if source.size > room:
        raise OrderError(
            f"the image at {source.url} ({source.size} bytes) is larger than its place ({room}"
            " bytes)"
        )
    return Piece(source, offset, room, _manifest(source, patience))


def _manifest(source: ImageSource, patience: Patience) -> Manifest | None:
    return images.load_manifest(source, patience) if source.compression == "chunks" else None


def _placed(piece: Piece, target: Target) -> Piece:
    """Return the piece at its partition's present place on the disk. Raises PrimeError."""
    number = int(piece.source.target)
    place = partitions.places(target).get(number)
    if place is None:
        raise OrderError(
            f"the image's partition map has no partition {number}, which another image is for"
        )
    start, room = place
    if piece.source.size > room:
        raise OrderError(
            f"the image at {piece.source.url} ({piece.source.size} bytes) is larger than partition"
            f" {number} of the image's map ({room} bytes)"
        )
    return replace(piece, offset=start, room=room)


def prime(
    order: Order,
    disks: Sequence[Disk],
    progress: Progress,
    patience: Patience = PATIENT,
    bios: bool = False,
    room: ChunkRoom = DEFAULT_ROOM,
    took: Callable[[str], None] = lambda name: None,
) -> Written:
    """Carry out a prime order. Raises PrimeError; the target's content is then undefined, unless
    nothing was begun.

    bios  the machine's firmware is a BIOS: the disk gets a signature that no other disk of the
          machine has
    room  limits for chunks that are kept for other nodes, if the order has them passed on
    took  called with the source of an image, as in `ChunkSources`
    """
    came = time.monotonic()
    planned = plan(order, disks, patience)
    started = time.monotonic()
    erased = wipe_all(planned.erase, progress, order.purge)
    wiped = time.monotonic()
    server = _chunk_server(order.pass_on, planned, room, wiped - came)
    try:
        written = _write(order, planned, disks, progress, patience, bios, server, took)
        if server:
            server.linger(progress)
    finally:
        if server:
            server.close()
    return replace(
        written,
        wipe_seconds=wiped - started,
        erased=erased,
        bytes_passed_on=server.sent if server else 0,
    )


def _chunk_server(
    order: PassOn | None, planned: Plan, room: ChunkRoom, since: float
) -> ChunkServer | None:
    """Return the server of the images' chunks, `since` seconds after the order came; None if the
    order has none passed on."""
    if order is None:
        return None
    ring = ChunkRing(room.memory)
    for piece in (*planned.pieces, *planned.later):
        if piece.manifest:
            ring.expect(piece.source.digest, piece.manifest)
    return ChunkServer(replace(order, now=order.now + since), ring, room.address)


def _write(
    order: Order,
    planned: Plan,
    disks: Sequence[Disk],
    progress: Progress,
    patience: Patience,
    bios: bool,
    server: ChunkServer | None,
    took: Callable[[str], None],
) -> Written:
    """Carry out the plan after the disks are wiped."""
    began = time.monotonic()
    with Target(planned.target.path) as target:
        pieces = (*planned.pieces, *planned.later)
        meter = Meter("write", sum(piece.to_write for piece in pieces))
        writing = Writing(
            target,
            zeroed=bool(planned.erase),
            patience=patience,
            meter=meter,
            progress=progress,
            sums={} if order.verify else None,
            ring=server.ring if server else None,
            took=took,
        )
        if planned.spans:
            _make_table(target, planned)
        for piece in planned.pieces:
            installer.install(piece, writing)
        if planned.later:
            target.flush()
            target.reread_table()
        for piece in [_placed(piece, target) for piece in planned.later]:
            writing.forget(piece.offset, piece.room, planned.pieces)
            installer.install(piece, writing)
        target.flush()
        meter.tell(progress)  # with the time in which the disk caught up
        written = time.monotonic()
        if writing.sums:
            images.read_back(target, writing.sums, progress)
        _finish(target, planned, order)
        others = (disk.path for disk in disks if disk.path != planned.target.path)
        signature = partitions.sign(target, _signatures(others)) if bios else 0
        target.flush()
        if target.is_device and not bios:
            print(f"cprime: {efiboot.arrange(target)}", flush=True)
        same = namesakes.look(target, planned.target, disks)
    return Written(
        planned.target.path,
        meter.done,
        writing.fetched,
        wipe_seconds=0.0,
        write_seconds=written - began,
        verify_seconds=time.monotonic() - written,
        disk_signature=signature,
        namesakes=same,
        bytes_from_nodes=writing.fetched_from_nodes,
    )


def _signatures(paths: Iterable[str]) -> dict[int, str]:
    """Return the paths of those disks that have a signature, by signature."""
    found = {}
    for path in paths:
        try:
            with open(path, "rb") as disk:
                signature = partitions.signature(disk.read(512))
        except OSError:  # it has failed, or is an empty drive: nothing starts from it
            continue
        if signature:
            found[signature] = path
    return found


def _make_table(target: Target, planned: Plan) -> None:
    if planned.table == "gpt":
        table = partitions.Gpt(partitions.new_guid())
        for span in planned.spans:
            table = table.add(span, target)
        table.write(target)
    else:
        partitions.new_mbr(target)
        for span in planned.spans:
            partitions.add_to_mbr(target, span)
    target.reread_table()
    for span in planned.spans:
        target.show_partition(span.number, span.start, span.size)


def _finish(target: Target, planned: Plan, order: Order) -> None:
    """Make the changes to the images' own bytes, which must follow the read-back: boot code, the
    table's fit and the seed's entry."""
    for span in planned.spans:
        if span.boot:
            bootcode.install(target, span, planned.table)
    table = partitions.read_gpt(target)
    if table and table.alternate != target.size // target.sector - 1:
        table.write(target)  # the image's GPT ended where the image ended
    if planned.seed:
        _add_seed(target, planned.seed, order)
    target.flush()
    target.reread_table()


def _add_seed(target: Target, span: Span, order: Order) -> None:
    table = partitions.read_gpt(target)
    if table:
        table.add(
            Span(table.free_number(), span.start, span.size, span.type, span.name), target
        ).write(target)
    elif partitions.has_mbr(target):
        reach = partitions.addressed(target.size, target.sector)
        span = replace(span, start=min(span.start, partitions.tail(reach, span.size)))
        partitions.add_to_mbr(target, span)
    else:
        raise OrderError("the image has no partition table, so there is no place for the seed")
    target.write(memoryview(seed.build(order.seed, span.size, target.sector)), span.start)


def wipe(order: Order, disks: Sequence[Disk], progress: Progress) -> tuple[Erasure, ...]:
    """Erase all local disks that the order does not keep, or only their tables; return how. Raises
    PrimeError."""
    if order.tables:
        return clear_all(erasable(disks, order.keep), progress)
    return wipe_all(erasable(disks, order.keep), progress, order.purge)


def _given(path: Path) -> Disk:
    with path.open("rb") as disk:
        return Disk(path.name, str(path), disk.seek(0, 2), "file", serial=path.name)


def main() -> None:
    """Run the command line: an order (XML, as confd sends it), disks or files, and whether to do
    it."""
    import argparse
    from xml.etree import ElementTree

    from cod.wire.confd.messages import order_from

    parser = argparse.ArgumentParser(
        prog="cprime", description="Write an order's images to a disk."
    )
    parser.add_argument("--order", required=True, type=Path, help="file with an <order> document")
    parser.add_argument(
        "--disk", required=True, action="append", type=Path, help="file or device; may be repeated"
    )
    parser.add_argument(
        "--memory", type=int, default=ChunkRoom().memory, help="bytes to keep chunks for others in"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the plan, touch nothing")
    asked = parser.parse_args()
    order = order_from(ElementTree.parse(asked.order).getroot())
    disks = [_given(path) for path in asked.disk]
    try:
        if asked.dry_run:
            print("\n".join(plan(order, disks).lines()))
            return
        print(
            prime(
                order,
                disks,
                lambda phase, done, total, rate: print(
                    f"{phase}: {done} of {total} bytes, {rate / 1e6:.1f} MB/s", flush=True
                ),
                room=ChunkRoom(asked.memory),
                took=lambda name: print(f"from {name or 'the server'}", flush=True),
            )
        )
    except PrimeError as error:
        raise SystemExit(f"cprime: {error}") from None


if __name__ == "__main__":
    main()
