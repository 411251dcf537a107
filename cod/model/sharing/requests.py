"""Requests for nodes, their tuples, and reclaims for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from cod.model.described import About, FieldKind, FieldLevel, Undescribed
from cod.model.records import record


@record(frozen=True, slots=True)
class Request:
    """A row of `node_requests` with its tuples, in order.

    source_id  of a move: the vcluster whose nodes it gets; None: the request is no move
    deadline   of a move: when nodes that `source_id` still holds are taken from it
    granted    of a move: number of nodes that its vcluster has got so far
    starts_at, duration  of a reservation in advance: when it begins, and its seconds; None: the
                         request is no reservation
    """

    id: Annotated[int, About("Id", FieldKind.NUMBER)]
    vcluster_id: Undescribed[int]
    kind: Annotated[str, About("Kind")]
    state: Annotated[str, About("State", FieldKind.STATE)]
    reason: Annotated[str, About("Reason", about="why it waits, is stopped or was rejected")]
    priority: Annotated[int, About("Priority", FieldKind.NUMBER)]
    submitted_at: Annotated[float, About("Submitted", FieldKind.MOMENT)]
    decided_at: Annotated[float | None, About("Decided", FieldKind.MOMENT)]
    may_wait: Annotated[
        bool,
        About(
            "May wait",
            FieldKind.FLAG,
            "false: it is rejected unless it can be met at once",
            level=FieldLevel.WIDE,
        ),
    ] = True
    may_spread: Annotated[
        bool,
        About(
            "May spread",
            FieldKind.FLAG,
            "the nodes of one tuple may be of several types and blocks",
            level=FieldLevel.WIDE,
        ),
    ] = False
    source_id: Undescribed[int | None] = None
    deadline: Undescribed[float | None] = None
    granted: Undescribed[int] = 0
    starts_at: Annotated[
        float | None,
        About("Starts", FieldKind.MOMENT, "of a reservation in advance; null: it is none"),
    ] = None
    duration: Annotated[
        float | None,
        About("Lasts", FieldKind.SPAN, "of a reservation in advance", level=FieldLevel.WIDE),
    ] = None
    tuples: Undescribed[tuple[RequestTuple, ...]] = ()


@dataclass(frozen=True, slots=True)
class RequestTuple:
    """One (count, attributes, template) of a request; `attributes` is a requirements document (XML)
    or ''."""

    count: int
    attributes: str
    template_id: int


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A past request for nodes, with data of its vcluster.

    wanted_at  when it was submitted or, for a reservation in advance, when it begins
    nodes      number of nodes of all its tuples
    needs      requirements (XML) of its first tuple, or ''
    lease_time, expires_at, ended_at, preemptible  of its vcluster
    """

    group: str
    state: str
    wanted_at: float
    decided_at: float | None
    nodes: int
    needs: str
    may_wait: bool
    may_spread: bool
    preemptible: bool
    lease_time: float
    expires_at: float | None
    ended_at: float | None


@dataclass(frozen=True, slots=True)
class AskedTuple:
    """A tuple of a submitted request. '' stands for the value with which the vcluster was created
    or, in a request for a new vcluster, for that of the first tuple.

    attributes  requirements (XML, schema/requires.rng)
    template    'name' or 'name@revision'
    """

    count: int
    attributes: str = ""
    template: str = ""


@dataclass(frozen=True, slots=True)
class AskedNodes:
    """A submitted request for more nodes of a vcluster.

    spread  the nodes of one tuple may be of several types and blocks
    wait    False: the request is rejected if it cannot be granted at once
    starts_at, duration   reserve the nodes in advance (`core.advance_reservations`)
    before  a deadline in place of `starts_at`: COD chooses the best start such that the nodes,
            after `duration` seconds, are given back before the deadline (`core.flexible`)
    """

    MAKES: ClassVar[type] = Request
    tuples: Undescribed[Sequence[AskedTuple]]
    spread: Undescribed[bool] = False
    wait: Undescribed[bool] = True
    starts_at: Undescribed[float | None] = None
    duration: Undescribed[float | None] = None
    before: Undescribed[float | None] = None


@dataclass(frozen=True, slots=True)
class Reclaim:
    """A row of `reclaims`: `count` nodes that a vcluster loses for a request; `given` of them have
    left it and are on their way."""

    id: int
    vcluster_id: int
    request_id: int
    type_id: int
    block_id: int | None
    subnet: str
    attributes: str
    count: int
    given: int
    deadline: float
    state: str
    created_at: float
    ended_at: float | None
