"""`dry_run`: a change says what it would do, and does nothing; by API and command."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cod.client import ApiError
from cod.flows.scheduler import vclusters
from cod.model import AskedVcluster, Role, Site
from cod.store import tables as t
from cod.store.nodes import nodes
from cod.store.people import groups
from tests.contexts import flow_context
from tests.net.apiserver import NOW, Served, add_node, as_json, run, said
from tests.net.credentials import as_user
from tests.store import manager_world as world

pytestmark = pytest.mark.slow  # together with its like more than the quick run has time for


def rows(served: Served, *tables: Any) -> list[Any]:
    """All rows of these tables."""
    return [served.tx(lambda tx, each=each: tx.execute(each.select()).all()) for each in tables]


@pytest.fixture
def busy(served: Served, site: Site) -> str:
    """A vcluster that uses two nodes."""
    served.tx(world.furnish, 0)
    asked = AskedVcluster(name="web", size=2, template="debian", group="site")
    made = served.tx(vclusters.create, flow_context(site, NOW), asked)
    own = made.value[0].vcluster.id
    for number in (1, 2):
        used = {"assigned_at": NOW, "reported_at": NOW, "hostname": f"h{number}"}
        add_node(served, f"n{number}", number, state="active", vcluster_id=own, **used)
    return "web"


def test_a_change_is_tried_and_undone(served: Served) -> None:
    served.local.post("/groups", {"name": "physics"})
    watched = (t.groups, t.audit, t.replies)
    before = rows(served, *watched)
    effects = list(served.effects)
    told = served.local.call("PATCH", "/groups/physics?dry_run=true", {"priority": 7})
    assert told == {"before": {"priority": 0}, "after": {"priority": 7}, "stops": []}
    told = served.local.call("POST", "/groups?dry_run=true", {"name": "chem"}, key="k")
    assert told["before"] is None
    assert told["after"]["name"] == "chem"
    assert rows(served, *watched) == before
    assert served.effects == effects
    told = served.local.call("DELETE", "/groups/physics?dry_run=true")
    assert (told["before"]["name"], told["after"]) == ("physics", None)
    served.local.post("/groups", {"name": "chem"}, key="k")  # the key was not used up


def test_what_is_so_already_would_not_change(served: Served) -> None:
    served.local.post("/groups", {"name": "physics"})
    told = served.local.call("PATCH", "/groups/physics?dry_run=true", {"priority": 0})
    assert told == {"before": {}, "after": {}, "stops": []}
    text = said(served, "group", "set", "physics", "--priority", "0", "--dry-run")
    assert text == "Nothing would change.\n"


def test_a_request_for_more_nodes_says_how_many_there_are(served: Served, busy: str) -> None:
    active = t.vclusters.update().values(state="active", ready_at=NOW, expires_at=NOW + 9e4)
    served.tx(lambda tx: tx.execute(active))
    change = "POST", f"/vclusters/{busy}/resize?dry_run=true"
    told = served.local.call(*change, {"size": 3})
    assert (told["before"], told["after"]) == ({"size": 2}, {"size": 3})
    told = served.local.call(*change, {"size": 2})
    assert (told["before"], told["after"]) == ({}, {})


def test_a_try_is_refused_as_the_change_would_be(served: Served) -> None:
    olga = as_user(served, "olga", "physics", Role.MEMBER)
    with pytest.raises(ApiError, match="administrators") as found:
        olga.call("PATCH", "/groups/physics?dry_run=true", {"priority": 7})
    assert found.value.status == 403
    with pytest.raises(ApiError) as found:
        served.local.call("PATCH", "/groups/nope?dry_run=true", {"priority": 7})
    assert found.value.status == 404
    for method, path, body in (
        ("GET", "/groups/physics", None),
        ("PUT", "/me/password", {"old": "x", "new": "y"}),  # no flow of one transaction
        ("PATCH", "/groups/physics", {"priority": 7}),
    ):
        value = "maybe" if method == "PATCH" else "true"
        with pytest.raises(ApiError, match=r"dry_run|should be") as found:
            served.local.call(method, f"{path}?dry_run={value}", body)
        assert found.value.status == 422, (method, path)
    assert served.local.get("/groups/physics")["priority"] == 0


def test_a_command_says_whose_work_would_stop(served: Served, busy: str) -> None:
    shown = served.local.get(f"/vclusters/{busy}")
    told = as_json(served, "vcluster", "delete", busy, "--dry-run")
    assert told["stops"] == [{"vcluster": busy, "group": "site", "nodes": ["n1", "n2"]}]
    text = said(served, "vcluster", "delete", busy, "--dry-run")
    assert "runs on n1, n2" in text
    assert served.local.get(f"/vclusters/{busy}") == shown
    assert {served.tx(nodes.by_name, name).state for name in ("n1", "n2")} == {"active"}
    run(served, "vcluster", "delete", busy, "--yes")
    assert served.tx(nodes.by_name, "n1").state != "active"


def test_a_try_shows_nothing_that_its_user_may_not_see(served: Served, busy: str) -> None:
    """Wishes for a node's power, and where its BMC is, are for administrators."""
    bmc = {"power_driver": "ipmi", "power_address": "192.0.2.9", "power_account": "rack-7"}
    olga = as_user(served, "olga", "physics", Role.MEMBER)
    holds = {
        "group_id": served.tx(groups.named, "physics").id,
        "node_id": served.tx(nodes.by_name, "n1").id,
        "right": "use",
    }
    served.tx(lambda tx: tx.execute(t.node_permissions.insert().values(holds)))
    served.tx(lambda tx: tx.execute(t.nodes.update().values(bmc)))
    served.local.post("/nodes/n1/power", {"desired": "cycle"})
    with pytest.raises(ApiError) as found:
        olga.get("/nodes/n1/power")
    assert found.value.status == 403
    wish = "POST", "/nodes/n1/power?dry_run=true", {"desired": "off"}
    told = olga.call(*wish)
    assert told["after"]["name"] == "n1"
    assert "items" not in json.dumps(told)
    assert not {"192.0.2.9", "rack-7"} & set(told["after"]["power"].values())
    assert served.local.call(*wish)["before"]["items"]


def test_commands_that_change_people_and_groups_can_be_tried(served: Served) -> None:
    as_user(served, "olga", "physics")
    text = said(served, "group", "set", "physics", "--priority", "7", "--dry-run")
    assert "priority" in text
    assert "7" in text
    told = json.loads(said(served, "user", "disable", "olga", "--dry-run", "--json"))
    assert told["after"]["disabled"] is True
    refused = said(served, "user", "delete", "olga", "--dry-run", code=1)
    assert "last owner of physics" in refused
    assert served.local.get("/users/olga")["disabled"] is False


def test_what_would_change_is_told_in_peoples_units(served: Served, busy: str) -> None:
    as_user(served, "olga", "physics")
    words = ("--max-lease", "36h", "--image-quota", "2G", "--dry-run")
    rows = [line.split() for line in said(served, "group", "set", "physics", *words).splitlines()]
    assert ["max_lease", "-", "1", "d", "12", "h"] in rows
    assert ["image_quota", "-", "2.0", "GiB"] in rows
    assert "2 in use" in said(served, "vcluster", "delete", busy, "--dry-run")
