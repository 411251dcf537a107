"""Energy used by nodes, groups and vclusters."""

from __future__ import annotations

import csv
from functools import partial
from io import StringIO
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from cod.flows.nodes import energy
from cod.flows.people.access import RequiredRight
from cod.web.api.models import Query, Reply
from cod.web.api.routes import Call, Names, route, seen

Moment = Annotated[float | None, Field(ge=0, le=1e11, allow_inf_nan=False)]


class EnergyQuery(Query):
    """Days of the report, and the key by which energy is added up. The report has whole days (UTC):
    all that the requested time touches."""

    from_: Moment = Field(
        default=None, alias="from", description="left out: thirty days before 'to'"
    )
    to: Moment = Field(default=None, description="left out: now")
    by: Literal["group", "vcluster", "type", "day", "month"] = Field(default="group")
    group: str = Field(
        default="",
        max_length=63,
        description="of this group alone; left out: of all that you may see",
    )
    format: Literal["json", "csv"] | None = Field(
        default=None, description="left out: as `Accept` has it, else JSON"
    )


class EnergySum(Reply):
    """Energy used, energy saved because nodes slept, grams of CO2 emitted, and the cost by the
    site's prices of node-hours and kWh; null: the site has set no prices."""

    node_hours: float
    kwh: float
    kwh_saved: float
    gco2: float
    cost: float | None


class EnergyLine(EnergySum):
    """A line of the report: of a group (null: the reserve), vcluster or type by `name`; of a day or
    month by its first second."""

    name: str | None
    day: float | None

    @classmethod
    def of(cls, line: energy.Line) -> EnergyLine:
        """Return a line of the reply from the flow's line."""
        return cls(
            name=line.key if isinstance(line.key, str) else None,
            day=line.key if isinstance(line.key, float) else None,
            node_hours=line.node_hours,
            kwh=line.kwh,
            kwh_saved=line.kwh_saved,
            gco2=line.grams,
            cost=line.cost,
        )


class CurveReply(Reply):
    """The site's curve of carbon or price by the hour. `value`: the present one; null: the curve
    has none. `read_at`: when the curve was last read; null: never. `fault`: why it could not be
    read; '' if it could."""

    of: Literal["carbon", "price"]
    unit: str
    value: float | None
    read_at: float | None
    fault: str


class EnergyReport(Reply):
    """Energy between two midnights (UTC). `counted_until`: end of the accounts so far; null:
    nothing is counted yet."""

    since: float
    until: float
    by: str
    counted_until: float | None
    currency: str
    items: list[EnergyLine]
    total: EnergySum
    curve: CurveReply | None = Field(default=None, description="null: the site has none")

    def csv(self) -> str:
        """Return the table, a line for each item, with its name or the second at which its day
        begins."""
        out = StringIO()
        lines = csv.writer(out, lineterminator="\r\n")
        lines.writerow([self.by, "node_hours", "kwh", "kwh_saved", "gco2", "cost"])
        lines.writerows(
            [
                one.day if one.name is None and one.day is not None else one.name or "(reserve)",
                one.node_hours,
                one.kwh,
                one.kwh_saved,
                one.gco2,
                one.cost,
            ]
            for one in self.items
        )
        return out.getvalue()

    @classmethod
    def of(cls, report: energy.Report) -> EnergyReport:
        items = [EnergyLine.of(line) for line in report.lines]
        total = {
            name: sum(getattr(item, name) or 0.0 for item in items)
            for name in EnergySum.model_fields
        }
        if not report.priced:
            total["cost"] = None
        return cls.read_from(report, items=items, total=EnergySum(**total))


def _reads(ask: Call[Names, BaseModel, EnergyQuery]) -> list[RequiredRight]:
    """Return the rights of everybody who is signed in, for their groups. Only administrators see
    the reserve."""
    return [seen("group", ask.query.group, "group")]


ENERGY = (
    route(
        "GET /energy",
        _reads,
        "Show energy that nodes used, and energy saved by sleep",
        lambda a: partial(
            energy.report,
            since=a.query.from_,
            until=a.query.to,
            by=a.query.by,
            group=a.query.group,
            rules=a.site.energy,
            groups=a.who.groups,
            now=a.now,
        ),
        reply=EnergyReport,
        query=EnergyQuery,
    ),
)
