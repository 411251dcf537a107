"""`cod audit history`: what it reads from a site's database, and each violation that is planted in
one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from sqlalchemy import Engine, func, insert, select, update

from cod import init
from cod.cli.root import cod
from cod.flows.nodes import history
from cod.flows.scheduler import vclusters as owner_flows
from cod.model import AskedVcluster, Site
from cod.policy.histories import ViolationKind
from cod.site import load
from cod.store import tables as t
from cod.store.database import connect
from cod.store.engine import Tx, snapshot
from cod.store.people import groups
from tests.contexts import flow_context
from tests.store.manager_world import arrive, furnish, run_pass

pytestmark = pytest.mark.slow


def fill(engine: Engine, site: Site) -> None:
    """A site of two nodes: each was held by a vcluster of a group, came back, and one is held
    again."""
    with engine.begin() as tx:
        furnish(tx, 2)
        groups.add(tx, "bob", 0.0)
    for number, (name, group) in enumerate((("red", "site"), ("blue", "bob"), ("green", "site"))):
        now = 1000.0 * number
        with engine.begin() as tx:
            size = 1 + (name == "red")
            asked = AskedVcluster(name=name, size=size, template="debian", group=group)
            owner_flows.create(tx, flow_context(site, now), asked)
            run_pass(tx, site, now)
            arrive(tx, now + 100.0)
            if name != "green":
                owner_flows.delete(tx, flow_context(site, now + 200.0), name=name)
                arrive(tx, now + 300.0)
            run_pass(tx, site, now + 400.0)


def last(tx: Tx, event: str) -> int:
    """Return the id of the last transition with that event."""
    h = t.node_history.c
    return tx.execute(select(func.max(h.id)).where(h.event == event)).scalar_one()


def drop_wipe(tx: Tx) -> None:
    """Make the last wipe one that never was."""
    for event in ("wipe_ordered", "wiped"):
        row = last(tx, event)
        tx.execute(t.node_history.delete().where(t.node_history.c.id == row))


def take_over(tx: Tx) -> None:
    """Give the held node to blue's successor in the history alone."""
    row, other = last(tx, "booted"), select(t.vclusters.c.id).where(t.vclusters.c.name == "blue")
    values = {"vcluster_id": other.scalar_subquery()}
    tx.execute(update(t.node_history).where(t.node_history.c.id == row).values(values))


def run_other_template(tx: Tx) -> None:
    """Let the held node run a template of bob's."""
    group = tx.scalar(select(t.groups.c.id).where(t.groups.c.name == "bob"))
    row = {"name": "bob/t", "revision": 1, "document": "<template/>", "digest": "0" * 64}
    tx.execute(insert(t.config_templates).values(id=99, group_id=group, created_at=0.0, **row))
    tx.execute(update(t.nodes).where(t.nodes.c.vcluster_id.is_not(None)).values(template_id=99))


def enter_vlan(tx: Tx) -> None:
    """Want the held node's switch port in a VLAN of nobody's."""
    mac = tx.scalar(select(t.nodes.c.boot_mac).where(t.nodes.c.vcluster_id.is_not(None)))
    row = {"switch": "s", "port": "1", "mac": mac, "source": "manual", "seen_at": 0.0}
    tx.execute(insert(t.switch_ports).values(wanted_vlan=7, **row))


def mount(tx: Tx) -> None:
    """Let the vcluster mount a volume of bob's."""
    group = tx.scalar(select(t.groups.c.id).where(t.groups.c.name == "bob"))
    green = tx.scalar(select(t.vclusters.c.id).where(t.vclusters.c.name == "green"))
    volume = {"name": "bob/data", "group_id": group, "kind": "data", "fileserver": "f", "path": "p"}
    numbers = {"export_id": 1, "size": 1, "sequence": 1, "next_at": 0.0, "created_at": 0.0}
    tx.execute(insert(t.volumes).values(id=5, **volume, **numbers))
    row = {"volume_id": 5, "vcluster_id": green, "mount": "/m", "read_only": False}
    tx.execute(insert(t.volume_attachments).values(sequence=1, created_at=0.0, **row))


def move_address(tx: Tx) -> None:
    """Give the held node an address outside of its vcluster's blocks."""
    kind = t.bindings.c.kind == "vcluster"
    tx.execute(update(t.bindings).where(kind).values(address=t.bindings.c.address + 1000))


def found(engine: Engine) -> list[tuple[ViolationKind, str]]:
    with snapshot(engine) as tx:
        checked = history.check(tx)
    assert set(checked.names.values()) == {"node0", "node1"}
    return [(one.kind, one.about) for one in checked.violations]


def test_a_site_shows_owners_and_no_violation(engine: Engine, site: Site) -> None:
    fill(engine, site)
    assert found(engine) == []
    with snapshot(engine) as tx:
        one = history.check(tx, node="node0")
    assert list(one.names.values()) == ["node0"]
    (node,) = one.names
    words = [one.histories.name(span.holder) for span in one.histories.spans(node)]
    assert words == ["nobody", "site/red", "nobody", "bob/blue", "nobody", "site/green"]
    assert [span.erased for span in one.histories.spans(node)] == [
        False,
        False,
        True,
        False,
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("plant", "kind", "said"),
    [
        (drop_wipe, ViolationKind.FREE, "was not wiped since its disks were written by bob"),
        (
            take_over,
            ViolationKind.OWNERS,
            "goes from site/green to bob/blue without having been free",
        ),
        (
            run_other_template,
            ViolationKind.IMAGE,
            "is held by group site, and runs a template of bob",
        ),
        (
            enter_vlan,
            ViolationKind.VLAN,
            "its switch port is wanted in VLAN 7; its holder's is none",
        ),
        (mount, ViolationKind.VOLUME, "its holder, of group site, mounts bob/data of bob"),
        (move_address, ViolationKind.OWNERS, "is in no block of its holder"),
    ],
    ids=lambda value: value.__name__ if callable(value) else None,
)
def test_what_is_planted_is_found(
    engine: Engine, site: Site, plant: Callable[[Tx], object], kind: ViolationKind, said: str
) -> None:
    fill(engine, site)
    with engine.begin() as tx:
        plant(tx)
    assert any(one == kind and said in about for one, about in found(engine)), found(engine)


def test_the_command_reads_a_site_without_its_server(tmp_path: Path) -> None:
    file = tmp_path / "site.toml"
    init.write_site_file(file, tmp_path, {})
    init.found(tmp_path, file, {}, 0.0)
    _, settings = load.load(file)
    engine = connect(settings.database)
    with engine.begin() as tx:
        furnish(tx, 1)

    def run(*words: str) -> tuple[int, str, str]:
        done = CliRunner().invoke(cod, ["--site", str(file), "audit", "history", *words])
        return done.exit_code, done.stdout, done.stderr

    code, out, err = run()
    assert (code, err) == (0, "1 node, 1 transition, 0 violations\n")
    assert out.startswith("node0: free ")
    assert run("nobody")[0] == 1
    with engine.begin() as tx:
        tx.execute(update(t.nodes).values(generation=5))
    code, out, err = run("node0", "--json")
    assert (code, err) == (1, "")
    told = json.loads(out)
    assert [one["node"] for one in told["nodes"]] == ["node0"]
    assert [one["kind"] for one in told["violations"]] == ["history"]
    assert "node0: history: is inactive of generation 5" in run()[2]
    engine.dispose()
