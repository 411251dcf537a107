"""The signal that a job requests before its end: ``sbatch --signal=[B:]NAME[@SECONDS]``, read from
its script.

Slurm 22.05 does not show this option in squeue or scontrol. A job's script can be read, with its
``#SBATCH`` lines; options on sbatch's command line cannot. Moving the job's end would make Slurm
send the signal by itself, but would also make Slurm end the job for good (TIMEOUT) if it were not
requeued in time.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

DEFAULT = 60  # seconds, where a job does not say
# limits in characters for a script and for a line of options, as users write both
MOST, LONGEST = 1 << 16, 1 << 12
_SIGNAL = re.compile(
    r"(?:(?P<flags>[RB]{1,2}):)?(?P<signal>[A-Z0-9]{1,12})\s*(?:@(?P<seconds>\d{1,5}))?",
    re.IGNORECASE,
)
# sbatch accepts every unambiguous abbreviation
_OPTION = re.compile(r"--si(?:g(?:n(?:al?)?)?)?")


@dataclass(frozen=True, slots=True)
class EndSignal:
    """A signal that a job requests a number of seconds before its end.

    batch  only the job's shell gets it; otherwise only its steps do
    """

    signal: str
    seconds: int
    batch: bool


def end_signal(script: str) -> EndSignal | None:
    """Return the signal that a job's script requests before its end; None if it requests none. The
    last such line counts. Lines after the script's first command, and those beyond `MOST` or
    `LONGEST`, do not."""
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
