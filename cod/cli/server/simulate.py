"""`cod simulate`: replay a site's demand on a virtual clock, with the manager's own policy."""

from __future__ import annotations

import copy
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cod.cli.show import as_json, print_json, print_rich, print_table, table
from cod.quantity import span

if TYPE_CHECKING:
    from cod.sim.run import Simulation
    from cod.sim.scenario.records import Scenario

SLICES = 500  # of a run, between looks at the wall clock
QUIET = 2.0  # seconds before progress is shown
LISTED = 12  # groups, queues or users in a table; --json has all
RESERVATION = ("asked", "accepted", "refused", "begun", "late", "waiting")
MOVE = ("asked", "refused", "ended", "nodes", "moved")


@click.command()
@click.argument("scenario", required=False)
@click.option(
    "--swf",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="Replay a trace in Standard Workload Format (plain or gzip) instead of a scenario.",
)
@click.option(
    "--nodes",
    metavar="N",
    type=click.IntRange(1),
    help="With --swf: nodes of the site. [default: the trace's MaxNodes]",
)
@click.option(
    "--cores",
    metavar="N",
    type=click.IntRange(1),
    help="With --swf: processors of a node. [default: MaxProcs / MaxNodes of the trace]",
)
@click.option(
    "--by",
    type=click.Choice(["queue", "user", "group", "job"]),
    default="queue",
    show_default=True,
    help=(
        "With --swf: a batch queue in one growing and shrinking vcluster for each queue, user or"
        " group of the trace, or a vcluster for each job."
    ),
)
@click.option(
    "--seed", metavar="N", type=int, help="Seed of all random numbers. [default: the scenario's]"
)
@click.option(
    "--days",
    metavar="D",
    type=click.FloatRange(0.001),
    help="Days in which jobs are submitted. [default: the scenario's, or the trace's]",
)
@click.option(
    "--set",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    help=(
        "Set a key of the scenario: "
        "policy.inertia=600, energy.warm_low=4, type.thin.cost=2, demand.web.high=40."
    ),
)
@click.option(
    "--rules",
    metavar="SITEFILE",
    type=click.Path(exists=True, dir_okay=False),
    help="Take policy and energy from this site file.",
)
@click.option(
    "--sweep",
    metavar="KEY=V,V,...",
    help="Run once for each value. KEY+KEY=V,V sets both, KEY+KEY=V+W,V+W each its own.",
)
@click.option(
    "--curve",
    metavar="FIGURE,FIGURE",
    help=(
        "With --sweep: what to draw, such as "
        "reallocation.taken,waiting.ready.top.p95 (names as in --json; top: the highest priority)."
    ),
)
@click.option(
    "--out",
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="Write charts (SVG) and result.json.",
)
@click.option(
    "--check",
    is_flag=True,
    help="Check every plan against the policy's rules. Exit code 1 if a plan breaks one.",
)
@click.option("--keys", is_flag=True, help="List all keys of a scenario file.")
@as_json
def simulate(*, keys: bool, **options: Any) -> None:
    """Replay a year of a site's demand in minutes, with the resource manager's own policy.

    SCENARIO is a TOML file, or the name of one that ships with COD: bursts, campus, web, year.
    Equal seeds give equal results.

    Example:
      cod simulate campus --days 7
      cod simulate campus --set policy.inertia=600 --json
      cod simulate campus --sweep policy.inertia=0,60,300,900,3600 --out /tmp/inertia
      cod simulate --swf ~/traces/log.swf.gz --nodes 128 --by queue
    """
    from cod.sim.scenario import tables
    from cod.sim.scenario.swf import SwfError
    from cod.sim.scenario.tables import BadScenario

    if keys:
        print_table(("KEY", "DEFAULT", "MEANS"), tables.keys())
        click.echo("policy.*, energy.*: as in the site file (docs/site-file)")
        return
    try:
        _simulate(**options)
    except (BadScenario, SwfError) as error:
        raise click.ClickException(str(error)) from None


