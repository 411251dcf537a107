"""Machines that administrators enter before COD has seen them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated

from pydantic import Field

from cod import model
from cod.choices import PowerDriverKind
from cod.filters.language import LONGEST
from cod.flows.nodes import inventory
from cod.machine_lists import csv_file
from cod.web.api.models import Body, Items, Query, Reply, ReplyOf
from cod.web.api.resources.nodes import NodeReply
from cod.web.api.resources.usage import Format
from cod.web.api.routes import ADMINS, Shaped, listed, named_route, route

MOST = 500  # machines in one question


class MachineEntry(Body):
    """Known facts of a machine: its name and its identifiers. A field that is left out stays as it
    is, or gets the value of the site's rules. Values are checked machine by machine, so that a
    wrong value in a list affects its machine alone."""

    name: str = Field(max_length=63, description="a DNS label")
    macs: list[Annotated[str, Field(max_length=20)]] = Field(
        default=[],
        max_length=16,
        description="of its network cards, the one that it boots from first",
    )
    uuid: str | None = Field(
        default=None, max_length=36, description="UUID of the system, as DMI tells it"
    )
    serial: str | None = Field(
        default=None, max_length=64, description="serial number of the system"
    )
    block: str | None = Field(
        default=None, max_length=63, description="a DNS label; made if need be"
    )
    position: str | None = Field(
        default=None, max_length=100, description="place in its rack, such as 17"
    )
    tags: list[Annotated[str, Field(max_length=100)]] | None = Field(
        default=None, max_length=100, description="words by which administrators find nodes"
    )
    power_driver: str | None = Field(
        default=None, max_length=16, description=", ".join(PowerDriverKind)
    )
    power_address: str | None = Field(
        default=None,
        max_length=200,
        description="address of the BMC or outlet, as the driver expects it",
    )
    power_account: str | None = Field(
        default=None, max_length=63, description="an [[account]] of the site file"
    )

    @property
    def known(self) -> model.KnownMachine:
        """Return the entry in the form that the flow takes."""
        return model.KnownMachine(
            self.name,
            tuple(self.macs),
            self.uuid,
            self.serial,
            self.block,
            self.power_driver,
            self.power_address,
            self.power_account,
            self.position,
            None if self.tags is None else tuple(self.tags),
        )


class InventoryList(Body):
    """Machines to enter."""

    machines: list[MachineEntry] = Field(min_length=1, max_length=MOST)


class CheckedList(InventoryList):
    """Machines to enter, after a check of the same list."""

    checked: str | None = Field(
        default=None,
        max_length=64,
        description="`digest` of what POST /inventory/check answered: if the machines would change"
        " something else by now, nothing is changed (409)",
    )


class EntryReply(ReplyOf[model.EnteredMachine], whole=True):
    """Outcome for one machine of the list. `about`: the changes, or why the machine was refused."""


class CheckReplies(Items[EntryReply]):
    """The reply to a check of an inventory: what entering each machine would do. `digest`: the
    value for `checked` of POST /inventory."""

    digest: str

    @classmethod
    def of(cls, entered: Sequence[model.EnteredMachine]) -> CheckReplies:
        items = [EntryReply.of(each) for each in entered]
        return cls(items=items, digest=inventory.digest(entered))


class InventoryQuery(Query):
    """Selection of machines; all without a condition."""

    names: str = Field(default="", max_length=LONGEST, description="as of GET /nodes")
    where: str = Field(default="", max_length=LONGEST, description="a filter, as of GET /nodes")
    format: Format = Field(default=None, description="left out: as `Accept` has it, else JSON")


class MachineReply(ReplyOf[model.KnownMachine], whole=True):
    """A machine in the form that `POST /inventory` takes."""


class InventoryReply(Reply):
    """Machines by name, in the form of the body of `POST /inventory`; or a table, which `cod node
    import csv` reads."""

    machines: list[MachineReply]

    @classmethod
    def of(cls, machines: Sequence[model.KnownMachine]) -> InventoryReply:
        return cls(machines=[MachineReply.of(each) for each in machines])

    def csv(self) -> str:
        """Return the table, a line for each machine."""
        return csv_file.written(self.machines)


INVENTORY = (
    route(
        "GET /inventory",
        ADMINS,
        "List what is known of machines, as POST /inventory takes it; also as a table (CSV)",
        lambda a: partial(
            inventory.listed, names=a.query.names, where=a.query.where, who=a.who, now=a.now
        ),
        reply=Shaped(InventoryReply, InventoryReply.of),
        query=InventoryQuery,
    ),
    route(
        "POST /nodes",
        ADMINS,
        "Add a machine that has not booted yet; it is adopted when it does",
        lambda a: partial(inventory.add, context=a.context, machine=a.body.known),
        reply=NodeReply,
        body=MachineEntry,
        makes="/nodes/{name}",
    ),
    named_route(
        "DELETE /nodes/{name}",
        ADMINS,
        "Delete a node that has never reported",
        lambda a: partial(inventory.remove, name=a.names.name),
    ),
    route(
        "POST /inventory",
        ADMINS,
        "Add or change machines, seen or not; one that is refused leaves the others alone",
        lambda a: partial(
            inventory.enter,
            context=a.context,
            machines=[each.known for each in a.body.machines],
            checked=a.body.checked,
        ),
        reply=listed(
            EntryReply, "Outcomes for the machines, in the order of the list.", "EntryReplies"
        ),
        body=CheckedList,
    ),
    route(
        "POST /inventory/check",
        ADMINS,
        "Show what entering machines would do; nothing is changed",
        lambda a: partial(
            inventory.check,
            context=a.context,
            machines=[each.known for each in a.body.machines],
        ),
        reply=Shaped(CheckReplies, CheckReplies.of),
        body=InventoryList,
        quiet=True,
    ),
)
