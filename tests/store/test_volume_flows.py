"""Volumes in the database: what owners may do, what file servers are to carry out, and when
addresses are given on."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Network
from typing import Any

import pytest
from sqlalchemy import select

from cod.core import leases as core_leases
from cod.core import volumes as core
from cod.core.networks import address_blocks
from cod.core.nodes import transitions
from cod.flows.people import groups as group_flows
from cod.flows.people import people
from cod.flows.scheduler import vclusters as vcluster_flows
from cod.flows.volumes import exports
from cod.flows.volumes import volumes as flows
from cod.model import (
    AddressRange,
    AskedVcluster,
    AskedVolume,
    FileServer,
    KerberosRules,
    PosixRules,
    Refused,
    Site,
    VolumeRules,
    VolumeTask,
)
from cod.policy import volumes as policy
from cod.states import NodeEvent, Step
from cod.store import metrics, views
from cod.store import tables as t
from cod.store import volumes as store
from cod.store.engine import Tx
from cod.store.nodes import nodes
from cod.store.scheduler import address_blocks as blocks
from cod.store.scheduler import vclusters
from tests.contexts import flow_context
from tests.store.manager_world import arrive, furnish, run_pass

pytestmark = pytest.mark.slow  # together with its like more than the quick run has time for

GIB = 2**30
DAY = 86400.0
LEASE = 75.0


@pytest.fixture
def site(site: Site) -> Site:
    """A site with two file servers."""
    servers = tuple(
        FileServer(name, "ganesha", f"10.77.0.{n}", "/srv/cod")
        for n, name in enumerate(("nas", "old"), 5)
    )
    return replace(site, fileservers=servers, volumes=VolumeRules(quota=1000 * GIB, homes=False))


def create(tx: Tx, site: Site, name: str = "data", size: int = 10 * GIB, **rest: Any) -> Any:
    return flows.create(
        tx, flow_context(site, rest.pop("now", 1.0)), name=name, size=size, group="site", **rest
    ).volume


def cluster(tx: Tx, site: Site, name: str = "web", **rest: Any) -> Any:
    return (
        vcluster_flows.create(
            tx,
            flow_context(site, 1.0),
            AskedVcluster(name=name, size=1, template="debian", group="site", **rest),
        )
        .value[0]
        .vcluster
    )


def claim(tx: Tx, site: Site, now: float, server: str = "s1", room: int = 10) -> list[VolumeTask]:
    return exports.claim(tx, server, dict.fromkeys(("nas", "old"), room), site, now, LEASE)


def settle(tx: Tx, site: Site, now: float, enforced: str = "btrfs") -> list[VolumeTask]:
    """Have the file servers carry out all that is due."""
    tasks = claim(tx, site, now)
    for task in tasks:
        assert exports.succeeded(tx, task, enforced, now).value
    return tasks


def state(tx: Tx, name: str = "site/data", now: float = 5.0) -> str:
    return flows.show(tx, name=name, now=now).state


def told(tx: Tx) -> list[str]:
    return list(
        tx.scalars(
            select(t.notices.c.kind)
            .where(t.notices.c.kind.like("volume%"))
            .order_by(t.notices.c.id)
        )
    )


def test_a_volume_is_made_and_attached_and_exported_to_the_block_alone(tx: Tx, site: Site) -> None:
    furnish(tx, 1)
    assert create(tx, site).path.startswith("/srv/cod/site.data-")
    (task,) = settle(tx, site, 2.0)
    assert (task.wanted.may_make, task.wanted.clients, state(tx)) == (True, (), "ready")
    web = cluster(tx, site)
    flows.attach(
        tx,
        flow_context(site, 3.0),
        vcluster="web",
        asked=AskedVolume("site/data", mount="/scratch", read_only=True),
    )
    assert store.exported(tx, web.id) == [], "not before the file server has it"
    (task,) = settle(tx, site, 4.0)
    assert not task.wanted.may_make
    assert task.wanted.clients == (), "the vcluster gets its addresses with its nodes"
    run_pass(tx, site, 5.0)
    (task,) = settle(tx, site, 6.0)
    assert [(one.network, one.read_only) for one in task.wanted.clients] == [
        ("10.77.128.0/26", True)
    ]
    [(volume, attachment)] = store.exported(tx, web.id)
    assert (volume.name, attachment.mount) == ("site/data", "/scratch")


def test_addresses_are_not_given_on_before_the_export_is_withdrawn(tx: Tx, site: Site) -> None:
    furnish(tx, 1)
    create(tx, site)
    web = cluster(tx, site, mounts=[AskedVolume("data")])
    settle(tx, site, 2.0)
    run_pass(tx, site, 3.0)
    arrive(tx, 4.0)
    before = blocks.of(tx, web.id)
    assert before
    vcluster_flows.delete(tx, flow_context(site, 5.0, "user:ann"), name="web")
    tx.execute(t.nodes.update().values(vcluster_id=None, released=0, state="inactive"))
    run_pass(tx, site, 6.0)
    waiting = vclusters.get(tx, web.id)
    assert waiting is not None
    assert (waiting.state, blocks.of(tx, web.id)) == (
        "releasing",
        before,
    ), "the file server is away"
    with pytest.raises(RuntimeError, match="exported to its addresses"):
        vclusters.end(tx, waiting, 6.5)
    (task,) = claim(tx, site, 7.0)
    assert task.wanted.clients == ()
    assert exports.succeeded(tx, task, "btrfs", 8.0).effects, "the manager is woken"
    run_pass(tx, site, 9.0)
    ended = vclusters.get(tx, web.id)
    assert ended is not None
    assert (ended.state, blocks.of(tx, web.id)) == ("ended", [])
    assert state(tx) == "ready", "the data stays"


def test_a_vcluster_that_never_got_nodes_waits_for_its_exports_too(tx: Tx, site: Site) -> None:
    furnish(tx, 0)
    create(tx, site)
    web = cluster(tx, site, mounts=[AskedVolume("data", "/d")])
    settle(tx, site, 2.0)
    vcluster_flows.delete(tx, flow_context(site, 3.0, "user:ann"), name="web")
    assert vclusters.get(tx, web.id).state == "releasing"
    settle(tx, site, 4.0)
    run_pass(tx, site, 5.0)
    assert vclusters.get(tx, web.id).state == "ended"


def test_the_end_of_a_lease_withdraws_exports(tx: Tx, site: Site) -> None:
    furnish(tx, 1)
    create(tx, site)
    web = cluster(tx, site, mounts=[AskedVolume("data")])
    settle(tx, site, 2.0)
    run_pass(tx, site, 3.0)
    arrive(tx, 4.0)
    tx.execute(t.vclusters.update().values(expires_at=5.0, drain_until=6.0))
    assert core_leases.expire(tx, web.id, now=7.0, actor="manager", policy=site.policy) is not None
    (task,) = claim(tx, site, 8.0)
    assert task.wanted.clients == ()


def test_a_volume_that_ends_with_its_vcluster_is_kept_and_told_of(tx: Tx, site: Site) -> None:
    furnish(tx, 1)
    create(tx, site)
    with pytest.raises(Refused, match="kept for 7 d"):
        cluster(tx, site, mounts=[AskedVolume("data", delete_after=DAY)])
    for name in ("web", "web2"):
        if vclusters.by_name(tx, name) is None:
            cluster(tx, site, name)
        flows.attach(
            tx,
            flow_context(site, 1.0),
            vcluster=name,
            asked=AskedVolume("site/data", delete_after=30 * DAY),
        )
    settle(tx, site, 2.0)
    for name, kept in (("web", "changing"), ("web2", "deleted")):
        vcluster_flows.delete(tx, flow_context(site, 3.0, "user:ann"), name=name)
        assert state(tx) == kept, "while another vcluster mounts it, it stays"
    view = flows.show(tx, name="site/data", now=4.0)
    assert (view.volume.purge_at, told(tx)) == (3.0 + 30 * DAY, ["volume-deleted"])
    flows.restore(tx, flow_context(site, 5.0), name="site/data")
    settle(tx, site, 6.0)
    assert state(tx) == "ready"


def test_deletion_can_be_undone_until_its_time_is_over(tx: Tx, site: Site) -> None:
    furnish(tx, 0)
    create(tx, site)
    settle(tx, site, 2.0)
    flows.delete(tx, flow_context(site, 3.0, "user:ann"), name="site/data")
    again = flows.delete(tx, flow_context(site, 4.0, "user:ann"), name="site/data")
    assert (again.state, again.volume.purge_at) == ("deleted", 3.0 + 7 * DAY)
    assert claim(tx, site, 3.0 + 7 * DAY - 1) == []
    with pytest.raises(Refused, match="kept for a while"):
        create(tx, site)
    flows.restore(tx, flow_context(site, 5.0), name="site/data")
    flows.delete(tx, flow_context(site, 6.0, "user:ann"), name="site/data")
    over = 6.0 + 7 * DAY
    with pytest.raises(Refused, match="is being erased"):
        flows.restore(tx, flow_context(site, over), name="site/data")
    (task,) = settle(tx, site, over)
    assert task.wanted.erase
    assert flows.every(tx, now=over) == []
    assert told(tx)[-1] == "volume-erased"


def test_an_attached_volume_is_not_deleted(tx: Tx, site: Site) -> None:
    furnish(tx, 0)
    create(tx, site)
    cluster(tx, site, mounts=[AskedVolume("data")])
    with pytest.raises(Refused, match="attached to web"):
        flows.delete(tx, flow_context(site, 3.0, "user:ann"), name="site/data")
    flows.detach(tx, flow_context(site, 4.0), name="site/data", vcluster="web")
    assert (
        flows.delete(tx, flow_context(site, 5.0, "user:ann"), name="site/data").state == "deleted"
    )


def test_a_claim_that_ran_out_writes_nothing(tx: Tx, site: Site) -> None:
    furnish(tx, 0)
    create(tx, site)
    (late,) = claim(tx, site, 2.0)
    assert claim(tx, site, 3.0, "s2") == [], "it is being carried out"
    (taken,) = claim(tx, site, 2.0 + LEASE, "s2")
    assert exports.succeeded(tx, late, "none", 80.0).value is False
    assert exports.failed(tx, late, "late", 80.0) is None
    assert exports.succeeded(tx, taken, "btrfs", 81.0).value
    assert flows.show(tx, name="site/data", now=82.0).volume.enforced == "btrfs"


def test_a_server_that_begins_anew_takes_up_what_it_had_claimed(tx: Tx, site: Site) -> None:
    furnish(tx, 0)
    create(tx, site)
    claim(tx, site, 2.0, "s1")
    exports.began(tx, "s1", 3.0)
    assert len(claim(tx, site, 3.0 + exports.LINGERS, "s1")) == 1


def test_a_change_in_the_meantime_is_carried_out_next(tx: Tx, site: Site) -> None:
    furnish(tx, 0)
    create(tx, site)
    (first,) = claim(tx, site, 2.0)
    flows.change(tx, flow_context(site, 3.0), name="site/data", size=20 * GIB)
    assert exports.succeeded(tx, first, "btrfs", 4.0).value is False, (
        "its claim is over: the volume has changed"
    )
    (late,) = claim(tx, site, 4.5)
    assert exports.succeeded(tx, first, "btrfs", 4.6).value is False, (
        "though the same server has the next claim"
    )
    assert exports.succeeded(tx, late, "btrfs", 4.7).value
    flows.change(tx, flow_context(site, 4.8), name="site/data", size=30 * GIB)
    (second,) = settle(tx, site, 5.0)
    assert (second.wanted.size, second.sequence > late.sequence, state(tx)) == (
        30 * GIB,
        True,
        "ready",
    )


@pytest.mark.parametrize("columns", [{}, {"size": 10 * GIB}, {"sec": "sys"}])
def test_a_change_to_what_is_there_already_gives_the_file_server_nothing_to_do(
    tx: Tx, site: Site, columns: dict[str, Any]
) -> None:
    furnish(tx, 0)
    create(tx, site)
    (task,) = claim(tx, site, 2.0)
    before = store.named(tx, "site/data")
    flows.change(tx, flow_context(site, 3.0), name="site/data", **columns)
    assert store.named(tx, "site/data") == before
    assert exports.succeeded(tx, task, "btrfs", 4.0).value is not False, "its claim holds"


def test_failures_pause_longer_and_longer_are_told_and_never_given_up(tx: Tx, site: Site) -> None:
    furnish(tx, 0)
    create(tx, site)
    now, pauses = 2.0, []
    for _ in range(12):
        (task,) = claim(tx, site, now)
        until = exports.failed(tx, task, "the file server does not answer", now)
        assert until is not None
        pauses.append(until - now)
        now = until
    assert pauses[:4] == [2.0, 4.0, 8.0, 16.0]
    assert pauses[-1] == policy.LONGEST_PAUSE
    assert told(tx) == ["volume-trouble"] * 2, "the group and the administrators, once"
    view = flows.show(tx, name="site/data", now=now)
    assert (view.state, view.volume.reason) == ("trouble", "the file server does not answer")
    assert ("volumes", "trouble", 1) in metrics.counts(tx)
    settle(tx, site, now)
    assert ("volumes", "applied", 1) in metrics.counts(tx)
    assert state(tx, now=now) == "ready"
    assert told(tx)[2:] == ["volume-recovered"] * 2
    flows.change(tx, flow_context(site, now + 1), name="site/data", size=30 * GIB)
    settle(tx, site, now + 2)
    assert len(told(tx)) == 4, "what goes well is not told"


def test_a_file_server_that_the_site_does_not_have_is_refused(tx: Tx, site: Site) -> None:
    furnish(tx, 0)
    with pytest.raises(Refused, match="no file server 'nsa'; the site has nas"):
        create(tx, site, fileserver="nsa")


def test_a_file_server_that_left_the_site_file_is_named_and_may_be_forgotten(
    tx: Tx, site: Site
) -> None:
    furnish(tx, 0)
    create(tx, site, fileserver="old")
    with pytest.raises(Refused, match="in the site file"):
        flows.forget(tx, flow_context(site, 0.0), name="site/data")
    fewer = replace(site, fileservers=site.fileservers[:1])
    assert exports.claim(tx, "s1", {"nas": 5}, fewer, 2.0, LEASE) == []
    assert "no file server 'old'" in flows.show(tx, name="site/data", now=3.0).volume.reason
    flows.forget(tx, flow_context(fewer, 0.0), name="site/data")
    assert flows.every(tx, now=4.0) == []


def test_what_a_file_server_has_lost_is_carried_out_anew_and_strays_are_named(
    tx: Tx, site: Site
) -> None:
    furnish(tx, 0)
    number, sequence = (create(tx, site).export_id, settle(tx, site, 2.0)[0].sequence)
    assert exports.compared(tx, "nas", {number: sequence, 999: 1}, 3.0) == [999]
    assert claim(tx, site, 4.0) == []
    exports.compared(tx, "nas", {}, 5.0)
    (again,) = claim(tx, site, 6.0)
    assert (again.sequence, again.wanted.may_make) == (
        sequence,
        False,
    ), "an empty directory is not taken for its data"


def test_a_volume_is_made_anew_where_its_file_server_has_lost_it(tx: Tx, site: Site) -> None:
    furnish(tx, 1)
    create(tx, site)
    settle(tx, site, 2.0)
    assert claim(tx, site, 3.0) == []
    assert flows.remake(tx, flow_context(site, 4.0), name="site/data").state == "making"
    (task,) = settle(tx, site, 5.0, "ext4")
    assert task.wanted.may_make
    remade = flows.show(tx, name="site/data", now=6.0).volume
    assert (remade.made_at, remade.enforced) == (5.0, "ext4")


def test_sizes_are_held_to_the_groups_quota(tx: Tx, site: Site) -> None:
    furnish(tx, 0)
    create(tx, site, size=600 * GIB)
    with pytest.raises(Refused, match="too much for group site"):
        create(tx, site, "more", size=500 * GIB)
    group_flows.change(tx, "site", {"volume_quota": 2000 * GIB}, now=2.0)
    create(tx, site, "more", size=500 * GIB)
    with pytest.raises(Refused, match="too much"):
        flows.change(tx, flow_context(site, 3.0), name="site/more", size=1500 * GIB)
    assert (
        flows.change(tx, flow_context(site, 3.0), name="site/more", size=1400 * GIB).volume.size
        == 1400 * GIB
    )


def test_snapshots_are_taken_copied_and_deleted(tx: Tx, site: Site) -> None:
    furnish(tx, 0)
    create(tx, site)
    settle(tx, site, 2.0)
    flows.take_snapshot(tx, flow_context(site, 3.0), name="site/data", snapshot="monday")
    with pytest.raises(Refused, match="no snapshot 'monday'"):
        create(tx, site, "copy", source="site/data", snapshot="monday")
    (task,) = settle(tx, site, 4.0)
    assert task.wanted.snapshots == ("monday",)
    create(tx, site, "copy", source="site/data", snapshot="monday")
    with pytest.raises(Refused, match="site/copy is being copied"):
        flows.delete_snapshot(tx, flow_context(site, 5.0), name="site/data", snapshot="monday")
    with pytest.raises(Refused, match="site/copy is being copied"):
        flows.delete(tx, flow_context(site, 5.0, "user:ann"), name="site/data")
    (task,) = settle(tx, site, 6.0)
    assert task.wanted.source.endswith("/monday")
    flows.delete_snapshot(tx, flow_context(site, 7.0), name="site/data", snapshot="monday")
    (task,) = settle(tx, site, 8.0)
    assert (task.wanted.snapshots, task.wanted.dropped) == ((), ("monday",))
    assert flows.show(tx, name="site/data", now=9.0).snapshots == []


def test_a_deleted_volume_is_not_copied(tx: Tx, site: Site) -> None:
    """The data could be erased before the copy is made."""
    furnish(tx, 0)
    create(tx, site)
    flows.take_snapshot(tx, flow_context(site, 2.0), name="site/data", snapshot="monday")
    settle(tx, site, 3.0)
    flows.delete(tx, flow_context(site, 4.0, "user:ann"), name="site/data")
    with pytest.raises(Refused, match="restore it first"):
        create(tx, site, "copy", source="site/data", snapshot="monday")


def test_a_file_system_without_snapshots_says_so(tx: Tx, site: Site) -> None:
    furnish(tx, 0)
    create(tx, site)
    settle(tx, site, 2.0, "project")
    with pytest.raises(Refused, match="Btrfs or ZFS"):
        flows.take_snapshot(tx, flow_context(site, 3.0), name="site/data", snapshot="monday")


def test_homes_are_a_volume_of_the_group_that_vclusters_share(tx: Tx, site: Site) -> None:
    furnish(tx, 0)
    site = replace(site, volumes=VolumeRules())
    ids = [cluster(tx, site, name).id for name in ("web", "batch")]
    cluster(tx, site, "bare", homes=False)
    settle(tx, site, 2.0)
    [view] = flows.every(tx, now=3.0)
    assert (view.volume.name, view.volume.kind, [one.vcluster for one in view.attachments]) == (
        "site/home",
        "home",
        ["web", "batch"],
    )
    assert [store.exported(tx, one)[0][1].mount for one in ids] == ["/home", "/home"]
    with pytest.raises(Refused, match="home volume is kept"):
        flows.attach(
            tx,
            flow_context(site, 4.0),
            vcluster="web",
            asked=AskedVolume("site/home", delete_after=30 * DAY),
        )


@pytest.mark.parametrize(
    "mount",
    [
        *("data", "/", "/etc", "/usr", "/var", "/data/../etc", "/a b", "/proc/x", "/'x", "/a/"),
        *("/usr/bin", "/usr/lib", "/usr/lib/x", "/usr/share", "/var/lib", "/var/log", "/var/lib/x"),
    ],
)
def test_a_mount_point_leaves_the_system_alone(tx: Tx, site: Site, mount: str) -> None:
    with pytest.raises(Refused):
        policy.check_mount(mount)


@pytest.mark.parametrize(
    "mount", ["/data", "/home", "/opt", "/opt/bin", "/srv/lib", "/usr/local", "/var/scratch"]
)
def test_a_mount_point_beside_the_system_is_free(mount: str) -> None:
    policy.check_mount(mount)


def test_mount_points_are_apart(tx: Tx, site: Site) -> None:
    furnish(tx, 0)
    for name in ("data", "more"):
        create(tx, site, name)
    cluster(tx, site, mounts=[AskedVolume("data", "/srv")])
    with pytest.raises(Refused, match="another volume at /srv"):
        flows.attach(
            tx,
            flow_context(site, 2.0),
            vcluster="web",
            asked=AskedVolume("site/more", mount="/srv/more"),
        )
    flows.attach(
        tx, flow_context(site, 2.0), vcluster="web", asked=AskedVolume("site/more", mount="/srv2")
    )


def test_blocks_are_covered_exactly() -> None:
    for first, last in ((0x0A4D8000, 0x0A4D803F), (0x0A4D8003, 0x0A4D8041)):
        networks = policy.clients([(AddressRange(first, last), False)])
        covered = {int(one) for client in networks for one in IPv4Network(client.network)}
        assert covered == set(range(first, last + 1))


def test_a_vcluster_keeps_its_blocks_while_a_volume_is_exported_to_them(tx: Tx, site: Site) -> None:
    furnish(tx, 0)
    create(tx, site)
    web = cluster(tx, site, mounts=[AskedVolume("data")])
    settle(tx, site, 2.0)
    tx.execute(t.vclusters.update().values(state="active", expires_at=1e9))
    address_blocks.extend(tx, vclusters.named(tx, "web"), 100, site, now=3.0)
    (task,) = settle(tx, site, 4.0)
    assert [one.network for one in task.wanted.clients] == ["10.77.128.0/26", "10.77.128.64/26"]
    address_blocks.trim(tx, web.id)
    assert len(blocks.of(tx, web.id)) == 2
    flows.detach(tx, flow_context(site, 5.0), name="site/data", vcluster="web")
    address_blocks.trim(tx, web.id)
    assert len(blocks.of(tx, web.id)) == 2, "the file server has not withdrawn it yet"
    settle(tx, site, 6.0)
    address_blocks.trim(tx, web.id)
    assert len(blocks.of(tx, web.id)) == 1


def test_what_is_exported_is_in_the_automounters_maps(tx: Tx, site: Site) -> None:
    furnish(tx, 0)
    site = replace(site, volumes=VolumeRules())
    for name in ("data", "more"):
        create(tx, site, name)
    web = cluster(
        tx, site, mounts=[AskedVolume("data", read_only=True), AskedVolume("more", "/srv/more")]
    )
    assert core.automounts(tx, web.id, site) == {"auto.master": {}}
    settle(tx, site, 2.0)
    paths = {view.volume.name: view.volume.path for view in flows.every(tx, now=3.0)}
    options = "hard,nosuid,nodev"
    assert core.automounts(tx, web.id, site) == {
        "auto.master": {"/-": "auto.direct", "/home": "auto.home"},
        "auto.home": {"*": f"-fstype=nfs4,rw,{options} 10.77.0.5:{paths['site/home']}/&"},
        "auto.direct": {
            "/data": f"-fstype=nfs4,ro,{options} 10.77.0.5:{paths['site/data']}",
            "/srv/more": f"-fstype=nfs4,rw,{options} 10.77.0.5:{paths['site/more']}",
        },
    }
    flows.detach(tx, flow_context(site, 4.0), name="site/data", vcluster="web")
    assert "/data" not in core.automounts(tx, web.id, site)["auto.direct"], (
        "nodes forget it before its export ends"
    )


def test_members_have_home_directories_with_their_own_numbers(tx: Tx, site: Site) -> None:
    furnish(tx, 0)
    site = replace(site, volumes=VolumeRules())
    group_flows.create(tx, "physics", now=1.0)
    for name, role in (("ann", "owner"), ("bob", "member"), ("eve", "viewer")):
        people.create(tx, name, now=1.0)
        people.set_role(tx, group="physics", user=name, role=role)
    vcluster_flows.create(
        tx,
        flow_context(site, 1.0),
        AskedVcluster(name="web", size=1, template="debian", group="physics"),
    )
    (task,) = settle(tx, site, 2.0)
    uids = {
        name: tx.scalar(select(t.users.c.uid).where(t.users.c.name == name))
        for name in ("ann", "bob")
    }
    assert [(one.name, one.uid) for one in task.wanted.homes] == sorted(uids.items())
    assert claim(tx, site, 3.0) == []
    people.create(tx, "joe", now=3.0)
    people.set_role(tx, group="physics", user="joe", role="member")
    (task,) = settle(tx, site, 4.0)
    assert [one.name for one in task.wanted.homes] == ["ann", "bob", "joe"]


def test_home_directories_follow_people_s_numbers_and_who_may_log_in(tx: Tx, site: Site) -> None:
    furnish(tx, 0)
    site = replace(site, volumes=VolumeRules(), posix=PosixRules(administrators=True))
    for group, name in (("physics", "ann"), ("biology", "bob")):
        group_flows.create(tx, group, now=1.0)
        people.create(tx, name, now=1.0)
        people.set_role(tx, group=group, user=name, role="member")
        vcluster_flows.create(
            tx,
            flow_context(site, 1.0),
            AskedVcluster(name=f"web-{group}", size=1, template="debian", group=group),
        )
    people.change(tx, "ann", {"disabled": True}, now=2.0)
    assert [[one.name for one in task.wanted.homes] for task in settle(tx, site, 3.0)] == [
        [],
        ["bob"],
    ]
    people.change(tx, "ann", {"full_name": "Ann Other", "disabled": True}, now=4.0)
    assert claim(tx, site, 5.0) == [], "nothing that file servers know of has changed"
    people.change(tx, "ann", {"disabled": False}, now=6.0)
    assert [[one.name for one in task.wanted.homes] for task in settle(tx, site, 7.0)] == [["ann"]]
    people.change(tx, "ann", {"uid": 7000}, now=8.0)
    assert [
        [(one.uid, one.gid) for one in task.wanted.homes] for task in settle(tx, site, 9.0)
    ] == [[(7000, 7000)]]
    people.create(tx, "joe", now=10.0)
    people.change(tx, "joe", {"admin": True}, now=10.0)
    assert [[one.name for one in task.wanted.homes] for task in settle(tx, site, 11.0)] == [
        ["ann", "joe"],
        ["bob", "joe"],
    ]


def test_volumes_follow_their_group_s_number(tx: Tx, site: Site) -> None:
    furnish(tx, 0)
    group_flows.create(tx, "physics", now=1.0)
    flows.create(tx, flow_context(site, 1.0), name="data", size=10 * GIB, group="physics")
    settle(tx, site, 2.0)
    group_flows.change(tx, "physics", {"email": "p@example.org"}, now=3.0)
    assert claim(tx, site, 3.0) == []
    group_flows.change(tx, "physics", {"gid": 7000}, now=4.0)
    assert [task.wanted.gid for task in settle(tx, site, 5.0)] == [7000]


def test_a_volume_has_so_many_snapshots_and_no_more(tx: Tx, site: Site) -> None:
    furnish(tx, 0)
    create(tx, site)
    for number in range(policy.MOST_SNAPSHOTS):
        flows.take_snapshot(tx, flow_context(site, 2.0), name="site/data", snapshot=f"s{number}")
    with pytest.raises(Refused, match="delete one first"):
        flows.take_snapshot(tx, flow_context(site, 3.0), name="site/data", snapshot="more")
    settle(tx, site, 4.0)
    flows.delete_snapshot(tx, flow_context(site, 5.0), name="site/data", snapshot="s0")
    settle(tx, site, 6.0)
    flows.take_snapshot(tx, flow_context(site, 7.0), name="site/data", snapshot="more")


def test_a_vcluster_is_ready_when_what_it_mounts_is_there(tx: Tx, site: Site) -> None:
    furnish(tx, 1)
    create(tx, site)
    web = cluster(tx, site, mounts=[AskedVolume("site/data", "/home")])
    run_pass(tx, site, 2.0)
    [node] = nodes.every(tx, vcluster_id=web.id)
    primed = Step(NodeEvent.PRIMED, "test")
    node = transitions.apply(tx, node, primed, now=3.0, actor="test", policy=site.policy)
    transitions.booted(tx, node, "test", now=3.0, actor="test", policy=site.policy)
    [shown] = views.vclusters(tx, name="web")
    assert (shown.vcluster.ready_at, shown.waits) == (None, ("/home waits for nas",))
    settle(tx, site, 4.0)
    [shown] = views.vclusters(tx, name="web")
    assert (shown.vcluster.ready_at, shown.waits) == (4.0, ())
    kinds = list(tx.scalars(select(t.notices.c.kind).order_by(t.notices.c.id)))
    assert kinds.count("ready") == 1


# ---------------------------------------------------------------- Kerberos


KEYED = (
    '<template name="debian"><image target="disk" name="x"/>'
    '<personalise seed="nocloud" kerberos="yes"/></template>'
)


@pytest.fixture
def realm(site: Site) -> Site:
    """The site with a realm, and a file server that is known by its name."""
    servers = (replace(site.fileservers[0], address="nas.example.org"), *site.fileservers[1:])
    return replace(site, fileservers=servers, kerberos=KerberosRules("EXAMPLE.ORG"))


def keyed(tx: Tx) -> None:
    """From now on all templates make clients of Kerberos."""
    tx.execute(t.config_templates.update().values(document=KEYED))


def test_kerberos_protects_exports_and_mounts(tx: Tx, realm: Site) -> None:
    furnish(tx, 1)
    keyed(tx)
    create(tx, realm, sec="krb5p")
    web = cluster(tx, realm)
    flows.attach(tx, flow_context(realm, 3.0), vcluster="web", asked=AskedVolume("site/data"))
    (task,) = settle(tx, realm, 4.0)
    assert task.wanted.sec == "krb5p"
    assert [one.options.rpartition(",")[2] for one in core.mounts(tx, web.id, realm)] == [
        "sec=krb5p"
    ]
    flows.change(tx, flow_context(realm, 5.0), name="site/data", sec="sys")
    (task,) = settle(tx, realm, 6.0)
    assert (task.wanted.sec, task.wanted.size) == ("sys", 10 * GIB)
    assert "sec=" not in core.mounts(tx, web.id, realm)[0].options


def test_a_template_without_kerberos_cannot_mount_what_it_protects(tx: Tx, realm: Site) -> None:
    furnish(tx, 1)
    create(tx, realm, sec="krb5p")
    create(tx, realm, "plain")
    cluster(tx, realm)
    asked = AskedVolume("site/data")
    with pytest.raises(Refused, match="template debian are no clients of Kerberos") as refused:
        flows.attach(tx, flow_context(realm, 3.0), vcluster="web", asked=asked)
    assert refused.value.field == "template"
    flows.attach(tx, flow_context(realm, 3.0), vcluster="web", asked=AskedVolume("site/plain"))
    with pytest.raises(Refused, match="no clients of Kerberos"):
        flows.change(tx, flow_context(realm, 4.0), name="site/plain", sec="krb5")
    assert store.named(tx, "site/plain").sec == "sys"
    with pytest.raises(Refused, match="no clients of Kerberos"):
        cluster(tx, realm, "other", mounts=(asked,))


def test_where_kerberos_is_missing_is_said_at_the_creation(tx: Tx, site: Site, realm: Site) -> None:
    furnish(tx, 1)
    with pytest.raises(Refused, match="which this site does not have") as refused:
        create(tx, site, sec="krb5i")
    assert refused.value.field == "sec"
    with pytest.raises(Refused, match=r"10.77.0.6 in the site file; sec=krb5 needs its host name"):
        create(tx, realm, sec="krb5", fileserver="old")


def test_the_site_says_how_volumes_are_protected_whose_owners_do_not(tx: Tx, realm: Site) -> None:
    furnish(tx, 1)
    strict = replace(realm, volumes=replace(realm.volumes, sec="krb5p"))
    assert create(tx, strict).sec == "krb5p"
    assert create(tx, strict, "open", sec="sys").sec == "sys"
    settle(tx, strict, 2.0)
    flows.take_snapshot(tx, flow_context(strict, 3.0), name="site/open", snapshot="monday")
    settle(tx, strict, 4.0)
    copy = create(tx, strict, "copy", source="site/open", snapshot="monday", now=5.0)
    assert copy.sec == "sys", "a copy is protected as its source is"
