"""A scenario: a made-up site and its demand, as records and as a TOML file.

Lengths of time are seconds unless a key says otherwise. The tables `policy` and `energy` have the
keys of the site file (`model.Policy`, `model.Energy`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StrictBool
from pydantic.dataclasses import dataclass

from cod.model import Energy, Policy
from cod.policy.hardware import match

LARGEST = 4e9  # as in the site file: seconds in 32 bits
KEYS = ConfigDict(extra="forbid")


def key(about: str, default: Any = ..., *, low: float = 0, high: float = LARGEST) -> Any:
    """Return the field of a number, with its meaning, default and limits. Its check is strict: true
    is not accepted as 1."""
    return Field(default, description=about, ge=low, le=high, allow_inf_nan=False, strict=True)


def word(about: str, default: Any = ...) -> Any:
    """Return the field of a text, or of another value without limits."""
    return Field(default, description=about)


Discipline = Literal["fifo", "first-fit", "easy", "conservative", "fixed"]
Size = Annotated[int, key("nodes", low=1)]
Count = Annotated[int, key("nodes")]
Factor = Annotated[float, key("shares")]


@dataclass(frozen=True, slots=True, config=KEYS)
class Times:
    """The durations of a type's machines: medians of log-normal distributions.

    The defaults are those of a rack server: its firmware's self-test takes minutes, before the
    trampoline and before its own system; the trampoline itself and the images take seconds
    (docs/benchmarks.md)."""

    wake: float = key("from off to its report", 150.0)
    reset: float = key("from its holder's system to its report, by a power cycle", 150.0)
    wipe: float = key("erasing its disks", 20.0)
    prime: float = key("writing its images", 60.0)
    boot: float = key("from the trampoline into its holder's system", 120.0)
    spread: float = key("standard deviation of the logarithm; 0: always the median", 0.15, high=3)


@dataclass(frozen=True, slots=True, config=KEYS)
class Type:
    """A type of machines. `warm_*` and `watts_*`: None for the site's, from `[energy]`."""

    name: str = word("its name")
    blocks: tuple[Annotated[int, key("", low=1, high=1_000_000)], ...] = word(
        "how many machines there are in each block"
    )
    cost: float = key("what the administrator says it costs: cheaper types are given first", 1.0)
    attributes: str = word("its hardware, as a report (XML); empty: memory of `memory_mib`", "")
    memory_mib: int = key("memory, where there are no `attributes`", 65536, low=1)
    warm_low: int | None = key("its low mark", None)
    warm_high: int | None = key("its high mark", None)
    watts_off: float | None = key("asleep", None)
    watts_idle: float | None = key("awake in the reserve", None)
    watts_busy: float | None = key("in use", None)
    mtbf: float = key("mean hours between failures of one machine; 0: never", 0.0)
    repair: float = key("hours until a machine that failed is back", 24.0)
    wake_fails: float = key("share of wakes that come to nothing", 0.0, high=1)
    times: Times = Field(default_factory=Times)

    @property
    def canonical(self) -> str:
        """Return the type's attributes in the form that requests are matched against."""
        return match.canonical(self.attributes or f'<node><memory mib="{self.memory_mib}"/></node>')


@dataclass(frozen=True, slots=True, config=KEYS)
class PlannedWindow:
    """A maintenance window."""

    name: str = word("its name")
    begins: float = key("seconds from the start of the run until its nodes are taken")
    length: float = key("seconds for which they are out of service", 28_800.0, low=1)
    ahead: float = key("seconds before its beginning at which it is planned", 7 * 86400.0)
    blocks: tuple[Annotated[int, key("", low=1)], ...] = word(
        "the blocks that it takes, from 1, counted over all types; none: the whole site", ()
    )
    counts: tuple[Annotated[int, key("", low=1)], ...] = word(
        "how many machines it takes of each of these blocks; none: all of them", ()
    )


