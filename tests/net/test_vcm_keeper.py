"""A VCM's keeper against the real server, each killed at every step it takes: it always comes to the same end."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from cod.flows import vclusters
from cod.model import Site
from cod.pool import in_transaction
from cod.store import requests, vcms
from cod.store import tables as t
from cod.store.engine import Tx, connect
from tests.net.vcmlab import Lab, furnish

Make = Callable[[], Lab]


@pytest.fixture
def lab(tmp_path: Path, empty_sqlite: Path, site: Site) -> Iterator[Make]:
    """Makes labs, each with a database of its own."""
    quick = replace(site, policy=replace(site.policy, inertia=0.0))
    shutil.copy(empty_sqlite, tmp_path / "first.db")
    engine = connect(f"sqlite:///{tmp_path}/first.db")
    in_transaction(engine, furnish, quick)
    engine.dispose()
    made: list[Lab] = []
    numbers = count()

    def make() -> Lab:
        number = next(numbers)
        shutil.copy(tmp_path / "first.db", tmp_path / f"{number}.db")
        made.append(Lab(tmp_path / f"{number}.db", quick, tmp_path / f"{number}.json"))
        return made[-1]

    yield make
    for one in made:
        one.close()


# ---------------------------------------------------------------- a story, told with deaths in it


def story(lab: Lab) -> None:
    """It grows by two, loses one to a vcluster of higher priority, asks for another in vain, and shrinks."""
    lab.books.want = 3
    lab.until(lambda: len(lab.books.members) == 3, "the pool has three nodes")
    in_transaction(lab.engine, vclusters.create, name="web", size=3, template="debian", group="top", site=lab.site,
                   now=lab.now())
    lab.until(lambda: len(lab.held("web")) == 3, "the other has three nodes")
    lab.until(lambda: pending(lab) == 1, "the pool asks for another in its place")
    lab.books.want = 2
    lab.until(lambda: pending(lab) == 0, "it takes that back")
    lab.books.want = 1
    lab.until(lambda: len(lab.held("pool")) == 1, "it has shrunk")
    lab.until(lambda: calm(lab), "nothing is left to do")


def calm(lab: Lab) -> bool:
    memory = lab.keeper.memory
    owed = in_transaction(lab.engine, vcms.owed, {1: 0})
    return not (memory.requests or memory.reclaims or owed or any(
        ours.leaving or ours.lost or not ours.added for ours in memory.nodes.values()))


def pending(lab: Lab) -> int:
    return len(in_transaction(lab.engine, _pending))


def _pending(tx: Tx) -> list[Any]:
    return requests.every(tx, states=["pending"], vcluster_id=1)


def check(lab: Lab) -> None:
    """Every node once, no request lost or doubled, nothing seized."""
    assert lab.books.members.keys() == lab.held("pool") == {"n1"}
    assert len(lab.keeper.memory.nodes) == 1
    assert len(lab.held("web")) == 3
    with lab.engine.connect() as tx:
        r, k = t.node_requests.c, t.reclaims.c
        grown = tx.execute(select(r.state).where(r.vcluster_id == 1, r.kind == "grow").order_by(r.id)).scalars().all()
        assert sorted(grown) == ["granted", "granted", "withdrawn"]
        assert tx.execute(select(k["count"], k.given, k.state)).all() == [(1, 1, "done")]
        causes = tx.execute(select(t.node_history.c.cause)).scalars().all()
        assert not [cause for cause in causes if "taken for" in cause]


def test_the_story_without_a_death(lab: Make) -> None:
    one = lab()
    one.start_cod()
    one.start_vcm()
    story(one)
    check(one)
    assert {"say request-nodes", "say reclaim-answer", "say release-nodes", "say withdraw", "hear grant",
            "hear reclaim", "hear reclaim-over", "choose", "added", "removed", "remember"} <= set(one.vcm.steps)


def steps(lab: Make, who: str) -> int:
    one = lab()
    one.start_cod()
    one.start_vcm()
    story(one)
    return len(getattr(one, who).steps)


@pytest.mark.parametrize("who", ["vcm", "cod"])
def test_killed_at_some_steps(lab: Make, who: str) -> None:
    for k in range(1, steps(lab, who), 37 if who == "vcm" else 16):
        killed_at(lab(), who, k)


@pytest.mark.slow
@pytest.mark.parametrize("who", ["vcm", "cod"])
def test_killed_at_every_step(lab: Make, who: str) -> None:
    for k in range(1, steps(lab, who)):
        killed_at(lab(), who, k)


def killed_at(lab: Lab, who: str, k: int) -> None:
    lab.start_cod(k if who == "cod" else 0)
    lab.start_vcm(k if who == "vcm" else 0)
    victim = getattr(lab, who)
    try:
        story(lab)
        check(lab)
        assert victim.dead
    except AssertionError as error:
        raise AssertionError(f"{who} killed at step {k}, {victim.steps[-3:]}: {error}") from error
    finally:
        lab.close()
