"""The REST API as one table: what may be asked, how it is checked, which flow answers, what the answer looks like.

`web.server` serves the table, `web.openapi` describes it. A route's `call` gets the checked question and returns the
flow with its arguments; its `shape` makes the reply from the flow's value.
"""

from __future__ import annotations

from cod.web.routes import Route
from cod.web.table import (
    account,
    captures,
    energy,
    groups,
    hardware,
    nodes,
    people,
    plan,
    reclaims,
    server,
    software,
    uploads,
    usage,
    vclusters,
    vcms,
)

ROUTES: tuple[Route, ...] = (
    *nodes.NODES, *captures.CAPTURES, *hardware.TYPES, *hardware.BLOCKS, *software.IMAGES, *uploads.UPLOADS,
    *software.TEMPLATES, *vclusters.VCLUSTERS, *vclusters.REQUESTS, *plan.PLAN, *reclaims.RECLAIMS, *vcms.VCMS,
    *groups.GROUPS, *groups.NOTICES, *energy.ENERGY, *usage.USAGE, *people.USERS, *people.MEMBERS,
    *people.INVITATIONS, *account.ME, *account.DOORS, *account.SITE, *server.SERVER)
