"""Two machines that are switched off, a batch system, and a user: `qsub` wakes them, and they sleep
again when it is done. Everything on the way is real but the master's own hardware."""

from __future__ import annotations

import json
import time

import pytest

from cod.lab import control
from tests.bench import bench_pool, bench_tiers
from tests.system.pool_story import IN_QUEUE, MACHINES, story
from tests.system.qemu import CHECKOUT, build_all

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.xdist_group("pool"),
    pytest.mark.timeout(2400),
]

STATES = [
    "trampoline",
    "prime",
    "boot",
    "active",
    "trampoline",
    "wipe",
    "trampoline",
    "inactive",
    "off",
]
# What the queue sees of a machine, and the console words of its three boots.
SEEN = [
    "loader runs",
    "trampoline runs",
    "loader runs",
    "disk boots",
    "system has its address",
    "has reported",
    "takes jobs",
    "runs a job",
    "no longer runs a job",
    "no longer takes jobs",
    "no longer is in the queue",
    "loader runs",
    "trampoline runs",
]


def settled(what: list[str]) -> list[str]:
    """The queue's facts when they were first seen, and their ends when they were last: a daemon on
    a starved processor is silent for some seconds now and then, and its master takes the host for
    lost until it speaks again."""
    return [
        each
        for at, each in enumerate(what)
        if not (
            (each in IN_QUEUE and each in what[:at])
            or (each.startswith("no longer") and each in what[at + 1 :])
        )
    ]


def test_what_flickers_is_seen_once() -> None:
    assert settled(
        ["x", "takes jobs", "no longer takes jobs", "takes jobs", "x", "no longer takes jobs"]
    ) == ["x", "takes jobs", "x", "no longer takes jobs"]


@pytest.mark.nightly
def test_qsub_wakes_machines_and_they_sleep_again() -> None:
    build_all("execd")
    with story() as pool:
        since = time.time()
        # long enough that the first host is not free for both
        jobs = [pool.submit(30.0) for _ in MACHINES]
        pool.ended(*jobs)
        pool.reaches("off")
        lines = {name: pool.timeline(name, since) for name in MACHINES}
        out = CHECKOUT / "build/pool-whole.json"
        out.write_text(json.dumps(lines, indent=1) + "\n")
        print(out.read_text())
        stages = [bench_pool.durations(line) for line in lines.values()]
        assert all({"write", "system", "join", "start"} <= each.keys() for each in stages), stages
        assert all(row.value > 0 for row in bench_pool.measures({"cold, empty": stages}))

        accounts = sorted(pool.accounts(), key=lambda row: int(row["job"]))
        assert [row.pop("host") for row in accounts] in (["n2", "n3"], ["n3", "n2"])
        assert accounts == [
            {"job": str(job), "owner": "alice", "failed": "0", "status": "0"} for job in jobs
        ]
        for name, line in lines.items():
            what = [each for each, _ in line]
            assert [each for each in what if each in STATES] == STATES, name
            assert [each for each in settled(what) if each in SEEN] == SEEN, name
            assert not any(pool.rack.disk(name).read_bytes()), (
                "nothing is left of the group's on the disk"
            )
        listed = control.status(pool.rack.lab)["nodes"]
        assert {node["name"]: node["power"] for node in listed} == dict.fromkeys(MACHINES, "off")
        for option in ("-sel", "-sh"):
            listed_hosts = pool.cell.run("qconf", option).stdout.split()
            assert [host.split(".")[0] for host in listed_hosts] == ["n1"], (
                "no trace in the cell but the head's own"
            )


@pytest.mark.nightly
def test_a_parked_node_is_ready_at_once_and_goes_to_another_cluster() -> None:
    """What bench_tiers measures: a parked node costs its pool no boot, and another cluster one."""
    build_all("execd")
    with story(knobs=bench_tiers.PARKING) as pool:
        found = bench_tiers.tiers(pool)
    assert max(found[bench_tiers.IDLE], found[bench_tiers.PARKED]) < min(
        found[bench_tiers.ASLEEP], found[bench_tiers.ELSEWHERE]
    ), found