def _simulate(
    *,
    scenario: str | None,
    sweep: str | None,
    curve: str | None,
    out: str | None,
    check: bool,
    as_json: bool,
    settings: tuple[str, ...],
    rules: str | None,
    seed: int | None,
    days: float | None,
    **trace: Any,
) -> None:
    from cod.sim.results.plots import curve_of, of_run, of_sweep
    from cod.sim.scenario import tables as files

    if (scenario is None) == (trace["swf"] is None):
        raise click.UsageError("name one scenario, or give --swf FILE")
    tables = _of_trace(**trace) if scenario is None else files.load(scenario)
    folder = Path(scenario).parent if scenario else Path()
    tables |= _rules_of(rules) if rules else {}
    _change(tables, settings, seed, days)
    key, _, listed = (sweep or "").partition("=")
    values = [one.strip() for one in listed.split(",")] if sweep else [""]
    if sweep and not (key and all(values)):
        raise click.UsageError("--sweep should be KEY=VALUE,VALUE,…")
    figures = _curve(curve, curve_of(key))
    runs: list[tuple[str, Simulation, dict[str, Any]]] = []
    reported: set[str] = set()
    for value in values:
        mine = copy.deepcopy(tables)
        for one, own in _pairs(key, value):
            files.change(mine, one, own)
        made = files.read(mine, folder)
        simulation = _run(made, check, f"{key}={value}" if sweep else made.name)
        for remark in [one for one in simulation.remarks if one not in reported]:
            click.echo(remark, err=True)
            reported.add(remark)
        runs.append((value, simulation, simulation.result()))
    _, first, answer = runs[0]
    if sweep:
        results = [(value, result) for value, _, result in runs]
        charts = of_sweep(first.scenario.name, key, results, _known(answer, figures))
        answer = {"sweep": key, "runs": [{"value": value, **result} for value, result in results]}
        views = iter([_swept(key, results)])
    else:
        charts, views = of_run(first), _views(answer)
    if out:
        _write(Path(out), charts, answer)
    if as_json:
        print_json(answer)
        return
    for view in views:
        print_rich(view)


# ---------------------------------------------------------------- what is run


def _of_trace(*, swf: str, nodes: int | None, cores: int | None, by: str) -> dict[str, Any]:
    """Return a scenario for a trace, with nodes of one type in one block."""
    from cod.sim.scenario.swf import load

    log = load(Path(swf))
    most = log.number("MaxNodes") or log.number("MaxProcs")
    if nodes is None and not most:
        raise click.UsageError("the trace does not say how many nodes its system has: give --nodes")
    if cores is None:
        cores = max(
            1,
            (log.number("MaxProcs") or 1)
            // (log.number("MaxNodes") or log.number("MaxProcs") or 1),
        )
    demand = {
        "name": "trace",
        "model": "trace",
        "group": "trace",
        "file": str(Path(swf).absolute()),
        "cores": cores,
        "by": by,
    }
    return {
        "name": Path(swf).name,
        "days": math.ceil(max(log.days, 0.001) * 1000) / 1000,
        "type": [{"name": "node", "blocks": [nodes or most]}],
        "group": [{"name": "trace"}],
        "demand": [demand],
    }


def _change(
    tables: dict[str, Any], settings: tuple[str, ...], seed: int | None, days: float | None
) -> None:
    from cod.sim.scenario.tables import change

    for setting in settings:
        key, equals, value = setting.partition("=")
        if not key or not equals:
            raise click.UsageError(
                f"--set {setting!r} should be KEY=VALUE, such as policy.inertia=600"
            )
        change(tables, key.strip(), value.strip())
    tables.update(
        {key: value for key, value in (("seed", seed), ("days", days)) if value is not None}
    )


def _pairs(key: str, value: str) -> list[tuple[str, str]]:
    """Return the keys of a sweep with their values: 'a+b' and '3' set both keys to 3; 'a+b' and
    '3+4' set a to 3 and b to 4."""
    keys, own = list(filter(None, key.split("+"))), value.split("+")
    if len(own) == 1:
        own *= len(keys)
    if len(keys) != len(own):
        raise click.UsageError(f"--sweep: {value} has {len(own)} values for {len(keys)} keys")
    return list(zip(keys, own, strict=True))


