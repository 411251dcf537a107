"""A trace's header and lines, for tests."""

from __future__ import annotations

HEADER = """\
; Version: 2.2
; Computer: a made-up machine
;   MaxNodes:  64 (of 70)
; MaxProcs: 512
; Note: nothing: at all
; just words
"""


def line(
    number: int = 1,
    submit: float = 0,
    *,
    runtime: float = 60,
    procs: int = 4,
    asked_procs: int = -1,
    asked: float = -1,
    status: int = 1,
    user: int = 7,
    group: int = 3,
    queue: int = 2,
) -> str:
    """A line of 18 fields."""
    return (
        f"{number} {submit} 5 {runtime} {procs} -1 -1 {asked_procs} {asked} -1 {status} {user}"
        f" {group} -1 {queue} -1 -1 -1"
    )
