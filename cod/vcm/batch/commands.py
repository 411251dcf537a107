"""Running commands: those of the batch system, and those that a site's settings name."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import AfterValidator

PATIENCE = 60.0  # seconds for one command of a batch system
_TASKS = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?")


class CommandFailed(Exception):
    """A failed command, with its message."""


class NotUnderstood(Exception):
    """Output of an unexpected form. The sentence names the place."""


def task_ranges(text: str) -> list[range]:
    """Return the tasks of an array job in a list such as '1-9:2,20'. Raises `NotUnderstood`."""
    ranges = []
    for part in text.split(","):
        found = _TASKS.fullmatch(part.strip())
        if found is None:
            raise NotUnderstood(f"the list of tasks {text!r}")
        first, last, step = int(found[1]), int(found[2] or found[1]), int(found[3] or 1)
        if last < first or step < 1:
            raise NotUnderstood(f"the list of tasks {text!r}")
        ranges.append(range(first, last + 1, step))
    return ranges


def run(
    words: Sequence[str], environment: Mapping[str, str], path: str = ""
) -> subprocess.CompletedProcess[bytes]:
    """Run a command of a batch system, from the folder `path` unless that is ''; return its status
    and output. Raises `CommandFailed` when it cannot be run, or does not end in time."""
    program = f"{path}/{words[0]}" if path else words[0]
    try:
        return subprocess.run(
            [program, *words[1:]],
            capture_output=True,
            timeout=PATIENCE,
            check=False,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise CommandFailed(
            f"{words[0]} does not answer within {PATIENCE:.0f} s: is its server up?"
        ) from None
    except OSError as error:
        raise CommandFailed(
            f"{program}: {error.strerror}; set `path` in the pool's table"
        ) from None


def failure(done: subprocess.CompletedProcess[bytes]) -> str:
    """Return the error output of a failed command, or its exit status."""
    text = (done.stderr or done.stdout).decode(errors="replace").strip()
    return text or f"exit status {done.returncode}"


# ---------------------------------------------------------------- a site's own

FIELDS = {"hostname": "host", "address": "10.0.0.1", "jobs": "1,2"}


def _command(text: str) -> str:
    try:
        filled(text, FIELDS)
    except (ValueError, LookupError):
        raise ValueError(
            f"{text!r}: only {{hostname}}, {{address}} and {{jobs}} are filled in; other braces are"
            " written twice, and quotes in pairs"
        ) from None
    return text


Command = Annotated[str, AfterValidator(_command)]


def filled(command: str, fields: Mapping[str, str]) -> list[str]:
    """Return the words of the command with its fields filled in. No shell interprets them."""
    return [word.format(**fields) for word in shlex.split(command)]


def run_own(command: str, fields: Mapping[str, str], seconds: float) -> None:
    """Run a site's command. Raises `CommandFailed` when it fails or takes longer than `seconds`."""
    words = filled(command, fields)
    try:
        done = subprocess.run(
            words, capture_output=True, timeout=seconds, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CommandFailed(f"{' '.join(words)}: {error}") from None
    if done.returncode:
        raise CommandFailed(f"{' '.join(words)}: {failure(done)}")
