"""What a VCM makes of reclaims that ask for fewer than before, and of nodes that go and come
again."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from cod.vcm.pool import Member, Nodeset
from cod.vcm.state import OpenRequest, OwnNode, VcmState, load, save
from cod.wire.nmp import bodies
from cod.wire.nmp.bodies import Grant, Named, NodeState, Reclaim, ReclaimOver, Vcluster


def remembered() -> VcmState:
    """Reclaim 5 has been answered: n1 by 100, n2 by 300, n3 by 200; n4 is lost, n5 was promised to
    reclaim 6."""
    state = VcmState()
    for name, reclaim, by, was in (
        ("n1", 5, 100.0, "active"),
        ("n2", 5, 300.0, "active"),
        ("n3", 5, 200.0, "active"),
        ("n4", 5, 400.0, "lost"),
        ("n5", 6, 400.0, "active"),
        ("n6", 0, 0.0, "active"),
    ):
        member = Member(name, name, "10.0.0.1", was, "web@1", "small")
        state.nodes[name] = OwnNode(member, True, "reclaimed" if reclaim else "", reclaim, by)
    return state


def leaving(state: VcmState) -> list[str]:
    return [name for name, ours in state.nodes.items() if ours.leaving]


def asked(count: int) -> Reclaim:
    return Reclaim(
        5, count, 500.0, "request 9 is short of fewer", "", tuple(map(Named, ("n1", "n2", "n3")))
    )


def test_of_those_that_were_promised_the_ones_that_take_longest_stay() -> None:
    state = remembered()
    state.hear(asked(2))
    assert leaving(state) == ["n1", "n3", "n4", "n5"]
    state.hear(asked(1))
    assert leaving(state) == ["n1", "n4", "n5"]
    assert (state.nodes["n2"].reclaim, state.nodes["n2"].within) == (0, 0.0)
    assert list(state.reclaims) == [5], "it is answered anew"


def test_asked_for_as_many_as_before_all_go() -> None:
    state = remembered()
    state.hear(asked(3))
    assert leaving(state) == ["n1", "n2", "n3", "n4", "n5"]


def test_a_reclaim_that_is_cancelled_lets_all_stay() -> None:
    state = remembered()
    state.hear(asked(2))
    state.hear(ReclaimOver(5, "cancelled"))
    assert (leaving(state), state.reclaims) == (["n5"], {})


# ---------------------------------------------------------------- nodes that come again


def member(hostname: str, state: str = "active", node: str = "node7") -> Member:
    return Member(node, hostname, "10.0.0.7", state, "web@1", "small")


def granted(hostname: str) -> Grant:
    return Grant(1, "", 0.0, (member(hostname, "prime"),))


def has(state: VcmState) -> dict[str, tuple[str, str, bool]]:
    """Key -> its hostname, state, and whether it is in the pool."""
    return {
        key: (ours.member.hostname, ours.member.state, ours.added)
        for key, ours in state.nodes.items()
    }


@pytest.mark.parametrize("hostname", ["n4", "n9"])
def test_a_node_that_is_lost_and_comes_anew_is_struck_off_all_the_same(
    hostname: str, tmp_path: Path
) -> None:
    """Strike a lost node off: its jobs would count as running for ever, on a host that is not
    there."""
    state = VcmState("pool", nodes={"node7": OwnNode(member("n4"), added=True)})
    state.hear(NodeState("node7", "n4", "", "lost"))
    state.hear(granted(hostname))
    assert has(state) == {"node7": (hostname, "prime", False), "node7/n4": ("n4", "lost", True)}
    save(state, tmp_path / "state.json")
    assert load(tmp_path / "state.json", "pool") == state  # also after a restart
    state.hear(NodeState("node7", hostname, "", "active"))  # that is the new one
    assert has(state)["node7/n4"] == ("n4", "lost", True)
    assert set(state.hosts()) == {hostname}
    assert state.forget(state.nodes["node7/n4"])
    assert has(state) == {"node7": (hostname, "active", False)}
    assert not state.forget(OwnNode(member("n4")))


def test_the_whole_picture_shows_a_node_under_another_name() -> None:
    """Show a node under another name that was given away and came again while its manager was
    away."""
    state = VcmState(
        "pool",
        nodes={
            "node7": OwnNode(member("n4"), True),
            "node8": OwnNode(member("n5", node="node8"), True),
        },
    )
    state.learn(Vcluster("pool", "active", 2, 1, 0.0, (member("n9"), member("n5", node="node8"))))
    assert has(state) == {
        "node7": ("n9", "active", False),
        "node7/n4": ("n4", "lost", True),
        "node8": ("n5", "active", True),
    }


def test_the_whole_picture_shows_a_node_that_was_lost() -> None:
    state = VcmState("pool", nodes={"node7": OwnNode(member("n4", "lost"), added=True)})
    state.learn(Vcluster("pool", "active", 1, 1, 0.0, (member("n4"),)))
    assert has(state) == {"node7": ("n4", "active", False), "node7/n4": ("n4", "lost", True)}


def test_a_grant_that_the_picture_had_already_strikes_nobody_off() -> None:
    state = VcmState("pool")
    state.learn(Vcluster("pool", "active", 1, 1, 0.0, (member("n4"),)))
    state.hear(granted("n4"))
    assert has(state) == {"node7": ("n4", "prime", False)}


# ---------------------------------------------------------------- nodesets


def test_what_was_asked_for_as_what_is_remembered_from_the_request_to_the_node(
    tmp_path: Path,
) -> None:
    gpu = Nodeset("gpu", requires="<requires/>")
    state = VcmState(
        "pool", sure=True, requests={"k1": OpenRequest(1, 7, gpu), "k2": OpenRequest(1)}
    )
    save(state, tmp_path / "state.json")
    read = load(tmp_path / "state.json", "pool")
    assert read is not None
    assert read.requests == state.requests
    read.hear(Grant(7, "k1", 0.0, (told("n4", "prime"),)))
    assert read.coming() == {"gpu": 1, "": 1}
    assert read.nodes["node7"].member.nodeset == "gpu"
    read.learn(Vcluster("pool", 0.0, (told("n4", "active"),), (), ()))
    assert read.nodes["node7"].member.nodeset == "gpu"
    save(read, tmp_path / "state.json")
    assert load(tmp_path / "state.json", "pool") == read


def test_a_file_of_before_there_were_nodesets_is_read(tmp_path: Path) -> None:
    state = VcmState(
        "pool", requests={"k1": OpenRequest(1, 7)}, nodes={"node7": OwnNode(member("n4"), True)}
    )
    known = dataclasses.asdict(state)
    del known["requests"]["k1"]["nodeset"], known["nodes"]["node7"]["member"]["nodeset"]
    del known["nodes"]["node7"]["member"]["since"]
    (tmp_path / "state.json").write_text(json.dumps(known))
    assert load(tmp_path / "state.json", "pool") == state


def told(hostname: str, state: str) -> bodies.Member:
    return bodies.Member("node7", hostname, "10.0.0.7", state, "web@1", "small")


def test_a_node_that_starts_anew_is_new_to_the_pool() -> None:
    ours = OwnNode(dataclasses.replace(member("n4"), since=50.0), added=True)
    state = VcmState("pool", nodes={"node7": ours})
    state.hear(NodeState("node7", "n4", "booting", "10.0.0.7"))
    assert (ours.added, ours.member.since) == (False, 0.0)
