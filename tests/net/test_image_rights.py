"""Images are for the nodes whose templates name them; for everybody else on the network they are
not there."""

from __future__ import annotations

import http.client
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, update
from sqlalchemy.exc import OperationalError
from twisted.internet.task import Clock

from cod.flows.boot import fetches
from cod.model import Binding, ImageRules, Site, SiteRef, ipv4
from cod.net.bootserver import fetches as edge
from cod.net.bootserver.server import HttpServer
from cod.policy.people.names import full
from cod.pool import Pool, in_transaction
from cod.states import NodeState
from cod.store import tables as t
from cod.store.images import images, templates
from cod.store.nodes import bindings, nodes
from cod.store.people import groups
from tests.conftest import SUBNET
from tests.rows import add_vcluster

pytestmark = pytest.mark.slow

NOW = 1_000_000.0
MINE, THEIRS, SITE_S = "1" * 64, "2" * 64, "3" * 64
KERNEL, RAMDISK = "4" * 64, "5" * 64
NODE, OTHER, STRANGER, SYSTEM = "127.0.0.11", "127.0.0.12", "127.0.0.13", "127.0.0.14"
DATA = os.urandom(3 << 20)
DISKFUL = '<template name="a"><image target="disk" name="mine"/></template>'
DISKLESS = (
    '<template name="b"><boot mode="diskless"><kernel image="kernel"/><ramdisk'
    ' image="ramdisk"/></boot></template>'
)


@dataclass
class Lab:
    """An image server with two groups' nodes, each at its address."""

    engine: Engine
    server: HttpServer
    line: dict[str, http.client.HTTPConnection]

    def get(
        self, source: str, digest: str, name: str = "data.zst", method: str = "GET", **headers: str
    ) -> tuple[int, bytes]:
        """What whoever is at `source` gets."""
        if source not in self.line:
            self.line[source] = http.client.HTTPConnection(
                "127.0.0.1", self.server.port, timeout=60, source_address=(source, 0)
            )
        line = self.line[source]
        line.request(
            method,
            f"/images/{digest}/{name}",
            headers={name.title(): text for name, text in headers.items()},
        )
        reply = line.getresponse()
        return reply.status, reply.read()

    def change(self, **columns: Any) -> None:
        """Change the first node."""
        with self.engine.begin() as tx:
            tx.execute(update(t.nodes).where(t.nodes.c.name == "n1").values(columns))

    def forget(self) -> None:
        """What the server remembers of its answers."""
        self.server._fetches._known.clear()