def _rules_of(site_file: str) -> dict[str, Any]:
    """Return the tables policy and energy of a site file, which replace the scenario's."""
    from dataclasses import asdict

    from cod.site.load import ConfigError, read

    try:
        file = read(Path(site_file))
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    return {
        "policy": asdict(file.policy),
        "energy": asdict(file.energy),
    }


def _curve(text: str | None, default: tuple[str, str]) -> tuple[str, str]:
    if text is None:
        return default
    left, comma, right = (part.strip() for part in text.partition(","))
    if not (left and comma and right):
        raise click.UsageError("--curve should name two figures: LEFT,RIGHT")
    return left, right


def _known(result: dict[str, Any], curve: tuple[str, str]) -> tuple[str, str]:
    from cod.sim.results.plots import metric

    for path in curve:
        try:
            metric(result, path)
        except (KeyError, TypeError, ValueError):
            raise click.UsageError(
                f"--curve: there is no figure {path!r}; --json shows all"
            ) from None
    return curve


def _run(scenario: Scenario, check: bool, label: str) -> Simulation:
    """Run the simulation, and show its progress if it takes longer than a moment."""
    from cod.sim.check.rules import broken
    from cod.sim.run import Simulation

    def watch(seen: Any, planned: Any, now: float) -> None:
        if sentences := broken(seen, planned, scenario.policy, now):
            raise click.ClickException("\n".join(f"at {now:.0f} s: {one}" for one in sentences))

    simulation = Simulation(scenario, watch if check else None)
    with _Progress(label) as progress:
        for done in simulation.slices(SLICES):
            progress.at(done)
    return simulation


