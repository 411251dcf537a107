"""A Grid Engine pool that resizes itself: real master and daemons, real COD server, real VCM over
TLS; the machines are hosts in namespaces (tests/system/cell.py). The stories share one stand; each
begins with a pool at rest."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.system.cell import BINARIES
from tests.system.gridlab import GridLab, gridlab
from tests.system.installation import HEAD
from tests.system.poollab import EXAMPLES
from tests.waiting import until

pytestmark = [
    pytest.mark.system,
    pytest.mark.in_turn(3, first=1, together=True),
    pytest.mark.xdist_group("gridengine"),
]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GridLab]:
    with gridlab(tmp_path_factory.mktemp("pool"), machines=4) as lab:
        lab.hears_quickly()
        yield lab


@pytest.fixture
def lab(shared: GridLab) -> Iterator[GridLab]:
    """The pool, without nodes and jobs; what the VCM said is shown where a story fails."""
    shared.fresh()
    yield shared
    print(shared.said()[-6000:])


def test_it_grows_from_nothing_runs_everything_once_and_shrinks(lab: GridLab) -> None:
    """The head alone takes jobs, for its VCM has put it into the queue, disabled; before that users
    were turned away. A host that was put there by hand stays as it is throughout."""
    assert lab.turned_away.returncode == 1
    assert "not allowed to run in any queue" in lab.turned_away.stderr
    with open(lab.cell.folder / "etc/hosts", "a") as hosts:
        hosts.write("10.77.9.9 byhand\n")
    lab.cell.run("qconf", "-ah", "byhand")
    lab.cell.run("qconf", "-aattr", "hostgroup", "hostlist", "byhand", "@cod")
    before = lab.grants()
    jobs = lab.submit(20, 0.5, "-h")
    lab.release(jobs)
    lab.ended(jobs)
    lab.once(jobs)
    assert {lab.placed(job) for job in jobs} <= {"n2", "n3", "n4"}
    until(lambda: lab.free() == 3, "all nodes are back", 180)
    assert lab.grants() - before == 3  # none went away in between and came again
    assert lab.instances().keys() == {HEAD, "byhand"}
    assert "d" not in lab.instances()["byhand"]
    assert "byhand" in lab.cell.run("qconf", "-sh").stdout
    for words in (
        ("-dattr", "hostgroup", "hostlist", "byhand", "@cod"),
        ("-de", "byhand"),
        ("-dh", "byhand"),
    ):
        lab.cell.run("qconf", *words)


def test_jobs_that_cannot_run_are_no_reason_to_grow(lab: GridLab) -> None:
    before = lab.grants()
    (held,) = lab.submit(1, 0.1, "-h")
    (later,) = lab.submit(1, 0.1, "-a", "202901010000")
    (after,) = lab.submit(1, 0.1, "-hold_jid", str(held))
    (wide,) = lab.submit(1, 0.1, "-pe", "smp", "3")
    lab.submit(1, 0.1, "-l", "arch=sol-sparc")
    lab.submit(1, 0.1, "-l", "hostname=n3.pool.cod.test")
    lab.says(f"no node of this pool could run job {wide}: wants 3 slots on one host, a node has 2")
    lab.says("wants arch=sol-sparc")
    lab.says("wants the host n3")
    time.sleep(3)  # several looks
    assert lab.grants() == before
    assert lab.free() == 3
    assert not lab.memory()["requests"]
    # It is their time now, and one that is in error wants nothing either.
    (lost,) = lab.submit(1, 0.1, "-l", "h_rt=60", "-wd", "/nosuch")
    lab.cell.run("qrls", str(held))
    lab.ended([held, after])
    until(lambda: "Eqw" in lab.cell.run("qstat", "-u", "*").stdout, "it is in error", 180)
    lab.shrunk()
    assert not lab.cell.ran(later)
    assert not lab.cell.ran(lost)


def test_arrays_and_parallel_jobs(lab: GridLab) -> None:
    """Four tasks are worth a node by the site's rule; four slots over hosts of two are worth
    two."""
    before = lab.grants()
    (array,) = lab.submit(1, 0.5, "-h", "-t", "1-4")
    (whole,) = lab.submit(1, 0.5, "-h", "-pe", "smp", "2")
    (across,) = lab.submit(1, 0.5, "-h", "-pe", "mpi", "4")
    lab.release([array, whole, across])
    until(
        lambda: lab.cell.ended(whole) and lab.cell.ended(across),
        "the parallel jobs have ended",
        180,
    )
    until(
        lambda: all(lab.cell.ended(array, str(task)) for task in range(1, 5)),
        "all tasks have ended",
        180,
    )
    lab.once([whole, across])
    assert all(len(lab.cell.ran(array, str(task))) == 2 for task in range(1, 5))
    assert 2 <= lab.grants() - before <= 3


def test_a_vcluster_of_higher_priority_takes_nodes_while_jobs_run(lab: GridLab) -> None:
    """Two nodes of three go: the idle one first, then of the busy ones the one whose job started
    last."""
    lab.fresh(slots=1, jobs_per_node=1, idle_limit=600.0)
    gate = lab.gate()
    (first,) = lab.submit(1, gate)
    until(lambda: lab.placed(first), "the first runs", 180)
    second, brief = lab.submit(1, gate) + lab.submit(1, 0.1)
    until(
        lambda: lab.placed(second) and lab.cell.ended(brief),
        "the second runs, the third has ended",
        180,
    )
    idle = lab.placed(brief)
    assert len({idle, lab.placed(first), lab.placed(second)}) == 3
    loser = lab.placed(second)
    lab.stand.cod(
        "vcluster", "create", "web", "--size", "2", "--template", "exec", "--group", "top"
    )
    until(lambda: lab.active("web") == 2, "the other is there", 180, 0.1)
    until(
        lambda: lab.hosts() == {lab.placed(first)},
        lambda: f"two hosts have left: {lab.instances()}",
        180,
    )
    reclaims = lab.stand.cod("reclaim", "list")
    assert sum(one["given"] for one in reclaims) == 2
    causes = [move["cause"] for name in lab.stand.hosts for move in lab.stand.history(name)]
    assert not [cause for cause in causes if cause.startswith("taken for")]
    lab.stand.cod("vcluster", "delete", "web")
    gate.touch()
    lab.ended([first, second])
    lab.once([first, second], {second: 1})
    assert loser != lab.placed(first)


def test_a_job_that_saves_itself_goes_on_where_it_was(lab: GridLab) -> None:
    """The example programs: before a reclaimed node leaves, its job is told over ssh to save
    itself, and does."""
    cell = lab.cell
    ssh = cell.folder / "ssh"
    ssh.write_text(
        f"#!/bin/sh\nouter=$(cat {cell.folder}/run/${{1#root@}}.pid)\n"
        'exec nsenter -t $(cat /proc/$outer/task/$outer/children) -a sh -c "$2"\n'
    )
    ssh.chmod(0o755)
    lab.fresh(
        slots=1,
        jobs_per_node=1,
        maximum=1,
        save_time=15.0,
        save=(
            f"env SSH={ssh} SPOOL={cell.spool} {EXAMPLES}/save-jobs.sh {cell.jobs}/saved {{jobs}}"
            " {hostname}"
        ),
    )
    _, said, saved = lab.resumable(
        30, "-v", f"SAVED={cell.jobs}/saved", "-o", f"{cell.jobs}/said.$JOB_ID", "-j", "y"
    )
    before = saved.stat().st_ino
    lab.stand.cod(
        "vcluster", "create", "web", "--size", "3", "--template", "exec", "--group", "top"
    )
    until(lambda: saved.stat().st_ino != before, "it has saved itself", 60, 0.05)
    step = int(saved.read_text())
    assert step >= 2
    until(lambda: lab.active("web") == 3, "the other is there", 180, 0.1)
    lab.stand.cod("vcluster", "delete", "web")
    lab.resumed(said, 30, step)


def test_a_node_dies_under_a_job(lab: GridLab) -> None:
    """Grid Engine does not hear of it any more: its job is run on another node, and COD gets it
    back."""
    lab.restart_vcm(slots=1, unheard_limit=5.0)
    gate = lab.gate()
    (job,) = lab.submit(1, gate)
    until(lambda: lab.placed(job), "it runs", 180)
    dead = lab.placed(job)
    machine = next(name for name in lab.stand.hosts if lab.stand.node(name).hostname == dead)
    released = lab.stand.node(machine).generation
    lab.stand[machine].off()
    until(
        lambda: [line.split()[0] for line in lab.cell.ran(job)] == ["start", "start"],
        "it runs again",
        180,
    )
    gate.touch()
    lab.ended([job])
    lab.once([job], {job: 1})
    lab.says(f"{dead} ({machine}) was given back: not heard of for 5 s")
    assert lab.stand.node(machine).generation > released


def test_a_pool_that_cannot_be_understood_is_left_alone(lab: GridLab) -> None:
    """qstat is cut off in the middle: nothing is asked for, nothing goes, and it says so."""
    folder = lab.cell.folder / "commands"
    folder.mkdir()
    for program in BINARIES.iterdir():
        (folder / program.name).symlink_to(program)
    (folder / "qstat").unlink()
    (folder / "qstat").write_text(f'#!/bin/sh\n{BINARIES}/qstat "$@" | head -c 300\n')
    (folder / "qstat").chmod(0o755)
    lab.restart_vcm(slots=1, path=str(folder))
    before = lab.memory()["keys"]
    jobs = lab.submit(2, 0.1)
    lab.says("not so: the pool is looked at: NotUnderstood")
    assert lab.memory()["keys"] == before
    assert lab.free() == 3
    (folder / "qstat").unlink()
    (folder / "qstat").symlink_to(BINARIES / "qstat")
    lab.ended(jobs)
    lab.says("the pool is looked at again")
