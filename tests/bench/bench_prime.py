"""Priming a disk: cprime against `zstd -dc | dd` and `gzip -dc | dd`, and against what the hardware
allows.

A 4 GiB image with 1 GB of files of this machine in it, scattered; the disk is a loop device with
direct I/O (or a file, --file) that is full of noise before each round. The peers read a file from
the page cache and write past the cache with large blocks; cprime fetches over HTTP from COD's
server on the same two CPUs, and wipes the disk first. Needs root.

    .venv/bin/python -m tests.bench.bench_prime [--rounds N] [--folder DIR] [--file]
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from cod.images.ingest import ingest
from cod.model import Ingested
from cod.orders import ImageSource, Order
from cod.wire.confd.messages import encode
from tests.bench.arena import RESULTS, ROOT, Measure, Smoke, write
from tests.loops import loop_device

GIB, MIB = 1 << 30, 1 << 20
SIZE, USED = 4 * GIB, 10**9
ADDRESS, PORT = "127.0.0.1", 18765
URL = f"http://{ADDRESS}:{PORT}/images"
SMOKE = Smoke(
    rows=("prime",), sizes={"SIZE": 128 * MIB, "USED": 16 * MIB}, words=("--rounds", "1", "--file")
)


def make_image(path: Path) -> None:
    """Files from /usr, in extents of 64 KiB to 16 MiB scattered over the image as a used file
    system has them."""
    rng = random.Random(5)
    files = (
        path for path in sorted(Path("/usr").rglob("*")) if path.is_file() and not path.is_symlink()
    )
    content = (block for file in files for block in _blocks(file))
    with path.open("wb") as image:
        image.truncate(SIZE)
        written, at = 0, 0
        while written < USED:
            extent = b"".join(_take(content, rng.choice([64 << 10, MIB, 4 * MIB, 16 * MIB])))
            image.seek(at)
            image.write(extent)
            written += len(extent)
            at += (
                len(extent)
                + int(rng.expovariate(1 / (len(extent) * (SIZE - USED) / USED * 0.9)))
                // 4096
                * 4096
            )
            if not extent or at > SIZE - 32 * MIB:
                break


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(64 << 10):
            yield block


def _take(blocks: Iterator[bytes], size: int) -> Iterator[bytes]:
    while size > 0 and (block := next(blocks, b"")):
        size -= len(block)
        yield block


@contextmanager
def served(root: Path) -> Iterator[None]:
    """COD's own image server."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.serve", "http", root, ADDRESS, str(PORT)], cwd=ROOT
    )
    try:
        for _ in range(100):
            try:
                urlopen(f"http://{ADDRESS}:{PORT}/", timeout=1).close()
            except OSError as error:
                if "HTTP Error" in str(error):
                    break
                time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait()


@contextmanager
def disk(folder: Path, as_file: bool) -> Iterator[Path]:
    """The disk: a file, or a loop device upon it."""
    path = folder / "disk"
    with path.open("wb") as file:
        file.truncate(SIZE)
    if as_file:
        yield path
        return
    with loop_device(path, "--direct-io=on") as loop:
        yield Path(loop)


