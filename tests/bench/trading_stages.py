"""Where the time goes when a node joins a pool and when one is reclaimed, from the VCMs' logs and
the nodes' histories.

A stage is COD's own, the machine's (boot, disk) or the batch system's. All clocks are one:
everything runs on one host.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

COD, MACHINE, BATCH = "COD", "machine", "batch system"
JOIN = {
    "asked, granted, told": COD,
    "order, boot": MACHINE,
    "active, told": COD,
    "takes part": BATCH,
}
RECLAIM = {
    "request, reclaim, told": COD,
    "answered": COD,
    "jobs requeued, host out": BATCH,
    "released": COD,
    "boot, wipe": MACHINE,
    "granted to the other, told": COD,
}

_LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3}) [A-Z]+ (.*)")

Said = Sequence[tuple[float, str]]
History = Sequence[Mapping[str, Any]]


@dataclass
class Way:
    """One join or reclaim: seconds of its stages. `how`: of a join, where the node waited; `pool`:
    that it joins or leaves."""

    machine: str
    began: float
    stages: dict[str, float] = field(default_factory=dict)
    how: str = ""
    pool: str = ""

    def own(self, owners: Mapping[str, str]) -> float:
        """Seconds that are COD's."""
        return sum(seconds for stage, seconds in self.stages.items() if owners[stage] == COD)


def said(log: str) -> list[tuple[float, str]]:
    """(seconds since the epoch, what) of each line of a VCM's log."""
    return [
        (datetime.fromisoformat(found[1]).timestamp() + int(found[2]) / 1000, found[3])
        for line in log.splitlines()
        if (found := _LINE.fullmatch(line))
    ]


def first(lines: Said, pattern: str, since: float = 0.0) -> tuple[float, re.Match[str]] | None:
    """The first line from `since` on that the pattern fits."""
    return next(
        (
            (at, found)
            for at, what in lines
            if at >= since and (found := re.fullmatch(pattern, what))
        ),
        None,
    )


def memberships(lines: Said) -> list[tuple[str, float, float]]:
    """Return (machine, from, to) of each node that a VCM's log tells of: from its grant until it is
    out of the pool, which is infinity while it is in it."""
    open_since, found = dict[str, float](), list[tuple[str, float, float]]()
    for at, what in lines:
        granted = re.fullmatch(r"request \d+ is granted: (.*)", what)
        open_since.update(
            (machine, at) for machine in re.findall(r"\((\S+)\)", granted[1] if granted else "")
        )
        out = re.fullmatch(r"\S+ \((\S+)\) (?:is out of the pool|was given back: .*)", what)
        if out and out[1] in open_since:
            found.append((out[1], open_since.pop(out[1]), at))
    return found + [(machine, since, float("inf")) for machine, since in open_since.items()]


def in_two_pools(first: Said, second: Said) -> list[str]:
    """Return the machines that the logs of two pools' VCMs both claim at one moment, once for each
    time."""
    return [
        machine
        for machine, since, until in memberships(first)
        for other, begin, end in memberships(second)
        if machine == other and since < end and begin < until
    ]


def joins(
    lines: Said, histories: Mapping[str, History], submitted: Mapping[int, float]
) -> list[Way]:
    """All joins that a VCM's log tells of to their end. `submitted`: when, by request. A request
    that has to wait until its node is free is counted from then."""
    ways = []
    for granted, what in lines:
        found = re.fullmatch(r"request (\d+) is granted: (\S+) \((\S+)\)", what)
        if found and int(found[1]) in submitted:
            way = _join(
                lines, found[2], found[3], submitted[int(found[1])], granted, histories[found[3]]
            )
            ways += [way] if way else []
    return ways


