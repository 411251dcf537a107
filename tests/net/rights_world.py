"""Two groups with something of everything, and somebody of every kind who asks: for walks through
all routes or pages.

Everything of the group `OURS` has `MARK` in its names and texts, so that whoever reads it shows it.
Nothing that is asked is ever committed (`Rehearsal`): each question finds the world as it was made.
"""

from __future__ import annotations

import http.client
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine, insert

from cod.flows.people import access, invitations, people, signin, sshkeys, tokens
from cod.flows.vcms import vcms
from cod.model import RequestTuple, Role, SignInRules, Site, VclusterName, Who
from cod.policy.people.names import full
from cod.pool import Pool, in_transaction
from cod.states import NodeState
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.images import images
from cod.store.nodes import nodes
from cod.store.people import groups
from cod.store.scheduler import requests, vcluster_names
from tests.conftest import SUBNET
from tests.net.apiserver import Served, serving
from tests.rows import add_template, add_vcluster

NOW = 1_000_000.0
MARK = "qqours"
OURS, THEIRS = MARK, "theirs"
SWITCH = "qqswitch"
"""In where nodes' power is switched, and in nothing else: only administrators may read it."""
DOCUMENT = '<template name="{}"><image target="disk" name="{}"/></template>'
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f {}"
RULES = SignInRules()


class Rehearsal(Pool):
    """A pool that takes everything back: flows run and return as ever, and no commit follows."""

    def _attempt(self, engine: Engine, step: Callable[[Tx], Any], committed: Any = None) -> Any:
        with engine.connect() as tx, tx.begin() as transaction:
            try:
                return step(tx)
            finally:
                transaction.rollback()


@contextmanager
def standing(
    reactor: Any, engine: Engine, in_reactor: Callable[..., Any], site: Site
) -> Iterator[tuple[Served, World, http.client.HTTPConnection]]:
    """A server that commits nothing, the world behind it, and one connection to it."""
    pool = Rehearsal(engine, reactor)
    with serving(pool, reactor, in_reactor, site) as served:
        world = in_transaction(engine, made)
        line = http.client.HTTPConnection("127.0.0.1", served.server.ports[0], timeout=60)
        yield served, world, line
        line.close()
    pool.close()


@dataclass(frozen=True)
class Asker:
    """Somebody who asks.

    token   theirs, '' for nobody; cookie, of a browser where they are signed in
    role    in the group OURS; None: a stranger
    only    a token for one group
    """

    token: str
    cookie: str = ""
    role: Role | None = None
    admin: bool = False
    writes: bool = True
    only: bool = False


@dataclass
class World:
    """Names and numbers of what there is, by kind: `ours['vcluster']`; and of what there is not:
    `missing`."""

    ours: dict[str, str] = field(default_factory=dict)
    theirs: dict[str, str] = field(default_factory=dict)
    askers: dict[str, Asker] = field(default_factory=dict)
    missing: Mapping[str, str] = field(
        default_factory=lambda: {
            **dict.fromkeys(
                (
                    "group",
                    "vcluster",
                    "node",
                    "image",
                    "template",
                    "user",
                    "block",
                    "type",
                    "volume",
                    "series",
                    "snapshot",
                    "label",
                ),
                "none",
            ),
            **dict.fromkeys(
                ("request", "reclaim", "notice", "invitation", "key", "session", "delivery"),
                "999999",
            ),
            "upload": "0" * 32,
            "token": "none",
        }
    )


