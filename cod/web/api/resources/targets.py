"""Nodes as targets of a monitoring system, in the form of Prometheus' HTTP service discovery."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

from pydantic import BaseModel, Field, RootModel

from cod import model
from cod.flows import views
from cod.web.api.models import Filtered, Reply
from cod.web.api.routes import ANYBODY, Call, Names, Worked, route


class TargetQuery(Filtered):
    """Selection of nodes, and the port of their exporter."""

    port: int = Field(default=9100, ge=1, le=65535, description="that the exporter listens on")
    vcluster: str | None = Field(default=None, max_length=63)
    group: str | None = Field(default=None, max_length=63)


class TargetReply(Reply):
    """A node: its exporter as ADDRESS:PORT, and labels for relabelling rules, `__meta_cod_node` and
    so on."""

    targets: list[str]
    labels: dict[str, str]


class TargetList(RootModel[list[TargetReply]]):
    """Nodes by name. The reply is a bare list, because Prometheus takes nothing else."""


def _targets(
    ask: Call[Names, BaseModel, TargetQuery], nodes: Sequence[model.WatchedNode]
) -> TargetList:
    return TargetList(
        [
            TargetReply(
                targets=[f"{each.address}:{ask.query.port}"],
                labels={
                    f"__meta_cod_{name}": value
                    for name, value in asdict(each).items()
                    if name != "address"
                },
            )
            for each in nodes
        ]
    )


TARGETS = (
    route(
        "GET /targets",
        ANYBODY,
        "List the active nodes of vclusters, as Prometheus' HTTP service discovery takes them",
        lambda a: partial(
            views.watched,
            groups=a.who.groups,
            vcluster=a.query.vcluster,
            group=a.query.group,
        ),
        reply=Worked(TargetList, _targets),
        query=TargetQuery,
        measures=True,
    ),
)
