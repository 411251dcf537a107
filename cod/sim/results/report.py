"""The figures of a simulation, as plain values (what `--json` prints)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from cod.policy.scheduler.reasons import PUNCTUAL
from cod.sim.randomness import HOUR
from cod.sim.results.jobstats import natural
from cod.sim.results.stats import by_priority, priorities, share, spread
from cod.sim.scenario.records import Scenario
from cod.sim.world import World
from cod.states import NodeState, RequestState

S = NodeState
MOVING = (S.TRAMPOLINE, S.WIPE, S.PRIME, S.BOOT)


def figures(scenario: Scenario, world: World, limit: float) -> dict[str, Any]:
    """Return all figures up to now.

    Shares are of 1; waiting is in seconds; energy in kWh. Keys of mappings by priority are texts,
    as in JSON. Jobs without a start count with their wait so far; `so_far` is their number.
    `limit`: the latest possible end of the run, in days.
    """
    stats = world.stats
    by_label = {kind: _labelled(world, kind) for kind in ("priority", "group", "queue", "user")}
    ranks = by_label.pop("priority")
    waits = {name: row["wait"] for name, row in ranks.items()}
    rules = asdict(scenario.policy)
    by_rank = scenario.policy.inertia_by_priority
    rules["inertia_by_priority"] = {str(rank): by_rank[rank] for rank in sorted(by_rank)}
    made: dict[str, Any] = {name: row["jobs"] for name, row in ranks.items()}
    restarts = sum(
        figures.counts["restarts"]
        for (kind, _), figures in world.stats.jobs.figures.items()
        if kind == "priority"
    )
    return {
        "scenario": scenario.name,
        "seed": scenario.seed,
        "days": round(world.clock.now / 86400, 6),
        "days_of_demand": scenario.days,
        "limit_days": round(limit, 6),
        "unfinished_jobs": len(stats.jobs.open),
        "nodes": len(world.pool.machines),
        "policy": rules,
        "energy": asdict(scenario.energy),
        "utilisation": _utilisation(world),
        "requests": _requests(world),
        "satisfied": _satisfied(world),
        "waiting": {
            "granted": by_priority(stats.granted),
            "ready": by_priority(stats.ready),
            "jobs": waits | {"all": _wait_of_all(world)},
        },
        "jobs": (made | ({"restarts": restarts} if made else {})),
        "by": by_label,
        "farms": {
            str(one): {
                "wanted_node_hours": round(stats.wanted[one] / HOUR, 3),
                "delivered_node_hours": round(stats.delivered[one] / HOUR, 3),
                "share": share(stats.delivered[one], stats.wanted[one]),
            }
            for one in priorities(stats.wanted)
        },
        "reservations": {
            name: {
                **counts,
                "late": counts["late"] + _late(world, name),
                "waiting": counts["accepted"] - counts["begun"] - counts["rejected"],
                "delay": spread(stats.bookings.delays[name]),
            }
            for name, counts in stats.bookings.reservations.items()
        },
        "moves": {
            name: {**counts, "took": spread(stats.bookings.times[name])}
            for name, counts in stats.bookings.moves.items()
        },
        "reallocation": _reallocation(world),
        "priming": {**spread(world.images.took), "most_at_once": world.images.most},
        "power": _power(world),
        "failures": world.lifecycle.failures,
        "faults": _faults(world),
        "maintenance": {
            "windows": len(scenario.windows),
            "taken": world.maintenance.taken,
        },
        "passes": stats.passes,
        "events": world.clock.events,
    }


def _late(world: World, name: str) -> int:
    """Return how many reservations of a demand have not begun although their start has passed."""
    starts = [one.starts_at for one in world.pending.values() if one.label == name]
    return sum(one is not None and one + PUNCTUAL <= world.clock.now for one in starts)


def _utilisation(world: World) -> dict[str, Any]:
    spent = world.pool.spent
    total, jobs = sum(spent.values()), world.stats.jobs
    good = sum(jobs.of("priority", one).good for one in jobs.names("priority"))
    return {
        "active": share(spent[S.ACTIVE], total),
        "goodput": share(good + sum(world.stats.served.values()), total),
        "held": share(world.pool.held, total),
        "moving": share(sum(spent[one] for one in MOVING), total),
        "warm": share(spent[S.INACTIVE], total),
        "cold": share(spent[S.OFF], total),
        "aside": share(spent[S.QUARANTINED], total),
    }


def _requests(world: World) -> dict[str, Any]:
    stats = world.stats
    made = {}
    for one in priorities(stats.asked):
        outcomes = {
            state.value: stats.outcomes[one, state.value]
            for state in RequestState
            if state is not RequestState.PENDING
        }
        made[str(one)] = {
            "submitted": stats.asked[one],
            **outcomes,
            "waiting": stats.asked[one] - sum(outcomes.values()),
        }
    return made


def _satisfied(world: World) -> dict[str, Any]:
    """Return, by priority, the share of requests that were granted, without withdrawn ones."""
    made = {}
    for one, row in _requests(world).items():
        made[one] = share(row["granted"], row["submitted"] - row["withdrawn"])
    return made


def _labelled(world: World, kind: str) -> dict[str, Any]:
    """Return, by name, the jobs, their waits and their use of nodes for each priority, group, queue
    or user.

    Nodes of farms count as used while they run. Groups also have the nodes that they held, used or
    not.
    """
    stats, pool, now = world.stats.jobs, world.pool, world.clock.now
    waiting, total = stats.waiting(now), len(pool.machines) * now
    names = set(stats.names(kind)) | (
        {name for name, held in pool.held_by_group.items() if held} if kind == "group" else set()
    )
    made: dict[str, Any] = {}
    for name in sorted(names, key=(lambda name: -int(name)) if kind == "priority" else natural):
        figures, so_far = stats.of(kind, name), waiting[kind, name]
        served = world.stats.served[name] if kind == "group" else 0.0
        counts = {
            what: figures.counts[what]
            for what in ("submitted", "done", "rejected", "cut", "started")
        }
        made[name] = row = {
            "jobs": {**counts, "never_started": len(so_far)},
            "wait": spread([*figures.waits, *so_far]) | {"so_far": len(so_far)},
            "used_node_hours": round((figures.used + served) / HOUR, 3),
            "share": share(figures.used + served, total),
            "good_node_hours": round((figures.good + served) / HOUR, 3),
            "goodput": share(figures.good + served, total),
        }
        if kind == "group":
            held = pool.held_by_group[name]
            row.update(held_node_hours=round(held / HOUR, 3), nodes_held=share(held, now))
    return made


def _wait_of_all(world: World) -> dict[str, Any]:
    jobs = world.stats.jobs
    waits = [wait for name in jobs.names("priority") for wait in jobs.of("priority", name).waits]
    so_far = [
        wait
        for (kind, _), waits in jobs.waiting(world.clock.now).items()
        if kind == "priority"
        for wait in waits
    ]
    return spread([*waits, *so_far]) | {"so_far": len(so_far)}


def _reallocation(world: World) -> dict[str, Any]:
    stats, hours = world.stats, world.pool.held / HOUR
    return {
        "reclaims": stats.reclaims,
        "taken": stats.taken,
        "given_back": stats.given,
        "seized": stats.seized,
        "leases_expired": stats.expired,
        "assigned": stats.assigned,
        "node_hours_held": round(hours, 3),
        "reallocations_per_node_hour": share(stats.taken, hours),
        "assignments_per_node_hour": share(stats.assigned, hours),
    }


def _faults(world: World) -> dict[str, Any]:
    """Return the costs of wrong templates and failing machines: how often machines were set aside
    or given back because of failed boots, and the share of healthy machines' time that was lost by
    this."""
    failures, pool = world.failures, world.pool
    return {
        "wrong_templates": failures.asked_wrong,
        "healthy_set_aside": failures.healthy_aside,
        "failing_set_aside": failures.failing_aside,
        "given_back": failures.given_back,
        "healthy_lost": share(pool.lost, pool.healthy),
    }


def _power(world: World) -> dict[str, Any]:
    pool, lifecycle = world.pool, world.lifecycle
    return {
        "kwh": round(pool.joules / 3.6e6, 3),
        "kwh_saved": round(pool.spared / 3.6e6, 3),
        "kwh_always_on": round((pool.joules + pool.spared) / 3.6e6, 3),
        "kwh_by_group": {
            name: round(value / 3.6e6, 3) for name, value in sorted(pool.by_group.items())
        },
        "wakes": lifecycle.wakes,
        "wakes_failed": lifecycle.wakes_failed,
        "sleeps": lifecycle.sleeps,
    }
