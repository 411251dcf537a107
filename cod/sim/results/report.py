"""The figures of a simulation, as plain values (what `--json` prints)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from cod.sim.randomness import HOUR
from cod.sim.results.stats import by_priority, priorities, share
from cod.sim.scenario.records import Scenario
from cod.sim.world import World
from cod.states import NodeState, RequestState

S = NodeState
MOVING = (S.TRAMPOLINE, S.WIPE, S.PRIME, S.BOOT)


def figures(scenario: Scenario, world: World) -> dict[str, Any]:
    """Everything that was counted, up to now.

    Shares are of 1; waiting is in seconds; energy in kWh. Keys of mappings by priority are texts, as in JSON.
    """
    tally = world.tally
    rules = asdict(scenario.policy)
    by_rank = scenario.policy.inertia_by_priority
    rules["inertia_by_priority"] = {str(rank): by_rank[rank] for rank in sorted(by_rank)}
    return {
        "scenario": scenario.name, "seed": scenario.seed, "days": round(world.clock.now / 86400, 6),
        "nodes": len(world.hall.machines), "policy": rules, "energy": asdict(scenario.energy),
        "utilisation": _utilisation(world),
        "requests": _requests(world),
        "satisfied": _satisfied(world),
        "waiting": {"granted": by_priority(tally.granted), "ready": by_priority(tally.ready),
                    "jobs": by_priority(tally.job_waits)},
        "jobs": _jobs(world),
        "farms": {str(one): {"wanted_node_hours": round(tally.wanted[one] / HOUR, 3),
                             "delivered_node_hours": round(tally.delivered[one] / HOUR, 3),
                             "share": share(tally.delivered[one], tally.wanted[one])}
                  for one in priorities(tally.wanted)},
        "reallocation": _reallocation(world),
        "power": _power(world),
        "failures": world.life.failures, "passes": tally.passes, "events": world.clock.events,
    }


def _utilisation(world: World) -> dict[str, Any]:
    spent = world.hall.spent
    total = sum(spent.values())
    return {
        "active": share(spent[S.ACTIVE], total), "held": share(world.hall.held, total),
        "moving": share(sum(spent[one] for one in MOVING), total), "warm": share(spent[S.INACTIVE], total),
        "cold": share(spent[S.OFF], total), "aside": share(spent[S.QUARANTINED], total)}


def _requests(world: World) -> dict[str, Any]:
    tally = world.tally
    made = {}
    for one in priorities(tally.asked):
        outcomes = {state.value: tally.outcomes[one, state.value] for state in RequestState
                    if state is not RequestState.PENDING}
        made[str(one)] = {"submitted": tally.asked[one], **outcomes,
                          "waiting": tally.asked[one] - sum(outcomes.values())}
    return made


def _satisfied(world: World) -> dict[str, Any]:
    """By priority: requests granted, of all that were not withdrawn."""
    made = {}
    for one, row in _requests(world).items():
        made[one] = share(row["granted"], row["submitted"] - row["withdrawn"])
    return made


def _jobs(world: World) -> dict[str, Any]:
    tally = world.tally
    made: dict[str, Any] = {}
    for one in priorities(priority for priority, _ in tally.jobs):
        row = {name: tally.jobs[one, name] for name in ("submitted", "done", "rejected", "cut")}
        made[str(one)] = {**row, "started": len(tally.job_waits[one])}
    return made | ({"restarts": tally.jobs_again} if made else {})


def _reallocation(world: World) -> dict[str, Any]:
    tally, hours = world.tally, world.hall.held / HOUR
    return {
        "reclaims": tally.reclaims, "taken": tally.taken, "given_back": tally.given, "seized": tally.seized,
        "leases_expired": tally.expired, "assigned": tally.assigned, "node_hours_held": round(hours, 3),
        "reallocations_per_node_hour": share(tally.taken, hours),
        "assignments_per_node_hour": share(tally.assigned, hours)}


def _power(world: World) -> dict[str, Any]:
    hall, life = world.hall, world.life
    return {
        "kwh": round(hall.joules / 3.6e6, 3), "kwh_saved": round(hall.spared / 3.6e6, 3),
        "kwh_always_on": round((hall.joules + hall.spared) / 3.6e6, 3),
        "kwh_by_group": {name: round(value / 3.6e6, 3) for name, value in sorted(hall.by_group.items())},
        "wakes": life.wakes, "wakes_failed": life.wakes_failed, "sleeps": life.sleeps}
