"""Traces in Standard Workload Format, version 2.2 (D. G. Feitelson,
https://www.cs.huji.ac.il/labs/parallel/workload/).

Each job is a line of 18 numbers, -1 for unknown values. Lines that begin with `;` are comments; at
the head, lines of the form `; Label: value` describe the system. The fields used here (counted from
1):

    1 job number · 2 submit time · 4 run time · 5 processors allocated · 8 processors requested · 9
    time requested · 11 status · 12 user · 13 group · 15 queue

Some traces have further fields of their own, which are ignored. Times are seconds since the trace's
start. Status 2 to 4 marks the parts of a checkpointed job. They are skipped, because the whole job
has a line of its own. Jobs that never ran (cancelled while queued) are skipped, too.
"""

from __future__ import annotations

import gzip
import math
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

FIELDS = 18
PARTS = (2, 3, 4)
LONGEST = 10_000  # characters of a line
_LABEL = re.compile(r";\s*([A-Za-z][A-Za-z0-9]*):\s*(.*?)\s*$", re.ASCII)


class SwfError(Exception):
    """The file is not a trace; the text names the file and the line."""


@dataclass(frozen=True, slots=True)
class SwfJob:
    """A job. `procs`: processors allocated, or else requested; `asked`: time limit; None: no
    limit."""

    number: int
    submit: float
    runtime: float
    procs: int
    asked: float | None
    user: int
    group: int
    queue: int


@dataclass(frozen=True, slots=True)
class SwfLog:
    """A whole trace, by submit time. `header`: by label, in lower case.

    passed_over  number of lines that are not jobs that ran
    longer       number of lines with more fields than the format has
    """

    jobs: tuple[SwfJob, ...]
    header: dict[str, str] = field(default_factory=dict)
    passed_over: int = 0
    longer: int = 0

    def number(self, label: str) -> int | None:
        """Return a whole number of the header, such as 'MaxNodes'."""
        match = re.match(r"\d+", self.header.get(label.lower(), ""))
        return int(match[0]) if match else None

    @property
    def days(self) -> float:
        """Return the days from the first submission to the last end that jobs would have if none
        had waited."""
        if not self.jobs:
            return 0.0
        return (max(job.submit + job.runtime for job in self.jobs) - self.jobs[0].submit) / 86400.0

    def remarks(self, name: str) -> list[str]:
        """Return a sentence for each kind of line that was skipped or read in part."""
        made = []
        if self.passed_over:
            made.append(f"{name}: lines passed over that are no job that ran: {self.passed_over}")
        if self.longer:
            made.append(
                f"{name}: lines with more than {FIELDS} fields, of which the first {FIELDS} were"
                f" read: {self.longer}"
            )
        return made


def load(path: Path) -> SwfLog:
    """Read a file, plain or gzip. Raises `SwfError`."""
    try:
        with open(path, "rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        with (
            gzip.open(path, "rt", encoding="latin-1") if packed else open(path, encoding="latin-1")
        ) as lines:
            return parse(lines, str(path))
    except (OSError, EOFError, zlib.error) as error:
        raise SwfError(
            f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from None


def parse(lines: Iterable[str], name: str = "trace") -> SwfLog:
    """Read lines. Raises `SwfError` for the first invalid line."""
    header: dict[str, str] = {}
    jobs: list[SwfJob] = []
    passed_over = longer = 0
    for number, line in _lines(lines):
        if line.startswith(";"):
            if not jobs and (label := _LABEL.match(line)):
                header.setdefault(label[1].lower(), label[2])
            continue
        try:
            words = line.split()
            job = _job(words)
        except ValueError as error:
            raise SwfError(f"{name}: line {number}: {error}") from None
        longer += len(words) > FIELDS
        if job is None:
            passed_over += 1
        else:
            jobs.append(job)
    jobs.sort(key=lambda job: (job.submit, job.number))
    return SwfLog(tuple(jobs), header, passed_over, longer)


def _lines(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(lines, 1):
        if stripped := line[:LONGEST].strip():
            yield number, stripped


def _job(words: list[str]) -> SwfJob | None:
    """Return the job of a line; None if the line is not a job that ran. Raises ValueError with a
    sentence."""
    if len(words) < FIELDS:
        raise ValueError(f"a job has {FIELDS} fields, this line has {len(words)}")
    values = [_number(word, place) for place, word in enumerate(words[:FIELDS], 1)]
    submit, runtime, status = values[1], values[3], int(values[10])
    procs = int(values[4] if values[4] > 0 else values[7])
    if submit < 0:
        raise ValueError(f"field 2, the submit time, should not be negative: {words[1]}")
    if status in PARTS or runtime < 0 or procs < 1:
        return None
    asked = values[8] if values[8] > 0 else None
    return SwfJob(
        int(values[0]),
        submit,
        runtime,
        procs,
        asked,
        int(values[11]),
        int(values[12]),
        int(values[14]),
    )


def _number(word: str, place: int) -> float:
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or abs(value) > 1e15:
        raise ValueError(f"field {place} should be a number, not {word[:40]!r}")
    return value