def world(tx: Any) -> None:
    for number, (name, owner, digest, content) in enumerate(
        (
            ("mine", "physics", MINE, "disk"),
            ("theirs", "chemistry", THEIRS, "disk"),
            ("shared", "", SITE_S, "disk"),
            ("kernel", "chemistry", KERNEL, "file"),
            ("ramdisk", "chemistry", RAMDISK, "file"),
        ),
        1,
    ):
        group_id = groups.ensure(tx, owner, NOW).id if owner else None
        images.add(
            tx,
            name=full(owner, name),
            group_id=group_id,
            state="ready",
            format="raw",
            content=content,
            digest=digest,
            created_at=NOW + number,
        )
    for number, (owner, document, address) in enumerate(
        (("physics", DISKFUL, NODE), ("chemistry", DISKLESS, OTHER)), 1
    ):
        group = groups.ensure(tx, owner, NOW)
        template = templates.add(
            tx,
            name=full(owner, f"t{number}"),
            revision=1,
            group_id=group.id,
            digest=str(number) * 64,
            document=document,
            created_at=NOW,
        )
        vcluster = add_vcluster(
            tx, f"v{number}", group.id, template.id, SUBNET, now=NOW, lease_time=9e5
        )
        mac = f"52:54:00:00:00:{number:02x}"
        node = nodes.add(
            tx,
            name=f"n{number}",
            boot_mac=mac,
            now=NOW,
            cause="x",
            actor="x",
            template_id=template.id,
            vcluster_id=vcluster.id,
            state=NodeState.PRIME,
        )
        bindings.add(
            tx, [Binding(ipv4(address), mac, "boot", node.id, "lab", None, "bound", NOW + 900.0)]
        )
        if number == 1:
            bindings.add(
                tx, [Binding(ipv4(SYSTEM), mac, "vcluster", node.id, "lab", "n1", "reserved", 4e9)]
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
    for digest in (MINE, THEIRS, SITE_S, KERNEL, RAMDISK):
        (tmp_path / "images" / digest).mkdir(parents=True)
        for name in ("data.zst", "file", "manifest.json"):
            (tmp_path / "images" / digest / name).write_bytes(DATA)
    in_transaction(engine, world)
    server = HttpServer(
        reactor,
        pool,
        SiteRef(replace(site)),
        tmp_path,
        tmp_path / "images",
        ["127.0.0.1"],
        0,
        lambda: NOW,
    )
    in_reactor(server.startService)
    lab = Lab(engine, server, {})
    yield lab
    for line in lab.line.values():
        line.close()
    in_reactor(server.stopService)


# ---------------------------------------------------------------- who gets what


def test_a_node_gets_what_its_template_names(lab: Lab) -> None:
    for name in ("data.zst", "manifest.json"):
        assert lab.get(NODE, MINE, name) == (200, DATA)
    assert lab.get(NODE, MINE, method="HEAD") == (200, b"")
    assert lab.get(SYSTEM, MINE)[0] == 200, "its system fetches from another address"


@pytest.mark.parametrize("digest", [THEIRS, SITE_S, KERNEL])
def test_of_what_it_does_not_name_nothing_is_there(lab: Lab, digest: str) -> None:
    """To the letter as if it were not there, by whatever method."""
    nothing = lab.get(NODE, "9" * 64)
    assert nothing[0] == 404
    assert lab.get(NODE, digest) == nothing
    assert lab.get(NODE, digest, "manifest.json") == nothing
    assert lab.get(NODE, digest, range="bytes=0-9") == nothing
    assert lab.get(NODE, digest, method="HEAD") == (404, b"")


def test_a_node_of_another_group_and_a_stranger_get_nothing(lab: Lab) -> None:
    assert lab.get(OTHER, MINE)[0] == 404
    for digest in (MINE, THEIRS, SITE_S):
        assert lab.get(STRANGER, digest)[0] == 404
        assert lab.get("127.0.0.1", digest)[0] == 404


def test_a_node_without_a_disk_gets_what_it_boots_from(lab: Lab) -> None:
    assert lab.get(OTHER, KERNEL, "file") == (200, DATA)
    assert lab.get(OTHER, RAMDISK, "file", range="bytes=5-9") == (206, DATA[5:10])


def test_an_image_that_is_not_ready_is_nobodys(lab: Lab) -> None:
    with lab.engine.begin() as tx:
        tx.execute(update(t.images).where(t.images.c.name == "physics/mine").values(state="failed"))
    assert lab.get(NODE, MINE)[0] == 404


@pytest.mark.parametrize("state", [each for each in NodeState if each not in (NodeState.RETIRED,)])
def test_what_it_is_to_run_it_gets_in_every_state(lab: Lab, state: NodeState) -> None:
    """Between tries of priming it is elsewhere for a while; what it boots from without a disk it
    wants when it runs."""
    lab.change(state=state)
    assert lab.get(NODE, MINE, range="bytes=0-9") == (206, DATA[:10])


def test_the_site_may_leave_them_open(lab: Lab) -> None:
    object.__setattr__(lab.server._site.current, "images", ImageRules(open=True))
    assert lab.get(STRANGER, MINE) == (200, DATA)
    assert lab.get(STRANGER, "9" * 64)[0] == 404


# ---------------------------------------------------------------- while things change


def test_who_loses_the_node_finishes_its_pieces_and_no_more(lab: Lab) -> None:
    assert lab.get(NODE, MINE, range="bytes=0-9")[0] == 206
    lab.change(vcluster_id=None, template_id=None)
    assert lab.get(NODE, MINE, range="bytes=10-19") == (
        206,
        DATA[10:20],
    ), "it is told by its order that it has to stop"
    lab.forget()
    assert lab.get(NODE, MINE, range="bytes=20-29")[0] == 404


def test_an_address_that_somebody_else_has_now_opens_nothing(lab: Lab) -> None:
    with lab.engine.begin() as tx:
        tx.execute(
            update(t.bindings)
            .where(t.bindings.c.address == ipv4(NODE))
            .values(mac="52:54:00:00:00:77", node_id=None)
        )
        assert not fetches.may_fetch(tx, address=NODE, digest=MINE)
        tx.execute(
            update(t.bindings)
            .where(t.bindings.c.address == ipv4(NODE))
            .values(mac=None, state="declined")
        )
        assert not fetches.may_fetch(tx, address=NODE, digest=MINE)
        assert not fetches.may_fetch(tx, address="::1", digest=MINE)


def test_a_binding_that_has_run_out_still_says_who_it_is(lab: Lab) -> None:
    """A trampoline that writes a large image for longer than its address was lent."""
    with lab.engine.begin() as tx:
        tx.execute(update(t.bindings).values(expires_at=1.0))
    assert lab.get(NODE, MINE)[0] == 200


# ---------------------------------------------------------------- what is remembered


class Answers:
    """In place of a pool: what the database says, and how often it was asked."""

    def __init__(self) -> None:
        self.says: bool | Exception = True
        self.asked = 0

    async def read(self, *_args: Any, **_named: Any) -> bool:
        self.asked += 1
        if isinstance(self.says, Exception):
            raise self.says
        return self.says


def asked(known: edge.Fetches, digest: str = MINE) -> Any:
    """Return the answer that is known; else that of the server which is asked."""
    remembered = known.known(NODE, digest)
    if remembered is not None:
        return remembered
    try:
        known.ask(NODE, digest).send(None)
    except StopIteration as done:
        return done.value


def test_many_pieces_are_one_question() -> None:
    clock, answers = Clock(), Answers()
    known = edge.Fetches(answers, clock.seconds)
    assert [asked(known) for _ in range(100)] == [True] * 100
    assert answers.asked == 1
    clock.advance(edge.ALLOWED)
    answers.says = False
    assert [asked(known) for _ in range(10)] == [False] * 10
    assert answers.asked == 2
    clock.advance(edge.REFUSED)  # an order may name it from now on
    answers.says = True
    assert asked(known) is True


def test_a_database_that_is_away_stops_nobody_who_was_allowed() -> None:
    clock, answers = Clock(), Answers()
    known = edge.Fetches(answers, clock.seconds)
    assert asked(known)
    clock.advance(edge.ALLOWED)
    answers.says = OperationalError("", None, Exception("away"))
    assert asked(known) is True
    with pytest.raises(OperationalError):
        asked(known, THEIRS)


def test_what_is_remembered_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge, "MOST", 3)
    known = edge.Fetches(Answers(), Clock().seconds)
    for number in range(10):
        asked(known, str(number))
    assert len(known._known) == 3


def test_where_nobody_can_say_it_is_worth_another_try(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(tx: Any, **_named: Any) -> bool:
        raise RuntimeError("broken")

    monkeypatch.setattr(fetches, "may_fetch", broken)
    assert lab.get(NODE, MINE)[0] == 503
    monkeypatch.undo()
    assert lab.get(NODE, MINE)[0] == 200
