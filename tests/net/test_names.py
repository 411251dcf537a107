"""Names that owners add: by the API and the command line, as the DNS server answers them, with the
node and without."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, select

from cod.client import ApiError
from cod.flows.scheduler import vclusters
from cod.model import AskedVcluster, HostKey, Site, SiteRef
from cod.net.dns.server import DnsServer
from cod.pool import Pool, in_transaction
from cod.store import dns_zones
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.nodes import holding, host_keys, nodes
from cod.store.scheduler import vclusters as rows
from tests.contexts import flow_context
from tests.net.apiserver import NOW, Served, said, serving
from tests.net.test_dns_server import dig
from tests.store import manager_world as world

pytestmark = pytest.mark.slow


@pytest.fixture
def served(
    pool: Pool, reactor: Any, in_reactor: Callable[..., Any], site: Site
) -> Iterator[Served]:
    """A site with the vclusters farm (n1, n2) and pool (n1), whose nodes are being primed."""
    with serving(pool, reactor, in_reactor, site) as served:
        served.tx(world.furnish, 4)
        for name, size in (("farm", 2), ("pool", 1)):
            served.tx(
                vclusters.create,
                flow_context(site, NOW),
                AskedVcluster(name=name, size=size, template="debian", group="site"),
            )
        served.tx(world.run_pass, site, NOW)
        yield served


@pytest.fixture
def dns(reactor: Any, in_reactor: Any, pool: Pool, site: Site) -> Iterator[DnsServer]:
    server = DnsServer(reactor, pool, SiteRef(site), "127.0.0.1", port=0, clock=lambda: 1000.0)
    in_reactor(server.startService)
    yield server
    in_reactor(server.stopService)


def leave(tx: Tx, hostname: str) -> None:
    """The node of that name of farm goes home."""
    [node] = [
        one
        for one in nodes.every(tx)
        if one.hostname == hostname
        and one.name != "none"
        and (
            tx.scalar(select(t.vclusters.c.name).where(t.vclusters.c.id == one.vcluster_id))
            == "farm"
        )
    ]
    holding.give_back(tx, node, up_until=0.0)


def test_an_owner_s_name_is_answered_at_once(served: Served, dns: DnsServer) -> None:
    assert "www" in said(served, "name", "add", "www", "n2", "--vcluster", "farm")
    address = dig(dns, "+short", "n2.farm.cod.test")[1]
    assert dig(dns, "+short", "www.farm.cod.test")[1] == f"n2.farm.cod.test.\n{address}"
    assert dig(dns, "+short", "www.farm.cod.test", "CNAME")[1] == "n2.farm.cod.test.\n"
    status, output = dig(dns, "WWW.Farm.cod.test", "AAAA")
    assert (status, "ANSWER: 1," in output, "SOA" in output) == ("NOERROR", True, False)
    assert dig(dns, "www.pool.cod.test")[0] == "NXDOMAIN"
    said(served, "name", "add", "www", "n1", "--vcluster", "pool")
    assert dig(dns, "+short", "www.pool.cod.test")[1].startswith("n1.pool.cod.test.\n")
    said(served, "name", "add", "www", "n1", "--vcluster", "farm")  # it leads elsewhere now
    assert dig(dns, "+short", "www.farm.cod.test")[1].startswith("n1.farm.cod.test.\n")
    said(served, "name", "remove", "www", "--vcluster", "farm")
    assert dig(dns, "www.farm.cod.test")[0] == "NXDOMAIN"


def test_names_lead_on_to_the_host_key(served: Served, dns: DnsServer, engine: Engine) -> None:
    def keyed(tx: Tx) -> None:
        for one in nodes.every(tx):
            host_keys.put(
                tx, one.id, HostKey("ssh-ed25519", "AAAA"), order_id="1.1", salt="", now=NOW
            )

    in_transaction(engine, keyed)
    for name, target in (("www", "n1"), ("web", "www")):
        said(served, "name", "add", name, target, "--vcluster", "farm")
    assert dig(dns, "+short", "web.farm.cod.test", "CNAME")[1] == "www.farm.cod.test.\n"
    found = dig(dns, "+short", "web.farm.cod.test", "SSHFP")[1].splitlines()
    assert found[:2] == ["www.farm.cod.test.", "n1.farm.cod.test."]
    assert found[2].startswith("4 2 ")
    lines = said(served, "vcluster", "known-hosts", "farm").splitlines()
    assert lines[0].startswith("n1.farm.cod.test,web.farm.cod.test,www.farm.cod.test,10.77.")
    assert lines[1].startswith("n2.farm.cod.test,10.77.")
    text = served.local.get("/vclusters/farm/known_hosts", format="json")["lines"]
    assert text == lines


def test_a_name_whose_node_has_left_dangles(served: Served, dns: DnsServer, engine: Engine) -> None:
    said(served, "name", "add", "www", "n2", "--vcluster", "farm")
    [shown] = json.loads(said(served, "name", "list", "--vcluster", "farm", "--json"))
    assert (shown["dangling"], shown["host"], shown["address"][:6]) == (False, "n2", "10.77.")
    in_transaction(engine, leave, "n2")
    status, output = dig(dns, "www.farm.cod.test")
    assert status == "NXDOMAIN"  # of the last name; the name itself is there (RFC 6604)
    assert "CNAME\tn2.farm.cod.test." in output
    serial = in_transaction(engine, lambda tx: dns_zones.serials(tx)["vcluster", "farm"])
    assert serial > 1
    assert f"SOA\tns.cod.test. hostmaster.cod.test. {serial} " in output
    [shown] = json.loads(said(served, "name", "list", "--vcluster", "farm", "--json"))
    assert (shown["dangling"], shown["host"], shown["address"]) == (True, "", "")
    assert "no such node" in said(served, "name", "list", "--vcluster", "farm")


def test_refusals_say_what_to_do(served: Served) -> None:
    for words, why in (
        (("n9", "n1"), "host name"),
        (("www", "n9"), "no node and no name"),
        (("www", "example.org"), "[dns] external"),
    ):
        assert why in said(served, "name", "add", *words, "--vcluster", "farm", code=1)
    assert "no name" in said(served, "name", "remove", "www", "--vcluster", "farm", code=1)
    with pytest.raises(ApiError, match="there is no vcluster"):
        served.local.get("/vclusters/none/names")


def test_the_audit_has_who_changed_what(served: Served) -> None:
    said(served, "name", "add", "www", "n1", "--vcluster", "farm")
    said(served, "name", "add", "www", "n2", "--vcluster", "farm")
    said(served, "name", "remove", "www", "--vcluster", "farm")
    changes = [(one["action"], one["thing"]) for one in served.local.get("/audit")["items"][:3]]
    assert len(changes) == 3
    assert all("farm" in thing for _, thing in changes), changes
    shown = [(one["before"], one["after"]) for one in served.local.get("/audit")["items"][:3]]
    assert shown[1][0]["target"] == "n1"
    assert shown[1][1]["target"] == "n2"


def test_a_renamed_vclusters_former_names_lead_to_its_nodes(served: Served, dns: DnsServer) -> None:
    said(served, "name", "add", "www", "n2", "--vcluster", "farm")
    address = dig(dns, "+short", "n2.farm.cod.test")[1]
    assert "farm is called ranch now" in said(served, "vcluster", "rename", "farm", "ranch")
    assert dig(dns, "+short", "n2.ranch.cod.test")[1] == address
    assert dig(dns, "+short", "n2.farm.cod.test")[1] == f"n2.ranch.cod.test.\n{address}"
    chain = f"www.ranch.cod.test.\nn2.ranch.cod.test.\n{address}"
    assert dig(dns, "+short", "www.farm.cod.test")[1] == chain
    assert dig(dns, "+short", "n2.farm.cod.test", "CNAME")[1] == "n2.ranch.cod.test.\n"
    assert dig(dns, "n9.farm.cod.test")[0] == "NXDOMAIN"
    # else resolvers that ask for it first (RFC 9156) would not ask for names below it
    assert dig(dns, "farm.cod.test", "NS")[0] == "NOERROR"
    assert dig(dns, "nowhere.cod.test", "NS")[0] == "NXDOMAIN"
    assert dig(dns, "n1.nowhere.cod.test")[0] == "NXDOMAIN"
    [reverse] = dig(dns, "+short", "-x", address.strip())[1].splitlines()
    assert reverse == "n2.ranch.cod.test."
    last = served.local.get("/audit", action="vcluster change")["items"][0]
    assert (last["thing"], last["before"]["name"], last["after"]["name"]) == (
        "farm",
        "farm",
        "ranch",
    )


def test_names_end_with_their_vcluster(served: Served, engine: Engine) -> None:
    said(served, "name", "add", "www", "n1", "--vcluster", "farm")

    def end(tx: Tx) -> int:
        vcluster = rows.by_name(tx, "farm")
        assert vcluster is not None
        rows.end(tx, vcluster, NOW)
        return len(tx.execute(select(t.vcluster_names)).all())

    assert in_transaction(engine, end) == 0
    assert served.local.get("/vclusters/farm/names")["items"] == []
