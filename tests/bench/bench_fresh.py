"""A hundred jobs on a Slurm pool that gives each job a freshly installed node (`fresh`), as
Multiverse gives each job a virtual machine of its own.

Six stand-in nodes (tests/system/slurmlab.py) with real Slurm daemons, real agents and a real
server, without firmware and kernels. All jobs are submitted at once, three times:

    installed anew   each node is erased and written for each job, as a full clone
    disk kept        each node boots the disk that it has kept (`cache="yes"`), as an instant clone
    shared           nodes stay in the pool, and take one job after the other

Writes build/bench/fresh.json. Multiverse's 100 jobs are done after 868 s with full clones and after
581 s with instant clones, on other machines and with jobs of another length: a ratio to those says
how long, not how good.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from tests.bench.arena import Measure, Smoke, write
from tests.system.site_images import offer
from tests.system.slurmlab import SlurmLab, slurmlab

NODES, JOBS, SECONDS = 6, 100, 5.0
PATIENCE = 3600.0  # seconds for all jobs, on a busy host
ANEW, KEPT, SHARED = "installed anew", "disk kept", "shared"
FULL, INSTANT = 868.0, 581.0  # Multiverse's seconds
PEERS = {
    ANEW: ("Multiverse, full clones", FULL),
    KEPT: ("Multiverse, instant clones", INSTANT),
}
SMOKE = Smoke(
    rows=("100 jobs",),
    sizes={"NODES": 2, "JOBS": 3, "SECONDS": 0.5},
    system=True,
    slow=True,
    needs=("slurmctld", "munged"),
)


def main() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="cod-fresh-") as folder,
        slurmlab(Path(folder), NODES + 1) as lab,
    ):
        offer(lab.stand, "kept", cache="yes")
        found = {how: makespan(lab, how) for how in (ANEW, KEPT, SHARED)}
    write("fresh", measures(found))


def makespan(lab: SlurmLab, how: str) -> float:
    """Return the seconds from the first job's submission to the last job's end. Each job has run
    once, and with `fresh` on a node that was granted for it."""
    if how == KEPT:
        lab._settings = lab._settings.replace('template = ""', 'template = "kept"')
    else:
        lab._settings = lab._settings.replace('template = "kept"', 'template = ""')
    lab.fresh(fresh=how != SHARED, maximum=NODES)
    lab.restart_vcm(fresh=how != SHARED, maximum=NODES)  # with the template
    lab.cell.nodes_are(1, drained=how != SHARED)
    before, began = lab.grants(), time.time()
    jobs = lab.submit_many(JOBS, SECONDS)
    lab.ended(jobs, PATIENCE)
    seconds = time.time() - began
    lab.once(jobs)
    lab.shrunk(seconds=PATIENCE)
    if how != SHARED:
        assert lab.grants() - before >= JOBS
    print(f"  {how}: {seconds:.0f} s, {lab.grants() - before} nodes granted", flush=True)
    return seconds


def measures(found: dict[str, float]) -> list[Measure]:
    """Return the times beside Multiverse's, and what a node for each job costs."""
    rows = []
    for how, (peer, theirs) in PEERS.items():
        ratio = round(found[how] / theirs, 2)
        rows.append(Measure(f"100 jobs, {how}", round(found[how], 1), "s", peer, theirs, ratio))
    rows.append(Measure(f"100 jobs, {SHARED}", round(found[SHARED], 1), "s"))
    own, theirs = found[ANEW] / found[KEPT], FULL / INSTANT
    name, peer = "100 jobs, installed anew to disk kept", "Multiverse, full to instant clones"
    ratio = round(own / theirs, 2)
    return [*rows, Measure(name, round(own, 2), "times", peer, round(theirs, 2), ratio)]


if __name__ == "__main__":
    main()
