"""Groups that users create by the site's rule: over the API, on the command line and on the
portal."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from cod.client import ApiError, Client
from cod.flows.people import tokens
from cod.model import EnergyUse, GroupRules, Site, Who
from cod.store.nodes import energy
from cod.store.people import groups
from cod.store.people import people as rows
from tests.net.apiserver import NOW, Served, as_json
from tests.net.portalclient import signed_in
from tests.net.rawhttp import ask
from tests.net.test_people_api import refused, user

pytestmark = pytest.mark.slow

DAY = 86_400.0
RULES = GroupRules(
    ("*",), most=2, priority=-5, shares=0.5, node_limit=4, hours_limit=100.0, max_lease=7 * DAY
)


@pytest.fixture
def site(site: Site, request: pytest.FixtureRequest) -> Site:
    """A site where every user may create groups, or whom the test's parameter says."""
    return replace(site, groups=getattr(request, "param", RULES))


HOOK = "https://hooks.example.org/T0/verysecret"
by_members = pytest.mark.parametrize("site", [replace(RULES, creators=("physics",))], indirect=True)
by_two = pytest.mark.parametrize(
    "site", [replace(RULES, creators=("physics", "later"))], indirect=True
)
by_nobody = pytest.mark.parametrize("site", [GroupRules()], indirect=True)


def test_a_user_creates_a_group_and_owns_it_within_the_limits(served: Served) -> None:
    bob = user(served, "bob")
    made = bob.post("/groups", {"name": "lab", "email": "bob@example.org", "default_lease": 3600.0})
    assert (made["created_by"], made["priority"], made["max_lease"], made["default_lease"]) == (
        "bob",
        -5,
        7 * DAY,
        3600.0,
    )
    share = bob.get("/shares/lab")
    assert (share["shares"], share["node_limit"], share["hours_limit"], share["guarantee"]) == (
        0.5,
        4,
        100.0,
        0,
    )
    members = bob.get("/groups/lab/members")["items"]
    assert [(one["user"], one["role"]) for one in members] == [("bob", "owner")]
    assert refused(bob.patch, "/groups/lab", {"priority": 9}).code == "forbidden"
    assert refused(bob.patch, "/shares/lab", {"shares": 9.0}).code == "forbidden"
    audit = served.local.get("/audit?action=group+create")["items"]
    assert [(one["actor"], one["thing"]) for one in audit] == [("token:test@bob", "lab")]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("priority", 1),
        ("max_lease", 1e9),
        ("image_quota", 2**40),
        ("volume_quota", 2**40),
        ("gid", 7000),
    ],
)
def test_what_administrators_set_is_refused(served: Served, field: str, value: float) -> None:
    error = refused(user(served, "bob").post, "/groups", {"name": "lab", field: value})
    assert (error.status, error.code, error.field) == (403, "forbidden", field)
    assert served.tx(groups.by_name, "lab") is None


@pytest.mark.parametrize(
    "name", ["site", "sudo", "root", "docker", "wheel", "fax", "slurm", "physics"]
)
def test_names_that_are_somebody_elses_are_refused(served: Served, name: str) -> None:
    served.tx(groups.ensure, "physics", NOW)
    there = served.tx(groups.every)
    assert refused(user(served, "bob").post, "/groups", {"name": name}).status in (409, 422)
    assert served.tx(groups.every) == there


@pytest.mark.parametrize("name", ["", "A", "-a", "a/b", "../x", "a b", "ä", "x" * 64, "a\n", "*"])
def test_names_that_are_none_are_refused(served: Served, name: str) -> None:
    assert refused(user(served, "bob").post, "/groups", {"name": name}).status == 422


def test_of_many_at_once_as_many_as_the_limit_are_made(served: Served) -> None:
    user(served, "bob")

    def create(number: int) -> str:
        with served.remote("cod_bob") as client:
            try:
                return str(client.post("/groups", {"name": f"g{number}"})["name"])
            except ApiError as error:
                return error.code

    with ThreadPoolExecutor(6) as threads:
        said = list(threads.map(create, range(6)))
    assert said.count("conflict") == 4
    assert {one.name for one in served.tx(groups.every) if one.created_by} == {*said} - {"conflict"}


@pytest.mark.parametrize(("method", "path"), [("PUT", "/groups/lab"), ("POST", "/groups")])
def test_what_made_a_group_shows_it_as_its_owner_sees_it(
    served: Served, method: str, path: str
) -> None:
    bob = user(served, "bob")
    body = {"webhook": HOOK} | ({"name": "lab"} if method == "POST" else {})
    status, headers, made = ask(
        served, method, f"/api/v1{path}", json.dumps(body).encode(), "cod_bob"
    )
    assert (status, made["webhook"]) == (201, HOOK)
    assert (made, headers["ETag"]) == bob.seen("/groups/lab")


