"""A new vcluster of several kinds of nodes, over the API."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from cod.flows.people.access import Claim
from cod.model import Right
from cod.web import bodies as b
from cod.web.table import ROUTES


def test_who_asks_may_look_at_the_templates_of_all_kinds() -> None:
    route = next(one for one in ROUTES if (one.method, one.path) == ("POST", "/vclusters"))
    also = [b.TupleAsk(count=1, template="secret"), b.TupleAsk(count=2)]
    body = b.VclusterCreate(name="v", size=1, template="plain", group="physics", also=also)
    assert set(route.claims(cast(Any, SimpleNamespace(body=body)))) == {
        Claim(Right.USE, "group", "physics"), Claim(Right.SEE, "template", "plain"),
        Claim(Right.SEE, "template", "secret")}
