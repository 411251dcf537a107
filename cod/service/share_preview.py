"""The process that tries other shares on recorded demand: `python -m cod.service.share_preview`.

It reads the arguments of `flows.scheduler.shares.preview` from its standard input, and writes the
result, both as JSON. Two simulations run one after the other: with the present shares, and with the
other ones. The process has a low priority, and ends after `SECONDS` of processor time.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from dataclasses import asdict
from typing import Any

from cod.policy.sharing import share_preview
from cod.policy.sharing.share_preview import GroupWait
from cod.sim.run import simulate
from cod.sim.scenario.tables import read

SECONDS = 40
NICE = 5  # more, and a busy host would not end it in time


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """Return the differences between the scenario with its own groups and with the other groups."""
    tables = question["scenario"]
    before = simulate(read(tables))
    after = simulate(read({**tables, "group": question["groups"]}))
    waits = [
        GroupWait(name, row["jobs"]["submitted"], *_waits(name, before, after))
        for name in (one["name"] for one in tables["group"])
        for row in (before["by"]["queue"].get(name),)
        if row is not None
    ]
    idle = [1.0 - (result["utilisation"]["held"] or 0.0) for result in (before, after)]
    return {
        "days": tables["days"],
        "nodes": before["nodes"],
        "groups": [asdict(one) for one in waits],
        "idle_before": idle[0],
        "idle_after": idle[1],
        "sentence": share_preview.sentence(waits, *idle),
    }


def _waits(name: str, *results: dict[str, Any]) -> list[float]:
    """Return the mean wait of a group's requests in each result, in seconds. Requests whose systems
    do not run yet count with their wait so far."""
    return [result["by"]["queue"][name]["wait"]["mean"] or 0.0 for result in results]


def main() -> None:
    """Read one question and write its answer."""
    os.nice(NICE)
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    json.dump(answer(json.load(sys.stdin)), sys.stdout)


if __name__ == "__main__":
    main()
