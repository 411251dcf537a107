"""Switches of the site file, and the ports that nodes are plugged into."""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from typing import Literal

from pydantic import Field

from cod import model
from cod.flows.nodes import switch_ports as flows
from cod.web.api.models import Body, Paged, ReplyOf
from cod.web.api.routes import ADMINS, in_parts, listed, named_route, paged, route


class PortQuery(Paged):
    switch: str | None = Field(default=None, max_length=63)
    node: str | None = Field(default=None, max_length=63)
    sort: Literal["port", "-port", "node", "-node", "state", "-state"] = Field(
        default="port", description="port: by switch and port"
    )


class PortSet(Body):
    """Switch port that a NIC of the node is on."""

    switch: str = Field(min_length=1, max_length=63, description="a [[switch]] of the site file")
    port: str = Field(
        min_length=1, max_length=flows.LONGEST, description="as the switch's driver calls it"
    )
    mac: str | None = Field(
        default=None,
        pattern=r"^[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}$",
        description="the NIC; the one that the node boots from where it is left out",
    )


class PortReply(ReplyOf[model.SwitchPortView]):
    """A switch port that a NIC of a node is on, or was."""


_NODE_PORTS = listed(PortReply, "The switch ports of a node's NICs.", "NodePorts")


class SwitchReply(ReplyOf[model.SwitchView]):
    """A switch of the site file, and the outcome of the sessions with it."""

    name: str


SWITCHES = (
    route(
        "GET /switches",
        ADMINS,
        "List the site's switches",
        lambda a: partial(flows.switches, site=a.site),
        reply=listed(SwitchReply, "Switches, as the site file has them."),
    ),
    named_route(
        "GET /switches/{name}",
        ADMINS,
        "Show a switch",
        lambda a: partial(flows.switch, name=a.names.name, site=a.site),
        reply=SwitchReply,
    ),
    named_route(
        "POST /switches/{name}/check",
        ADMINS,
        "Ask a switch now whether it answers",
        lambda a: partial(flows.check, name=a.names.name, site=a.site),
        reply=SwitchReply,
        status=202,
    ),
    route(
        "GET /ports",
        ADMINS,
        "List the switch ports of nodes",
        lambda a: in_parts(
            partial(flows.ports, site=a.site, switch=a.query.switch, node=a.query.node),
            a.query.page,
            lambda one: (one.port.switch, one.port.port, one.node or "", one.port.mac or ""),
            "port",
            port=lambda one: f"{one.port.switch} {one.port.port}",
            node=lambda one: one.node or "",
            state=attrgetter("state"),
        ),
        reply=paged(PortReply, "Switch ports."),
        query=PortQuery,
    ),
    named_route(
        "GET /nodes/{name}/port",
        ADMINS,
        "List the switch ports of a node's NICs",
        lambda a: partial(flows.of_node, name=a.names.name),
        reply=_NODE_PORTS,
    ),
    named_route(
        "PUT /nodes/{name}/port",
        ADMINS,
        "Enter which switch port a node is on",
        lambda a: partial(
            flows.enter,
            name=a.names.name,
            switch=a.body.switch,
            port=a.body.port,
            mac=a.body.mac,
            site=a.site,
            now=a.now,
        ),
        reply=_NODE_PORTS,
        body=PortSet,
    ),
    named_route(
        "DELETE /nodes/{name}/port",
        ADMINS,
        "Forget which switch ports a node is on",
        lambda a: partial(flows.forget, name=a.names.name),
    ),
    named_route(
        "POST /nodes/{name}/port/retry",
        ADMINS,
        "Try to change a node's switch ports again",
        lambda a: partial(flows.retry, name=a.names.name, now=a.now),
        reply=_NODE_PORTS,
        status=202,
    ),
)
