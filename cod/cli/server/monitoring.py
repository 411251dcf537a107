"""`cod monitoring`: configuration for a monitoring system: a dashboard for Grafana, alert rules for
Prometheus, and the nodes to watch.

The metrics are those of `cod.web.api.metrics` and of the servers in `cod.net`; a test compares the
names and labels here with them. Each host of a site reports the counts in the database, so queries
take their maximum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from cod.cli.show import client, for_programs, print_json, print_table, with_table

_HEIGHT, _WIDTH, _ACROSS = 8, 12, 24  # of a panel, and of a dashboard, in Grafana's grid
_SOURCE = {"type": "prometheus", "uid": "${source}"}


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel of the dashboard: PromQL by legend; `unit` is Grafana's name of the unit."""

    title: str
    queries: Sequence[tuple[str, str]]
    unit: str = "short"
    stacked: bool = False


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert rule. It fires when `query` has had a result for so long."""

    name: str
    query: str
    lasts: str
    severity: str
    summary: str


PANELS: Mapping[str, Sequence[Panel]] = {
    "Nodes and requests": (
        Panel("Nodes by state", [("max by (state) (cod_nodes)", "{{state}}")], stacked=True),
        Panel("Requests by state", [("max by (state) (cod_requests)", "{{state}}")]),
        Panel(
            "Free nodes by readiness",
            [
                (
                    "sum by (readiness) (max by (type, readiness) (cod_reserve_nodes))",
                    "{{readiness}}",
                )
            ],
            stacked=True,
        ),
        Panel(
            "How wrong expected starts were, 30 days",
            [("max by (quantile) (cod_start_error_seconds)", "quantile {{quantile}}")],
            unit="s",
        ),
        Panel("Power by type", [("max by (type) (cod_watts)", "{{type}}")], "watt", stacked=True),
        Panel(
            "Disks written, erased, read",
            [("max by (state) (cod_disk_bytes_per_second)", "{{state}}")],
            "Bps",
        ),
    ),
    "Trouble": (
        Panel("Faults outside that last", [("max by (kind) (cod_outside_faults)", "{{kind}}")]),
        Panel("Conflicts on record", [("max by (kind) (cod_conflicts)", "{{kind}}")]),
        Panel("Power wishes open", [("max(cod_power_actions)", "open")]),
        Panel("Switch ports", [("max by (state) (cod_switch_ports)", "{{state}}")]),
        Panel("Volumes at file servers", [("max by (state) (cod_volumes)", "{{state}}")]),
        Panel(
            "Secondary name servers told of changed zones",
            [("sum by (result) (rate(cod_dns_notifies_total[5m]))", "{{result}}")],
            "reqps",
        ),
    ),
    "Boots": (
        Panel(
            "DHCP messages",
            [("sum by (kind) (rate(cod_dhcp_received_total[5m]))", "{{kind}}")],
            "reqps",
        ),
        Panel(
            "DHCP dropped",
            [("sum by (why) (rate(cod_dhcp_dropped_total[5m]))", "{{why}}")],
            "reqps",
        ),
        Panel(
            "Addresses bound by stage",
            [("sum by (stage) (rate(cod_dhcp_bound_total[5m]))", "{{stage}}")],
            "reqps",
        ),
        Panel(
            "Bytes of boot files and images",
            [
                ("sum(rate(cod_tftp_bytes_total[5m]))", "TFTP"),
                ("sum(rate(cod_http_bytes_total[5m]))", "HTTP"),
            ],
            "Bps",
        ),
        Panel("Agents connected", [("max(cod_sessions)", "agents")]),
        Panel(
            "Agents' connections",
            [("sum by (what) (rate(cod_confd_total[5m]))", "{{what}}")],
            "reqps",
        ),
    ),
    "Server": (
        Panel(
            "Flows, p99",
            [
                (
                    "histogram_quantile(0.99, sum by (le) (rate(cod_flow_seconds_bucket[5m])))",
                    "from queueing to commit",
                )
            ],
            "s",
        ),
        Panel("Flows", [("sum(rate(cod_flow_seconds_count[5m]))", "a second")], "reqps"),
        Panel(
            "Flows that wait for a database thread",
            [("sum by (part) (cod_flows_queued)", "{{part}}")],
        ),
        Panel("Parts that run", [("sum by (part) (cod_part_up)", "{{part}}")]),
    ),
}

PARTS = ("edge", "images", "manager", "web")
ALERTS = (
    *(
        Alert(
            f"CodPart{part.capitalize()}Down",
            f'(sum(cod_part_up{{part="{part}"}}) or vector(0)) < 1',
            "2m",
            "critical",
            f"No process of COD's part {part} runs",
        )
        for part in PARTS
    ),
    Alert(
        "CodFlowsWait",
        'cod_flows_queued{part="edge"} > 100',
        "5m",
        "critical",
        "{{ $value }} questions of machines wait for the database",
    ),
    Alert(
        "CodNodesFail",
        'max(cod_nodes{state="quarantined"}) - max(cod_nodes{state="quarantined"} offset 1h) > 2',
        "5m",
        "warning",
        "{{ $value }} more nodes are out of service than an hour ago; see `cod node list`",
    ),
    Alert(
        "CodPowerWishesOpen",
        'min_over_time(cod_power_actions{state="open"}[30m]) > 0',
        "5m",
        "warning",
        "Power wishes have not been fulfilled for half an hour; see `cod fault list`",
    ),
    Alert(
        "CodOutsideFault",
        "cod_outside_faults_seconds > 3600",
        "5m",
        "warning",
        "A fault outside of COD ({{ $labels.kind }}) has lasted for an hour; see `cod fault list`",
    ),
    Alert(
        "CodSwitchPortsGivenUp",
        'cod_switch_ports{state="given up"} > 0',
        "5m",
        "warning",
        "{{ $value }} switch ports could not be set; see `cod port list`",
    ),
    Alert(
        "CodVolumesInTrouble",
        'max(cod_volumes{state="trouble"}) > 0',
        "5m",
        "warning",
        "File servers do not carry out the changes of {{ $value }} volumes; see `cod fault list`",
    ),
    Alert(
        "CodSecondariesSilent",
        'sum(increase(cod_dns_notifies_total{result="unanswered"}[1h])) > 0',
        "0m",
        "warning",
        "Secondary name servers did not answer that zones have changed; see `cod doctor`",
    ),
    Alert(
        "CodConflicts",
        "max by (kind) (cod_conflicts) - max by (kind) (cod_conflicts offset 1h) > 0",
        "0m",
        "warning",
        "New conflicts of the kind {{ $labels.kind }}; see `cod conflict list`",
    ),
)


@click.group()
def monitoring() -> None:
    """Print what Prometheus and Grafana are set up with.

    Example:
      cod token create prometheus --metrics
      cod monitoring alerts >/etc/prometheus/cod.rules.yml
    """


@monitoring.command()
def dashboard() -> None:
    """Print a dashboard, in JSON, to import into Grafana.

    Example:
      cod monitoring dashboard >cod.json
    """
    print_json(grafana())


@monitoring.command()
def alerts() -> None:
    """Print alert rules, in YAML, for Prometheus.

    Example:
      cod monitoring alerts >/etc/prometheus/cod.rules.yml
    """
    import yaml

    click.echo(yaml.safe_dump(rules(), sort_keys=False, width=1000), nl=False)


@monitoring.command()
@click.option("--port", type=click.IntRange(1, 65535), default=9100, help="Of the exporter.")
@click.option("--vcluster", help="Only nodes of this vcluster.")
@click.option("--group", help="Only nodes of this group's vclusters.")
@with_table
def targets(ctx: click.Context, port: int, vcluster: str | None, group: str | None) -> None:
    """List the active nodes of vclusters. Prometheus reads the same from /api/v1/targets.

    Example:
      cod monitoring targets --vcluster web
    """
    asked = {"port": port, "vcluster": vcluster, "group": group}
    found = client(ctx).get("/targets", **{k: v for k, v in asked.items() if v is not None})
    if for_programs():
        return print_json(found)
    labels = ("node", "hostname", "vcluster", "group", "type")
    return print_table(
        ("TARGET", *(name.upper() for name in labels)),
        [
            (*each["targets"], *(each["labels"][f"__meta_cod_{name}"] for name in labels))
            for each in found
        ],
    )


def rules() -> dict[str, Any]:
    """Return the alert rules in the form of Prometheus's rule files."""
    return {
        "groups": [
            {
                "name": "cod",
                "rules": [
                    {
                        "alert": each.name,
                        "expr": each.query,
                        "for": each.lasts,
                        "labels": {"severity": each.severity},
                        "annotations": {"summary": each.summary},
                    }
                    for each in ALERTS
                ],
            }
        ]
    }


