"""What waiting Slurm jobs are worth in nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cod.vcm.batch.commands import NotUnderstood
from cod.vcm.pool import ANY, Nodeset
from cod.vcm.slurm.constraints import matches
from cod.vcm.slurm.needs import NodeKind, Plan, Rules, could_run, plan
from cod.vcm.slurm.view import JobSize, SlurmJob, SlurmNode, task_ids

RULES = Rules("vc")
ALIKE = NodeKind(ANY, 2, 1000, features=frozenset({"cod"}))
SMALL = NodeKind(Nodeset("small"), 2, 4000, features=frozenset({"cod"}))
GPU = NodeKind(Nodeset("gpu"), 8, 64000, {"gpu": 4, "gpu:a100": 4}, frozenset({"cod", "gpu"}))


def job(
    number: int = 1, reason: str = "Resources", *, state: str = "PENDING", **fields: Any
) -> SlurmJob:
    known = {name: fields.pop(name) for name in list(fields) if name in SlurmJob.__slots__}
    return SlurmJob(
        number,
        state,
        reason,
        **{"name": str(number), "partitions": frozenset({"vc"}), **known},
        size=JobSize(**fields),
    )


def node(name: str, cpus: int = 2, used: int = 0, **fields: Any) -> SlurmNode:
    return SlurmNode(
        name,
        "",
        "idle",
        partitions=frozenset({"vc"}),
        cpus=cpus,
        cpus_used=used,
        **{"memory": 1000, "features": frozenset({"cod"}), **fields},
    )


def planned(
    *jobs: SlurmJob,
    there: Sequence[SlurmNode] = (),
    coming: Mapping[str, int] | None = None,
    kinds: Sequence[NodeKind] = (ALIKE,),
    rules: Rules = RULES,
    fixed: Sequence[str] = (),
) -> Plan:
    return plan(jobs, there, coming or {}, kinds, rules, fixed)


def nodes(*jobs: SlurmJob, **also: Any) -> int:
    return planned(*jobs, **also).nodes.total()


# ---------------------------------------------------------------- which count


@pytest.mark.parametrize(
    "reason",
    ["None", "Resources", "Priority", "PartitionConfig", "PartitionNodeLimit", "ReqNodeNotAvail"],
)
def test_jobs_that_wait_for_room_count(reason: str) -> None:
    assert nodes(job(reason=reason)) == 1


@pytest.mark.parametrize(
    "reason",
    [
        "JobHeldUser",
        "JobHeldAdmin",
        "Dependency",
        "DependencyNeverSatisfied",
        "BeginTime",
        "JobArrayTaskLimit",
        "QOSMaxJobsPerUserLimit",
        "AssocGrpCpuLimit",
        "Licenses",
        "Reservation",
        "BadConstraints",
        "PartitionDown",
        "WhateverIsNew",
    ],
)
def test_jobs_that_would_not_start_do_not(reason: str) -> None:
    found = planned(job(reason=reason))
    assert (found.nodes.total(), found.jobs, found.never) == (0, 0, [])


def test_other_jobs_that_do_not_count() -> None:
    assert not nodes(
        job(state="RUNNING"),
        job(2, partitions=frozenset({"other"})),
        job(3, reservation="maintenance"),
        job(4, state="REQUEUE_HOLD"),
    )


def test_a_job_that_slurm_has_not_looked_at_yet_counts_only_where_nothing_else_keeps_it() -> None:
    assert nodes(job(reason="None", eligible=False)) == 0
    assert nodes(job(reason="ReqNodeNotAvail", eligible=False)) == 0
    assert nodes(job(reason="ReqNodeNotAvail")) == 1
    assert nodes(job(reason="Resources", eligible=False)) == 1


def test_a_job_that_was_put_back_counts_though_its_time_is_seconds_away() -> None:
    assert nodes(job(reason="BeginTime", restarts=1)) == 1


def test_an_array_counts_as_many_tasks_as_may_run() -> None:
    array = job(10, array=10, array_tasks="1-100", limit=10)
    assert planned(array).jobs == 10
    assert nodes(array) == 5  # of two CPUs
    running = [job(number, array=10, limit=10, state="RUNNING") for number in range(11, 18)]
    assert planned(array, *running).jobs == 3
    back = job(30, "BeginTime", array=10, name="10_4", limit=10, restarts=1, priority=9)
    assert planned(array, back, *running).jobs == 3  # the one that was put back is one of the ten
    assert nodes(job(10, array=10, array_tasks="1-100")) == 50
    assert nodes(job(10, array=10, array_tasks="1,3,5-9:2")) == 3


# ---------------------------------------------------------------- what they are worth


def test_a_job_goes_onto_what_is_free_then_what_comes_then_what_is_new() -> None:
    three = [job(number) for number in range(3)]
    found = planned(*three, there=[node("n2", used=1)], coming={"": 1})
    assert found.nodes == {ANY: 1}
    assert found.placed == {"0": ("n2",)}
    assert nodes(*three, there=[node("n2")], coming={"": 3}) == 1
    assert nodes(*three, there=[node("n2"), node("n3")]) == 0
    assert nodes(*three, there=[node("n2", used=2)]) == 2


def test_several_cpus_and_tasks() -> None:
    assert nodes(job(tasks=1, cpus=2, node_cpus=2), job(2, tasks=1, cpus=1)) == 2
    assert nodes(job(tasks=5, cpus=5)) == 3  # wherever they fit
    assert nodes(job(tasks=5, cpus=5), there=[node("n2", used=1)]) == 2
    assert nodes(job(tasks=6, cpus=6, tasks_per_node=1)) == 6
    # `least` is Slurm's guess where the owner does not say
    assert nodes(job(least=2, tasks=5, cpus=5)) == 3


def test_a_job_on_several_nodes() -> None:
    four = job(least=4, most=4, tasks=4, cpus=4)
    assert nodes(four) == 4
    assert nodes(four, coming={"": 4}) == 4
    assert nodes(four, there=[node("n2"), node("n3", used=1), node("n4", used=2)]) == 2
    assert nodes(four, there=[node(f"n{number}") for number in range(4)]) == 0
    assert nodes(four, job(2, tasks=4, cpus=4)) == 4  # the other CPU of each
    assert nodes(job(least=2, most=4, tasks=6, cpus=6)) == 3
    assert planned(job(least=2, most=2, tasks=5, cpus=5)).never == [
        "job 1: wants 5 tasks on 2 nodes at most, a node takes 2"
    ]


def test_exclusive_jobs_share_nothing() -> None:
    alone = job(whole=True)
    assert nodes(alone, there=[node("n2", used=1)]) == 1
    assert nodes(alone, job(2), there=[node("n2")]) == 1
    assert nodes(job(), job(2), rules=Rules("vc", alone=True)) == 2


def test_jobs_get_whole_cores_where_slurm_gives_those() -> None:
    """Four one-CPU jobs fill two cores of two threads each, not one node of four CPUs by halves."""
    four = [job(number) for number in range(4)]
    kind, cores = NodeKind(ANY, 4, threads=2), Rules("vc", unit="core")
    assert (nodes(*four, kinds=[kind]), nodes(*four, kinds=[kind], rules=cores)) == (1, 2)
    assert nodes(*four, there=[node("n2", 4, threads=2)], kinds=[kind], rules=cores) == 1
    # tasks of one job share a core
    assert nodes(job(tasks=4, cpus=4), kinds=[kind], rules=cores) == 1
    assert (
        nodes(*four, there=[node("n2", 8, threads=2, cores=2)], rules=Rules("vc", unit="socket"))
        == 1
    )


def test_memory_is_used_up_where_slurm_counts_it() -> None:
    half = [job(number, memory=500) for number in range(2)]
    most = [job(number, memory=600) for number in range(2)]
    counted = Rules("vc", memory=True)
    assert (nodes(*half, rules=counted), nodes(*most, rules=counted), nodes(*most)) == (1, 2, 1)
    assert nodes(job(tasks=4, cpus=4, cpu_memory=600), rules=counted) == 4
    assert nodes(job(), job(2), rules=counted) == 2  # a job that does not say gets all of it
    assert nodes(job(), job(2), rules=counted, kinds=[NodeKind(ANY, 2)]) == 2
    assert planned(job(memory=2000)).never == ["job 1: wants 2000 MiB on a node, a node has 1000"]
    assert not planned(job(memory=2000), kinds=[NodeKind(ANY)]).never  # not known yet


def test_nodesets() -> None:
    two = (SMALL, GPU)
    assert planned(job(), kinds=two).nodes == {SMALL.nodeset: 1}
    assert planned(job(features="gpu"), kinds=two).nodes == {GPU.nodeset: 1}
    assert planned(job(tasks=1, cpus=4, node_cpus=4), kinds=two).nodes == {GPU.nodeset: 1}
    assert planned(job(memory=8000), kinds=two).nodes == {GPU.nodeset: 1}
    gpus = job(node_gres="gres:gpu:3"), job(2, node_gres="gres:gpu:a100:2")
    assert planned(*gpus, kinds=two).nodes == {GPU.nodeset: 2}
    assert planned(job(tasks=4, cpus=4, task_gres="gres:gpu:2"), kinds=two).nodes == {
        GPU.nodeset: 2
    }
    assert planned(job(job_gres="gres:gpu:6"), kinds=two).nodes == {GPU.nodeset: 2}
    assert planned(job(), job(2, features="gpu"), kinds=two, coming={"gpu": 1}).nodes == {
        GPU.nodeset: 1
    }
    assert planned(job(node_gres="gres:fpga:1"), kinds=two).never == [
        "job 1: nodeset small: wants fpga:1 on a node, a node has 0; nodeset gpu: wants fpga:1 on a"
        " node, a node has 0"
    ]


def test_jobs_that_no_node_could_run_are_named() -> None:
    assert planned(job(tasks=1, cpus=4, node_cpus=4)).never == [
        "job 1: wants 4 CPUs on a node, a node has 2"
    ]
    assert planned(job(features="ssd")).never == ["job 1: wants the features ssd, a node has cod"]
    assert planned(job(cpu_memory=2000)).never == [
        "job 1: wants 2000 MiB for each CPU, a node has 1000 for 2"
    ]
    assert planned(job(features="cod*2")).never == [
        "job 1: asks for what this VCM does not read: the constraint 'cod*2'"
    ]
    assert planned(job(required=("n7",))).never == [
        "job 1: wants n7 by name, and a new node may be another"
    ]
    busy = planned(job(required=("n2",)), there=[node("n2", used=2)])
    assert (busy.never, busy.nodes.total()) == ([], 0)  # it waits for that one
    large = planned(job(tasks=1, cpus=8, node_cpus=8), there=[node("big", 8, 8)])
    assert (large.never, large.nodes.total()) == ([], 0)  # a node that is not COD's could run it
    assert not nodes(job(excluded=("n2",)), there=[node("n2"), node("n3")])


def test_higher_priority_goes_first() -> None:
    low, high = job(1, priority=1, memory=900), job(2, priority=9)
    found = planned(low, high, there=[node("n2", 1)])
    assert found.placed == {"2": ("n2",)}


def test_hosts_where_a_job_could_start_some_time() -> None:
    sizes = planned(job(tasks=1, cpus=2, node_cpus=2)).sizes
    assert could_run(sizes, node("n2", used=2), RULES)
    assert not could_run(sizes, node("n3", 1), RULES)
    assert not could_run((), node("n2"), RULES)


@pytest.mark.slow
def test_a_long_queue_is_counted_quickly_and_up_to_the_limit() -> None:
    queue = [job(number, tasks=1 + number % 2, cpus=1 + number % 2) for number in range(20_000)]
    found = planned(
        *queue,
        there=[node(f"n{number}", used=1) for number in range(200)],
        rules=Rules("vc", limit=64),
    )
    assert found.jobs == 20_000
    assert 64 <= found.nodes.total() <= 66


@given(
    st.lists(
        st.builds(
            lambda number, tasks, each: job(number, tasks=tasks, cpus=tasks * each, node_cpus=each),
            st.integers(1, 10**6),
            st.integers(1, 6),
            st.integers(1, 2),
        ),
        max_size=8,
    ),
    st.lists(st.integers(0, 2), max_size=5),
    st.integers(0, 5),
)
def test_no_node_is_counted_beyond_what_the_jobs_fill(
    queue: list[SlurmJob], used: list[int], coming: int
) -> None:
    there = [node(f"n{number}", used=busy) for number, busy in enumerate(used)]
    found = planned(*queue, there=there, coming={"": coming})
    cpus = sum(job.size.cpus for job in queue)
    free = sum(2 - busy for busy in used)
    assert found.nodes.total() >= max(0, -(-(cpus - free) // 2))
    assert found.nodes.total() <= sum(job.size.tasks for job in queue)
    # asked for once
    assert planned(*queue, there=there, coming={"": found.nodes.total()}).nodes == found.nodes


@pytest.mark.parametrize(
    ("constraint", "holds"),
    [
        ("a", True),
        ("c", False),
        ("a&b", True),
        ("a&c", False),
        ("a|c", True),
        ("c|d", False),
        ("c|a&b", True),
        ("a|b&c", False),
        ("a|(b&c)", True),
        ("[a|c]", True),
        ("[c|d]&a", False),
        (" a & b ", True),
    ],
)
def test_constraints(constraint: str, holds: bool) -> None:
    assert matches(constraint, frozenset({"a", "b"})) is holds


@pytest.mark.parametrize("constraint", ["a*2", "a&", "&a", "(a", "a)", "a b", "[a|b)", "()", "!a"])
def test_constraints_that_are_not_read(constraint: str) -> None:
    with pytest.raises(NotUnderstood):
        matches(constraint, frozenset({"a"}))


def test_task_lists() -> None:
    assert list(task_ids("1,3,5-9:2%2")) == [1, 3, 5, 7, 9]


# ---------------------------------------------------------------- as large as it may be


def test_a_job_that_the_largest_pool_could_not_run_makes_nothing_grow() -> None:
    """Such a job would have all of the nodes, and keep them for ever."""
    most = Rules("vc", limit=4)
    found = planned(job(least=5, most=5, tasks=5, cpus=5), rules=most)
    assert (found.nodes, found.sizes, found.never) == (
        {},
        set(),
        ["job 1: wants 5 nodes at once, there are 4 such at most"],
    )
    found = planned(job(tasks=9, cpus=9), rules=most)
    assert found.never == [
        "job 1: wants 9 tasks at once, the 4 nodes that there are at most take 8"
    ]
    assert nodes(job(least=4, most=5, tasks=8, cpus=8), rules=most) == 4
    there = [node("n1"), node("n2")]
    assert nodes(job(least=5, most=5, tasks=5, cpus=5), rules=most, there=there, fixed=["n2"]) == 3
    assert planned(job(least=5, most=5, tasks=5, cpus=5), rules=most, there=there).never
    guessed = NodeKind(ANY, features=frozenset({"cod"}), guessed=True)
    assert nodes(job(tasks=9, cpus=9), rules=most, kinds=[guessed]) >= 4


def test_jobs_for_nodes_that_wait_are_not_behind_those_for_which_the_pool_is_too_small() -> None:
    rules, ready = (
        Rules("vc", alone=True, limit=2),
        node("n1", 8, features=frozenset({"cod", "gpu"}), gres={"gpu": 4}),
    )
    many = [job(number, priority=9, features="slow") for number in range(1, 9)]
    slow = NodeKind(Nodeset("slow"), 2, features=frozenset({"cod", "slow"}))
    found = planned(
        *many, job(20, node_gres="gpu:1"), kinds=[slow, GPU], there=[ready], rules=rules
    )
    assert (found.placed, found.nodes) == ({"20": ("n1",)}, {slow.nodeset: 2})


# ---------------------------------------------------------------- maintenance


def test_a_job_that_is_too_long_for_a_node_before_its_maintenance_wants_another() -> None:
    near = node("n2", left=3600.0)
    assert nodes(job(lasts=3600.0), there=[near]) == 0
    assert nodes(job(lasts=3601.0), there=[near]) == 1
    assert nodes(job(), there=[near]) == 1  # it has no limit
    assert nodes(job(), there=[near, node("n3")]) == 0
    assert nodes(job(lasts=60.0), job(2, lasts=7200.0), there=[near]) == 1


def test_limits_make_no_sizes_where_no_maintenance_is_near() -> None:
    """Thousands of jobs that differ in their limits alone are of one size."""
    found = planned(*(job(number, lasts=60.0 * number) for number in range(9)), there=[node("n2")])
    assert len(found.sizes) == 1
