"""Reservations that recur: a cluster for each day or week, by the clock of a time zone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import click

from cod.cli.show import created, table, when
from cod.client import ApiError, Client

DAYS = {"daily": 1, "weekly": 7}
MOST = 60
__all__ = ["DAYS", "MOST", "Zone", "occurrence_table", "occurrences", "reserve_each"]


class Zone(click.ParamType[ZoneInfo]):
    """A time zone: 'Europe/Berlin'."""

    name = "zone"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> ZoneInfo:
        """Parse it."""
        if isinstance(value, ZoneInfo):
            return value
        try:
            return ZoneInfo(value)
        except (OSError, ValueError):
            self.fail(f"there is no time zone {value!r}; one is Europe/Berlin", param, ctx)


class Occurrence(NamedTuple):
    """One cluster of a series: its name and when it starts."""

    name: str
    starts_at: float


def occurrences(
    name: str, first: float, repeat: str, zone: ZoneInfo | None, now: float
) -> Iterator[Occurrence]:
    """Yield the clusters of a series whose starts are to come, without end. They start at the same
    time of day by the zone's clock, in winter as in summer; `zone` None: this computer's."""
    start = datetime.fromtimestamp(first, zone).replace(tzinfo=None)
    for number in itertools.count():
        local = start + timedelta(days=number * DAYS[repeat])
        at = local.replace(tzinfo=zone).timestamp()
        if at > now:
            yield Occurrence(f"{name}-{local:%Y-%m-%d}", at)


def reserve_each(
    api: Client, series: Iterator[Occurrence], count: int, body: dict[str, Any]
) -> list[dict[str, Any]]:
    """Reserve so many clusters, each by itself; return what became of each. Those that are there
    already stay as they are. Raises `ApiError` for what is no matter of time or nodes."""
    length = None if body["ends_at"] is None else body["ends_at"] - body["starts_at"]
    done = []
    for name, starts_at in itertools.islice(series, count):
        asked = {**body, "name": name, "starts_at": starts_at}
        if length is not None:
            asked["ends_at"] = starts_at + length
        one: dict[str, Any] = {"name": name, "starts_at": starts_at, "state": None, "detail": ""}
        try:
            one["state"] = created(api, "vclusters", name, asked, if_missing=True)["state"]
        except ApiError as error:
            if error.code not in ("conflict", "impossible"):
                raise
            one["detail"] = error.detail
        done.append(one)
    return done


def occurrence_table(values: list[dict[str, Any]]) -> Any:
    """Return what became of a series, for people."""
    return table(
        ("VCLUSTER", "STARTS", "STATE", "WHY NOT"),
        [
            (one["name"], when(one["starts_at"]), one["state"] or "refused", one["detail"])
            for one in values
        ],
    )
