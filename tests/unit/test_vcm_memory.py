"""What a VCM makes of reclaims that ask for fewer than before."""

from __future__ import annotations

from cod.vcm.memory import Memory, Ours
from cod.wire.nmpbodies import Member, Named, Reclaim, ReclaimOver


def remembered() -> Memory:
    """Reclaim 5 has been answered: n1 by 100, n2 by 300, n3 by 200; n4 is lost, n5 was promised to reclaim 6."""
    memory = Memory()
    for name, reclaim, by, state in (("n1", 5, 100.0, "active"), ("n2", 5, 300.0, "active"), ("n3", 5, 200.0, "active"),
                                     ("n4", 5, 400.0, "lost"), ("n5", 6, 400.0, "active"), ("n6", 0, 0.0, "active")):
        member = Member(name, name, "10.0.0.1", state, "web@1", "small")
        memory.nodes[name] = Ours(member, True, "reclaimed" if reclaim else "", reclaim, by)
    return memory


def leaving(memory: Memory) -> list[str]:
    return [name for name, ours in memory.nodes.items() if ours.leaving]


def asked(count: int) -> Reclaim:
    return Reclaim(5, count, 500.0, "request 9 is short of fewer", "", tuple(map(Named, ("n1", "n2", "n3"))))


def test_of_those_that_were_promised_the_ones_that_take_longest_stay() -> None:
    memory = remembered()
    memory.hear(asked(2))
    assert leaving(memory) == ["n1", "n3", "n4", "n5"]
    memory.hear(asked(1))
    assert leaving(memory) == ["n1", "n4", "n5"]
    assert (memory.nodes["n2"].reclaim, memory.nodes["n2"].within) == (0, 0.0)
    assert list(memory.reclaims) == [5], "it is answered anew"


def test_asked_for_as_many_as_before_all_go() -> None:
    memory = remembered()
    memory.hear(asked(3))
    assert leaving(memory) == ["n1", "n2", "n3", "n4", "n5"]


def test_a_reclaim_that_is_cancelled_lets_all_stay() -> None:
    memory = remembered()
    memory.hear(asked(2))
    memory.hear(ReclaimOver(5, "cancelled"))
    assert (leaving(memory), memory.reclaims) == (["n5"], {})
