"""Capturing a disk: the agent with COD's image server, against `partclone.extfs -c | zstd` into a
file.

A 2 GiB ext4 file system with half a gigabyte of files of this machine, the rest full of what was
deleted. Both read a file from the page cache and compress at level 3 on all CPUs; COD's side sends
over HTTP on the loopback to a server on the same CPUs, which checks and unpacks every chunk and
writes it beside. Needs partclone, e2fsprogs and no root.

    .venv/bin/python -m tests.bench.bench_capture [--rounds N] [--folder DIR]
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cod.images.verify import verify
from cod.model import Policy, Site, SiteRef, Subnet
from cod.orders import Deposit, Order
from tests.bench.arena import RESULTS, ROOT, Measure, Smoke, write
from trampoline import capture
from trampoline.inventory import file_disk

GIB, MIB = 1 << 30, 1 << 20
SIZE, USED = 2 * GIB, 512 * MIB
SECRET, ORDER = "5e" * 32, "1.1"
PATH = {"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
SMOKE = Smoke(
    rows=("capture",),
    sizes={"SIZE": 64 * MIB, "USED": 8 * MIB},
    words=("--rounds", "1"),
    system=True,
    needs=("partclone.extfs",),
)


def make_disk(path: Path) -> None:
    """The file system, made over noise; its files are some of /usr."""
    tree = path.with_suffix(".tree")
    tree.mkdir()
    left = USED
    for number, file in enumerate(
        path for path in sorted(Path("/usr").rglob("*")) if path.is_file() and not path.is_symlink()
    ):
        left -= file.stat().st_size
        if left < 0:
            break
        shutil.copy(file, tree / str(number))
    noise = os.urandom(16 * MIB)
    with path.open("wb") as disk:
        for _ in range(SIZE // len(noise)):
            disk.write(noise)
    subprocess.run(
        [
            "mke2fs",
            "-q",
            "-F",
            "-t",
            "ext4",
            "-E",
            "nodiscard,lazy_itable_init=0,lazy_journal_init=0",
            "-d",
            tree,
            path,
        ],
        check=True,
        env=os.environ | PATH,
    )
    shutil.rmtree(tree)


@contextmanager
def server(folder: Path) -> Iterator[tuple[str, Any]]:
    """An image server with its database, in this process; the captures' base address, and how to
    make one anew."""
    from twisted.internet import reactor
    from twisted.internet.threads import blockingCallFromThread

    from cod.net.bootserver.captures import Captures
    from cod.net.bootserver.server import HttpServer
    from cod.pool import Pool, in_transaction
    from cod.store import tables
    from cod.store.database import connect
    from cod.store.engine import Tx
    from cod.store.nodes import captures, nodes, sessions

    engine = connect(f"sqlite:///{folder}/cod.db")
    tables.metadata.create_all(engine)
    subnet = Subnet(
        "lab",
        "127.0.0.0/8",
        "127.0.0.1",
        ("127.1.0.0", "127.1.0.9"),
        ("127.2.0.0", "127.2.255.255"),
    )
    site = Site("bench", "cod.bench", (subnet,), policy=Policy())
    pool = Pool(engine, reactor)
    (folder / "images").mkdir()
    taking = Captures(reactor, pool, SiteRef(site), folder / "images", time.time)
    http = HttpServer(
        reactor, pool, SiteRef(site), folder, folder / "images", ["127.0.0.1"], 0, captures=taking
    )

    def begin(tx: Tx, number: int) -> str:
        node = nodes.add(
            tx,
            name=f"n{number}",
            boot_mac=f"52:54:00:00:00:{number:02x}",
            now=0.0,
            cause="",
            actor="",
            state="capture",
            generation=1,
            disk="foreign",
            attributes=f'<node><disk size="{SIZE}"/></node>',
        )
        sessions.open(tx, node.id, "bench", "127.0.0.1", 0.0)
        captures.put(
            tx,
            node.id,
            image=f"i{number}",
            template="",
            state="running",
            generation=1,
            secret=SECRET,
            actor="",
            asked_at=0.0,
        )
        return f"{node.id}.1"

    thread = threading.Thread(target=reactor.run, kwargs={"installSignalHandlers": False})
    thread.start()
    try:
        for service in (taking, http):
            blockingCallFromThread(reactor, service.startService)
        yield (
            f"http://127.0.0.1:{http.port}/captures",
            lambda number: in_transaction(engine, begin, number),
        )
        for service in (http, taking):
            blockingCallFromThread(reactor, service.stopService)
    finally:
        reactor.callFromThread(reactor.stop)
        thread.join()
        pool.close()


def agent(url: str, disk: str) -> None:
    """What the node does, in a process of its own."""
    order = Order(ORDER, "capture", deposit=Deposit(url, SECRET, 0))
    print(capture.capture(order, [file_disk(Path(disk))], lambda *_: None))


def timed(*words: str | Path) -> tuple[float, float]:
    """Wall and CPU seconds that a command takes."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(
        [str(word) for word in words],
        check=True,
        cwd=ROOT,
        env=os.environ | PATH,
        capture_output=True,
    )
    seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=RESULTS / "capture")
    parser.add_argument("--agent", nargs=2, metavar=("URL", "DISK"), help="be the node")
    asked = parser.parse_args()
    if asked.agent:
        agent(*asked.agent)
        return
    shutil.rmtree(asked.folder, ignore_errors=True)
    asked.folder.mkdir(parents=True)
    disk, copy = asked.folder / "disk", asked.folder / "partclone.zst"
    make_disk(disk)
    ours: Rounds = []
    theirs: Rounds = []
    with server(asked.folder) as (base, begin):
        for number in range(1, asked.rounds + 1):
            url = f"{base}/{begin(number)}"
            ours.append(
                timed(sys.executable, "-m", "tests.bench.bench_capture", "--agent", url, disk)
            )
            peer = (
                f"partclone.extfs -q -c -s {disk} -o - -L /dev/null | zstd -q -f -3 -T0 -o {copy}"
            )
            theirs.append(timed("sh", "-c", peer))
            print(
                "  cod {:6.2f} s, CPU {:6.2f} s  partclone {:6.2f} s, CPU {:6.2f} s".format(
                    *ours[-1], *theirs[-1]
                ),
                flush=True,
            )
    image = next(path for path in (asked.folder / "images").iterdir() if len(path.name) == 64)
    assert not verify(asked.folder / "images", image.name).bad
    sizes = (image / "data.zst").stat().st_size, copy.stat().st_size
    print(f"stored {sizes[0]}, partclone's {sizes[1]}")
    write("capture", measures(ours, theirs, sizes))
    shutil.rmtree(asked.folder)


