"""The REST API as one table: its routes, each with the checks of its request, its flow and its
reply.

`web.server` serves the table, and `web.api.openapi` describes it. A route's `call` gets the checked
request and returns the flow with its arguments; its `shape` makes the reply from the flow's value.

Each module is a noun, and has the models of requests and replies, and the routes. Times are seconds
since the epoch (UTC), lengths of time seconds, sizes bytes. Things are named by their names, never
by row ids. A template is named 'name' (its newest revision) or 'name@revision'. Unknown keys of a
request are refused.
"""

from __future__ import annotations

from cod.web.api.resources import (
    account,
    calendar,
    energy,
    groups,
    hardware,
    hold,
    inventory,
    invitations,
    maintenance,
    nis,
    node_actions,
    nodes,
    notices,
    people,
    plan,
    reclaims,
    requests,
    series,
    server,
    settings,
    shares,
    software,
    targets,
    uploads,
    usage,
    vclusters,
    vcms,
    volumes,
)
from cod.web.api.resources.documents import documents, put
from cod.web.api.resources.jobs import burnins, captures, reinstalls
from cod.web.api.resources.network import names, switches
from cod.web.api.routes import Route, RouteMap

ROUTES: tuple[Route, ...] = (
    *nodes.NODES,
    *node_actions.NODE_ACTIONS,
    *inventory.INVENTORY,
    *captures.CAPTURES,
    *hardware.TYPES,
    *hardware.BLOCKS,
    *switches.SWITCHES,
    *software.IMAGES,
    *uploads.UPLOADS,
    *software.TEMPLATES,
    *vclusters.VCLUSTERS,
    *reinstalls.REINSTALLS,
    *names.NAMES,
    *nis.NIS,
    *requests.REQUESTS,
    *series.SERIES,
    *plan.PLAN,
    *reclaims.RECLAIMS,
    *vcms.VCMS,
    *volumes.VOLUMES,
    *groups.GROUPS,
    *shares.SHARES,
    *notices.NOTICES,
    *hold.HOLD,
    *energy.ENERGY,
    *usage.USAGE,
    *calendar.CALENDAR,
    *maintenance.MAINTENANCE,
    *people.USERS,
    *people.MEMBERS,
    *invitations.INVITATIONS,
    *account.ME,
    *account.DOORS,
    *account.SITE,
    *server.SERVER,
    *settings.SETTINGS,
    *burnins.BURNINS,
    *targets.TARGETS,
    *documents.DOCUMENTS,
    *put.PUTS,
)
ROUTE_MAP = RouteMap(ROUTES)