class _Progress:
    """A progress bar on standard error, which appears after two seconds."""

    def __init__(self, label: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._label, self._clock, self._since = label, clock, clock()
        self._bar: Any = None

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def at(self, done: float) -> None:
        """Show how much of the run is done, 0 to 1."""
        if self._bar is None and done < 1 and self._clock() - self._since > QUIET:
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(console=Console(stderr=True), transient=sys.stderr.isatty())
            self._task = self._bar.add_task(self._label, total=1.0)
            self._bar.start()
        if self._bar is not None:
            self._bar.update(self._task, completed=done)


# ---------------------------------------------------------------- what is shown


def _write(folder: Path, charts: dict[str, str], answer: dict[str, Any]) -> None:
    import json

    folder.mkdir(parents=True, exist_ok=True)
    for name, text in charts.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "result.json").write_text(
        json.dumps(answer, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )


def _seconds(value: float | None) -> str:
    return "-" if value is None else span(value)


def _share(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{100 * value:.{digits}f} %"


def _views(result: dict[str, Any]) -> Iterator[Any]:
    """Yield the tables and sentences about one run."""
    yield (
        f"{result['scenario']}: {result['nodes']} nodes, {result['days']:g} days, seed"
        f" {result['seed']}"
    )
    if result["limit_days"] > result["days_of_demand"]:
        left = result["unfinished_jobs"]
        limit = f"{result['limit_days']:g} days (run_on)"
        yield (
            f"jobs that had not ended at the limit of {limit}: {left}"
            if left
            else f"all jobs of {result['days_of_demand']:g} days have ended; the limit is {limit}"
        )
    yield _by_priority(result)
    for kind, rows in result["by"].items():
        if len(rows) > (kind == "queue"):
            yield _labelled(kind, rows)
            if len(rows) > LISTED:
                yield f"{len(rows)} in all, those that used most; --json has all"
    yield from _booked(result)
    moved, power, used = result["reallocation"], result["power"], result["utilisation"]
    shares = (
        f"{name} {_share(used[name])}" for name in ("active", "moving", "warm", "cold", "aside")
    )
    per_hour = moved["reallocations_per_node_hour"] or 0.0
    yield f"nodes: {', '.join(shares)}"
    yield (
        f"taken: {moved['taken']} nodes in {moved['reclaims']} reclaims ({per_hour:.4f} per"
        f" node-hour), {moved['given_back']} given back, {moved['seized']} seized;"
        f" {moved['leases_expired']} leases ran out"
    )
    yield (
        f"energy: {power['kwh']:,.0f} kWh, {power['kwh_saved']:,.0f} saved; {power['wakes']} wakes "
        f"({power['wakes_failed']} failed), {result['failures']} failures"
    )
    faults = result["faults"]
    if any(faults.values()):
        yield (
            f"boots that failed: {faults['wrong_templates']} wrong templates;"
            f" {faults['healthy_set_aside']} times a healthy node was set aside,"
            f" {faults['failing_set_aside']} times a failing one; {faults['given_back']} given"
            f" back; {_share(faults['healthy_lost'], 3)} of healthy nodes' time lost"
        )


def _by_priority(result: dict[str, Any]) -> Any:
    """Return the table of requests and of their waiting, by priority."""
    waiting = result["waiting"]
    rows = []
    for priority, asked in result["requests"].items():
        ready = waiting["ready"].get(priority, {})
        rows.append(
            (
                priority,
                asked["submitted"],
                _share(result["satisfied"][priority]),
                asked["rejected"],
                *(_seconds(ready.get(figure)) for figure in ("mean", "median", "p95")),
                _seconds(waiting["jobs"].get(priority, {}).get("mean")),
                _share(result["farms"].get(priority, {}).get("share")),
            )
        )
    waits = ("WAIT MEAN", "MEDIAN", "P95", "JOBS' WAIT")
    return table(("PRIORITY", "REQUESTS", "GRANTED", "REJECTED", *waits, "FARM SERVED"), rows)


def _booked(result: dict[str, Any]) -> Iterator[Any]:
    """Yield a table of the reservations in advance and a table of the moves, by demand, if there
    are any."""
    for what, counts, head, seconds, figure in (
        ("reservations", RESERVATION, "MOST LATE BY", "delay", "max"),
        ("moves", MOVE, "MEAN TIME", "took", "mean"),
    ):
        if rows := result[what]:
            yield table(
                (what.upper(), *(one.upper() for one in counts), head),
                [
                    (name, *(row[one] for one in counts), _seconds(row[seconds][figure]))
                    for name, row in rows.items()
                ],
            )


def _labelled(kind: str, rows: dict[str, Any]) -> Any:
    """Return a table with a line for each group, queue or user that used most, in the order of
    their names."""
    most = sorted(rows, key=lambda name: -rows[name]["used_node_hours"])[:LISTED]
    held = kind == "group"
    cells = []
    for name in (one for one in rows if one in most):
        row, jobs, wait = rows[name], rows[name]["jobs"], rows[name]["wait"]
        cells.append(
            (
                name,
                jobs["submitted"],
                jobs["done"],
                jobs["never_started"],
                *(_seconds(wait[one]) for one in ("mean", "median", "p99")),
                f"{row['used_node_hours']:,.0f}",
                _share(row["share"]),
                *([f"{row['nodes_held'] or 0:.2f}"] if held else []),
            )
        )
    return table(
        (
            kind.upper(),
            "JOBS",
            "DONE",
            "NEVER STARTED",
            "WAIT MEAN",
            "MEDIAN",
            "P99",
            "NODE-HOURS USED",
            "OF THE POOL",
            *(["NODES HELD"] if held else []),
        ),
        cells,
    )


def _swept(key: str, runs: list[tuple[str, dict[str, Any]]]) -> Any:
    """Return a table with a line for each run."""
    from cod.sim.results.plots import metric

    rows = []
    for value, result in runs:
        moved, power = result["reallocation"], result["power"]
        top = metric(result, "waiting.ready.top.mean"), metric(result, "waiting.ready.top.p95")
        rows.append(
            (
                value,
                moved["taken"],
                f"{moved['reallocations_per_node_hour'] or 0:.4f}",
                *map(_seconds, top),
                _seconds(result["waiting"]["ready"]["all"]["mean"]),
                f"{power['kwh']:,.0f}",
                f"{power['kwh_saved']:,.0f}",
                str(power["wakes"]),
                _share(result["utilisation"]["active"]),
            )
        )
    return table(
        (
            key.upper(),
            "TAKEN",
            "PER NODE-HOUR",
            "WAIT OF TOP",
            "P95 OF TOP",
            "WAIT",
            "KWH",
            "SAVED",
            "WAKES",
            "ACTIVE",
        ),
        rows,
    )
