"""Virtual clusters' nodes, as Ansible takes an inventory."""

from __future__ import annotations

import json

import pytest

from cod.flows.scheduler import vclusters
from cod.model import AskedVcluster, Site
from cod.store import tables as t
from tests.contexts import flow_context
from tests.net.apiserver import NOW, Served, add_node, as_json, run
from tests.store import manager_world as world

pytestmark = pytest.mark.slow


def test_hosts_are_in_groups_of_their_vclusters_and_these_in_their_owners(
    served: Served, site: Site
) -> None:
    served.tx(world.furnish, 0)
    for name in ("web-a", "web-b", "empty"):
        asked = AskedVcluster(name=name, size=1, template="debian", group="site")
        served.tx(vclusters.create, flow_context(site, NOW), asked)
    for number, (name, host) in enumerate([("web-a", "n1"), ("web-a", "n2"), ("web-b", "n1")], 1):
        own = served.tx(
            lambda tx, name=name: tx.scalar(
                t.vclusters.select()
                .with_only_columns(t.vclusters.c.id)
                .where(t.vclusters.c.name == name)
            )
        )
        add_node(served, f"m{number}", number, state="active", vcluster_id=own, hostname=host)
    add_node(served, "free", 9, state="inactive")
    found = as_json(served, "inventory")
    assert found["group_site"] == {"children": ["vcluster_web_a", "vcluster_web_b"]}
    assert found["vcluster_web_a"] == {"hosts": ["n1.web-a", "n2.web-a"]}
    assert found["vcluster_web_b"] == {"hosts": ["n1.web-b"]}
    hosts = found["_meta"]["hostvars"]
    assert hosts.keys() == {"n1.web-a", "n2.web-a", "n1.web-b"}
    assert (hosts["n2.web-a"]["cod_node"], hosts["n2.web-a"]["cod_state"]) == ("m2", "active")
    assert json.loads(run(served, "inventory", "--list").stdout) == found
    assert as_json(served, "inventory", "--host", "n2.web-a") == hosts["n2.web-a"]
    assert as_json(served, "inventory", "--host", "other") == {}
    assert as_json(served, "inventory", "--vcluster", "web-b").keys() == {
        "_meta",
        "group_site",
        "vcluster_web_b",
    }
