"""Single rights beside roles: who has one is answered where it is enough, and nowhere else, over
the API and on the portal."""

# ruff: noqa: F401, F811 (fixtures)

from __future__ import annotations

from dataclasses import replace
from itertools import chain, combinations
from typing import Any

import pytest

from cod.flows.people import people, tokens
from cod.model import Owned, Refused, Right, Role, SingleRight, User, Who
from cod.policy.people import rights
from cod.pool import in_transaction
from cod.store.people import people as rows
from cod.web.api.resources import ROUTES
from tests.net.apiserver import Served, as_json, run
from tests.net.portalclient import signed_in
from tests.net.rights_world import NOW, OURS, Asker
from tests.net.test_people_api import refused, user
from tests.net.test_rights_walk import LEAST, MEMBER, OWNER, Walk, name_of, walk

pytestmark = pytest.mark.slow

DOORS = {
    "POST /vclusters/{name}/resize": SingleRight.RESIZE,
    "POST /vclusters/{name}/extend": SingleRight.RESIZE,
    "POST /vclusters/{name}/release": SingleRight.RESIZE,
    "GET /nodes/{name}/console": SingleRight.CONSOLES,
    "POST /nodes/{name}/capture": SingleRight.CAPTURE,
    "DELETE /nodes/{name}/capture": SingleRight.CAPTURE,
    "POST /groups/{name}/invitations": SingleRight.INVITE,
}
SETS = [
    frozenset(some)
    for some in chain.from_iterable(combinations(SingleRight, size) for size in range(5))
]


# ---------------------------------------------------------------- the one function


@pytest.mark.parametrize("role", [*Role, None])
@pytest.mark.parametrize("have", SETS, ids=lambda one: "+".join(sorted(one)) or "none")
def test_a_single_right_is_enough_where_it_is_named_and_nowhere_else(
    role: Role | None, have: frozenset[SingleRight]
) -> None:
    """All roles, sets of single rights, rights and questions: with a right that is not named, or
    in another group, the answer is what the role alone gives."""
    bare = Who("user:ann", user_id=1, roles={} if role is None else {7: role})
    who = replace(bare, singles={7: have})
    elsewhere = replace(bare, singles={8: have})
    ours = Owned(frozenset({7}))
    for right in Right:
        for single in (None, *SingleRight):
            by_role = rights.may(bare, right, ours, single)
            given = role is not None and single in have and right is not Right.ADMIN
            assert rights.may(who, right, ours, single) == (by_role or given)
            assert rights.may(elsewhere, right, ours, single) == by_role
            if not rights.may(who, right, ours, single):
                with pytest.raises(Refused):
                    rights.require(who, right, ours, "none", single)


def test_a_token_for_one_group_has_the_single_rights_there() -> None:
    ann = User(1, "ann", "", "", NOW, None, False, "", None)
    who = rights.person(
        ann,
        {7: Role.VIEWER, 8: Role.VIEWER},
        {7: frozenset({SingleRight.RESIZE}), 8: frozenset({SingleRight.CAPTURE})},
        only=8,
    )
    assert who.singles == {8: frozenset({SingleRight.CAPTURE})}


# ---------------------------------------------------------------- every route


def viewer(walk: Walk, name: str, have: frozenset[SingleRight]) -> Asker:
    """A viewer of the group OURS with those single rights."""

    def made(tx: Any) -> None:
        person = people.create(tx, name, now=NOW)
        people.set_role(tx, group=OURS, user=name, role="viewer", rights=have)
        who = Who(f"user:{name}", user_id=person.id)
        tokens.make(tx, who=who, name="t", token=f"cod_{name}", now=NOW)

    in_transaction(walk.served.pool.engine, made)
    return Asker(f"cod_{name}", role=Role.VIEWER)


def test_every_route_refuses_a_viewer_who_lacks_the_right(walk: Walk) -> None:
    every, ours = frozenset(SingleRight), walk.world.ours
    whole = viewer(walk, "whole", every)
    lacking = {one: viewer(walk, f"no-{one}", every - {one}) for one in SingleRight}
    found = {name_of(route): route for route in ROUTES}
    assert DOORS.keys() <= found.keys()
    wrong = []
    for name, route in found.items():
        if LEAST[name] not in (MEMBER, OWNER):
            continue
        if name not in DOORS:
            status, text = walk.ask(route, whole, ours)
            if status not in (403, 404):
                wrong.append(f"{name}: with all single rights {status} {text[:200]}")
            continue
        status, text = walk.ask(route, lacking[DOORS[name]], ours)
        if status != 403:
            wrong.append(f"{name}: without {DOORS[name]} {status} {text[:200]}")
        status, text = walk.ask(route, whole, ours)
        in_their_role = not name.endswith("/invitations")  # the walk asks for a member's link
        if (status in (401, 403)) == in_their_role:
            wrong.append(f"{name}: with {DOORS[name]} {status} {text[:200]}")
    assert not wrong, "\n".join(wrong)


