"""Isolated vclusters by the REST API, the command line and the portal."""

# ruff: noqa: F401, F811 (fixtures)

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from cod.client import ApiError
from cod.core.networks import address_blocks
from cod.model import Isolation, Site
from cod.store.scheduler import vclusters
from tests.net.apiserver import NOW, Served, said
from tests.net.ownersite import browse, engine, furnished_sqlite, there

pytestmark = pytest.mark.slow
SENT = "/vclusters"


@pytest.fixture
def by_default() -> bool:
    """Whether the site isolates vclusters that do not say."""
    return False


@pytest.fixture
def site(site: Site, by_default: bool) -> Site:
    """A site with VLANs."""
    rules = Isolation(
        (2001, 2002), "10.80.0.0/16", interface="eth1", router="last", by_default=by_default
    )
    return replace(site, isolation=rules)


def granted(served: Served, name: str, site: Site) -> None:
    """Give the vcluster what a grant gives it beside nodes."""
    made = served.tx(vclusters.by_name, name)
    assert made is not None
    served.tx(address_blocks.extend, made, made.size, site, now=NOW)


def test_the_api_gives_a_network_and_shows_it(there: Served, site: Site) -> None:
    made = there.local.post(
        "/vclusters",
        {"name": "fresh", "size": 2, "template": "debian", "isolated": True, "network_size": 28},
    )
    network = {
        "vlan": 2001,
        "subnet": "10.80.0.0/28",
        "server": "10.80.0.1",
        "router": "10.80.0.14",
    }
    assert (made["isolated"], made["network"], made["addresses"]) == (True, None, [])
    granted(there, "fresh", site)
    made = there.local.get("/vclusters/fresh")
    assert made["addresses"] == [{"first": "10.80.0.2", "last": "10.80.0.13"}]
    assert made["network"] == network
    assert there.local.get("/vclusters/batch")["network"] is None
    with pytest.raises(ApiError, match="only an isolated vcluster") as refused:
        there.local.post(
            "/vclusters", {"name": "other", "size": 2, "template": "debian", "network_size": 28}
        )
    assert (refused.value.status, refused.value.field) == (422, "network_size")


def test_the_command_line_asks_for_one_and_shows_it(there: Served, site: Site) -> None:
    made = json.loads(
        said(
            there,
            "vcluster",
            "create",
            "fresh",
            "--size",
            "1",
            "--template",
            "debian",
            "--isolated",
            "--network-size",
            "/29",
            "--json",
        )
    )
    assert made["network"] is None
    assert "Isolated: its VLAN comes with its nodes" in said(there, "vcluster", "show", "fresh")
    granted(there, "fresh", site)
    assert "Isolated: VLAN 2001, subnet 10.80.0.0/29, server 10.80.0.1, router 10.80.0.6" in said(
        there, "vcluster", "show", "fresh"
    )
    printed = said(
        there,
        "vcluster",
        "create",
        "other",
        "--size",
        "1",
        "--template",
        "debian",
        "--isolated",
        "--network-size",
        "small",
        code=2,
    )
    assert "'small' should be a prefix length such as 26 or /26" in printed


def test_the_portal_asks_for_one_and_shows_it(there: Served, site: Site) -> None:
    page = browse(there).get("/vclusters/new")
    assert "/29: up to 4 nodes" in page.words
    done = page.send(
        SENT, name="fresh", template="debian", size=2, isolated="true", network_size="28"
    )
    assert "fresh is requested" in done.words
    pending = browse(there).get("/vclusters/fresh").words
    assert "isolated; its VLAN comes with its nodes" in pending
    granted(there, "fresh", site)
    shown = browse(there).get("/vclusters/fresh").words
    assert "isolated, VLAN 2001, 10.80.0.0/28" in shown
    assert "10.80.0.14" in shown
    wrong = (
        browse(there)
        .get("/vclusters/new")
        .send(SENT, name="other", template="debian", size=20, isolated="true", network_size="29")
    )
    assert wrong.status == 422
    assert "ask for /27, which has 28" in wrong.words
    assert "isolated, VLAN" not in browse(there).get("/vclusters/batch").words


@pytest.mark.parametrize("by_default", [True])
def test_a_site_that_isolates_by_default_does_so_at_every_door(there: Served) -> None:
    body = {"size": 1, "template": "debian"}
    assert there.local.post("/vclusters", body | {"name": "silent"})["isolated"] is True
    printed = there.local.post("/vclusters", body | {"name": "plain", "isolated": False})
    assert printed["isolated"] is False
    words = ("--size", "1", "--template", "debian", "--json")
    made = said(there, "vcluster", "create", "typed", "--no-isolated", *words)
    assert json.loads(made)["isolated"] is False
    asked = {"count": 2, "template": "debian"}
    assert there.local.post("/match", asked)["code"] == "ports"
    assert there.local.post("/match", asked | {"isolated": False})["granted"]
    page = browse(there).get("/vclusters/new")
    page.send(SENT, name="ticked", template="debian", size=1)
    assert there.local.get("/vclusters/ticked")["isolated"] is True
    browse(there).get("/vclusters/new").send(
        SENT, name="unticked", template="debian", size=1, isolated=None
    )
    assert there.local.get("/vclusters/unticked")["isolated"] is False


def test_a_forecast_of_an_isolated_cluster_counts_nodes_without_usable_ports(there: Served) -> None:
    body = {"count": 2, "template": "debian"}
    open_, isolated = (
        there.local.post("/match", body | {"isolated": each}) for each in (False, True)
    )
    assert (open_["granted"], open_["portless"]) == (True, 0)
    assert (isolated["granted"], isolated["code"], isolated["portless"]) == (False, "ports", 28)
    printed = said(
        there, "request", "match", "--count", "2", "--template", "debian", "--isolated", code=1
    )
    assert "COD cannot change their switch ports" in printed
