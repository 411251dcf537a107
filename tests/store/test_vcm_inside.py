"""A VCM on a node of its vcluster: invited when the node is primed, let in once, from there, with
one key."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select, update

from cod.flows.agents import orders
from cod.flows.nodes import nodes as node_flows
from cod.flows.scheduler import vclusters
from cod.flows.vcms import vcms
from cod.model import AskedVcluster, Inviter, Nmp, Node, Refused, Site, dotted
from cod.orders import Order
from cod.policy.nodes import inner_vcm
from cod.security.ca import Ca
from cod.store import tables as t
from cod.store import vcms as store
from cod.store.engine import Tx
from cod.store.nodes import bindings, nodes
from cod.store.people import audit
from tests.contexts import flow_context
from tests.store import manager_world as world

pytestmark = pytest.mark.slow

NOW = 1_000_000.0
DOCUMENT = (
    '<template name="{name}"{cache}><image target="disk" url="http://10.0.0.9/a.zst"'
    f' size="1000000" sha256="{"ab" * 32}" compression="zstd"/>{{seed}}</template>'
)
SEED = '<personalise seed="nocloud"><user-data>#!/bin/sh\n</user-data></personalise>'
KEY, OTHER = "a1" * 32, "b2" * 32


@pytest.fixture(scope="session")
def inviter(tmp_path_factory: pytest.TempPathFactory) -> Inviter:
    ca = Ca(tmp_path_factory.mktemp("ca"), "test")
    return Inviter(ca.certificate.decode(), ca.invitation)


def founded(
    tx: Tx, site: Site, size: int = 2, nodes_: int = 4, enrol: bool = True, **more: Any
) -> None:
    """A vcluster 'pool' whose VCM shall run on n1; its nodes are being primed."""
    world.furnish(tx, nodes_)
    tx.execute(update(t.nodes).values(attributes=world.REPORT.format(mib=4096)))
    document = DOCUMENT.format(name="head", seed=SEED, cache="")
    tx.execute(
        insert(t.config_templates).values(
            name="head", revision=1, document=document, digest="0" * 64, created_at=0.0
        )
    )
    vclusters.create(
        tx,
        flow_context(site, NOW),
        AskedVcluster(name="pool", size=size, template="head", group="site"),
    )
    if enrol:
        vcms.enrol_inside(tx, vcluster="pool", head=None, now=NOW, **more)
    world.run_pass(tx, site, NOW)


def node(tx: Tx, hostname: str = "n1") -> Node:
    return next(one for one in nodes.every(tx) if one.hostname == hostname)


def address(tx: Tx, hostname: str = "n1") -> str:
    return next(
        dotted(each.address)
        for each in bindings.of_node(tx, node(tx, hostname).id)
        if each.kind == "vcluster"
    )


def order(tx: Tx, site: Site, inviter: Inviter, hostname: str = "n1", now: float = NOW) -> Order:
    return orders.current(tx, node(tx, hostname), site, "10.77.1.1", inviter=inviter, now=now)


def invited(tx: Tx, site: Site, inviter: Inviter, now: float = NOW) -> str:
    """The invitation that n1 finds."""
    return order(tx, site, inviter, now=now).seed["invitation"].strip()


def admit(
    tx: Tx,
    invitation: str,
    *,
    at: str = "",
    serial: str = "5e",
    key: str = KEY,
    now: float = NOW + 60,
) -> None:
    vcms.admit(
        tx,
        vcluster="pool",
        invitation=invitation,
        address=at or address(tx),
        serial=serial,
        key=key,
        now=now,
    )


def greet(tx: Tx, serial: str, at: str) -> vcms.Greeted:
    return vcms.greet(
        tx, vcluster="pool", serial=serial, address=at, about="t", seen=0, server="cod1", now=NOW
    )


def anew(tx: Tx, site: Site) -> None:
    """n1 breaks, and another node takes its place and name."""
    broken = node(tx)
    world.arrive(tx, NOW)
    node_flows.quarantine(
        tx, flow_context(site, NOW + 100, "test"), name=broken.name, reason="smoke"
    )
    world.run_pass(tx, site, NOW + 100)
    assert node(tx).id != broken.id


# ---------------------------------------------------------------- the seed


def test_the_head_finds_what_its_vcm_begins_with_and_no_other_node_does(
    tx: Tx, site: Site, inviter: Inviter
) -> None:
    founded(tx, site)
    head, other = order(tx, site, inviter).seed, order(tx, site, inviter, "n2").seed
    assert set(other) == {"meta-data", "network-config", "user-data"}
    assert set(head) - set(other) == {"vcm.toml", "ca.crt", "invitation", "vendor-data"}
    assert (head["ca.crt"], head["user-data"]) == (inviter.authority, "#!/bin/sh\n")
    assert 'vcluster = "pool"\nservers = ["10.77.0.1:8071"]' in head["vcm.toml"]
    assert head["invitation"] in head["vendor-data"]
    one = replace(site.subnets[0], others=("10.77.0.2",))
    two = replace(site, subnets=(one, *site.subnets[1:]))
    told = order(tx, two, inviter).seed["vcm.toml"]
    assert 'servers = ["10.77.0.1:8071", "10.77.0.2:8071"]' in told


def test_the_invitation_itself_is_kept_nowhere(tx: Tx, site: Site, inviter: Inviter) -> None:
    founded(tx, site)
    secret = invited(tx, site, inviter)
    for table in t.metadata.sorted_tables:
        assert secret not in str(tx.execute(select(table)).all()), table.name
    assert secret not in repr(inviter)


def test_the_same_order_said_again_is_the_same_invitation_and_not_for_longer(
    tx: Tx, site: Site, inviter: Inviter
) -> None:
    founded(tx, site)
    first = order(tx, site, inviter)
    assert order(tx, site, inviter, now=NOW + 500) == first
    kept = store.invitation(tx, node(tx).vcluster_id or 0)
    assert kept is not None
    assert kept.expires_at == NOW + inner_vcm.LASTS


def test_without_a_vcm_inside_a_seed_is_as_it_was(tx: Tx, site: Site, inviter: Inviter) -> None:
    founded(tx, site, enrol=False)
    assert set(order(tx, site, inviter).seed) == {"meta-data", "network-config", "user-data"}
    vcms.enrol(tx, vcluster="pool", serial="a1", address="", now=NOW)
    assert set(order(tx, site, inviter).seed) == {"meta-data", "network-config", "user-data"}
    vcms.enrol_inside(tx, vcluster="pool", head=None, now=NOW)
    assert set(order(tx, replace(site, nmp=Nmp(port=0)), inviter).seed) == {
        "meta-data",
        "network-config",
        "user-data",
    }


# ---------------------------------------------------------------- enrolling


def test_the_head_is_the_first_or_the_one_named(tx: Tx, site: Site) -> None:
    founded(tx, site, enrol=False)
    assert vcms.enrol_inside(tx, vcluster="pool", head=None, now=NOW)[0].vcm.head == "n1"
    view, to_come = vcms.enrol_inside(tx, vcluster="pool", head="n7", now=NOW)
    assert (view.vcm.head, view.vcm.serial, to_come) == ("n7", "", True)
    # it is being primed already
    assert not vcms.enrol_inside(tx, vcluster="pool", head="n2", now=NOW)[1]
    with pytest.raises(Refused, match="no DNS label"):
        vcms.enrol_inside(tx, vcluster="pool", head="N 1", now=NOW)


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (DOCUMENT.format(name="head", seed="", cache=""), "writes no seed"),
        (DOCUMENT.format(name="head", seed=SEED, cache=' cache="yes"'), "keep their disks"),
    ],
)
def test_a_template_that_could_not_bring_it(tx: Tx, site: Site, document: str, why: str) -> None:
    founded(tx, site, enrol=False)
    tx.execute(
        update(t.config_templates)
        .where(t.config_templates.c.name == "head")
        .values(document=document)
    )
    with pytest.raises(Refused, match=why):
        vcms.enrol_inside(tx, vcluster="pool", head=None, now=NOW)


# ---------------------------------------------------------------- trading it


def test_traded_for_a_certificate_that_speaks_from_the_head_only(
    tx: Tx, site: Site, inviter: Inviter
) -> None:
    founded(tx, site)
    with pytest.raises(Refused, match="has not fetched its certificate"):
        greet(tx, "", address(tx))  # without a certificate it is not known by its address either
    admit(tx, invited(tx, site, inviter))
    assert greet(tx, "5e", address(tx)).vcluster_id == node(tx).vcluster_id
    for serial, at in (
        ("5e", address(tx, "n2")),
        ("5e", "10.9.9.9"),
        ("", address(tx)),
        ("6f", address(tx)),
    ):
        with pytest.raises(Refused):
            greet(tx, serial, at)


def test_the_same_key_may_ask_again_and_no_other(tx: Tx, site: Site, inviter: Inviter) -> None:
    founded(tx, site)
    invitation = invited(tx, site, inviter)
    admit(tx, invitation, serial="5e")
    epoch = greet(tx, "5e", address(tx)).epoch
    admit(tx, invitation, serial="6f")  # its answer was lost
    # who had the first one is not listened to any more
    assert greet(tx, "6f", address(tx)).epoch == epoch + 2
    with pytest.raises(Refused, match="somebody else has used"):
        admit(tx, invitation, serial="70", key=OTHER)
    with pytest.raises(Refused):
        greet(tx, "5e", address(tx))


def test_the_order_said_again_does_not_open_it_again(tx: Tx, site: Site, inviter: Inviter) -> None:
    founded(tx, site)
    admit(tx, invited(tx, site, inviter))
    with pytest.raises(Refused, match="somebody else has used"):
        admit(tx, invited(tx, site, inviter), key=OTHER)


def test_what_is_no_invitation(tx: Tx, site: Site, inviter: Inviter) -> None:
    founded(tx, site)
    with pytest.raises(Refused, match="is no invitation"):
        admit(tx, "00" * 32)
    invitation = invited(tx, site, inviter)
    with pytest.raises(Refused, match="is no invitation"):
        admit(tx, "00" * 32)
    with pytest.raises(Refused, match="is no invitation"):
        vcms.admit(
            tx,
            vcluster="none",
            invitation=invitation,
            address=address(tx),
            serial="5e",
            key=KEY,
            now=NOW,
        )
    with pytest.raises(Refused, match=r"is not at 10\.9\.9\.9"):
        admit(tx, invitation, at="10.9.9.9")
    with pytest.raises(Refused, match="n1 of pool is invited"):
        admit(tx, invitation, at=address(tx, "n2"))  # not even a neighbour in the vcluster
    with pytest.raises(Refused, match="has run out"):
        admit(tx, invitation, now=NOW + inner_vcm.LASTS)
    admit(tx, invitation, now=NOW + inner_vcm.LASTS - 1)


def test_another_vcluster_s_invitation_is_of_no_use(tx: Tx, site: Site, inviter: Inviter) -> None:
    founded(tx, site)
    vclusters.create(
        tx,
        flow_context(site, NOW),
        AskedVcluster(name="rival", size=1, template="head", group="site"),
    )
    vcms.enrol_inside(tx, vcluster="rival", head=None, now=NOW)
    world.run_pass(tx, site, NOW)
    rival = next(
        one
        for one in nodes.every(tx)
        if one.hostname == "n1" and one.vcluster_id != node(tx).vcluster_id
    )
    theirs = (
        orders.current(tx, rival, site, "10.77.1.1", inviter=inviter, now=NOW)
        .seed["invitation"]
        .strip()
    )
    invited(tx, site, inviter)
    with pytest.raises(Refused, match="is no invitation"):
        admit(tx, theirs)


# ---------------------------------------------------------------- what makes it void


def test_primed_anew_there_is_a_new_one(tx: Tx, site: Site, inviter: Inviter) -> None:
    founded(tx, site)
    first = invited(tx, site, inviter)
    admit(tx, first)
    anew(tx, site)
    second = invited(tx, site, inviter)
    assert second != first
    with pytest.raises(Refused, match="has not fetched"):
        # the former head's certificate is void, wherever it has got to
        greet(tx, "5e", address(tx))
    with pytest.raises(Refused, match="is no invitation"):
        admit(tx, first)
    admit(tx, second, serial="6f", key=OTHER)
    greet(tx, "6f", address(tx))


def test_a_head_that_has_left_may_not_come_late(tx: Tx, site: Site, inviter: Inviter) -> None:
    founded(tx, site)
    invitation, before = invited(tx, site, inviter), address(tx)
    anew(tx, site)
    with pytest.raises(Refused, match="not n1 of pool any more"):
        admit(tx, invitation, at=before)


@pytest.mark.parametrize("how", ["enrolled anew", "enrolled elsewhere", "revoked", "ended"])
def test_void_with_its_enrolment(tx: Tx, site: Site, inviter: Inviter, how: str) -> None:
    founded(tx, site)
    invitation, at = invited(tx, site, inviter), address(tx)
    if how == "enrolled anew":
        vcms.enrol_inside(tx, vcluster="pool", head=None, now=NOW + 1)
        assert invited(tx, site, inviter) != invitation
    elif how == "enrolled elsewhere":
        vcms.enrol(tx, vcluster="pool", serial="77", address="", now=NOW + 1)
    elif how == "revoked":
        vcms.revoke(tx, vcluster="pool")
    else:
        vclusters.delete(tx, flow_context(site, NOW + 1, "test"), name="pool")
        world.rest(tx, site, NOW + 1)
        assert tx.scalar(select(t.vcm_invitations.c.digest)) is None
    with pytest.raises(Refused, match="is no invitation"):
        admit(tx, invitation, at=at)


# ---------------------------------------------------------------- the files


def test_the_script_writes_the_files_for_root_alone(tmp_path: Path) -> None:
    """Run as cloud-init runs it, in another folder."""
    part = inner_vcm.seed_part(
        "pool", ["10.0.0.1:8071"], "-----BEGIN CERTIFICATE-----\nx$`\\\n", "5e" * 32
    )
    script, files = part.scripts[0], part.files
    script = script.replace(inner_vcm.FOLDER, str(tmp_path / "etc"))
    subprocess.run(["sh", "-c", script], check=True, umask=0)
    written = {file.name: file for file in (tmp_path / "etc/pool").iterdir()}
    assert {name: file.read_text() for name, file in written.items()} == dict(files)
    assert {file.stat().st_mode & 0o777 for file in written.values()} == {0o600}


def test_the_first_of_its_names() -> None:
    assert inner_vcm.head(["n10", "n2", "n9"], None) == "n2"
    assert inner_vcm.head([], None) == "n1"
    assert inner_vcm.head(["n1"], "n4") == "n4"


def test_that_a_vcm_was_let_in_is_in_the_audit(tx: Tx, site: Site, inviter: Inviter) -> None:
    founded(tx, site)
    admit(tx, invited(tx, site, inviter))
    row = audit.every(tx)[0]
    assert (row.actor, row.action, row.thing, row.address) == (
        "vcm:pool",
        "vcm admit",
        "pool",
        address(tx),
    )
    assert invited(tx, site, inviter) not in row.before + row.after