@dataclass(frozen=True, slots=True, config=KEYS)
class OwnerTable:
    """A group."""

    name: str = word("its name")
    priority: int = key("higher goes first", 0, low=-1_000_000)
    default_lease: float | None = key("lease where none is asked for; left out: policy's", None)
    max_lease: float | None = key("longest lease, with all extensions; left out: any", None)
    shares: float = key("what it is to have of the site, in proportion to the other groups'", 1.0)
    guarantee: int = key("nodes that are not taken from it for others", 0)
    node_limit: int | None = key("nodes that it may hold at once; left out: policy's", None)
    hours: float | None = key("node-hours that it may use in a month; left out: any", None)
    parent: str = word("the group that it is a subgroup of; left out: none", "")
    shares_of: dict[str, Factor] | None = word(
        "its shares of the nodes of types, as in { gpu = 2.0 }: these are apart from all others",
        None,
    )
    guarantee_of: dict[str, Count] | None = word("nodes of types that are guaranteed, apart", None)
    limit_of: dict[str, Count] | None = word("nodes of types that it may hold at once", None)

    @property
    def by_type(self) -> dict[str, Mapping[str, float]]:
        """Return the settings of single types, by their keys."""
        found = {
            "shares_of": self.shares_of,
            "guarantee_of": self.guarantee_of,
            "limit_of": self.limit_of,
        }
        return {key: each for key, each in found.items() if each}


@dataclass(frozen=True, slots=True, config=KEYS)
class Arrivals:
    """Arrival process of jobs."""

    per_day: float = key("how many a day, on average", 100.0)
    burst: float = key("how many come at once, on average", 1.0, low=1)
    day_wave: float = key("swing over the day, 0 to 1", 0.0, high=1)
    week_wave: float = key("by how much the weekend is lower, 0 to 1", 0.0, high=1)
    peak_hour: float = key("hour of the day with most", 14.0, high=24)


@dataclass(frozen=True, slots=True, config=KEYS)
class Runtime:
    """Distribution of jobs' run times in seconds: log-normal, cut at both ends."""

    median: float = key("half are shorter", 3600.0)
    spread: float = key("standard deviation of the logarithm", 1.0, high=5)
    least: float = key("none is shorter", 10.0)
    most: float = key("none is longer", 86400.0)


@dataclass(frozen=True, slots=True, config=KEYS)
class LeadTime(Runtime):
    """Distribution of the seconds between a reservation's submission and its start: log-normal, cut
    at both ends."""

    median: float = key("half of the starts are nearer", 86400.0)
    least: float = key("no start is nearer", 3600.0)
    most: float = key("no start is farther off", 14 * 86400.0)


@dataclass(frozen=True, slots=True, config=KEYS)
class Jobs:
    """Each job is a virtual cluster: it asks for its nodes, runs when all are up, and gives them
    back."""

    name: str = word("its name")
    group: str = word("who asks")
    model: Literal["jobs"] = word("jobs", "jobs")
    needs: str = word("what the nodes must have (a requirements document, XML)", "")
    cache: StrictBool = word("the template lets disks be kept for the group's next use", False)
    preemptible: StrictBool = word("any request may take its nodes, down to none", False)
    may_spread: StrictBool = word("nodes may come from several blocks", False)
    may_wait: StrictBool = word("false: rejected when it cannot be had at once", True)
    nodes: tuple[Size, ...] = word("sizes of jobs, each as likely as the others", (1,))
    arrivals: Arrivals = Field(default_factory=Arrivals)
    runtime: Runtime = Field(default_factory=Runtime)
    estimate: float = key("the lease asked for, as a multiple of the run time", 2.0, low=0.01)
    extends: StrictBool = word("extends a lease that would end before the job", True)


