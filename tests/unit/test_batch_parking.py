"""Parked nodes: what a pool keeps booted that it would give back, and which of these requests
need."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from cod.policy.sharing.parked import Needs, ParkedNode, needed
from cod.vcm.batch.pool import BatchPool
from cod.vcm.gridengine.view import Waiting
from cod.vcm.pool import Nodeset
from cod.vcm.slurm.settings import SlurmTable
from cod.vcm.slurm.view import JobSize
from cod.wire.nmp.bodies import Reclaim
from tests.unit.test_gridengine_pool import Ground, grows
from tests.unit.test_slurm_pool import Books, member, system

# ---------------------------------------------------------------- the pool


def parking(**rules: Any) -> Ground:
    """A pool of two idle nodes that are given back after 60 s, or parked for ten minutes more."""
    ground = Ground({"idle_limit": 60.0, "park": 600.0, **rules})
    for name in ("n2", "n3"):
        ground.has(name)
    ground.look(0.0)
    return ground


def test_an_idle_node_is_parked_until_its_time_is_over() -> None:
    ground = parking()
    before = ground.look(59.0)
    assert (before.parked, before.leave) == ((), ())
    parked = ground.look(1.0)
    assert (parked.parked, parked.leave) == (("n2", "n3"), ())
    assert ground.look(599.0).parked == ("n2", "n3")
    over = ground.look(1.0)
    assert (over.parked, over.leave, over.why) == ((), ("n2", "n3"), "idle for 660 s")


def test_a_pool_that_parks_no_nodes_gives_them_back_as_before() -> None:
    demand = parking(park=0.0).look(60.0)
    assert (demand.parked, demand.leave, demand.why) == ((), ("n2", "n3"), "idle for 60 s")


def test_a_parked_node_takes_jobs_and_is_idle_anew_after_them() -> None:
    ground = parking()
    assert ground.look(60.0).parked == ("n2", "n3")
    ground.has("n2", 1060.0)
    assert ground.look().parked == ("n3",)
    ground.has("n2")
    assert ground.look().parked == ("n3",)
    assert ground.look(60.0).parked == ("n3", "n2"), "the longest idle is the first to go"


def test_no_more_nodes_are_parked_than_may_be() -> None:
    ground = parking(park_maximum=1)
    ground.has("n4")
    demand = ground.look(60.0)
    assert (demand.parked, demand.leave) == (("n3",), ("n2",))
    demand = ground.look(60.0)
    assert (demand.parked, demand.leave) == (("n4",), ("n2", "n3"))


def test_the_reserve_and_the_minimum_are_not_parked() -> None:
    assert parking(reserve=1).look(60.0).parked == ("n2",)
    assert parking(minimum=2).look(60.0).parked == ()


def test_a_waiting_job_that_a_parked_node_can_run_keeps_it() -> None:
    ground = parking()
    ground.look(60.0)
    ground.cell.waiting = (Waiting(1, "qw"),)
    demand = ground.look()
    assert (demand.parked, demand.leave, grows(demand)) == ((), (), 0)


def test_a_reclaim_takes_parked_nodes_first() -> None:
    ground = parking()
    ground.look(60.0)
    ground.has("n4")
    ground.has("n5", 1000.0)
    ground.look()
    named = ground.pool.choose(Reclaim(1, 3, 9000.0, "others"), ground.members, ground.time.now)
    assert [one.node for one in named] == ["n2", "n3", "n4"]


def test_parked_nodes_make_room_for_a_job_that_needs_another_kind() -> None:
    """Exactly as many as the job lacks, and once: the next look asks for its node."""
    books = Books()
    table = {
        "nodesets": [{"name": "small", "cpus": 2}, {"name": "large", "cpus": 8}],
        "maximum": 2,
        "idle_limit": 60.0,
        "calm": 0.0,
        "park": 600.0,
    }
    pool = BatchPool(SlurmTable.model_validate(table), system(books, **table))
    for number in (2, 3):
        books.registers(number, flags=frozenset())
    members = {f"n{number}": member(number, nodeset="small") for number in (2, 3)}
    pool.look(members, Counter(), 0.0)
    assert pool.look(members, Counter(), 60.0).parked == ("n2", "n3")
    books.submitted(7, size=JobSize(1, 1, 1, 8, node_cpus=8))
    full = pool.look(members, Counter(), 70.0)
    assert (full.leave, full.parked, full.grow) == (("n2",), ("n3",), {})
    assert full.why == "parked, and other nodes are needed"
    del members["n2"], books.nodes["n2"]
    room = pool.look(members, Counter(), 80.0)
    assert (room.leave, room.grow) == ((), {Nodeset("large"): 1})
    assert pool.look(members, Counter({"large": 1}), 90.0).leave == ()


# ---------------------------------------------------------------- which of them requests need

SMALL, LARGE = '<node><memory mib="1024"/></node>', '<node><memory mib="8192"/></node>'
TYPES = {1: SMALL, 2: LARGE}
BIG = '<requires><memory><mib min="4GiB"/></memory></requires>'
PARKED = [ParkedNode("n2", 1, 9, 5), ParkedNode("n3", 2, 9, 5), ParkedNode("n4", 1, 9, 5)]


def test_a_long_queue_is_not_compared_with_each_parked_node() -> None:
    """A VCM asks about its nodes every second, if it likes."""

    class Node(ParkedNode):
        reads = 0

        @property
        def type_id(self) -> int:
            Node.reads += 1
            return 1

    parked = [Node("n2", 1, 9, 5)] * 10
    assert needed(parked, [Needs(8, 1, BIG, 5), Needs(8, 1, "", 5)] * 500, {1: 500}, TYPES) == []
    assert Node.reads == 10


@pytest.mark.parametrize(
    ("waiting", "unheld", "names"),
    [
        pytest.param([], {}, [], id="nobody waits"),
        pytest.param([Needs(8, 1, "", 5)], {}, ["n2"], id="any node is of use"),
        pytest.param([Needs(8, 1, BIG, 5)], {}, ["n3"], id="only matching nodes are"),
        pytest.param([Needs(8, 2, "", 5)], {1: 1}, ["n2"], id="as many as lack"),
        pytest.param([Needs(8, 1, BIG, 5)], {1: 4}, ["n3"], id="others that are free do not match"),
        pytest.param([Needs(8, 1, "", 5)], {2: 1}, [], id="a free node is used first"),
        pytest.param(
            [Needs(8, 1, "", 5), Needs(7, 1, "", 5)], {2: 1}, ["n2"], id="each free node once"
        ),
        pytest.param([Needs(8, 9, "", 5)], {}, ["n2", "n3", "n4"], id="all, where more lack"),
        pytest.param([Needs(9, 1, "", 5)], {}, [], id="its own pool knows of them"),
        pytest.param([Needs(9, 1, "", 6)], {}, ["n2"], id="its own pool, another template"),
    ],
)
def test_which_parked_nodes_requests_need(
    waiting: list[Needs], unheld: dict[int, int], names: list[str]
) -> None:
    assert needed(PARKED, waiting, unheld, TYPES) == names
