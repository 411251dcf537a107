"""The metadata service: each node is told of itself by its address, and nobody is told of anybody
else."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, delete, event, insert, update
from sqlalchemy.exc import OperationalError
from twisted.internet.task import Clock

from cod.flows.boot import metadata as flow
from cod.model import Binding, Isolation, Metadata, RequestTuple, Site, SiteRef, SshKey, ipv4
from cod.net.bootserver import metadata as edge
from cod.net.bootserver.server import HttpServer
from cod.policy.nodes import isolation, seed
from cod.pool import Pool, in_transaction
from cod.states import NodeState
from cod.store import tables as t
from cod.store.images import templates
from cod.store.nodes import bindings, nodes
from cod.store.people import groups, people, sshkeys
from cod.store.scheduler import networks, reclaims, requests, vclusters
from tests.conftest import SUBNET
from tests.rows import add_vcluster
from tests.store.agentlab import hardware

pytestmark = pytest.mark.slow  # together with its like more than the quick run has time for

NOW = 1_000_000.0
ENDS = 1_600_000.0
NODE, PEER, OTHER, BOOTS, STRANGER = (
    "127.0.0.11",
    "127.0.0.12",
    "127.0.0.21",
    "127.0.0.31",
    "127.0.0.41",
)
MAC = "52:54:00:00:00:01"
USER_DATA = "#cloud-config\npackages: [vim]\n"
DOCUMENT = (
    '<template name="web"><image target="disk" name="debian"/><personalise seed="nocloud">'
    f"<user-data>{USER_DATA}</user-data></personalise></template>"
)
BARE = '<template name="bare"><image target="disk" name="debian"/></template>'
ANN, BOB, EVE = (
    ("ssh-ed25519 AAAAann ann@desk", "ssh-ed25519 AAAAann2 ann@laptop"),
    ("ssh-rsa AAAAbob",),
    ("ssh-ed25519 AAAAeve",),
)


def person(tx: Any, name: str, group: str, keys: tuple[str, ...]) -> None:
    user = people.add(tx, name=name, now=NOW)
    tx.execute(
        insert(t.group_permissions).values(
            group_id=groups.ensure(tx, group, NOW).id, user_id=user.id, role="member"
        )
    )
    for line in keys:
        algorithm, key, *label = line.split()
        sshkeys.add(tx, SshKey(0, user.id, "".join(label), algorithm, key, key, NOW))


def world(tx: Any) -> None:
    """Two nodes of physics' cluster `farm` and one of chemistry's `web`, all in their own
    systems."""
    person(tx, "ann", "physics", ANN)
    person(tx, "bob", "physics", BOB)
    person(tx, "eve", "chemistry", EVE)
    made: dict[str, Any] = {}
    for number, (group, cluster, host, address, document) in enumerate(
        (
            ("physics", "farm", "n1", NODE, DOCUMENT),
            ("physics", "farm", "n2", PEER, DOCUMENT),
            ("chemistry", "web", "n1", OTHER, BARE),
        ),
        1,
    ):
        owner = groups.ensure(tx, group, NOW)
        if cluster not in made:
            template = templates.add(
                tx,
                name=f"t-{cluster}",
                revision=3,
                group_id=None,
                digest=str(number) * 64,
                document=document,
                created_at=NOW,
            )
            vcluster = add_vcluster(
                tx, cluster, owner.id, template.id, SUBNET, now=NOW, size=2, lease_time=9e5
            )
            made[cluster] = vclusters.change(tx, vcluster, NOW, state="active", expires_at=ENDS)
        mac = f"52:54:00:00:00:{number:02x}"
        node = nodes.add(
            tx,
            name=f"rack-{number}",
            boot_mac=mac,
            now=NOW,
            cause="x",
            actor="x",
            hostname=host,
            template_id=made[cluster].template_id,
            vcluster_id=made[cluster].id,
            state=NodeState.ACTIVE,
            assigned_at=NOW - 60.0,
            attributes=hardware(mac),
        )
        tx.execute(
            insert(t.install_images).values(
                node_id=node.id, generation=7, template_id=node.template_id, state="done", at=NOW
            )
        )
        bindings.add(
            tx, [Binding(ipv4(address), mac, "vcluster", node.id, "lab", host, "bound", 4e9)]
        )
    rack = nodes.by_mac(tx, MAC)
    assert rack is not None
    bindings.add(
        tx, [Binding(ipv4(BOOTS), MAC, "boot", rack.id, "lab", None, "bound", NOW + 900.0)]
    )


@dataclass
class Lab:
    """A server on loopback, and clients at any address of it."""

    engine: Engine
    server: HttpServer
    lines: dict[str, http.client.HTTPConnection]

    def ask(
        self, path: str, source: str = NODE, method: str = "GET", **headers: str
    ) -> tuple[int, str]:
        if source not in self.lines:
            self.lines[source] = http.client.HTTPConnection(
                "127.0.0.1", self.server.port, timeout=60, source_address=(source, 0)
            )
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.lines[source].request(method, path, headers=named)
        reply = self.lines[source].getresponse()
        return reply.status, reply.read().decode()

    def get(self, path: str, source: str = NODE) -> str:
        status, body = self.ask(path, source)
        assert status == 200, (path, status, body)
        return body

    def tx(self, change: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Change the database, and what is remembered of it is forgotten."""
        self.server._metadata._known.clear()
        return in_transaction(self.engine, change, *arguments, **named)

    def node(self, **columns: Any) -> None:
        self.tx(
            lambda tx: tx.execute(update(t.nodes).where(t.nodes.c.boot_mac == MAC).values(columns))
        )