@dataclass(frozen=True, slots=True, config=KEYS)
class Queue:
    """A batch queue as one virtual cluster, which grows with the queue and shrinks when nodes are
    idle (the paper's SGE VCM).

    Each `interval` it requests a node for every `jobs_per_node` nodes that jobs queued for
    `patience` need, and releases nodes that have been idle for `idle_limit` and that no waiting job
    could use, down to `least`. When nodes are reclaimed, it gives idle ones first, then those of
    the job that started last. This job is queued again: it starts from its beginning, or with
    `saves` from where it was at the reclaim.
    """

    name: str = word("its name")
    group: str = word("who asks")
    model: Literal["queue"] = word("queue", "queue")
    needs: str = word("what the nodes must have (a requirements document, XML)", "")
    cache: StrictBool = word("the template lets disks be kept for the group's next use", False)
    preemptible: StrictBool = word("any request may take its nodes, down to none", False)
    may_spread: StrictBool = word("nodes of one request may come from several blocks", True)
    nodes: tuple[Size, ...] = word("sizes of jobs, each as likely as the others", (1,))
    arrivals: Arrivals = Field(default_factory=Arrivals)
    runtime: Runtime = Field(default_factory=Runtime)
    least: int = key(
        "size of the virtual cluster when nothing is queued: its creation size", 1, low=1
    )
    most: int = key("it never asks for more", 1_000_000, low=1)
    jobs_per_node: float = key(
        "it asks for one node for so many nodes' worth of queued jobs", 1.0, low=0.01
    )
    patience: float = key("a job asks for nodes once it has waited so long", 0.0)
    interval: float = key("between looks at the queue", 60.0, low=1)
    idle_limit: float = key("a node that idles longer is given back", 600.0)
    answer: float = key("seconds in which it gives back what a reclaim names", 10.0)
    saves: StrictBool = word("its jobs save themselves in these seconds, and go on later", False)
    discipline: Discipline = word(
        "which job starts next: fifo, first-fit, or by backfill: easy, conservative, fixed",
        "first-fit",
    )
    estimate: float = key(
        "with backfill: the run time that users ask for, as a multiple of the run time",
        2.0,
        low=0.01,
    )


@dataclass(frozen=True, slots=True, config=KEYS)
class Farm:
    """A farm of servers: one virtual cluster whose wanted size follows the time of day."""

    name: str = word("its name")
    group: str = word("who asks")
    model: Literal["farm"] = word("farm", "farm")
    needs: str = word("what the nodes must have (a requirements document, XML)", "")
    cache: StrictBool = word("the template lets disks be kept for the group's next use", False)
    preemptible: StrictBool = word("any request may take its nodes, down to none", False)
    may_spread: StrictBool = word("nodes of one request may come from several blocks", True)
    low: int = key("wanted size at the quietest hour: its creation size", 2, low=1)
    high: int = key("wanted size at the busiest hour", 10, low=1)
    week_wave: float = key("by how much the weekend is lower, 0 to 1", 0.0, high=1)
    peak_hour: float = key("hour of the day with most", 20.0, high=24)
    noise: float = key(
        "standard deviation of the wanted size, as a share of its swing", 0.1, high=2
    )
    interval: float = key("between changes of the wanted size", 300.0, low=1)
    answer: float | None = key(
        "seconds in which it gives back what a reclaim names; left out: it waits until they are "
        "seized",
        None,
    )


@dataclass(frozen=True, slots=True, config=KEYS)
class Trace:
    """Jobs from a file in Standard Workload Format, as single virtual clusters or as batch queues
    (`by`)."""

    file: str = word("the file, plain or gzip; below the scenario's folder")
    group: str = word(
        "who asks; with `by` other than job, each queue, user or group of the trace adds its number"
    )
    name: str = word("its name", "trace")
    model: Literal["trace"] = word("trace", "trace")
    by: Literal["job", "queue", "user", "group"] = word("job, queue, user or group", "queue")
    cores: int = key("processors of one node", 1, low=1)
    needs: str = word("what the nodes must have (a requirements document, XML)", "")
    cache: StrictBool = word("the template lets disks be kept for the group's next use", False)
    preemptible: StrictBool = word("any request may take its nodes, down to none", False)
    may_spread: StrictBool = word("nodes may come from several blocks", True)
    least: int = key("see queue", 1, low=1)
    jobs_per_node: float = key("see queue", 1.0, low=0.01)
    patience: float = key("see queue", 0.0)
    interval: float = key("see queue", 60.0, low=1)
    idle_limit: float = key("see queue", 600.0)
    answer: float = key("see queue", 10.0)
    saves: StrictBool = word("see queue", False)
    discipline: Discipline = word("see queue", "first-fit")
    estimate: float = key(
        "see jobs and queue; for jobs of the trace that name no time limit", 2.0, low=0.01
    )


