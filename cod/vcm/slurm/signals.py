"""The signal that a job asks for before its end: ``sbatch --signal=[B:]NAME[@SECONDS]``, read from
its script.

Slurm 22.05 keeps the wish to itself: neither squeue nor scontrol shows it. A job's script is to be
had, with its lines of ``#SBATCH``; what stood on sbatch's own command line is not. To move the
job's end would make Slurm send the signal by itself, but would also make it end the job for good
(TIMEOUT) should nobody put the job back into the queue in time.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

DEFAULT = 60  # seconds, where a job does not say
# characters of a script that are read, and of a line of options: users write both
MOST, LONGEST = 1 << 16, 1 << 12
_SIGNAL = re.compile(
    r"(?:(?P<flags>[RB]{1,2}):)?(?P<signal>[A-Z0-9]{1,12})\s*(?:@(?P<seconds>\d{1,5}))?",
    re.IGNORECASE,
)
# sbatch takes any beginning that is no other option's
_OPTION = re.compile(r"--si(?:g(?:n(?:al?)?)?)?")


@dataclass(frozen=True, slots=True)
class EndSignal:
    """A signal that a job wants a number of seconds before its end.

    batch  its shell alone gets it; else its steps do, and the shell does not
    """

    signal: str
    seconds: int
    batch: bool


def end_signal(script: str) -> EndSignal | None:
    """Return the signal that a job's script requests before its end; None: none. The last such line
    counts. Lines after the script's first command, and those beyond `MOST` or `LONGEST`, do not."""
    wanted = None
    for line in script[:MOST].splitlines():
        if line.strip() and not line.startswith("#"):
            break
        if line.startswith("#SBATCH ") and len(line) <= LONGEST:
            for value in _values(line.removeprefix("#SBATCH ")):
                wanted = value
    return _read(wanted) if wanted is not None else None


def _values(options: str) -> list[str]:
    try:
        words = shlex.split(options, comments=True)
    except ValueError:  # then sbatch has not understood it either
        return []
    found = []
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, given, value = word.partition("=")
        if _OPTION.fullmatch(name):
            found.append(value if given else following)
    return found


def _read(value: str) -> EndSignal | None:
    read = _SIGNAL.fullmatch(value.strip())
    seconds = int(read["seconds"] or DEFAULT) if read else 0
    if read is None or not seconds:
        return None
    return EndSignal(read["signal"].upper(), seconds, "B" in (read["flags"] or "").upper())