@pytest.fixture
def lab(
    engine: Engine,
    pool: Pool,
    reactor: Any,
    in_reactor: Callable[..., Any],
    site: Site,
    tmp_path: Path,
) -> Iterator[Lab]:
    in_transaction(engine, world)
    server = HttpServer(
        reactor, pool, SiteRef(replace(site)), tmp_path, tmp_path, ["127.0.0.1"], 0, lambda: NOW
    )
    in_reactor(server.startService)
    lab = Lab(engine, server, {})
    yield lab
    for line in lab.lines.values():
        line.close()
    in_reactor(server.stopService)


def leaves(lab: Lab, path: str = "/latest/meta-data/", source: str = NODE) -> dict[str, str]:
    """Crawl the tree as a client does that knows listings alone."""
    found: dict[str, str] = {}
    for name in lab.get(path, source).splitlines():
        if name.endswith("/"):
            found |= leaves(lab, path + name, source)
        elif path.endswith("public-keys/"):
            number, _, label = name.partition("=")
            found[f"{path}{label}"] = lab.get(f"{path}{number}/openssh-key", source)
        else:
            found[path + name] = lab.get(path + name, source)
    return found


# ---------------------------------------------------------------- what a node is told


def test_ec2s_tree_is_walked_by_its_listings(lab: Lab) -> None:
    found = {name.removeprefix("/latest/meta-data/"): value for name, value in leaves(lab).items()}
    domain = "farm.cod.test"
    assert found["instance-id"] == "1.7"
    assert found["local-hostname"] == found["hostname"] == f"n1.{domain}"
    assert (found["local-ipv4"], found["mac"]) == (NODE, MAC)
    assert {key: value for key, value in found.items() if "public-keys" in key} == {
        "public-keys/ann-0": ANN[0],
        "public-keys/ann-1": ANN[1],
        "public-keys/bob-2": BOB[0],
    }
    assert found["tags/instance/vcluster"] == "farm"
    assert found["tags/instance/template"] == found["ami-id"] == "t-farm@3"
    assert found["tags/instance/ends"] == "1970-01-19T12:26:40Z"
    assert found["placement/host-id"] == "rack-1"
    assert found[f"network/interfaces/macs/{MAC}/local-ipv4s"] == NODE
    assert found["services/domain"] == domain
    assert not any(value != value.strip() or "\n" in value for value in found.values()), (
        "a line break makes a list"
    )
    assert "spot" not in lab.get("/latest/meta-data/"), "it stays"


