"""A disk as a running node has it: boot code, a system partition, a root file system, swap, and a
seed with secrets."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

from trampoline import seed
from trampoline.partitions import Gpt, Span, add_to_mbr, new_guid, new_mbr, tail
from trampoline.target import Target

MIB = 1 << 20
SECRET = b"the password of node n1 alone"
OLD = b"what somebody deleted long ago  "
SPANS = (
    Span(1, MIB, MIB, "bios", "boot"),
    Span(2, 2 * MIB, 8 * MIB, "esp", "system"),
    Span(3, 12 * MIB, 24 * MIB, "linux", "root"),
    Span(4, 36 * MIB, 4 * MIB, "swap", "swap"),
)


def make(path: Path, size: int = 64 * MIB, table: str = "gpt") -> Path:
    """The disk. What is not in use is full of `OLD`; between the second and the third partition
    there is a gap."""
    path.write_bytes(OLD * (size // len(OLD)))
    with Target(str(path)) as target:
        for at in (0, size - MIB):
            target.write(memoryview(bytes(MIB)), at)
        _table(target, table)
        target.write(memoryview(b"boot code"), 0)
        target.write(memoryview(b"stage two".ljust(1000, b"!")), MIB)
        files = {"meta-data": f'{{"local-hostname": "n1", "password": "{SECRET.decode()}"}}'}
        target.write(memoryview(seed.build(files, MIB)), tail(size, MIB))
    _fill(path)
    return path


def _table(target: Target, table: str) -> None:
    last = Span(0, tail(target.size, MIB), MIB, "data", "cidata")
    if table == "mbr":
        new_mbr(target)
        for span in (*SPANS[1:], last):
            add_to_mbr(target, Span(0, span.start, span.size, span.type, span.name))
        return
    gpt = Gpt(new_guid())
    for span in (*SPANS, Span(5, last.start, last.size, last.type, last.name)):
        gpt = gpt.add(span, target)
    gpt.write(target)


def _fill(path: Path) -> None:
    tree = path.with_suffix(".tree")
    tree.mkdir()
    (tree / "hello").write_bytes(random.Random(2).randbytes(1_500_000))
    (tree / "name").write_text("a file on the root\n")
    ext4 = (
        "mke2fs",
        "-q",
        "-F",
        "-t",
        "ext4",
        "-E",
        "nodiscard,lazy_itable_init=0,lazy_journal_init=0",
        "-d",
        str(tree),
    )
    for span, words in (
        (SPANS[1], ("mkfs.fat", "-n", "SYSTEM")),
        (SPANS[2], ext4),
        (SPANS[3], ("mkswap", "-q")),
    ):
        part = path.with_suffix(".part")
        with path.open("rb") as disk:
            disk.seek(span.start)
            part.write_bytes(disk.read(span.size))
        tool(*words, str(part))
        if span.type == "esp":
            tool("mcopy", "-i", str(part), str(tree / "hello"), "::HELLO.BIN")
        with path.open("r+b") as disk:
            disk.seek(span.start)
            disk.write(part.read_bytes())
        part.unlink()


def tool(*words: str) -> str:
    """A foreign program's output; it must succeed."""
    environment = os.environ | {
        "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin",
        "MTOOLS_SKIP_CHECK": "1",
    }
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout


def files(path: Path, folder: Path) -> dict[str, bytes]:
    """What is in its file systems, judged by their own programs, which must find no fault."""
    folder.mkdir()
    for span, check in ((SPANS[1], ("fsck.fat", "-n")), (SPANS[2], ("e2fsck", "-fn"))):
        part = folder / span.name
        with path.open("rb") as disk:
            disk.seek(span.start)
            part.write_bytes(disk.read(span.size))
        tool(*check, str(part))
    tool("mcopy", "-i", str(folder / "system"), "::HELLO.BIN", str(folder / "esp-hello"))
    tool("debugfs", "-R", f"dump /hello {folder}/root-hello", str(folder / "root"))
    tool("debugfs", "-R", f"dump /name {folder}/root-name", str(folder / "root"))
    return {name: (folder / name).read_bytes() for name in ("esp-hello", "root-hello", "root-name")}
