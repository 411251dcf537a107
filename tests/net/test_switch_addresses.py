"""Where a node's power is switched, and by which account: nobody but administrators reads it, at
any door."""

# ruff: noqa: F401, F811 (fixtures)

from __future__ import annotations

import json

import pytest

from cod.policy.nodes.power import without_address
from cod.policy.people.audit import for_owners
from cod.web.api.models import Reply, _with_closed
from cod.web.api.resources import ROUTES
from cod.web.portal.registry import PAGES
from tests.net.rights_world import SWITCH
from tests.net.test_rights_pages import Walk as PageWalk
from tests.net.test_rights_walk import Walk, walk

pytestmark = pytest.mark.slow

WRITES = {"/nodes/{name}/power", "/nodes/{name}/capture"}


def asked(walk: Walk, who: str) -> dict[str, str]:
    """What all routes that show a node, or anything else, answer."""
    routes = [
        each
        for each in ROUTES
        if each.method == "GET" or (each.method == "POST" and each.path in WRITES)
    ]
    return {
        f"{each.method} {each.path}": walk.ask(each, walk.world.askers[who], walk.world.ours)[1]
        for each in routes
        if each.path != "/states"
    }


@pytest.mark.parametrize("who", ["owner", "viewer"])
def test_no_route_tells_a_groups_people(walk: Walk, who: str) -> None:
    answers = asked(walk, who)
    assert not [name for name, text in answers.items() if SWITCH in text]
    node = json.loads(answers["GET /nodes/{name}"])
    assert node["power"]["driver"] == "ipmi"
    assert (node["power"]["address"], node["power"]["account"]) == (None, None)
    if who == "owner":
        assert json.loads(answers["POST /nodes/{name}/power"])["power"]["wanted"] == "on"
        assert "node power" in answers["GET /audit"]


def test_an_administrator_is_told(walk: Walk) -> None:
    """Else the others' silence would prove nothing."""
    without_address = {name for name, text in asked(walk, "admin").items() if SWITCH in text}
    assert without_address >= {
        "GET /nodes",
        "GET /nodes/{name}",
        "GET /vclusters/{name}",
        "POST /nodes/{name}/power",
        "GET /audit",
    }


@pytest.mark.parametrize("who", ["owner", "viewer"])
def test_no_page_tells_a_groups_people(walk: Walk, who: str) -> None:
    pages = PageWalk(walk.served, walk.world, walk.line)
    shown = {
        page.path: pages.look(page, walk.world.askers[who], walk.world.ours)[1] for page in PAGES
    }
    assert not [path for path, text in shown.items() if SWITCH in text]
    assert (
        SWITCH
        in pages.look(
            next(page for page in PAGES if page.path == "/nodes/{name}"),
            walk.world.askers["admin"],
            walk.world.ours,
        )[1]
    )


def test_what_an_owner_was_shown_is_what_if_match_compares(walk: Walk) -> None:
    path, token = (
        f"/api/v1/vclusters/{walk.world.ours['vcluster']}",
        walk.world.askers["owner"].token,
    )
    walk.line.request("GET", path, headers={"Authorization": f"Bearer {token}"})
    reply = walk.line.getresponse()
    assert SWITCH not in reply.read().decode()
    walk.line.request(
        "POST",
        f"{path}/extend",
        json.dumps({"lease": 60.0}),
        {
            "Authorization": f"Bearer {token}",
            "Content-Type": "application/json",
            "If-Match": reply.headers["ETag"],
        },
    )
    reply = walk.line.getresponse()
    reply.read()
    assert reply.status != 412


# ---------------------------------------------------------------- how it is done


def test_replies_that_hold_nodes_are_found_by_themselves() -> None:
    made: set[type[Reply]] = {Reply}
    while more := {kind for each in made for kind in each.__subclasses__()} - made:
        made |= more
    found = {each.__name__ for each in made if each.closed or _with_closed(each)}
    assert found >= {"Power", "NodeReply", "NodeInFull", "NodeList", "VclusterInFull", "TypeInFull"}


def test_owners_are_not_shown_it_in_the_audit() -> None:
    """What a wish for power is compared with has the errors of drivers in it, which name whom they
    asked."""
    power = {"wanted": "on", "address": SWITCH, "account": SWITCH}
    wishes = [{"desired": "on", "error": f"{SWITCH} does not answer"}]
    shown = for_owners(
        {
            "power": power,
            "power_address": SWITCH,
            "power_account": SWITCH,
            "items": wishes,
            "size": 3,
        }
    )
    assert shown == {"power": {"wanted": "on"}, "items": [{"desired": "on"}], "size": 3}
    assert for_owners(None) is None


@pytest.mark.parametrize(
    ("error", "address"),
    [
        (f"outlet strip {SWITCH} does not answer", f"{SWITCH}/outlet/4"),
        (
            f"DNS lookup failed: {SWITCH.upper()}.example.org.",
            f"https://{SWITCH}.example.org:443/x?insecure=yes",
        ),
        (f"the lab's socket /run/{SWITCH} does not answer", f"/run/{SWITCH}#n7"),
        (f"'{SWITCH}?x' is not of the form HOST", f"{SWITCH}?x"),
        ("no route to 10.9.0.3", "bmc"),
        ("connecting to fe80::1 failed", "[fe80::1]:623"),
    ],
)
def test_what_holders_hear_of_a_drivers_error(error: str, address: str) -> None:
    heard = without_address(error, address)
    assert "…" in heard
    assert not {SWITCH, "10.9.0.3", "fe80"} & {
        each for each in (SWITCH, "10.9.0.3", "fe80") if each in heard.lower()
    }


def test_what_has_no_address_in_it_is_told_as_it_is() -> None:
    for error in (
        "the BMC is busy (HTTP 503)",
        "no answer from the ipmi driver within 30 s",
        "asked to be on, it is still off after 60 s",
    ):
        assert (
            without_address(error, "https://10.9.0.3:443/redfish/v1")
            == error
            == without_address(error, "")
        )