def test_versions_and_folders_with_and_without_a_slash(lab: Lab) -> None:
    assert lab.get("/").split() == sorted(lab.get("/").split())
    assert {"latest/", "2009-04-04/", "nocloud/", "machinefeatures/"} <= set(lab.get("/").split())
    for version in ("2009-04-04", "2021-03-23", "latest"):
        assert lab.get(f"/{version}/meta-data/instance-id") == "1.7"
        assert lab.get(f"/{version}/meta-data") == lab.get(f"/{version}/meta-data/")
        assert set(lab.get(f"/{version}").split()) == {
            "meta-data/",
            "user-data",
            "vendor-data",
            "cod.json",
            "hosts",
        }
    assert lab.get("/latest/meta-data/public-keys/0") == "openssh-key"
    for path in (
        "/2030-01-01/meta-data/",
        "/latest/meta-data/nothing",
        "/latest/meta-data/mac/more",
        "/latest//mac",
        "/latest/meta-data/public-keys/3/openssh-key",
        "/latest/meta-data/iam/security-credentials/",
        "/latest/meta-data/public-keys/-1/openssh-key",
        "/openstack/latest/meta_data.json",
    ):
        assert lab.ask(path)[0] == 404, path


def test_user_data_is_not_found_where_there_is_none(lab: Lab) -> None:
    assert lab.get("/latest/user-data") == USER_DATA
    assert lab.ask("/latest/user-data", OTHER)[0] == 404
    assert lab.get("/nocloud/user-data", OTHER) == "#cloud-config\n{}\n"


def test_secret_user_data_are_told_to_nobody(lab: Lab) -> None:
    """Programs of every user on the node can ask, and so can a neighbour that takes the node's
    address."""
    lab.tx(
        lambda tx: tx.execute(
            update(t.config_templates)
            .where(t.config_templates.c.name == "t-farm")
            .values(document=DOCUMENT.replace("<user-data>", '<user-data secret="yes">'))
        )
    )
    for source in (NODE, PEER, OTHER):
        assert lab.ask("/latest/user-data", source)[0] == 404
        assert "user-data" not in lab.get("/latest/", source).split()
        assert lab.get("/nocloud/user-data", source) == "#cloud-config\n{}\n"
        assert not [
            path for path, text in leaves(lab, "/latest/", source).items() if USER_DATA in text
        ]


def test_nocloud_reads_what_the_seed_would_say_now(lab: Lab) -> None:
    meta = json.loads(lab.get("/nocloud/meta-data"))
    assert meta["instance-id"] == "1.7"
    assert meta["local-hostname"] == "n1.farm.cod.test"
    assert meta["public-keys"] == [*ANN, *BOB]
    assert meta["cod-metadata"] == f"http://{SUBNET.server}:8069/latest/"
    assert meta["cod-installation"] == f"1.{int(NOW)} {'1' * 64}", "as in the seed"
    assert json.loads(lab.get("/nocloud/network-config"))["ethernets"]["boot"]["match"] == {
        "macaddress": MAC
    }
    assert "disable_root" in lab.get("/nocloud/vendor-data")
    assert lab.get("/nocloud/").split() == [
        "vendor-data",
        "meta-data",
        "user-data",
        "network-config",
    ]


def test_a_node_without_keys_has_empty_vendor_data_and_no_folder_of_keys(lab: Lab) -> None:
    lab.tx(lambda tx: tx.execute(delete(t.ssh_keys)))
    assert lab.ask("/nocloud/vendor-data") == (200, "")
    assert "public-keys" not in lab.get("/latest/meta-data/")
    assert lab.ask("/latest/vendor-data")[0] == 404