def grafana() -> dict[str, Any]:
    """Return the dashboard in the form that Grafana imports: rows of panels, two beside each
    other."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in PANELS.items():
        panels.append(_panel(len(panels), title, "row", 0, y, _ACROSS, 1))
        for number, panel in enumerate(row):
            x = number * _WIDTH % _ACROSS
            panels.append(_chart(len(panels), panel, x, y + 1 + number // 2 * _HEIGHT))
        y += 1 + (len(row) + 1) // 2 * _HEIGHT
    return {
        "title": "Cluster-on-Demand",
        "uid": "cod",
        "tags": ["cod"],
        "schemaVersion": 36,
        "editable": True,
        "refresh": "1m",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [
                {"name": "source", "label": "Source", "type": "datasource", "query": "prometheus"}
            ]
        },
        "panels": panels,
    }


def _panel(number: int, title: str, kind: str, x: int, y: int, w: int, h: int) -> dict[str, Any]:
    grid = {"x": x, "y": y, "w": w, "h": h}
    return {"id": number + 1, "title": title, "type": kind, "gridPos": grid}


def _chart(number: int, panel: Panel, x: int, y: int) -> dict[str, Any]:
    drawn: dict[str, Any] = {"fillOpacity": 30 if panel.stacked else 0}
    if panel.stacked:
        drawn["stacking"] = {"mode": "normal"}
    return _panel(number, panel.title, "timeseries", x, y, _WIDTH, _HEIGHT) | {
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": drawn}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "expr": query,
                "legendFormat": legend,
                "datasource": _SOURCE,
            }
            for at, (query, legend) in enumerate(panel.queries)
        ],
    }