# ---------------------------------------------------------------- giving them


def test_owners_give_and_take_them_and_the_audit_tells(served: Served) -> None:
    ann, bob = user(served, "ann", "physics", "owner"), user(served, "bob", "physics", "viewer")
    where = "/groups/physics/members/bob"
    given = ann.call("PUT", where, {"role": "viewer", "rights": ["invite", "resize"]})
    assert given["rights"] == ["resize", "invite"]
    assert refused(bob.call, "PUT", where, {"role": "viewer", "rights": []}).code == "forbidden"
    assert ann.call("PUT", where, {"role": "member"})["rights"] == ["resize", "invite"]
    assert ann.call("PUT", where, {"role": "viewer", "rights": []})["rights"] == []
    assert refused(ann.call, "PUT", where, {"role": "viewer", "rights": ["root"]}).status == 422
    rows_ = served.local.get("/audit?action=member+set")["items"]
    assert any("resize" in (row["after"] or {}).get("rights", []) for row in rows_)


def test_they_go_with_the_membership(served: Served) -> None:
    ann, _ = user(served, "ann", "physics", "owner"), user(served, "bob", "physics", "viewer")
    where = "/groups/physics/members/bob"
    ann.call("PUT", where, {"role": "viewer", "rights": ["capture"]})
    ann.delete(where)
    assert served.local.call("PUT", where, {"role": "viewer"})["rights"] == []


def test_they_do_not_come_back_with_the_end_of_an_ownership(served: Served) -> None:
    ann, _ = user(served, "ann", "physics", "owner"), user(served, "bob", "physics", "viewer")
    where = "/groups/physics/members/bob"
    ann.call("PUT", where, {"role": "viewer", "rights": ["capture", "invite"]})
    assert ann.call("PUT", where, {"role": "owner"})["rights"] == []
    assert ann.call("PUT", where, {"role": "viewer"})["rights"] == []


def test_who_may_invite_invites_in_their_own_role_at_most(served: Served) -> None:
    ann, bob = user(served, "ann", "physics", "owner"), user(served, "bob", "physics", "viewer")
    links = "/groups/physics/invitations"
    for role, least in (("viewer", "viewer"), ("member", "member")):
        where = "/groups/physics/members/bob"
        ann.call("PUT", where, {"role": role, "rights": ["invite"]})
        said = {
            asked: refused(bob.post, links, {"role": asked}).code
            for asked in ("owner", "member")
            if asked != least
        }
        assert set(said.values()) == {"forbidden"}
        assert bob.post(links, {"role": least})["role"] == least
    ann.call("PUT", where, {"role": "member", "rights": []})
    assert served.local.get("/invitations")["items"] == [], "links go with the right to give them"


def test_on_the_command_line(served: Served) -> None:
    user(served, "ann", "physics", "owner"), user(served, "bob", "physics", "viewer")
    words = ("member", "set", "physics", "bob", "viewer")
    assert as_json(served, *words, "--right", "consoles")["rights"] == ["consoles"]
    assert as_json(served, *words)["rights"] == ["consoles"]
    assert as_json(served, *words, "--right", "none")["rights"] == []
    run(served, *words, "--right", "none", "--right", "resize", code=2)


def test_on_the_portal(served: Served) -> None:
    ann, bob = user(served, "ann", "physics", "owner"), user(served, "bob", "physics", "viewer")
    browser = signed_in(served, Who("user:ann", user_id=0))
    role = "/groups/physics/members/bob/role"
    page = browser.get("/groups/physics")
    page = page.send(role, role="viewer", rights="invite")
    assert "bob is viewer of physics, and has the rights invite." in page.words
    assert ann.get("/groups/physics/members/bob")["rights"] == ["invite"]
    own = signed_in(served, Who("user:bob", user_id=0)).get("/groups/physics")
    assert own.tree.xpath("//form[contains(@action, '/invite')]//option/text()") == ["viewer"]
    page.send(role, role="viewer")
    assert bob.get("/groups/physics/members/bob")["rights"] == ["invite"], "the form says nothing"
    fields = [(key, each) for key, each in page.fields(role) if key != "rights"]
    browser.post(role, fields)
    assert bob.get("/groups/physics/members/bob")["rights"] == []