def made(tx: Tx) -> World:
    """The world, written into an empty database (with the group 'site')."""
    world = World()
    for name, things in ((OURS, world.ours), (THEIRS, world.theirs)):
        things |= _things(tx, name)
    own = {"owner": Role.OWNER, "member": Role.MEMBER, "viewer": Role.VIEWER}
    for name, role in own.items():
        _person(tx, world, f"{MARK}.{name}", {OURS: role})
        world.askers[name] = Asker(f"cod_{MARK}.{name}", f"cookie_{MARK}.{name}", role)
    _person(tx, world, f"{MARK}.silent", {OURS: Role.MEMBER})
    _person(tx, world, "stranger", {THEIRS: Role.OWNER})
    world.askers["stranger"] = Asker("cod_stranger", "cookie_stranger")
    _person(tx, world, "admin", {}, admin=True)
    world.askers["admin"] = Asker("cod_admin_user", "cookie_admin", admin=True)
    both = _person(tx, world, "both", {OURS: Role.OWNER, THEIRS: Role.OWNER})
    tokens.make(tx, who=both, name="elsewhere", token="cod_elsewhere", group=THEIRS, now=NOW)
    world.askers["a token for another group"] = Asker("cod_elsewhere", only=True)
    tokens.make(tx, who=both, name="eye", token="cod_eye", scope="read", now=NOW)
    world.askers["a token that reads"] = Asker("cod_eye", role=Role.OWNER, writes=False)
    world.askers["nobody"] = Asker("")
    world.ours["user"] = f"{MARK}.silent"
    world.theirs["user"] = "stranger"
    return world


def _person(tx: Tx, world: World, name: str, roles: Mapping[str, Role], admin: bool = False) -> Who:
    user = people.create(tx, name, full_name=f"{name} by name", admin=admin, now=NOW)
    for group, role in roles.items():
        people.set_role(tx, group=group, user=name, role=role)
    who = Who(
        f"user:{name}",
        admin=admin,
        user_id=user.id,
        roles={groups.by_name(tx, group).id: role for group, role in roles.items()},
    )
    token = "cod_admin_user" if admin else f"cod_{name}"
    tokens.make(tx, who=who, name="test", token=token, now=NOW)
    signin.begin(
        tx,
        user_id=user.id,
        address="127.0.0.1",
        browser=name,
        cookie=access.digest(f"cookie_{name}"),
        rules=RULES,
        now=NOW,
    )
    key = sshkeys.add(tx, who=who, line=KEY.format(f"{name}@host"), now=NOW)
    if name.startswith(MARK):  # numbers of the last one's own
        world.ours |= {
            "key": str(key.id),
            "session": str(signin.every(tx, who=who, rules=RULES, now=NOW)[0].id),
        }
    return who


_numbers = itertools.count(1)


