"""The dashboard and the alert rules: they name metrics and labels that there are, and programs can
read them."""

from __future__ import annotations

import importlib
import json
import re

import pytest
import yaml
from click.testing import CliRunner
from prometheus_client import REGISTRY

from cod.cli.root import cod
from cod.cli.server.monitoring import ALERTS, PANELS, PARTS, grafana
from cod.service import parts
from cod.web.api import metrics

SERVERS = (
    "dhcp.server",
    "tftp.transfers",
    "bootserver.server",
    "nmp.connection",
    "ldap.server",
    "dns.notifier",
)


def labels_by_metric() -> dict[str, set[str]]:
    """Return the labels of each metric that the program has."""
    for name in SERVERS:
        importlib.import_module(f"cod.net.{name}")
    found = {
        family.name + ("_total" if family.type == "counter" else ""): set(
            vars(family)["_labelnames"]
        )
        for family in metrics.families(metrics.MetricsRows())
    }
    for names, collector in REGISTRY._collector_to_names.items():
        labels = set(getattr(names, "_labelnames", ()))
        found |= {name: labels | {"le"} for name in collector}
    return found


QUERIES = [
    *(query for row in PANELS.values() for panel in row for query, _ in panel.queries),
    *(alert.query for alert in ALERTS),
]


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_names_a_metric_and_its_labels(query: str) -> None:
    known = labels_by_metric()
    names = re.findall(r"\bcod_\w+", query)
    assert names, "no metric of COD"
    assert not set(names) - set(known)
    labels = {
        label.strip()
        for group in re.findall(r"by \(([^)]*)\)", query)
        for label in group.split(",")
    } | set(re.findall(r"[{,]\s*(\w+)=", query))
    assert not labels - set.union(*(known[name] for name in names))


@pytest.mark.parametrize(
    ("legend", "query"),
    [
        (legend, query)
        for row in PANELS.values()
        for panel in row
        for query, legend in panel.queries
    ],
)
def test_a_legend_names_labels_that_the_query_keeps(legend: str, query: str) -> None:
    for label in re.findall(r"{{(\w+)}}", legend):
        assert re.match(rf"(sum|max) by \([^)]*\b{label}\b", query)


def test_every_part_of_the_server_is_watched() -> None:
    assert set(PARTS) == set(parts.PARTS)


def test_the_commands_print_what_grafana_and_prometheus_read() -> None:
    shown = json.loads(CliRunner().invoke(cod, ["monitoring", "dashboard"]).stdout)
    assert shown == grafana()
    ids = [panel["id"] for panel in shown["panels"]]
    assert len(ids) == len(set(ids)) == len(PANELS) + sum(map(len, PANELS.values()))
    rules = yaml.safe_load(CliRunner().invoke(cod, ["monitoring", "alerts"]).stdout)
    assert [rule["alert"] for rule in rules["groups"][0]["rules"]] == [each.name for each in ALERTS]


def test_panels_do_not_lie_over_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in grafana()["panels"]:
        grid = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(grid["x"], grid["x"] + grid["w"])
            for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_a_value_that_no_metric_shows_is_an_error() -> None:
    with pytest.raises(KeyError, match="unheard"):
        metrics.text(metrics.MetricsRows(counts=[("unheard", "open", 1)]))
    with pytest.raises(ValueError, match="unheard"):
        metrics.text(metrics.MetricsRows(energy=[("unheard", "t1", 1.0)]))