Rounds = list[tuple[float, float]]


def measures(ours: Rounds, theirs: Rounds, sizes: tuple[int, int]) -> list[Measure]:
    """Ratios of medians."""
    mine, other = (statistics.median(wall for wall, _ in rounds) for rounds in (ours, theirs))
    node, peer = (statistics.median(cpu for _, cpu in rounds) for rounds in (ours, theirs))
    return [
        Measure(
            "capture 2 GiB, 0.5 GB used",
            round(mine, 2),
            "s",
            "partclone -c | zstd -3 -T0",
            round(other, 2),
            round(mine / other, 2),
            "<= 1.5",
            [round(wall, 2) for wall, _ in ours],
        ),
        Measure(
            "capture, CPU on the node",
            round(node, 2),
            "s",
            "partclone -c | zstd -3 -T0",
            round(peer, 2),
            round(node / peer, 2),
            "<= 1.5",
            [round(cpu, 2) for _, cpu in ours],
        ),
        Measure("capture, rate of used bytes", round(USED / mine / 1e6), "MB/s"),
        Measure(
            "capture, size of the image",
            round(sizes[0] / 1e6),
            "MB",
            "partclone -c | zstd -3 -T0",
            round(sizes[1] / 1e6),
            round(sizes[0] / sizes[1], 2),
            "<= 1.1",
        ),
    ]


if __name__ == "__main__":
    main()
