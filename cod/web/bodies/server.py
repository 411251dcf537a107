"""Bodies about the server itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from cod import model
from cod.states import NodeEvent, NodeState
from cod.web.bodies.base import Paged, Part, Query, Reply


class ConflictReply(Reply):
    """Address or identity trouble."""

    id: int
    at: float
    kind: str
    subnet: str | None
    address: str | None
    mac: str | None
    about: str

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> ConflictReply:
        """From the table's row."""
        own = {key: row[key] for key in cls.model_fields}
        return cls(**own | {"address": None if row["address"] is None else model.dotted(row["address"])})


class ConflictQuery(Paged):
    """Which conflicts to list."""

    kind: str | None = Field(default=None, max_length=200, description="one, or several with commas between")
    sort: Literal["id", "-id"] = "-id"


class ConflictList(Part):
    """The newest conflicts first."""

    items: list[ConflictReply]


class Arrow(Reply):
    """An arrow of the lifecycle."""

    state: NodeState
    event: NodeEvent
    to: NodeState


class StateReply(Reply):
    """A state of the lifecycle; `deadline` in seconds, null where nothing is owed."""

    name: NodeState
    kind: Literal["stable", "motion", "final"]
    about: str
    deadline: float | None
    retries: int


class Lifecycle(Reply):
    """The nodes' lifecycle as it is compiled into this server."""

    states: list[StateReply]
    arrows: list[Arrow]


class Health(Reply):
    """The server answers and its database too; `counts` by thing and label, empty for callers without a token."""

    ok: bool
    counts: dict[str, dict[str, int]]


class ServerInfo(Reply):
    """What this server is."""

    name: str
    domain: str
    version: str
    subnets: list[str]
    http_port: int
    confd_port: int


class EventQuery(Query):
    """From where to follow the events."""

    after: int | None = Field(default=None, ge=0, le=2**62,
                              description="id of the last event seen; left out: only new ones")


class FieldFault(Reply):
    """What is wrong with one part of the input."""

    field: str
    detail: str


class Problem(Reply):
    """An error (RFC 9457). `code` is stable; `field` names the part of the input that is meant, if one is; `errors` has
    every part that is wrong, `field` and `detail` the first of them."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    field: str | None = None
    errors: list[FieldFault] = Field(default=[], description="of 422: all that is wrong")
