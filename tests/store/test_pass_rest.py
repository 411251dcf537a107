"""A whole pass over a site with contention: what is planned is done, and the next passes come to
rest."""

from __future__ import annotations

from collections import Counter

import pytest
from sqlalchemy import Engine, select

from cod.flows.scheduler import apply_plan as acting
from cod.flows.scheduler import plan as flow
from cod.model import Site
from cod.store import claims
from cod.store import tables as t
from tests.bench.pass_world import NOW, SITE, Size, fill
from tests.store.manager_world import add_node, add_template, in_tx


def run_pass(engine: Engine, site: Site = SITE, now: float = NOW) -> Counter[str]:
    """Load, plan, and each act in a transaction of its own; how many acts there were of each name,
    without ids."""
    claim = in_tx(engine, claims.hold, "manager", "a", now, 60.0)
    with engine.begin() as tx:
        planned = flow.decide(flow.snapshot(tx, site, now), site, now)
    done: Counter[str] = Counter()
    for act in acting.acts(planned, site):
        with engine.begin() as tx:
            # nobody interferes: `Stale` would be a plan that cannot be done
            act.flow(tx, claim=claim, now=now)
        done[act.name.rstrip(" 0123456789")] += 1
    return done


@pytest.mark.slow
def test_a_plan_is_done_as_planned_and_the_next_passes_come_to_rest(engine: Engine) -> None:
    fill(engine, Size(800, 60))
    first = run_pass(engine)
    assert first["grant request"] > 20
    assert first["take for request"] > 2
    second = run_pass(engine)
    assert second["grant request"] == 0, (
        "what was not granted at first is not, when nothing has changed"
    )
    for _ in range(4):
        if not run_pass(engine):
            break
    assert run_pass(engine) == Counter()


def test_tuples_served_from_one_lot_get_different_nodes(engine: Engine) -> None:
    """Each share is picked by rule, not by id: two shares of a pool must not pick the same node."""
    with engine.begin() as tx:
        template_id = add_template(tx)
        for number in range(2):
            add_node(tx, number)
        tx.execute(t.groups.insert().values(id=1, name="g", priority=0, created_at=0.0))
        tx.execute(
            t.vclusters.insert().values(
                id=1,
                name="v",
                live_name="v",
                group_id=1,
                state="pending",
                template_id=template_id,
                size=2,
                creation_size=2,
                subnet="lab",
                lease_time=60.0,
                created_at=0.0,
            )
        )
        tx.execute(
            t.vcluster_blocks.insert().values(
                vcluster_id=1, subnet="lab", first_address=0x0A4D8000, last_address=0x0A4D803F
            )
        )
        tx.execute(
            t.node_requests.insert().values(
                id=1, vcluster_id=1, kind="create", state="pending", priority=0, submitted_at=0.0
            )
        )
        tx.execute(
            t.request_tuples.insert(),
            [
                {
                    "request_id": 1,
                    "position": place,
                    "count": 1,
                    "attributes": "",
                    "template_id": template_id,
                }
                for place in range(2)
            ],
        )
    assert run_pass(engine, now=100.0)["grant request"] == 1
    with engine.begin() as tx:
        assert set(tx.scalars(select(t.nodes.c.vcluster_id))) == {1}
