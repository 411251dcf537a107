"""NIS: Debian's ypserv with a vcluster's accounts, asked by a node of the vcluster, and by other
addresses."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import update

from cod.cli.root import cod
from cod.client import ApiError
from cod.flows.people import people
from cod.flows.scheduler import vclusters
from cod.model import AskedVcluster, NodeTree, Site
from cod.policy.people import ldap_tree, nis
from cod.pool import Pool
from cod.states import NodeState
from cod.store import tables as t
from tests import ldap_site
from tests.contexts import flow_context
from tests.net.apiserver import NOW, Served, serving
from tests.store import manager_world as world
from tests.system.membernode import network
from tests.waiting import until

pytestmark = pytest.mark.slow

REFRESH = Path(__file__).parents[2] / "docs/examples/nis-refresh.sh"
ANN = "ann:*:20000:20000:Ann Example:/home/ann:/bin/bash"
BOB = "bob:*:20001:20001:Bob Example:/home/bob:/bin/bash"
RESTART = """\
[ -s /run/ypserv.pid ] || exit 0
pid=$(cat /run/ypserv.pid)
kill "$pid"
while kill -0 "$pid" 2> /dev/null; do sleep 0.05; done
exec ypserv
"""
STRANGER, SERVER = "10.77.200.9", "10.77.0.1"
INSIDE = """\
set -e
mount -t tmpfs tmpfs {folder}
mkdir {folder}/eu {folder}/ew {folder}/vu {folder}/vw
mount -t overlay overlay -o lowerdir=/etc,upperdir={folder}/eu,workdir={folder}/ew /etc
mount -t overlay overlay -o lowerdir=/var,upperdir={folder}/vu,workdir={folder}/vw /var
mount -t tmpfs tmpfs /run
rpcbind -w -f &
until rpcinfo -p 127.0.0.1 > /dev/null 2>&1; do sleep 0.05; done
sh {refresh} farm || exit
domainname farm.cod.test
ypserv
until rpcinfo -u 127.0.0.1 ypserv > /dev/null 2>&1; do sleep 0.05; done
touch /run/ready
wait
"""


@pytest.fixture
def served(
    pool: Pool, reactor: Any, in_reactor: Callable[..., Any], site: Site
) -> Iterator[Served]:
    """A site with the vcluster farm of physics, whose two nodes run, and pool of chemistry; bob is
    in physics, carl in chemistry."""
    with serving(pool, reactor, in_reactor, site) as served:
        served.tx(world.furnish, 4)
        served.tx(ldap_site.user, "ann", {"physics": "owner"})
        served.tx(ldap_site.user, "bob", {"physics": "member"})
        served.tx(ldap_site.user, "vera", {"physics": "viewer"})
        served.tx(ldap_site.user, "carl", {"chemistry": "owner"})
        for name, group, size in (("farm", "physics", 2), ("pool", "chemistry", 1)):
            served.tx(
                vclusters.create,
                flow_context(site, NOW),
                AskedVcluster(name=name, size=size, template="debian", group=group),
            )
        served.tx(world.run_pass, site, NOW)
        served.tx(
            lambda tx: tx.execute(
                update(t.nodes)
                .where(t.nodes.c.hostname.is_not(None))
                .values(state=NodeState.ACTIVE)
            )
        )
        yield served


def exported(served: Served, folder: Path, name: str = "farm", code: int = 0) -> Any:
    result = CliRunner().invoke(
        cod,
        ["--server", str(served.socket), "vcluster", "nis", name, "--dir", str(folder), "--json"],
    )
    assert result.exit_code == code, result.output
    return result.output if code else json.loads(result.output)


def test_the_maps_say_what_the_ldap_tree_says(served: Served, tmp_path: Path) -> None:
    value = exported(served, tmp_path / "farm")
    maps = value["maps"]
    assert value["domain"] == "farm.cod.test"
    assert maps["passwd.byname"] == [f"ann {ANN}", f"bob {BOB}"]
    assert (
        "physics physics:*:{}:ann,bob".format(served.local.get("/groups/physics")["gid"])
        in maps["group.byname"]
    )
    assert maps["netgroup"] == [
        "members (-,ann,) (-,bob,)",
        "nodes (n1.farm.cod.test,-,) (n2.farm.cod.test,-,)",
    ]
    assert "ssh-" not in json.dumps(value)
    assert (tmp_path / "farm/maps/passwd.byname").read_text().splitlines() == maps["passwd.byname"]
    # as Debian's own program makes them
    for option, name in (("-h", "netgroup.byhost"), ("-u", "netgroup.byuser")):
        done = subprocess.run(
            ["/usr/lib/yp/revnetgroup", option],
            input="\n".join(maps["netgroup"]) + "\n",
            capture_output=True,
            text=True,
            check=True,
        )
        assert sorted(line.split() for line in done.stdout.splitlines()) == sorted(
            each.split() for each in maps[name]
        )


def test_an_ended_vcluster_shows_nothing_to_nobody(
    served: Served, tmp_path: Path, site: Site
) -> None:
    served.tx(vclusters.delete, flow_context(site, NOW, "ann"), name="farm")
    served.tx(
        lambda tx: tx.execute(
            update(t.vclusters)
            .where(t.vclusters.c.name == "farm")
            .values(live_name=None, ended_at=NOW, state="ended")
        )
    )
    value = exported(served, tmp_path / "farm")
    assert value["networks"] == value["securenets"] == value["access_rules"] == []
    assert {name: lines for name, lines in value["maps"].items() if lines} == {}


def test_a_map_that_is_gone_is_removed_and_other_peoples_files_stay(
    served: Served, tmp_path: Path
) -> None:
    exported(served, tmp_path / "farm")
    (tmp_path / "farm/maps/auto.home").write_text("* nas:/home/&\n")
    exported(served, tmp_path / "farm")
    assert not (tmp_path / "farm/maps/auto.home").exists()
    (tmp_path / "own").mkdir()
    (tmp_path / "own/domain").write_text("mine\n")
    assert "holds other files" in exported(served, tmp_path / "own", code=1)
    assert (tmp_path / "own/domain").read_text() == "mine\n"
    with pytest.raises(ApiError, match="no vcluster"):
        served.local.get("/vclusters/no-such/nis")


def test_makedbm_takes_groups_and_netgroups_of_many(tmp_path: Path) -> None:
    tree, names = (
        NodeTree(1, "farm", 1, "physics", 50001),
        [f"user{number:04}" for number in range(400)],
    )
    base = ldap_tree.base("farm", "cod.test")
    made = nis.maps(
        [
            ldap_tree.group(tree, names, base),
            *ldap_tree.netgroups(tree, (), names, "cod.test", base),
        ],
        {},
    )
    for name, called in (("group.byname", "physics"), ("netgroup", "members")):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in made[name]))
        done = subprocess.run(
            ["/usr/lib/yp/makedbm", str(tmp_path / name), str(tmp_path / f"{name}.db")],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == ""
        taken = subprocess.run(
            ["/usr/lib/yp/makedbm", "-u", str(tmp_path / f"{name}.db")],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert (
            re.findall(r"user\d+", "".join(made[name]))
            == names
            == sorted(re.findall(r"user\d+", taken))
        )
        assert f"{called}.2" in taken
    assert ":*:50001:" in made["group.byname"][1]
    assert made["netgroup"][0].endswith(" members.2")
    assert len(made["group.bygid"]) == 1


@pytest.mark.system
@pytest.mark.timeout(300)
def test_ypserv_serves_members_to_the_vclusters_addresses_only(
    served: Served, tmp_path: Path
) -> None:
    if os.getuid():
        pytest.skip("namespaces need root")
    nodes = {
        name: served.local.get(f"/vclusters/{name}")["nodes"][0]["address"]
        for name in ("farm", "pool")
    }
    folder = tmp_path / "inside"
    folder.mkdir()
    with (
        network(SERVER, [nodes["farm"], nodes["pool"], STRANGER], f"nis{os.getpid()}") as (
            own,
            others,
        ),
        open(tmp_path / "log", "w+") as log,
    ):
        (tmp_path / "restart").write_text(RESTART)
        env = os.environ | {
            "RESTART": f"sh {tmp_path}/restart",
            "COD_SERVER": str(served.socket),
            "PATH": f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin",
        }
        server = subprocess.Popen(
            [
                "ip",
                "netns",
                "exec",
                own,
                "unshare",
                "--mount",
                "--uts",
                "--pid",
                "--fork",
                "--kill-child",
                "--propagation",
                "private",
                "sh",
                "-c",
                INSIDE.format(folder=folder, refresh=REFRESH),
            ],
            stdout=log,
            stderr=log,
            env=env,
        )

        def inside(*words: str) -> subprocess.CompletedProcess[str]:
            child = until(
                lambda: Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().strip(),
                (tmp_path / "log").read_text,
            )
            return subprocess.run(
                ["nsenter", "-t", child, "-m", "-n", "-u", "-p", *words],
                capture_output=True,
                text=True,
                check=False,
                env=env,
                timeout=60,
            )

        def asked(place: int, name: str, domain: str = "farm.cod.test") -> str:
            done = subprocess.run(
                ["ip", "netns", "exec", others[place], "ypcat", "-d", domain, "-h", SERVER, name],
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
            return done.stdout if done.returncode == 0 else ""

        try:
            until(
                lambda: inside("test", "-e", "/run/ready").returncode == 0,
                (tmp_path / "log").read_text,
                seconds=60,
            )
            assert sorted(asked(0, "passwd.byname").splitlines()) == [ANN, BOB]
            assert "(-,bob,)" in asked(0, "netgroup")
            for place in (1, 2):  # another vcluster's node, and an address of no vcluster
                assert asked(place, "passwd.byname") == ""

            served.tx(people.remove, group="physics", user="bob")
            refreshed = inside("sh", str(REFRESH), "farm")
            assert refreshed.returncode == 0, refreshed.stderr
            assert asked(0, "passwd.byname") == f"{ANN}\n"
            assert "bob" not in asked(0, "group.byname") + asked(0, "netgroup")
            assert inside("sh", str(REFRESH), "farm", "pool").returncode == 0
            until(
                lambda: asked(1, "passwd.byname", "pool.cod.test").startswith("carl:"),
                (tmp_path / "log").read_text,
            )
            assert asked(1, "passwd.byname") == asked(0, "passwd.byname", "pool.cod.test") == ""

            # farm is not named: it is served no longer
            assert inside("sh", str(REFRESH), "pool").returncode == 0
            until(
                lambda: asked(1, "passwd.byname", "pool.cod.test").startswith("carl:"),
                (tmp_path / "log").read_text,
            )
            assert asked(0, "passwd.byname") == ""
        finally:
            server.kill()
            server.wait(30)
