"""The recorded consoles: a folder for each node with its console's output, unchanged.

All output of a node is one sequence of bytes, counted from the beginning. A file holds a stretch of
it and is named by the count of its first byte and by its tenure (who the output belongs to:
`cod.policy.nodes.console`), as in ``0000000000065536.v12-1763667000123.log``. A file never holds
output of two tenures. When a file is full the next one begins and the oldest are deleted, so that a
node never takes more than the length of two files. The file `state` tells how the recording goes.

One process writes, any may read; a reader may find that the oldest file has just been deleted.
Folders have the mode 0700, files 0600.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

MOST_FILES = 32  # of a node, however short they are
_NAME = re.compile(r"(\d{16})\.([a-z0-9-]+)\.log")


@dataclass(frozen=True, slots=True)
class Stretch:
    """A file of a console's output: the count of its first byte, its tenure and its size."""

    path: Path
    start: int
    tenure: str
    size: int
    at: float

    @property
    def end(self) -> int:
        """Return the count after the last byte."""
        return self.start + self.size


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes `start` to `stop` of a console, without the bytes between that the reader may not see.

    first, end  beginning and end of the kept bytes that the reader may see
    at          time at which the newest of the kept bytes were written; None: there are none
    """

    start: int
    data: bytes
    stop: int
    first: int
    end: int
    at: float | None


@dataclass(frozen=True, slots=True)
class State:
    """State of a console's recording, 'recording' or 'lost', since `at`; for 'lost', `about` is a
    sentence that says why."""

    state: str
    about: str
    at: float


def append(root: Path, node_id: int, tenure: str, data: bytes, size: int) -> None:
    """Append a console's output, in files of about `size` bytes each. Raises OSError."""
    folder = _made(root, node_id)
    kept = stretches(folder)
    last = kept[-1] if kept else None
    if last is None or last.tenure != tenure or last.size >= size:
        start = last.end if last else 0
        path = folder / f"{start:016d}.{tenure}.log"
        last = Stretch(path, start, tenure, 0, 0.0)
        kept.append(last)
    descriptor = os.open(
        last.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640
    )
    with open(descriptor, "ab") as file:
        file.write(data)
    for old in surplus(kept, len(data), size):
        old.path.unlink(missing_ok=True)


def surplus(kept: list[Stretch], more: int, size: int) -> list[Stretch]:
    """Return the files of a node, of `kept` (oldest first), that have to be deleted when the newest
    file gets `more` bytes. The newest file is never among them."""
    total, gone = sum(each.size for each in kept) + more, 0
    while gone < len(kept) - 1 and (total > 2 * size or len(kept) - gone > MOST_FILES):
        total -= kept[gone].size
        gone += 1
    return kept[:gone]


def read(root: Path, node_id: int, tenure: str | None, since: int | None, most: int) -> Piece:
    """Return at most `most` bytes of a console, of one tenure (None: of all).

    since  count of the first byte; the oldest kept byte where that is later, or where the console
           has not reached this count yet; None: return the last bytes
    """
    kept = [each for each in stretches(_folder(root, node_id)) if tenure in (None, each.tenure)]
    if not kept:
        return Piece(0, b"", 0, 0, 0, None)
    first, end = kept[0].start, kept[-1].end
    if since is None:
        since = _begin_of_last(kept, most)
    start = stop = max(first, since) if since <= end else first
    data = b""
    for each in kept:
        if len(data) == most or each.end <= stop:
            continue
        part = _part(each, max(each.start, stop), most - len(data))
        if part is None:  # deleted meanwhile, with all before it
            data, stop = b"", each.end
        else:
            start = max(each.start, stop) if not data else start
            data, stop = data + part, max(each.start, stop) + len(part)
    return Piece(start if data else stop, data, stop, first, end, kept[-1].at)


def _begin_of_last(kept: list[Stretch], count: int) -> int:
    """Return the count of the first of the last `count` bytes."""
    for each in reversed(kept):
        if each.size >= count:
            return each.end - count
        count -= each.size
    return kept[0].start


def _part(stretch: Stretch, start: int, most: int) -> bytes | None:
    """Return at most `most` bytes of the file, from the count `start` on; None where the file was
    deleted."""
    try:
        with open(stretch.path, "rb") as file:
            file.seek(start - stretch.start)
            return file.read(min(most, stretch.end - start))
    except FileNotFoundError:
        return None


def stretches(folder: Path) -> list[Stretch]:
    """Return the files in a node's folder, by where they begin."""
    found = []
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if name := _NAME.fullmatch(entry.name):
                with suppress(FileNotFoundError):
                    about = entry.stat(follow_symlinks=False)
                    found.append(
                        Stretch(
                            Path(entry.path), int(name[1]), name[2], about.st_size, about.st_mtime
                        )
                    )
    return sorted(found, key=lambda each: (each.start, each.at))


def note(root: Path, node_id: int, state: State) -> None:
    """Record the state of a console's recording. Raises OSError."""
    folder = _made(root, node_id)
    made = folder / "state.new"
    made.write_text(json.dumps(asdict(state)))
    made.chmod(0o640)
    made.replace(folder / "state")


def noted(root: Path, node_id: int) -> State | None:
    """Return the recorded state of a console's recording; None: it was never recorded."""
    try:
        return State(**json.loads((_folder(root, node_id) / "state").read_text()))
    except (OSError, ValueError, TypeError):
        return None


def sweep(root: Path, before: float) -> int:
    """Delete the files that were last written to before that time, and folders that are empty then.
    Return the number of deleted files."""
    gone = 0
    with suppress(FileNotFoundError), os.scandir(root) as entries:
        for entry in [each for each in entries if each.name.isdecimal()]:
            kept = stretches(Path(entry.path))
            old = [each for each in kept if each.at < before]
            for each in old:
                each.path.unlink(missing_ok=True)
            gone += len(old)
            if len(old) == len(kept) and not _fresh(Path(entry.path), before):
                shutil.rmtree(entry.path, ignore_errors=True)
    return gone


def _fresh(folder: Path, before: float) -> bool:
    state = noted(folder.parent, int(folder.name))
    return state is not None and state.at >= before


def _made(root: Path, node_id: int) -> Path:
    folder = _folder(root, node_id)
    for each in (root, folder):
        each.mkdir(mode=0o750, exist_ok=True)
    return folder


def _folder(root: Path, node_id: int) -> Path:
    return root / str(node_id)