def dirty(path: Path) -> None:
    """Fill it with noise."""
    noise = os.urandom(16 * MIB)
    shell(
        f"dd of={path} bs=16M oflag=direct conv=fsync,notrunc iflag=fullblock status=none",
        (noise for _ in range(SIZE // len(noise))),
    )


def shell(command: str, content: Iterable[bytes] = ()) -> tuple[float, float]:
    """Run it; wall and CPU seconds."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    process = subprocess.Popen(
        command, shell=True, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd=ROOT
    )
    assert process.stdin
    for block in content:
        process.stdin.write(block)
    process.stdin.close()
    if process.wait():
        raise RuntimeError(command)
    seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=RESULTS / "prime")
    parser.add_argument("--file", action="store_true", help="the disk is a file, not a loop device")
    parser.add_argument(
        "--keep", action="store_true", help="keep the folder, and use what it holds next time"
    )
    asked = parser.parse_args()
    folder: Path = asked.folder
    folder.mkdir(parents=True, exist_ok=True)
    made, image = prepare(folder)
    with served(folder), disk(folder, asked.file) as target:
        source = ImageSource("disk", f"{URL}/{made.digest}", "chunks", made.digest, SIZE)
        (folder / "order.xml").write_bytes(encode(Order("1.1", "prime", images=(source,))))
        write_to = f"dd of={target} bs=4M oflag=direct conv=fsync,notrunc status=none"
        data, digest = folder / "images" / made.digest / "data.zst", made.digest
        results = alternate(
            {
                "cprime": (
                    f"{sys.executable} -m trampoline.cprime --order {folder}/order.xml --disk"
                    f" {target}"
                ),
                "zstd": f"zstd -dc {folder}/image.zst | {write_to} iflag=fullblock",
                "gzip": f"gzip -dc {folder}/image.gz | {write_to} iflag=fullblock",
                "raw write": f"head -c {made.used} {image} | {write_to} iflag=fullblock",
                "network": f"curl -sf -o /dev/null {URL}/{digest}/data.zst",
            },
            asked.rounds,
            target,
            lambda: shell(f"cmp {image} {target}"),
        )
        print(f"data.zst {data.stat().st_size} bytes, {made.used} bytes used")
    write("prime", measures(results))
    if not asked.keep:
        shutil.rmtree(folder)


def prepare(folder: Path) -> tuple[Ingested, Path]:
    """The image, raw, packed, and in COD's form (moved to where the server looks)."""
    image = folder / "image"
    if not (folder / "ready").exists():
        make_image(image)
        shell(f"zstd -q -f -3 -T0 -k {image} -o {image}.zst")
        shell(f"gzip -k -f -6 {image}")
        (folder / "ready").touch()
    began = time.monotonic()
    made = ingest(image, folder / "images", raw=True)  # extents of files, no file system
    print(f"taken in in {time.monotonic() - began:.1f} s: {made}")
    (folder / made.digest).unlink(missing_ok=True)
    (folder / made.digest).symlink_to(folder / "images" / made.digest)
    return made, image


Rounds = dict[str, list[tuple[float, float]]]


def alternate(
    commands: dict[str, str], rounds: int, target: Path, check: Callable[[], object]
) -> Rounds:
    """Wall and CPU seconds of each command, in turn; the disk is dirty before, and right after
    those that write it."""
    results: Rounds = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            if name != "network":
                dirty(target)
            results[name].append(shell(command))
            if name in ("cprime", "zstd", "gzip"):
                check()
            print(
                f"  {name:10} {results[name][-1][0]:7.2f} s  CPU {results[name][-1][1]:7.2f} s",
                flush=True,
            )
    return results


def measures(results: Rounds) -> list[Measure]:
    """Ratios of medians."""
    median = {
        name: statistics.median(seconds for seconds, _ in rounds)
        for name, rounds in results.items()
    }
    cpu = statistics.median(used for _, used in results["cprime"])
    limit = max(median["raw write"], median["network"])
    ours = [round(seconds, 3) for seconds, _ in results["cprime"]]

    def against(peer: str, seconds: float, goal: str) -> Measure:
        return Measure(
            "prime 4 GiB, 1 GB used",
            round(median["cprime"], 3),
            "s",
            peer,
            round(seconds, 3),
            round(median["cprime"] / seconds, 3),
            goal,
            ours,
        )

    return [
        against("zstd -dc | dd", median["zstd"], "<= 0.3"),
        against("gzip -dc | dd", median["gzip"], "<= 0.1"),
        against("the limit: disk or network", limit, ""),
        Measure("prime, CPU on the node", round(cpu, 3), "s"),
    ]


if __name__ == "__main__":
    main()
