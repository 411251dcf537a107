"""The life of a world, from the seed to its outcome: its database, what it comes to, the same
without faults, with fewer acts, and its story."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from sqlalchemy import Engine, insert

from cod.model import TypeRules
from cod.policy.hardware import equal
from cod.states import Disk, NodeState
from cod.store import tables as t
from cod.store.database import connect
from cod.store.engine import Tx
from cod.store.nodes import nodes, types
from cod.store.people import groups
from tests.world import table
from tests.world.machine import hardware, mac_of
from tests.world.network import Weather
from tests.world.plan import Act, Plan, plan
from tests.world.world import GROUPS, START, Outcome, World

TEMPLATE = (
    '<template cache="no"><image target="disk" url="http://10.77.0.9/a.zst" size="1000000"'
    f' sha256="{"ab" * 32}" compression="zstd"/><personalise seed="nocloud">'
    "<user-data>#cloud-config</user-data></personalise></template>"
)


def furnish(tx: Tx, machines: int, rules: TypeRules) -> None:
    """Groups, templates, and machines that are known, off and clean."""
    for name, priority in GROUPS.items():
        groups.add(tx, name, START, priority=priority)
    for name in ("red", "blue"):
        tx.execute(
            insert(t.config_templates).values(
                name=name, revision=1, document=TEMPLATE, digest="0" * 64, created_at=START
            )
        )
    for number in range(machines):
        report = hardware(number)
        path = f"bmc/m{number}"
        nodes.add(
            tx,
            name=f"m{number}",
            boot_mac=mac_of(number),
            now=START,
            cause="test",
            actor="test",
            state=NodeState.OFF,
            disk=Disk.CLEAN,
            power_driver="lab",
            power_address=f"{path}#{mac_of(number)}",
            attributes=report,
            reported_at=START,
            type_id=types.of(tx, equal.canonical(report, rules), START).id,
        )


_engine: list[Engine] = []


def engine_of(machines: int) -> Engine:
    """Return the one database in memory, made anew."""
    if not _engine:
        _engine.append(connect("sqlite://"))
    engine = _engine[0]
    t.metadata.drop_all(engine)
    t.metadata.create_all(engine)
    with engine.begin() as tx:
        furnish(tx, machines, TypeRules())
    return engine


def live(
    seed: int,
    skip: Collection[int] = (),
    *,
    acts: Sequence[Act] = (),
    calm: bool = False,
    short: bool = False,
) -> Outcome:
    """Run the world of a seed, without the acts of those numbers.

    short    its short form: fewer machines and acts, in less time
    acts     if any, it has these alone, and no world to compare with
    calm     its network and its database are well
    """
    planned = plan(seed, short=short)
    if acts:
        planned.acts, planned.compared, planned.volumes = list(acts), False, False
    if calm:
        planned.weather, planned.chances = Weather(), dict.fromkeys(planned.chances, 0.0)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        world = World(seed, engine_of(planned.machines), Path(folder), planned)
        outcome = world.run(skip)
        if planned.compared and world.holdings is not None and not outcome.troubles:
            compare(world, planned)
        return outcome


def row_of(seed: int, short: bool) -> table.WorldRow:
    """Run the world of a seed; return its row of the table."""
    began = time.process_time()
    outcome = vars(live(seed, short=short))
    kept = {
        name: outcome[name] for name in ("seed", "steps", "transactions", "seconds", "troubles")
    }
    cpu, seen = time.process_time() - began, dict(outcome["seen"])
    return table.WorldRow(program=table.program(), cpu=cpu, seen=seen, short=short, **kept)


def compare(world: World, planned: Plan) -> None:
    """Check that virtual clusters have at rest what they have where the same is asked, and nothing
    goes wrong."""
    well = replace(
        planned, acts=[], weather=Weather(), chances=dict.fromkeys(planned.chances, 0.0), servers=1
    )
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        other = World(world.seed, engine_of(planned.machines), Path(folder), well, world.past)
        without = other.run()
    world.outcome.steps += without.steps
    world.outcome.transactions += without.transactions
    if without.troubles:
        world.trouble(f"without faults: {without.troubles[0]}")
    elif other.holdings is None:
        world.seen["too few nodes without faults"] += 1
    elif other.holdings != world.holdings:
        world.trouble(f"at rest it has {world.holdings}, and without faults {other.holdings}")
    else:
        world.seen["holdings as without faults"] += 1


def shrunk(seed: int, tries: int = 60, *, short: bool = False) -> tuple[list[int], bool, Outcome]:
    """Return the acts that are left of a world in which something is wrong so that something still
    is, whether it has a network and a database that are well, and what then comes of it: well, if
    something is wrong there, too; then halves of the acts are left out, then ever smaller parts."""
    left = list(range(len(plan(seed, short=short).acts)))
    every = set(left)
    worst = live(seed, calm=True, short=short)
    calm = bool(worst.troubles)
    if not calm:
        worst = live(seed, short=short)
    size = len(left) // 2
    while size and tries:
        for first in range(0, len(left), size):
            fewer = left[:first] + left[first + size :]
            tries -= 1
            outcome = live(seed, every - set(fewer), calm=calm, short=short)
            if outcome.troubles:
                left, worst = fewer, outcome
                break
            if not tries:
                break
        else:
            size //= 2
    return left, calm, worst


def told(seed: int, short: bool) -> str:
    """Return what is wrong in the world of that seed, as shortly as can be, how to run that again,
    and the test that it makes."""
    left, calm, outcome = shrunk(seed, short=short)
    words = f"--seed {seed}" + " --long" * (not short) + " --calm" * calm
    words += f" --only {' '.join(map(str, left))}"
    return "\n".join(
        [
            story(outcome),
            f"again: python -m tests.world {words}",
            "as a test, in FOUND of tests/world/test_world.py, with a name of its own:",
            f"    {json.dumps(outcome.troubles[0][:60])}: {json.dumps(words)},",
        ]
    )


def story(outcome: Outcome) -> str:
    """Return a world's story."""
    ending = f"seed {outcome.seed}: {outcome.steps:,} steps, digest {outcome.digest}"
    return "\n".join([*outcome.story, ending, *(f"WRONG: {one}" for one in outcome.troubles)])
