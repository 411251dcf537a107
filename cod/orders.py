"""Orders from `flows/agents/orders` to the agent: what an agent shall do now. This module travels
in the ramdisk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ChunkSource:
    """A node that passes an image's chunks on. It is asked before the image's own `url`.

    url    http://ADDRESS:PORT
    token  of `wire.chunktoken`, for the node that asks
    name   of the node, for people
    """

    url: str
    token: str = field(repr=False)
    name: str


@dataclass(frozen=True, slots=True)
class PassOn:
    """Terms on which a node passes the chunks that it receives on to others.

    port    on which the node serves the chunks
    key     hex; by which the node checks tokens (`wire.chunktoken`)
    rate    most bytes per second that the node sends to all others together
    linger  most seconds for which the node goes on serving after its own disk is written
    now     the server's time when the order was made, seconds since 1970, by which tokens expire
    """

    port: int
    key: str = field(repr=False)
    rate: int
    linger: int
    now: float


@dataclass(frozen=True, slots=True)
class ImageSource:
    """One image of a prime order: its source and its target.

    target       'disk' (whole disk) or a partition's number: in the order's layout or, without a
                 layout, in the partition table of the whole-disk image
    compression  'chunks' (COD's served form: `url` is the folder), 'raw', 'gzip' or 'zstd'
    digest       'chunks': BLAKE2b-256 of the manifest; else sha256 of the bytes as served
    size         bytes that the image takes on the disk; for the installer 'qcow2', its virtual
                 size
    installer    'copy'; 'qcow2' (the bytes served are a qcow2 file); or the URL of a static program
                 that is run with the device's path as its argument and the unpacked image on
                 standard input
    installer_digest   sha256 of that program
    sources      of 'chunks': nodes that also have them, in the order in which they are asked
    mirror       of 'chunks': the folder on a cache, or on the first of several servers, which is
                 asked before `url`; '': there is none
    """

    target: str
    url: str
    compression: str
    digest: str
    size: int
    installer: str = "copy"
    installer_digest: str = ""
    sources: tuple[ChunkSource, ...] = ()
    mirror: str = ""


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition of a layout. The last one may have the size 0: the rest of the disk.

    type  'linux', 'esp', 'bios', 'swap', 'lvm', 'raid', 'data' or a GPT type GUID
    boot  a BIOS starts the system from it, by the boot code that cprime writes
          (`trampoline.bootcode`)
    """

    number: int
    size: int
    type: str
    name: str = ""
    boot: bool = False


@dataclass(frozen=True, slots=True)
class Deposit:
    """Destination of a capture; its protocol is in docs/capture.

    url     of the capture on the image server, http
    secret  that gives access to it, hex; for this order alone
    least   bytes that the disk must have at least
    what    is captured: '' the whole disk, 'map' the partition table without the partitions'
            contents, or a partition's number
    patience   seconds for which the image server may give no answer
    others  URLs of the capture on the site's other servers, separated by spaces; they are asked
            when `url` has not answered for a part of these seconds
    """

    url: str
    secret: str = field(repr=False)
    least: int
    what: str = ""
    patience: int = 240
    others: str = ""


@dataclass(frozen=True, slots=True)
class BurninPlan:
    """Tests of a burn-in: see docs/burnin.

    seconds  for all tests together; the network's are a small part of them
    write    disks may be written, unless a mark keeps them; False: all disks are only read
    url      of a file, for the throughput from the server; '': not measured
    secret   hex; gives a neighbour that measures the throughput access to this machine's port
    peer     ADDRESS of a neighbour that is tested at the same time; '': there is none
    peer_secret   gives access to the neighbour's port
    """

    memory: bool
    disk: bool
    network: bool
    seconds: int
    write: bool
    url: str = ""
    secret: str = field(default="", repr=False)
    peer: str = ""
    peer_secret: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class TestResult:
    """Result of a test of a part of the machine.

    test     'memory', 'disk' or 'network'
    part     the tested part, for people: 'sda (serial X)', 'eth0'
    kind     of a disk: 'hdd', 'ssd' or 'nvme'; else ''
    outcome  'passed', 'failed' or 'skipped'
    about    why it failed or was skipped, as sentences; '' where there is nothing to say
    figures  measurements by name, with their unit in the name (write_mb_s, tested_percent …), none
             below 0
    """

    __test__ = False  # tells pytest that this class is no test

    test: str
    part: str
    kind: str
    outcome: str
    about: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Erasure:
    """One disk's erasure, as recorded in its node's history.

    disk     the kernel's name for the disk
    model, serial, wwid   '' where the disk does not tell
    size     of the disk, bytes
    method   'write zeroes' (by the disk), 'discard', 'overwrite' (by the kernel), 'write zeroes,
             discard', 'overwrite, discard', or 'truncate' (a file in place of a disk); for a purged
             disk these follow 'NVMe Format, ', 'NVMe Sanitize (block erase), ',
             'ATA Sanitize (crypto erase), ' … 'tables alone': the data stays
    seconds  that the erasure took
    checked  bytes that were read back afterwards, all of them zeros
    """

    disk: str
    model: str
    serial: str
    wwid: str
    size: int
    method: str
    seconds: float
    checked: int


@dataclass(frozen=True, slots=True)
class Namesake:
    """A volume on another disk of the node that has the same name as a volume that was written.

    kind  of name: 'label', 'UUID' or 'partition UUID' of a file system, or 'volume group'
    name  the name that both have
    disk  the other disk, for people: 'sdb (serial X)'
    """

    kind: str
    name: str
    disk: str


@dataclass(frozen=True, slots=True)
class Order:
    """An order to the agent. `id` is '<node id>.<generation>': a repeated order keeps its id. An
    order to look has an id of its own (`look_id`).
    action   'wait', 'wipe', 'prime', 'reboot', 'off', 'capture', 'burnin' or 'look'
    disk     rule that picks the target disk: 'first', 'smallest' or 'largest' of those that are
             large enough, or 'serial:X' / 'path:X'
    wipe     erase all local disks before writing; False: write zeros where the image is empty,
             touch nothing else
    verify   read back and compare what was written
    table    partition table to write first: 'gpt' or 'mbr' with `partitions`; 'keep': none (the
             image brings its own)
    seed     files of the NoCloud seed partition by name; empty for none
    keep     disks that are never touched: 'serial:X' / 'path:X' / 'model:PATTERN'
    sector   size in bytes of the logical sectors that the target must have; 0: any will do
    deposit  of a capture
    burnin   of a burn-in
    purge    have each disk that is erased erase itself first, where it can
    tables   of a wipe: zero only partition tables and signatures
    pass_on  of a prime: how its images' chunks are passed on; None: they are not
    installation  of a look: report vcluster and template of the newest installation, too. Servers
             of earlier releases do not ask for them, and would take them for a doubt
    """

    id: str
    action: str
    disk: str = "first"
    wipe: bool = True
    verify: bool = False
    table: str = "keep"
    partitions: tuple[Partition, ...] = ()
    images: tuple[ImageSource, ...] = ()
    seed: Mapping[str, str] = field(default_factory=dict)
    keep: tuple[str, ...] = ()
    deposit: Deposit | None = None
    sector: int = 0
    burnin: BurninPlan | None = None
    purge: bool = False
    tables: bool = False
    pass_on: PassOn | None = None
    installation: bool = False


def look_id(order_id: str) -> str:
    """Return the id of the order to look that precedes a node's order. It has the same number with
    a 0 in front; servers of earlier releases ignore what an agent reports of it."""
    node, _, generation = order_id.partition(".")
    return f"{node}.0{generation}"


def current_id(order_id: str) -> str:
    """Return, for the id of an order to look, the id of the node's order that follows it; any other
    id is returned unchanged."""
    node, _, generation = order_id.partition(".")
    looks = len(generation) > 1 and generation.startswith("0")
    return f"{node}.{generation[1:]}" if looks else order_id
