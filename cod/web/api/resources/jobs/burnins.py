"""Burn-ins: tests of nodes, and their results."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

from pydantic import Field

from cod.choices import BurninTest
from cod.flows.nodes import burnins
from cod.model import BurninView
from cod.states import BurninState, NodeState
from cod.web.api.models import Body, Chosen, Reply, ReplyOf
from cod.web.api.routes import ADMINS, listed, named_route, see


class BurninWish(Body):
    """A test of a node's memory, disks and network."""

    tests: list[Chosen[BurninTest]] | None = Field(
        default=None,
        min_length=1,
        max_length=len(BurninTest),
        description="which tests; left out: as the site file says",
    )
    seconds: int | None = Field(
        default=None,
        ge=10,
        le=864_000,
        description="for all tests together; left out: as the site file says",
    )
    erase: bool = Field(
        default=False,
        description=(
            "erase disks that are not clean first, so that they are tested by "
            "writing; else such disks are only read"
        ),
    )

    @property
    def given(self) -> dict[str, Any]:
        """Return the wish in the form that the flow takes."""
        asked = {"tests": self.tests, "seconds": self.seconds, "erase": self.erase}
        return {name: value for name, value in asked.items() if value}


class TestReply(Reply):
    """Result of a test of a part of the node. `figures`: measurements by name, whose unit is in the
    name; `about`: why it failed or was skipped."""

    test: BurninTest
    part: str
    kind: Literal["hdd", "ssd", "nvme", ""]
    outcome: Literal["passed", "failed", "skipped"]
    about: str
    figures: Mapping[str, float]


class BurninReply(ReplyOf[BurninView], whole=True):
    """A burn-in. `state`: wanted, running, passed, failed or cancelled. While it is running, `done`
    of about `total` bytes of the test `phase` are done, at `rate` bytes a second."""

    state: BurninState
    results: tuple[TestReply, ...]
    node_state: NodeState


BURNINS = (
    named_route(
        "GET /nodes/{name}/burnin",
        see("node"),
        "Show a node's newest burn-in",
        lambda a: partial(burnins.show, name=a.names.name),
        reply=BurninReply,
    ),
    named_route(
        "GET /nodes/{name}/burnins",
        see("node"),
        "List a node's burn-ins with their results",
        lambda a: partial(burnins.history, name=a.names.name),
        reply=listed(BurninReply, "A node's newest burn-ins, the newest first."),
    ),
    named_route(
        "POST /nodes/{name}/burnin",
        ADMINS,
        "Test a free node's memory, disks and network",
        lambda a: partial(
            burnins.want,
            context=a.context,
            name=a.names.name,
            tests=a.body.tests,
            seconds=a.body.seconds,
            erase=a.body.erase,
        ),
        reply=BurninReply,
        body=BurninWish,
        status=202,
    ),
    named_route(
        "DELETE /nodes/{name}/burnin",
        ADMINS,
        "Cancel a node's burn-in: it goes back to the reserve",
        lambda a: partial(burnins.cancel, context=a.context, name=a.names.name),
        reply=BurninReply,
    ),
)