def _join(
    lines: Said, host: str, machine: str, asked: float, granted: float, history: History
) -> Way | None:
    name = re.escape(f"{host} ({machine})")
    free = next(
        (
            row["at"]
            for row in reversed(history)
            if row["at"] <= granted and row["to_state"] in ("inactive", "off")
        ),
        asked,
    )
    rows = [row for row in history if row["at"] > free]
    ordered = rows[0]["at"] if rows else None
    active = next((row["at"] for row in rows if row["to_state"] == "active"), None)
    if ordered is None or active is None:
        return None
    heard = first(lines, name + " is active", active)
    joined = first(lines, name + " takes part now", heard[0]) if heard else None
    left = first(lines, name + " (was given back|is out of the pool).*", granted)
    if not heard or not joined or (left and left[0] < joined[0]):
        return None
    on_its_way = {row["to_state"] for row in rows if row["at"] <= active}
    how = (
        f"{'cold' if 'trampoline' in on_its_way else 'warm'},"
        f" {'empty' if 'prime' in on_its_way else 'cached'}"
    )
    return Way(
        machine,
        asked,
        {
            "asked, granted, told": granted - max(asked, free),
            "order, boot": active - ordered,
            "active, told": heard[0] - active,
            "takes part": joined[0] - heard[0],
        },
        how,
    )


def reclaimed(
    reclaims: Iterable[Mapping[str, Any]],
    requests: Mapping[int, Mapping[str, Any]],
    loser: Said,
    gainer: Said,
    histories: Mapping[str, History],
) -> list[Way]:
    """All reclaims of one node that went their whole way. Rows of reclaims and, by id, of
    requests."""
    ways = []
    for reclaim in reclaims:
        told = first(loser, rf"reclaim {reclaim['id']}: 1 nodes are wanted back.*")
        answered = (
            first(loser, rf"reclaim {reclaim['id']} is answered: (n\d+)", told[0]) if told else None
        )
        granted = first(gainer, rf"request {reclaim['request_id']} is granted: \S+ \((\S+)\)")
        if told and answered and granted:
            way = _reclaim(loser, answered, granted, histories[granted[1][1]])
            if way is not None:
                way.began = requests[reclaim["request_id"]]["submitted_at"]
                way.stages = {
                    "request, reclaim, told": told[0] - reclaim["created_at"],
                    "answered": answered[0] - told[0],
                    **way.stages,
                }
                ways.append(way)
    return ways


def _reclaim(
    loser: Said,
    answered: tuple[float, re.Match[str]],
    granted: tuple[float, re.Match[str]],
    history: History,
) -> Way | None:
    machine, host = granted[1][1], answered[1][1]
    out = first(loser, re.escape(f"{host} ({machine})") + " is out of the pool", answered[0])
    if out is None:  # the request was met by another node
        return None
    released = next(
        (row["at"] for row in history if row["at"] >= out[0] and row["event"] == "released"), None
    )
    ready = next(
        (
            row["at"]
            for row in history
            if released and row["at"] > released and row["to_state"] == "inactive"
        ),
        None,
    )
    if released is None or ready is None or granted[0] < ready:
        return None
    return Way(
        machine,
        0.0,
        {
            "jobs requeued, host out": out[0] - answered[0],
            "released": released - out[0],
            "boot, wipe": ready - released,
            "granted to the other, told": granted[0] - ready,
        },
    )


def table(columns: Mapping[str, Sequence[Way]], owners: Mapping[str, str]) -> list[str]:
    """Stages as a Markdown table: whose, median and longest by column; and the sum of COD's own."""
    rows = [
        f"| Stage | Whose |{''.join(f' {title}: median | longest |' for title in columns)}",
        "|---|---|" + "---:|---:|" * len(columns),
    ]
    for stage, owner in owners.items():
        cells = [
            _cells([way.stages[stage] for way in ways if stage in way.stages], 3)
            for ways in columns.values()
        ]
        rows.append(f"| {stage} | {owner} |{''.join(cells)}")
    cells = [_cells([way.own(owners) for way in ways], 2) for ways in columns.values()]
    return [*rows, f"| **COD's own in all** | |{''.join(cells)}"]


def _cells(seconds: Sequence[float], digits: int) -> str:
    if not seconds:
        return " - | - |"
    return f" {statistics.median(seconds):.{digits}f} s | {max(seconds):.{digits}f} s |"