def _things(tx: Tx, name: str) -> dict[str, str]:
    """Something of every kind for a group."""
    group = groups.add(
        tx, name, NOW, email=f"{name}@example.org", webhook=f"https://hooks.example.org/{name}"
    )
    image = images.add(
        tx,
        name=full(name, f"{name}-image"),
        group_id=group.id,
        state="ready",
        format="raw",
        content="disk",
        created_at=NOW,
    )
    template = add_template(
        tx,
        full(name, f"{name}-template"),
        DOCUMENT.format(f"{name}-template", image.name),
        group_id=group.id,
        now=NOW,
    )
    vcluster = add_vcluster(
        tx, f"{name}-cluster", group.id, template.id, SUBNET, now=NOW, lease_time=9e5
    )
    request = requests.add(
        tx,
        vcluster_id=vcluster.id,
        kind="create",
        priority=0,
        now=NOW,
        key=None,
        tuples=[RequestTuple(1, "", template.id)],
    )
    node = nodes.add(
        tx,
        name=f"{name}-node",
        boot_mac=f"52:54:00:00:00:{next(_numbers):02x}",
        now=NOW,
        cause=name,
        actor="test",
        vcluster_id=vcluster.id,
        state=NodeState.ACTIVE,
        template_id=template.id,
        hostname="n1",
        power_driver="ipmi",
        power_address=f"{SWITCH}.example.org:{next(_numbers)}",
        power_account=f"{SWITCH}-account",
    )
    kind = _one(
        tx,
        t.node_types,
        name=f"{name}-type" if name == THEIRS else "type1",
        digest=name.ljust(64, "0"),
        attributes="<node/>",
        created_at=NOW,
    )
    tx.execute(insert(t.node_permissions).values(node_id=node.id, group_id=group.id, right="use"))
    reclaim = _one(
        tx,
        t.reclaims,
        vcluster_id=vcluster.id,
        request_id=request.id,
        type_id=kind,
        count=1,
        deadline=NOW + 100,
        state="open",
        created_at=NOW,
    )
    notice = _one(
        tx,
        t.notices,
        at=NOW,
        kind="test",
        group_id=group.id,
        vcluster_id=vcluster.id,
        subject=name,
        about=name,
    )
    volume = _one(
        tx,
        t.volumes,
        name=full(name, f"{name}-volume"),
        group_id=group.id,
        kind="data",
        fileserver="nas",
        path=f"/srv/{name}",
        export_id=next(_numbers),
        size=2**30,
        sequence=1,
        applied=1,
        next_at=NOW,
        made_at=NOW,
        created_at=NOW,
    )
    _one(
        tx,
        t.volume_snapshots,
        volume_id=volume,
        name=f"{name}-snapshot",
        sequence=1,
        made_at=NOW,
        created_at=NOW,
    )
    tx.execute(
        insert(t.reservation_series).values(
            name=f"{name}-series",
            group_id=group.id,
            asked=json.dumps({"size": 1, "template": template.name, "also": [], "mounts": []}),
            starts_at=NOW + 9e9,
            duration=10.0,
            zone="UTC",
            days="mon",
            created_at=NOW,
        )
    )
    # everybody sees when nodes are out of service, and nobody which of others' nodes
    tx.execute(
        insert(t.maintenance_windows).values(
            state="planned",
            begins_at=NOW + 9e9,
            reason="fans",
            names="n9",
            filter="",
            drain=False,
            stay_out=False,
            bit=1 << next(_numbers) % 20,
            created_at=NOW,
            created_by="user:root",
        )
    )
    upload = f"{next(_numbers):032x}"
    tx.execute(
        insert(t.uploads).values(
            id=upload,
            name=f"{name}-upload",
            group_id=group.id,
            size=10,
            actor=name,
            created_at=NOW,
            expires_at=NOW + 9e9,
        )
    )
    link = invitations.invite(
        tx,
        digest=f"link-{name}",
        group=name,
        role="viewer",
        email=f"{name}@example.org",
        rules=RULES,
        who=f"user:{name}",
        now=NOW,
    )
    tx.execute(
        insert(t.audit).values(
            at=NOW, actor=f"user:{name}", action="group change", thing=name, group_id=group.id
        )
    )
    power = json.dumps(
        {
            "power": {"wanted": "on", "address": node.power_address, "account": node.power_account},
            "power_address": node.power_address,
            "power_account": node.power_account,
        }
    )
    tx.execute(
        insert(t.audit).values(
            at=NOW,
            actor="user:admin",
            action="node power",
            thing=node.name,
            group_id=group.id,
            before=power,
            after=power,
        )
    )
    vcluster_names.put(tx, VclusterName(vcluster.id, f"{name}-name", "n1", False, NOW, name))
    vcms.enrol(tx, vcluster=vcluster.name, serial=name, address="", now=NOW)
    return {
        "group": name,
        "image": image.name,
        "template": template.name,
        "vcluster": vcluster.name,
        "request": str(request.id),
        "node": node.name,
        "reclaim": str(reclaim),
        "notice": str(notice),
        "volume": full(name, f"{name}-volume"),
        "series": f"{name}-series",
        "snapshot": f"{name}-snapshot",
        "upload": upload,
        "invitation": str(link.id),
        "label": f"{name}-name",
    }


def _one(tx: Tx, table: Any, **columns: Any) -> int:
    [made] = tx.execute(insert(table).values(**columns)).inserted_primary_key or ()
    return int(made)