@by_members
def test_members_of_the_named_groups_may_and_viewers_may_not(served: Served) -> None:
    asked = {
        role: user(served, f"{role}-1", "physics", role) for role in ("owner", "member", "viewer")
    } | {"stranger": user(served, "sam", "web", "owner")}
    for role in ("owner", "member"):
        assert asked[role].post("/groups", {"name": f"of-{role}"})["created_by"] == f"{role}-1"
    for role in ("viewer", "stranger"):
        assert refused(asked[role].post, "/groups", {"name": "no"}).code == "forbidden"


@by_two
def test_no_name_of_the_sites_rule_is_a_users_to_take(served: Served) -> None:
    """The owner of a group that the rule names would say who may create groups."""
    bob = user(served, "bob", "physics", "member")
    assert refused(bob.post, "/groups", {"name": "later"}).field == "name"
    assert served.local.post("/groups", {"name": "later"})["created_by"] is None


@by_nobody
def test_without_a_rule_only_administrators_create_groups(served: Served) -> None:
    assert refused(user(served, "bob").post, "/groups", {"name": "lab"}).code == "forbidden"
    assert served.local.post("/groups", {"name": "lab"})["created_by"] is None


def test_a_token_for_one_group_creates_none(served: Served) -> None:
    user(served, "bob", "physics", "owner")
    found, group = served.tx(rows.by_name, "bob"), served.tx(groups.by_name, "physics")
    served.tx(
        tokens.make,
        who=Who("user:bob", user_id=found.id, roles=served.tx(rows.roles, found.id)),
        name="narrow",
        token="cod_narrow",
        group=group.name,
        now=NOW,
    )
    assert refused(served.remote("cod_narrow").post, "/groups", {"name": "lab"}).code == "forbidden"


def test_its_owner_ends_it_a_day_later_and_an_administrator_at_once(served: Served) -> None:
    bob = user(served, "bob")
    for name in ("one", "two"):
        bob.post("/groups", {"name": name})
    assert refused(bob.post, "/groups", {"name": "three"}).code == "conflict"
    assert refused(bob.delete, "/groups/one").code == "conflict"
    served.local.delete("/groups/one")
    bob.post("/groups", {"name": "three"})
    served.clock.now += DAY
    bob.delete("/groups/two")
    served.local.post("/groups", {"name": "given"})
    served.local.call("PUT", "/groups/given/members/bob", {"role": "owner"})
    assert refused(bob.delete, "/groups/given").code == "forbidden"


def test_node_hours_of_a_month_are_not_had_twice_by_another_group(served: Served) -> None:
    bob = user(served, "bob")
    bob.post("/groups", {"name": "lab"})
    own = served.tx(groups.by_name, "lab").id
    served.clock.now += DAY
    today = int(served.clock.now // DAY)
    served.tx(energy.add, [EnergyUse(today, own, 0, 3600.0, 0.0, 0.0)])
    error = refused(bob.delete, "/groups/lab")
    assert (error.code, "node-hours of this month" in str(error)) == ("conflict", True)
    served.clock.now += 31 * DAY
    bob.delete("/groups/lab")


def test_groups_of_a_user_who_is_deleted_are_nobodys_to_count(served: Served) -> None:
    bob, ann = user(served, "bob"), user(served, "ann")
    bob.post("/groups", {"name": "lab"})
    served.local.call("PUT", "/groups/lab/members/ann", {"role": "owner"})
    served.local.delete("/users/bob")
    assert ann.get("/groups/lab")["created_by"] is None


@pytest.mark.parametrize("site", [replace(RULES, parent="lent")], indirect=True)
def test_they_are_subgroups_where_the_site_says_so(served: Served) -> None:
    bob = user(served, "bob")
    assert refused(bob.post, "/groups", {"name": "lab"}).code == "conflict"
    assert served.tx(groups.by_name, "lab") is None
    served.tx(groups.add, "lent", NOW)
    bob.post("/groups", {"name": "lab"})
    assert bob.get("/shares/lab")["parent"] == "lent"


def test_on_the_command_line(served: Served) -> None:
    made = as_json(served, "group", "create", "lab", "--email", "root@example.org")
    assert made["created_by"] is None
    bob: Client = user(served, "bob")
    bob.post("/groups", {"name": "own"})
    listed = {one["name"]: one["created_by"] for one in as_json(served, "group", "list")}
    assert (listed["lab"], listed["own"]) == (None, "bob")


def test_on_the_portal(served: Served) -> None:
    bob = signed_in(served, Who("user:bob", user_id=0))
    page = bob.get("/groups")
    assert [name for name, _ in page.fields("/groups")] == ["csrf", "once", "name"]
    page = page.send("/groups", name="lab")
    assert (page.path, "You are its owner." in page.words) == ("/groups/lab", True)
    assert "Created by" in page.words
    assert "after it was created" in page.send("/groups/lab/remove").words
    served.clock.now += DAY
    again = signed_in(served, Who("user:bob", user_id=0), now=served.clock.now)
    again.get("/groups/lab").send("/groups/lab/remove")
    assert served.tx(groups.by_name, "lab") is None


@by_nobody
def test_the_portal_offers_no_group_to_those_who_may_not(served: Served) -> None:
    assert "New group" not in signed_in(served, Who("user:bob", user_id=0)).get("/groups").words