@dataclass(frozen=True, slots=True, config=KEYS)
class RecordedJob:
    """A request as a site has recorded it. Times are seconds; `at` counts from the beginning."""

    at: float = key("when its nodes were wanted")
    nodes: int = key("how many", low=1)
    runtime: float = key("for how long they were held")
    lease: float | None = key("the lease asked for; left out: an estimate", None)
    under: str = word("name that it counts under; empty: the demand's", "")


@dataclass(frozen=True, slots=True, config=KEYS)
class Recorded:
    """Requests as a site has recorded them. Each becomes a virtual cluster, like the jobs of
    `Jobs`."""

    requests: tuple[RecordedJob, ...] = word("in the order of their times")
    name: str = word("its name")
    group: str = word("who asks")
    model: Literal["recorded"] = word("recorded", "recorded")
    needs: str = word("what the nodes must have (a requirements document, XML)", "")
    cache: StrictBool = word("the template lets disks be kept for the group's next use", False)
    preemptible: StrictBool = word("any request may take its nodes, down to none", False)
    may_spread: StrictBool = word("nodes may come from several blocks", False)
    may_wait: StrictBool = word("false: rejected when it cannot be had at once", True)
    estimate: float = key("see jobs; for requests that name no lease", 2.0, low=0.01)
    extends: StrictBool = word("extends a lease that would end before the request's time", True)


Hour = Annotated[float, key("hour", high=24)]


@dataclass(frozen=True, slots=True, config=KEYS)
class Reservations:
    """Virtual clusters that do not exist yet, each reserved in advance for a start and a length."""

    name: str = word("its name")
    group: str = word("who asks")
    model: Literal["reservations"] = word("reservations", "reservations")
    needs: str = word("what the nodes must have (a requirements document, XML)", "")
    cache: StrictBool = word("the template lets disks be kept for the group's next use", False)
    may_spread: StrictBool = word("nodes may come from several blocks", True)
    nodes: tuple[Size, ...] = word("sizes of clusters, each as likely as the others", (1,))
    arrivals: Arrivals = Field(default_factory=Arrivals)
    hours: tuple[Hour, ...] = word("hours of each day at which one is asked for; else arrivals", ())
    ahead: LeadTime = Field(default_factory=LeadTime)
    length: Runtime = Field(default_factory=Runtime)

    @property
    def preemptible(self) -> bool:
        """Return False: a vcluster that any request may preempt cannot be reserved."""
        return False


@dataclass(frozen=True, slots=True, config=KEYS)
class Moves:
    """Nodes that move from the virtual cluster of one demand to that of another."""

    name: str = word("its name")
    source: str = word("the queue or farm whose virtual cluster gives the nodes")
    target: str = word("the queue or farm whose virtual cluster gets them")
    model: Literal["moves"] = word("moves", "moves")
    nodes: tuple[Size, ...] = word("how many move at once, each as likely as the others", (1,))
    arrivals: Arrivals = Field(default_factory=Arrivals)
    hours: tuple[Hour, ...] = word("hours of each day at which nodes move; else arrivals", ())
    within: float | None = key(
        "seconds that the source has to give the nodes back; left out: the grace of its group", None
    )


Demand = Jobs | Queue | Farm | Trace | Recorded | Reservations | Moves


@dataclasses.dataclass(frozen=True, slots=True)
class Scenario:
    """A site and its demand. `folder`: the folder that traces are read from."""

    name: str
    types: tuple[Type, ...]
    groups: tuple[OwnerTable, ...]
    demands: tuple[Demand, ...]
    policy: Policy = dataclasses.field(default_factory=Policy)
    energy: Energy = dataclasses.field(default_factory=Energy)
    about: str = ""
    days: float = 30.0
    run_on: float = 0.0
    seed: int = 1
    period: float = 300.0
    image_mb: float = 1000.0
    image_at_once: int | None = None
    image_mb_per_s: float | None = None
    wrong_templates: float = 0.0
    failing_machines: float = 0.0
    blame: bool = True
    folder: Path = Path()
    windows: tuple[PlannedWindow, ...] = ()

    @property
    def nodes(self) -> int:
        """Return the number of machines."""
        return sum(sum(one.blocks) for one in self.types)
