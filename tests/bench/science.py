"""Repeats what the literature shows, in the simulator, and writes docs/science.md's tables and plots: `make science`.

Ways to share two pools, and a day of three. Readiness is measured by `make bench ONLY=pool`, on machines that boot
under QEMU.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from cod.sim.results.plots import of_run
from cod.sim.run import Simulation
from cod.sim.scenario import tables
from tests.bench.arena import ROOT

PAGE, PLOTS = ROOT / "docs/science.md", ROOT / "docs/plots"
WAYS: dict[str, dict[str, str]] = {
    "equal groups, no shares": {},
    "static halves": {"group.large.node_limit": "10", "group.small.node_limit": "10"},
    "the smaller has priority": {"group.small.priority": "1"},
    "the smaller is guaranteed 7": {"group.small.guarantee": "7"},
    "fair shares": {"policy.fair_half_life": "86400"},
    "fair shares, 7 guaranteed": {"policy.fair_half_life": "86400", "group.small.guarantee": "7"},
}


def main() -> None:
    """Run what is named: ways, pools; all, if nothing is."""
    for name, run in (("ways", ways), ("pools", three_pools)):
        if name in (sys.argv[1:] or (name,)):
            run()


def ran(scenario: dict[str, Any], changes: dict[str, str] | None = None) -> Simulation:
    """Return the simulation after its last day."""
    for key, value in (changes or {}).items():
        tables.change(scenario, key, value)
    simulation = Simulation(tables.read(scenario))
    simulation.advance(simulation.end)
    return simulation


def ways() -> None:
    """Two pools that want 25 and 6.25 of 20 nodes, shared in each way."""
    rows = []
    for name, changes in WAYS.items():
        found = ran(tables.load("docs/examples/two-pools.toml"), changes).result()
        large, small = (found["by"]["group"][one] for one in ("large", "small"))
        rows.append((name, f"{large['share'] + small['share']:.1%}", f"{large['nodes_held']:.2f}",
                     f"{small['nodes_held']:.2f}", f"{large['wait']['mean']:,.0f} s", f"{small['wait']['mean']:,.0f} s",
                     f"{found['reallocation']['assigned']:,}", f"{found['jobs']['restarts']:,}"))
    put("ways", ("", "Nodes' time in jobs", "Larger pool holds", "Smaller", "Larger's jobs wait", "Smaller's",
                 "Nodes moved", "Jobs begun anew"), rows)


# ---------------------------------------------------------------- three pools


def three_pools() -> None:
    """A day of a web farm, a pool of the day and one of the night on 40 machines."""
    simulation = ran(tables.load("docs/examples/three-pools.toml"))
    PLOTS.joinpath("science_pools.svg").write_text(of_run(simulation)["groups.svg"])
    held = [{name: one.get(f"held {name}", 0.0) for name in ("web", "day", "night")} for one in simulation.series]
    by = simulation.result()["by"]["group"]
    put("pools", ("Pool", "Holds at least", "on average", "at most", "Jobs wait, mean"), [
        (name, f"{min(one[name] for one in held[10:]):.0f}", f"{by[name]['nodes_held']:.1f}",
         f"{max(one[name] for one in held):.0f}",
         f"{by[name]['wait']['mean']:,.0f} s" if by[name]["jobs"]["submitted"] else "")
        for name in ("web", "day", "night")])


def put(name: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Put a table into the page, between its marks."""
    made = [f"| {' | '.join(one)} |" for one in (heads, ["---"] * len(heads), *rows)]
    print("\n".join(made), flush=True)
    text = PAGE.read_text()
    begin, end = f"<!-- {name}: made by make science -->", f"<!-- end of {name} -->"
    before, rest = text.split(begin)
    PAGE.write_text("\n".join([before + begin, "", *made, "", end + rest.split(end)[1]]))


if __name__ == "__main__":
    main()
