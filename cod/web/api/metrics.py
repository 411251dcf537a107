"""Prometheus metrics. Each process counts into files below the run folder. The web part adds them
up for `/metrics`, and reads the present numbers from the database.

`prometheus_client` decides at its import whether several processes share the counters
(PROMETHEUS_MULTIPROC_DIR), so this module is imported after the composition root has set that
variable. Without the variable only the database's counts are shown.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from twisted.internet.defer import Deferred

from cod.flows import views
from cod.flows.nodes import energy, faults
from cod.flows.scheduler import starts
from cod.model import Site, SiteRef
from cod.pool import Pool, Tx

BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)

FLOW_SECONDS = Histogram(
    "cod_flow_seconds", "From a flow's queueing to its commit", ["flow"], buckets=BUCKETS
)
FLOW_ERRORS = Counter(
    "cod_flow_errors", "Flows that ended in an exception, refusals included", ["flow"]
)
QUEUED = Gauge(
    "cod_flows_queued", "Flows waiting for a database thread", ["part"], multiprocess_mode="livesum"
)
UP = Gauge(
    "cod_part_up", "Processes of each part that are running", ["part"], multiprocess_mode="livesum"
)
CONFD = Counter(
    "cod_confd", "Agents' connections: opened, refused, broken, lost; orders sent", ["what"]
)

ABOUT = {
    "nodes": ("state", "Nodes by state"),
    "bindings": ("kind", "Addresses offered or bound by DHCP"),
    "requests": ("state", "Node requests by state"),
    "vclusters": ("state", "Vclusters by state"),
    "images": ("state", "Images by state"),
    "conflicts": ("kind", "Address and identity conflicts on record"),
    "power_actions": ("state", "Power wishes not yet fulfilled"),
    "switch_ports": ("state", "Switch ports of nodes: untouched, pending, applied, given up"),
    "volumes": ("state", "Volumes: pending at their file servers, in trouble there, applied"),
    "sessions": ("state", "Open agent connections"),
    "disk_bytes_per_second": ("state", "Being written, erased or read on all nodes' disks"),
}


def observe(flow: str, seconds: float, succeeded: bool) -> None:
    """Record a flow. `Pool` calls it in the database thread after each one."""
    FLOW_SECONDS.labels(flow).observe(seconds)
    if not succeeded:
        FLOW_ERRORS.labels(flow).inc()


class Mirror:
    """A copier of counts: each call adds to `counter` what plain numbers have grown by."""

    def __init__(self, counter: Counter, counts: Mapping[str, int]) -> None:
        self._counter, self._counts = counter, counts
        self._carried: dict[str, int] = {}

    def __call__(self) -> None:
        """Add the increase of the counts since the last call."""
        for what, count in self._counts.items():
            self._counter.labels(what).inc(count - self._carried.get(what, 0))
            self._carried[what] = count


class Families(Collector):
    """A collector of given metrics, for a registry."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """Return the metrics."""
        return self._families


def _energy(gauges: Iterable[tuple[str, str, float]]) -> Iterable[Metric]:
    """Return metrics of the nodes' energy and of the reserve, from `flows.nodes.energy.gauges`."""
    used = CounterMetricFamily(
        "cod_energy_joules", "Used by nodes since they are counted", labels=["group"]
    )
    saved = CounterMetricFamily(
        "cod_energy_saved_joules", "Not used because nodes slept", labels=["group"]
    )
    emitted = CounterMetricFamily(
        "cod_energy_co2_grams", "CO2 emitted for what nodes used", labels=["group"]
    )
    watts = GaugeMetricFamily(
        "cod_watts", "What nodes draw now, measured or by type and state", labels=["type"]
    )
    reserve = GaugeMetricFamily("cod_reserve_nodes", "Free nodes", labels=["type", "readiness"])
    by_group = {"used": used, "saved": saved, "emitted": emitted}
    for what, label, value in gauges:
        if what in by_group:
            by_group[what].add_metric([label or "(reserve)"], value)
        elif what == "watts":
            watts.add_metric([label], value)
        elif what in ("warm", "cold", "waking"):
            reserve.add_metric([label, what], value)
        else:
            raise ValueError(f"no metric shows {what!r}")
    return used, saved, emitted, watts, reserve


def _counts(counts: Sequence[tuple[str, str, int]]) -> Iterable[Metric]:
    """Return gauges from `flows.views.counts`: numbers of rows, and bytes per second."""
    families = {
        thing: GaugeMetricFamily(f"cod_{thing}", about, labels=[label])
        for thing, (label, about) in ABOUT.items()
    }
    for thing, value, count in counts:
        families[thing].add_metric([value], count)
    return families.values()


def _faults(gauges: Iterable[tuple[str, int, int, float]]) -> Iterable[Metric]:
    """Return gauges of lasting faults outside COD, from `flows.nodes.faults.gauges`."""
    abouts = {
        "cod_outside_faults": "Faults outside of COD that last",
        "cod_outside_faults_affected": "Nodes or volumes that they affect",
        "cod_outside_faults_seconds": "Since the oldest of them began; 0: there is none",
    }
    families = [GaugeMetricFamily(*each, labels=["kind"]) for each in abouts.items()]
    for kind, *values in gauges:
        for family, value in zip(families, values, strict=True):
            family.add_metric([kind], value)
    return families


def _starts(quantiles: Mapping[str, float], counts: Mapping[str, int]) -> Iterable[Metric]:
    """Return metrics of the errors of requests' expected starts, from
    `flows.scheduler.starts.gauges`."""
    errors = GaugeMetricFamily(
        "cod_start_error_seconds",
        "Between the start that a request was told first and its start, in the last 30 days",
        labels=["quantile"],
    )
    started = GaugeMetricFamily(
        "cod_started_requests",
        "Requests that started in the last 30 days, by whether they were told when",
        labels=["told"],
    )
    for quantile, seconds in quantiles.items():
        errors.add_metric([quantile], seconds)
    for each, count in counts.items():
        started.add_metric([each], count)
    return errors, started


class MetricsRows(NamedTuple):
    """Rows of the database behind the metrics, each kind as its flow returns it."""

    counts: Sequence[tuple[str, str, int]] = ()
    energy: Sequence[tuple[str, str, float]] = ()
    faults: Sequence[tuple[str, int, int, float]] = ()
    starts: tuple[Mapping[str, float], Mapping[str, int]] = ({}, {})


def families(rows: MetricsRows) -> list[Metric]:
    """Return the metrics that are made from rows of the database."""
    made = _counts(rows.counts), _energy(rows.energy), _faults(rows.faults), _starts(*rows.starts)
    return [metric for each in made for metric in each]


def text(rows: MetricsRows) -> bytes:
    """Return all metrics, in Prometheus's text format."""
    registry = CollectorRegistry()
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    registry.register(Families(families(rows)))
    return generate_latest(registry)


def page(pool: Pool, site: SiteRef, clock: Callable[[], float]) -> Deferred[bytes]:
    """Return `text` with the database's present metrics."""
    return pool.read(_rows, site.current, clock()).addCallback(text)


def _rows(tx: Tx, site: Site, now: float) -> MetricsRows:
    return MetricsRows(
        views.counts(tx),
        energy.gauges(tx, site.energy, now),
        faults.gauges(tx, now),
        starts.gauges(tx, now),
    )
