"""Schemathesis over the API's own document: whatever is asked, by whomever, there is no fault of
the server's, no status and no content type that the document does not name, and what is answered is
as it says.

COD_SCHEMATHESIS_EXAMPLES sets how many questions each operation is asked by each of them, for a
longer run.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from schemathesis import GenerationMode, checks
from sqlalchemy import select

from cod.model import Role, Site
from cod.pool import Pool, in_transaction
from cod.store import tables as t
from cod.web.api import openapi
from cod.wire.tus import PIECE_TYPE
from tests import portal_site
from tests.net.apiserver import ADMIN, NOW, Served, serving
from tests.net.credentials import join

pytestmark = pytest.mark.slow

EXAMPLES = int(os.environ.get("COD_SCHEMATHESIS_EXAMPLES", "2"))
CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.response_headers_conformance,
]


@schemathesis.serializer(PIECE_TYPE)
def _piece(_context: Any, value: Any) -> bytes:
    """A piece of a file, of whatever Schemathesis thinks of."""
    return value if isinstance(value, bytes) else repr(value).encode()


UNENDING = ("/api/v1/events",)
"""Its answer has no end: the tests of the events have a look at it."""
NAMED = {
    "nodes": t.nodes.c.name,
    "vclusters": t.vclusters.c.name,
    "groups": t.groups.c.name,
    "types": t.node_types.c.name,
    "blocks": t.node_blocks.c.name,
    "images": t.images.c.name,
    "templates": t.config_templates.c.name,
    "requests": t.node_requests.c.id,
    "reclaims": t.reclaims.c.id,
    "notices": t.notices.c.id,
}
"""What things are named by, by the first part of their paths."""


@pytest.fixture
def served(
    pool: Pool, reactor: Any, in_reactor: Callable[..., Any], site: Site
) -> Iterator[Served]:
    """A site with something of everything, an owner and a viewer."""
    in_transaction(pool.engine, portal_site.furnish, NOW)
    with serving(pool, reactor, in_reactor, site) as served:
        served.tx(join, "olga", "physics", Role.OWNER)
        served.tx(join, "vera", "physics", Role.VIEWER)
        yield served


def names(tx: Any) -> dict[str, list[str]]:
    """The names of things that there are."""
    return {
        kind: [str(one) for one in tx.scalars(select(column))] for kind, column in NAMED.items()
    }


def about(case: Any, there: dict[str, list[str]], chance: random.Random) -> Any:
    """Ask the same question, half of the times about something that there is."""
    kind = case.path.split("/")[3]
    for part in case.path_parameters or {}:
        if part in ("name", "id") and there.get(kind) and chance.random() < 0.5:
            case.path_parameters[part] = chance.choice(there[kind])
    return case


@pytest.mark.parametrize(
    "token",
    [
        ADMIN,
        *(pytest.param(each, marks=pytest.mark.in_turn(2)) for each in ("cod_olga", "cod_vera")),
    ],
)
def test_no_question_is_answered_out_of_the_document(served: Served, token: str) -> None:
    there = served.tx(names)
    schema = schemathesis.openapi.from_dict(openapi.document())
    base, chance = f"http://127.0.0.1:{served.server.ports[0]}", random.Random(7)
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.path in UNENDING:
            continue

        @seeded(7)
        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(
            case=operation.as_strategy(GenerationMode.POSITIVE)
            | operation.as_strategy(GenerationMode.NEGATIVE)
        )
        def ask(case: Any) -> None:
            asked = about(case, there, chance)
            reply = asked.call(
                base_url=base, headers={"Authorization": f"Bearer {token}"}, timeout=60
            )
            case.validate_response(reply, checks=CHECKS)

        ask()