def test_the_parts_that_are_secret_stay_in_the_seed(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = seed.SeedPart({"told": "yes"}, {"packages": ["told"]})
    kept = seed.SeedPart(
        {"host-key": "hidden"}, {"ssh_keys": "hidden"}, ("#!/bin/sh\necho hidden\n",), secret=True
    )
    monkeypatch.setattr("cod.core.seed_parts.parts", lambda *_: [told, kept])
    everything = "".join(
        lab.get(f"/nocloud/{name}") for name in ("meta-data", "vendor-data")
    ) + str(leaves(lab))
    assert "told" in everything
    assert "hidden" not in everything


def test_machine_and_job_features(lab: Lab) -> None:
    assert lab.get("/machinefeatures/").split() == ["shutdowntime", "total_cpu"]
    assert (
        lab.get("/machinefeatures/shutdowntime")
        == lab.get("/jobfeatures/shutdowntime_job")
        == "1600000"
    )
    assert lab.get("/machinefeatures/total_cpu") == lab.get("/jobfeatures/allocated_cpu") == "1"
    assert lab.get("/jobfeatures/jobstart_secs") == "999940"
    assert lab.get("/jobfeatures/wall_limit_secs") == "600060"
    assert lab.get("/jobfeatures/max_rss_bytes") == str(2048 << 20)
    assert lab.ask("/machinefeatures/hs06")[0] == 404
    lab.tx(lambda tx: tx.execute(update(t.vclusters).values(expires_at=None)))
    assert lab.ask("/machinefeatures/shutdowntime")[0] == 404
    assert lab.ask("/jobfeatures/wall_limit_secs")[0] == 404


def test_a_node_that_goes_back_is_told_as_ec2_tells_it(lab: Lab) -> None:
    lab.tx(lambda tx: tx.execute(update(t.vclusters).values(drain_until=ENDS + 300.0)))
    assert lab.get("/machinefeatures/shutdowntime") == "1600300", "the grace after the lease"
    action = json.loads(lab.get("/latest/meta-data/spot/instance-action"))
    assert action == {"action": "terminate", "time": "1970-01-19T12:31:40Z"}

    def reclaim(tx: Any) -> None:
        web = vclusters.by_name(tx, "web")
        assert web is not None
        tx.execute(update(t.vclusters).values(drain_until=None))
        request = requests.add(
            tx,
            vcluster_id=web.id,
            kind="grow",
            priority=9,
            now=NOW,
            tuples=[RequestTuple(1, "", web.template_id)],
        )
        tx.execute(
            insert(t.node_types).values(
                id=1, name="t1", digest="0" * 64, attributes="<node/>", created_at=NOW
            )
        )
        node = nodes.by_mac(tx, MAC)
        assert node is not None
        assert node.vcluster_id is not None
        reclaims.add(
            tx,
            vcluster_id=node.vcluster_id,
            request_id=request.id,
            type_id=1,
            block_id=None,
            subnet="",
            attributes="",
            nodes=[node],
            deadline=NOW + 1800.0,
            now=NOW,
        )

    lab.tx(reclaim)
    assert lab.get("/machinefeatures/shutdowntime") == "1001800", (
        "the deadline, as nobody has named nodes"
    )
    assert lab.get("/latest/meta-data/spot/termination-time") == "1970-01-12T14:16:40Z"
    lab.tx(lambda tx: tx.execute(update(t.reservations).values(promised_at=NOW + 900.0)))
    assert lab.get("/machinefeatures/shutdowntime") == "1000900", "as its VCM has promised"
    assert lab.get("/latest/meta-data/spot/termination-time") == "1970-01-12T14:01:40Z"
    for other in (PEER, OTHER):
        assert lab.ask("/latest/meta-data/spot/termination-time", other)[0] == 404, "it stays"
        assert lab.get("/machinefeatures/shutdowntime", other) == "1600000"


def test_cods_own_document_has_the_peers(lab: Lab) -> None:
    text = lab.get("/latest/cod.json")
    for line in ('"instance_id": "1.7"', '"leaving": false'):
        assert line in text, "shell scripts of images look for the words as they stand"
    told = json.loads(text)
    assert told["version"] == 1
    assert told["vcluster"] == {"name": "farm", "domain": "farm.cod.test", "group": "physics"}
    assert told["ends"] == ENDS
    assert told["keys"][2] == {"user": "bob", "key": BOB[0]}
    assert told["peers"] == [
        {"hostname": "n1", "fqdn": "n1.farm.cod.test", "address": NODE, "state": "active"},
        {"hostname": "n2", "fqdn": "n2.farm.cod.test", "address": PEER, "state": "active"},
    ]
    assert lab.get("/latest/hosts").splitlines() == [
        f"{NODE} n1.farm.cod.test n1",
        f"{PEER} n2.farm.cod.test n2",
    ]


def test_keys_are_those_of_now(lab: Lab) -> None:
    def leave(tx: Any) -> None:
        ann = people.by_name(tx, "ann")
        assert ann is not None
        tx.execute(delete(t.group_permissions).where(t.group_permissions.c.user_id == ann.id))
        person(tx, "zoe", "physics", ("ssh-ed25519 AAAAzoe",))

    lab.get("/latest/meta-data/public-keys/")
    lab.tx(leave)
    assert lab.get("/latest/meta-data/public-keys/") == "0=bob-0\n1=zoe-1"
    assert json.loads(lab.get("/nocloud/meta-data"))["public-keys"] == [
        "ssh-rsa AAAAbob",
        "ssh-ed25519 AAAAzoe",
    ]


# ---------------------------------------------------------------- who is told


PATHS = (
    "/",
    "/latest/",
    "/latest/meta-data/",
    "/latest/meta-data/instance-id",
    "/latest/user-data",
    "/latest/cod.json",
    "/latest/hosts",
    "/nocloud/meta-data",
    "/machinefeatures/",
    "/jobfeatures/job_id",
)


@pytest.mark.parametrize("source", [STRANGER, BOOTS, "127.0.0.1"])
def test_strangers_and_machines_without_their_own_system_find_nothing(
    lab: Lab, source: str
) -> None:
    for path in PATHS:
        assert lab.ask(path, source) == (404, "no such document\n")
    assert (
        lab.ask("/latest/api/token", source, "PUT", X_aws_ec2_metadata_token_ttl_seconds="60")[0]
        == 404
    )


def test_nobody_is_told_of_others(lab: Lab) -> None:
    for source, hidden in (
        (NODE, ("chemistry", "AAAAeve", OTHER, "rack-3")),
        (OTHER, ("farm", "physics", "AAAAann", "AAAAbob", NODE, PEER, "rack-1", "vim")),
    ):
        everything = (
            str(leaves(lab, source=source))
            + lab.get("/latest/cod.json", source)
            + "".join(
                lab.get(f"/nocloud/{name}", source) for name in lab.get("/nocloud/", source).split()
            )
        )
        for word in hidden:
            assert word not in everything, (source, word)


@pytest.mark.parametrize(
    "state", [state for state in NodeState if state not in (NodeState.BOOT, NodeState.ACTIVE)]
)
def test_a_node_is_told_nothing_outside_of_its_own_system(lab: Lab, state: NodeState) -> None:
    assert lab.ask("/latest/meta-data/instance-id")[0] == 200
    lab.node(state=state)
    assert lab.ask("/latest/meta-data/instance-id")[0] == 404
    lab.node(state=NodeState.BOOT)
    assert lab.ask("/latest/meta-data/instance-id")[0] == 200


def test_a_node_that_has_moved_is_known_by_its_new_address_alone(lab: Lab) -> None:
    def move(tx: Any) -> None:
        node, web = nodes.by_mac(tx, MAC), vclusters.by_name(tx, "web")
        assert node is not None
        assert web is not None
        bindings.release(tx, node.id, 0.0)
        tx.execute(
            update(t.nodes)
            .where(t.nodes.c.id == node.id)
            .values(vcluster_id=web.id, template_id=web.template_id, hostname="n2")
        )
        tx.execute(
            update(t.install_images)
            .where(t.install_images.c.node_id == node.id)
            .values(generation=12)
        )
        bindings.add(
            tx, [Binding(ipv4("127.0.0.22"), MAC, "vcluster", node.id, "lab", "n2", "bound", 4e9)]
        )

    assert lab.get("/latest/meta-data/local-hostname") == "n1.farm.cod.test"
    lab.tx(move)
    assert lab.ask("/latest/meta-data/local-hostname")[0] == 404
    assert lab.get("/latest/meta-data/local-hostname", "127.0.0.22") == "n2.web.cod.test"
    assert lab.get("/latest/meta-data/instance-id", "127.0.0.22") == "1.12"
    assert [peer["address"] for peer in json.loads(lab.get("/latest/cod.json", PEER))["peers"]] == [
        PEER
    ]


def test_a_node_of_an_isolated_cluster_asks_in_its_own_network(lab: Lab, site: Site) -> None:
    rules = Isolation((100, 110), "127.8.0.0/16", interface="trunk0")

    def isolate(tx: Any) -> None:
        farm = vclusters.by_name(tx, "farm")
        assert farm is not None
        networks.add(tx, isolation.network(100, farm.id, ipv4("127.8.0.0"), 26, rules))
        tx.execute(
            update(t.vclusters)
            .where(t.vclusters.c.id == farm.id)
            .values(isolated=True, subnet="vlan-100")
        )
        tx.execute(
            update(t.bindings)
            .where(t.bindings.c.address == ipv4(NODE))
            .values(address=ipv4("127.8.0.5"), subnet="vlan-100")
        )

    lab.server._site.current = replace(site, isolation=rules)
    lab.tx(isolate)
    meta = json.loads(lab.get("/nocloud/meta-data", "127.8.0.5"))
    assert meta["cod-metadata"] == "http://127.8.0.1:8069/latest/"
    told = json.loads(lab.get("/latest/cod.json", "127.8.0.5"))
    assert (told["site"]["server"], told["node"]["network"]) == ("127.8.0.1", "127.8.0.0/26")
    assert lab.get("/machinefeatures/shutdowntime", "127.8.0.5") == "1600000"
    assert lab.ask("/nocloud/meta-data")[0] == 404


def test_a_node_is_told_of_all_servers(lab: Lab) -> None:
    site = lab.server._site.current
    several = replace(site.subnets[0], others=("10.77.0.2",))
    subnets = (several, *site.subnets[1:])
    lab.server._site.current = replace(site, subnets=subnets, authority="PEM")
    meta = json.loads(lab.get("/nocloud/meta-data"))
    assert meta["cod-metadata"] == f"http://{SUBNET.server}:8069/latest/"
    assert meta["cod-metadata-others"] == ["http://10.77.0.2:8069/latest/"]
    told = json.loads(lab.get("/latest/cod.json"))["site"]
    assert (told["server"], told["servers"]) == (SUBNET.server, [SUBNET.server, "10.77.0.2"])
    found = f"ldap_uri = ldap://{SUBNET.server}:389, ldap://10.77.0.2:389"
    assert found in lab.get("/nocloud/vendor-data")


def test_each_server_tells_an_end_and_that_it_is_withdrawn_once_what_it_remembers_is_old(
    lab: Lab, pool: Pool, reactor: Any, in_reactor: Callable[..., Any], site: Site, tmp_path: Path
) -> None:
    second = HttpServer(
        reactor, pool, SiteRef(site), tmp_path, tmp_path, ["127.0.0.1"], 0, lambda: NOW
    )
    in_reactor(second.startService)
    clock, labs = Clock(), [lab, Lab(lab.engine, second, {})]

    def end(tx: Any, at: float | None) -> None:
        tx.execute(update(t.vclusters).values(expires_at=at))

    try:
        for one in labs:
            one.server._metadata._seconds = clock.seconds
        for ends, told in (
            (ENDS, (200, "1600000")),
            (NOW, (200, "1000000")),
            (None, (404, "no such document\n")),
        ):
            in_transaction(lab.engine, end, ends)
            clock.advance(edge.KNOWN)
            assert [one.ask("/machinefeatures/shutdowntime") for one in labs] == [told] * 2
        labs[1].lines[NODE].close()
    finally:
        in_reactor(second.stopService)


def test_an_address_that_a_system_left_behind_opens_nothing(lab: Lab) -> None:
    lab.tx(lambda tx: bindings.release(tx, 1, NOW + 900.0))
    assert lab.ask("/latest/meta-data/")[0] == 404


# ---------------------------------------------------------------- how it is asked


def test_heads_methods_tokens_and_proxies(lab: Lab) -> None:
    assert lab.ask("/latest/meta-data/instance-id", method="HEAD") == (200, "")
    assert lab.ask("/latest/meta-data/instance-id", STRANGER, "HEAD")[0] == 404
    for method in ("POST", "DELETE", "PUT"):
        assert lab.ask("/latest/user-data", method=method)[0] == 405
    token = "/latest/api/token"
    status, made = lab.ask(token, method="PUT", X_aws_ec2_metadata_token_ttl_seconds="21600")
    assert status == 200
    assert len(made) == 48
    assert lab.ask("/latest/meta-data/mac", X_aws_ec2_metadata_token=made) == (200, MAC)
    for lifetime in ("0", "21601", "-1", "many", "9" * 5000, ""):
        assert lab.ask(token, method="PUT", X_aws_ec2_metadata_token_ttl_seconds=lifetime)[0] == 400
    assert lab.ask(token, method="PUT")[0] == 400
    assert lab.ask(token)[0] == 404
    for header in ("X_Forwarded_For", "Forwarded", "Via"):
        assert lab.ask("/latest/meta-data/mac", **{header: "for=192.0.2.1"})[0] == 403


@pytest.mark.parametrize(
    "target",
    [
        "/latest/../boot",
        "/latest/meta-data/..%2f..%2fuser-data",
        "/latest/%2e%2e/",
        "//latest",
        "/latest/meta-data/%00",
        "/latest/meta-data/mac%0d%0aX: y",
        "latest/meta-data",
        "/LATEST/meta-data",
        "/latest/" + "a/" * 3000,
        "/latest/%ff",
        "http://else.example/latest/meta-data/nothing",
        "*",
    ],
)
def test_hostile_paths_find_nothing(lab: Lab, target: str) -> None:
    with socket.create_connection(("127.0.0.1", lab.server.port), 60, (NODE, 0)) as line:
        line.sendall(
            f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode(
                "latin-1"
            )
        )
        reply = b"".join(iter(lambda: line.recv(65536), b""))
    assert reply.split()[1] in (b"400", b"404")
    assert MAC.encode() not in reply


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8069", "cod.test.evil.example"])
def test_a_page_whose_name_leads_here_learns_nothing(lab: Lab, host: str) -> None:
    status, body = lab.ask("/latest/meta-data/mac", Host=host)
    assert (status, body) == (421, "ask by this server's address\n")


@pytest.mark.parametrize(
    "host", ["10.77.0.1", "[::1]:8069", "ns.cod.test", "cod.test:8069", "ns.cod.test.", "ns:8069"]
)
def test_addresses_and_the_site_s_names_are_hosts(lab: Lab, host: str) -> None:
    assert lab.ask("/latest/meta-data/mac", Host=host)[0] == 200


def test_a_server_of_metadata_alone_listens_where_the_address_may_come_later(
    lab: Lab, pool: Pool, reactor: Any, in_reactor: Callable[..., Any], site: Site, tmp_path: Path
) -> None:
    """Serve metadata as on 169.254.169.254: no files, and no image, by that address."""
    (tmp_path / "loader").write_text("x")
    later = HttpServer(
        reactor,
        pool,
        SiteRef(site),
        tmp_path,
        tmp_path,
        ["127.0.0.1"],
        0,
        lambda: NOW,
        kinds=("metadata",),
        later=True,
    )
    absent = HttpServer(
        reactor,
        pool,
        SiteRef(site),
        tmp_path,
        tmp_path,
        ["192.0.2.1"],
        0,
        lambda: NOW,
        kinds=("metadata",),
        later=True,
    )
    for server in (later, absent):
        in_reactor(server.startService)
    try:
        own = Lab(lab.engine, later, {})
        assert own.get("/latest/meta-data/mac") == MAC
        assert own.ask("/files/loader")[0] == 404
        assert lab.ask("/files/loader")[0] == 200
        own.lines[NODE].close()
    finally:
        for server in (later, absent):
            in_reactor(server.stopService)


# ---------------------------------------------------------------- what it costs


def test_a_crawl_is_one_transaction_and_old_answers_are_forgotten(lab: Lab, site: Site) -> None:
    clock, asked = Clock(), []
    lab.server._metadata._seconds = clock.seconds
    event.listen(lab.engine, "begin", lambda connection: asked.append(connection))
    assert len(leaves(lab)) > 20
    assert len(asked) == 1
    lab.get("/latest/cod.json")
    assert len(asked) == 2, "the peers are read for the document that tells of them"
    clock.advance(edge.KNOWN)
    lab.get("/latest/meta-data/mac")
    assert len(asked) == 3
    for _ in range(3):
        lab.ask("/latest/meta-data/mac", STRANGER)
    assert len(asked) == 4
    clock.advance(edge.UNKNOWN)
    lab.ask("/latest/meta-data/mac", STRANGER)
    assert len(asked) == 5


def test_what_is_remembered_is_bounded(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge, "MOST", 3)
    for last in range(50, 60):
        lab.ask("/latest/meta-data/mac", f"127.0.0.{last}")
    assert len(lab.server._metadata._known) == 3


def test_without_the_database_it_says_try_again_and_then_answers(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Metadata:
        raise OperationalError("x", {}, Exception("away"))

    monkeypatch.setattr("cod.pool.RETRY_FOR", 0.0)
    with monkeypatch.context() as patched:
        patched.setattr(flow, "of", broken)
        assert lab.ask("/latest/meta-data/mac") == (503, "try again\n")
    assert lab.get("/latest/meta-data/mac") == MAC
