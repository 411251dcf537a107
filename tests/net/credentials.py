"""People with tokens, on an API that tests ask as them."""

from __future__ import annotations

from typing import Any

from cod.client import Client
from cod.flows.people import access, tokens
from cod.model import Role, Who
from cod.store.people import groups, people
from tests.net.apiserver import NOW, Served


def join(tx: Any, name: str, group: str, role: Role, scope: str = "write") -> None:
    """A user with that role in the group, made if need be, and a token 'cod_NAME'."""
    user = people.by_name(tx, name) or people.add(tx, name, NOW)
    people.set_role(tx, groups.ensure(tx, group, NOW).id, user.id, role)
    if access.caller(tx, f"cod_{name}", "", NOW) is None:
        tokens.make(
            tx,
            who=Who(f"user:{name}", user_id=user.id),
            name="t",
            token=f"cod_{name}",
            scope=scope,
            now=NOW,
        )


def as_user(served: Served, name: str, group: str, role: Role = Role.OWNER) -> Client:
    """A client of somebody who has that role in the group."""
    served.tx(join, name, group, role)
    return served.remote(f"cod_{name}")
