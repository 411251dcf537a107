"""A node's console by the API, on the command line and in the portal: what of it, and whose."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, insert, select, update

from cod import consolefiles
from cod.cli.nodes import console as cli
from cod.client import ApiError
from cod.consolefiles import State
from cod.flows.nodes import consoles
from cod.model import ConsoleRules, Role, Site
from cod.policy.nodes.console import FREE, tenure
from cod.pool import Pool
from cod.store import claims
from cod.store import tables as t
from cod.store.nodes import nodes
from cod.store.people import groups
from tests.conftest import ready
from tests.net.apiserver import NOW, Served, as_json, run, said, serving
from tests.net.credentials import as_user
from tests.net.portalclient import signed_in
from tests.net.test_portal_nodes import of_group
from tests.portal_site import furnish

pytestmark = pytest.mark.slow

NODE = "node01"
BOOT = b"\x1b[2J\x1b[1;1HSeaBIOS\r\n\x1b[1;31mLinux\x1b[0m version 6.1 \xff\r\nlogin: "


@pytest.fixture
def served(
    pool: Pool, reactor: Any, in_reactor: Callable[..., Any], site: Site, tmp_path: Path
) -> Iterator[Served]:
    """A small site whose consoles are recorded; node01 is held by a vcluster of physics."""
    site = replace(site, consoles=ConsoleRules(record=True))
    with serving(pool, reactor, in_reactor, site, consoles=tmp_path / "consoles") as served:

        def begin(tx: Any) -> None:
            tx.execute(delete(t.groups))
            furnish(tx, NOW)
            claims.hold(tx, "consoles", "head", NOW, 60.0)

        ready(pool.engine, "a site whose consoles are recorded", begin)
        yield served


class Said:
    """What the node says, while whom it is known to be held by."""

    def __init__(self, served: Served, folder: Path) -> None:
        self.served, self.folder = served, folder
        self.node = served.tx(nodes.by_name, NODE)

    def __call__(self, data: bytes, whose: str | None = None) -> None:
        found = self.served.tx(nodes.by_name, NODE)
        own = tenure(found.vcluster_id, found.assigned_at)
        consolefiles.append(self.folder, found.id, own if whose is None else whose, data, 2**20)

    def state(self, state: str, about: str = "") -> None:
        consolefiles.note(self.folder, self.node.id, State(state, about, NOW))


@pytest.fixture
def say(served: Served, tmp_path: Path) -> Said:
    return Said(served, tmp_path / "consoles")


def console(client: Any, **query: Any) -> Any:
    return client.get(f"/nodes/{NODE}/console", **query)


def hand_over(served: Served, group: str = "biology", at: float = NOW + 50) -> None:
    """The node is given to a vcluster of another group."""

    def give(tx: Any) -> None:
        node = nodes.named(tx, NODE)
        other = groups.ensure(tx, group, NOW).id
        tx.execute(
            update(t.nodes).where(t.nodes.c.id == node.id).values(vcluster_id=3, assigned_at=at)
        )
        tx.execute(delete(t.node_permissions).where(t.node_permissions.c.node_id == node.id))
        tx.execute(insert(t.node_permissions).values(node_id=node.id, group_id=other, right="use"))

    served.tx(give)


# ---------------------------------------------------------------- what


def test_a_console_is_shown_as_text(served: Served, say: Said) -> None:
    say(BOOT)
    say.state("recording")
    found = console(served.local)
    assert found["text"] == "\nSeaBIOS\nLinux version 6.1 \ufffd\nlogin: "
    assert (found["first"], found["start"], found["end"]) == (0, 0, len(BOOT))
    assert (found["node"], found["state"], found["about"]) == (NODE, "recording", "")
    assert found["at"] > NOW


def test_its_end_begins_with_a_whole_line(served: Served, say: Said) -> None:
    say(b"".join(b"line %04d\r\n" % number for number in range(1000)))
    found = console(served.local, bytes=1024)
    lines = found["text"].splitlines()
    assert lines[-1] == "line 0999"
    assert all(len(line) == 9 for line in lines)
    assert found["end"] == 11_000
    assert found["end"] - found["start"] == 11 * len(lines) <= 1024


def test_whoever_follows_gets_every_byte_once(served: Served, say: Said) -> None:
    text, at = "", 0
    for part in (b"one \x1b[3", b"1mred\x1b[0m \xe2\x82", b"\xac\r", b"\ntwo"):
        say(part)
        found = console(served.local, since=at)
        assert found["start"] == at
        text, at = text + found["text"], found["end"]
    assert text == "one red €\ntwo"
    assert console(served.local, since=at)["text"] == ""
    say(b"x" * 5000)
    parts = [
        console(served.local, since=at + 1024 * number, bytes=1024)["text"] for number in range(5)
    ]
    assert "".join(parts) == "x" * 5000


def test_as_text_alone(served: Served, say: Said) -> None:
    say(b"<script>alert(1)</script>\r\n")
    line = http.client.HTTPConnection("127.0.0.1", served.server.ports[0], timeout=60)
    line.request(
        "GET",
        f"/api/v1/nodes/{NODE}/console?format=text",
        headers={"Authorization": "Bearer cod_admin"},
    )
    reply = line.getresponse()
    assert reply.read() == b"<script>alert(1)</script>\n"
    assert reply.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert reply.headers["X-Content-Type-Options"] == "nosniff"
    line.close()


def test_how_the_recording_goes_is_said(served: Served, say: Said) -> None:
    assert console(served.local)["about"].startswith("nothing was heard of it yet")
    say.state("lost", "the BMC refuses the password")
    assert (console(served.local)["state"], console(served.local)["about"]) == (
        "lost",
        "the BMC refuses the password",
    )
    own = console(as_user(served, "olga", "physics"))
    assert (own["state"], own["about"]) == (
        "lost",
        "it cannot be followed now",
    ), "administrators learn why"
    served.clock.now += 61
    assert console(served.local)["about"] == "no server records consoles now"
    for driver, words in (("none", "no power driver"), ("wol", "no BMC")):
        served.tx(lambda tx, driver=driver: tx.execute(update(t.nodes).values(power_driver=driver)))
        assert console(served.local)["state"] == "off"
        assert words in console(served.local)["about"]


def test_what_was_recorded_stays_when_recording_ends(served: Served, say: Said) -> None:
    say(b"before")
    object.__setattr__(
        served.server._apis[0].context.site.current, "consoles", ConsoleRules(record=False)
    )
    found = console(served.local)
    assert (found["state"], found["text"]) == ("off", "before")


def test_what_cannot_be_asked(served: Served) -> None:
    for query in ({"bytes": 10}, {"bytes": 2**30}, {"since": -1}, {"format": "html"}, {"x": 1}):
        with pytest.raises(ApiError) as raised:
            console(served.local, **query)
        assert raised.value.status == 422


# ---------------------------------------------------------------- whose


def test_holders_read_what_was_said_since_they_got_the_node(served: Served, say: Said) -> None:
    olga, boris = (
        as_user(served, "olga", "physics"),
        as_user(served, "boris", "biology", Role.MEMBER),
    )
    say(b"trampoline before ", FREE)
    say(b"physics' secret ")
    assert console(olga)["text"] == "physics' secret "
    with pytest.raises(ApiError, match="no node"):
        console(boris)
    hand_over(served)
    say(b"wiped ", FREE)
    say(b"biology's secret")
    assert console(boris)["text"] == "biology's secret"
    assert console(boris, since=0)["text"] == "biology's secret", "whatever it asks for"
    with pytest.raises(ApiError, match="no node"):
        console(olga)
    assert (
        console(served.local)["text"] == "trampoline before physics' secret wiped biology's secret"
    )


def test_the_same_vcluster_that_gets_the_node_again_reads_nothing_from_between(
    served: Served, say: Said
) -> None:
    boris = as_user(served, "boris", "biology")
    hand_over(served, at=NOW + 50)
    say(b"first time ")
    hand_over(served, "physics", at=NOW + 60)
    say(b"physics' secret ")
    hand_over(served, at=NOW + 70)
    assert console(boris)["text"] == ""
    say(b"second time")
    assert console(boris)["text"] == "second time"


def test_before_the_recorder_has_seen_the_new_holder_it_reads_nothing(
    served: Served, say: Said
) -> None:
    boris = as_user(served, "boris", "biology")
    say(b"physics' secret ")
    before = tenure(say.node.vcluster_id, say.node.assigned_at)
    hand_over(served)
    say(b"last words", before)
    assert console(boris)["text"] == ""


def test_who_only_looks_does_not_read_consoles(served: Served, say: Said) -> None:
    say(b"secret")
    with pytest.raises(ApiError, match="only members") as raised:
        console(as_user(served, "vera", "physics", Role.VIEWER))
    assert raised.value.status == 403
    with pytest.raises(ApiError) as raised:
        console(served.remote("cod_reader"))
    assert raised.value.status == 403, "nor does a token that may only read"
    assert console(as_user(served, "mia", "physics", Role.MEMBER))["text"] == "secret"


# ---------------------------------------------------------------- on the command line


def test_on_the_command_line(served: Served, say: Said) -> None:
    say(BOOT)
    say.state("recording")
    assert (
        run(served, "node", "console", NODE).stdout
        == "\nSeaBIOS\nLinux version 6.1 \ufffd\nlogin: "
    )
    assert as_json(served, "node", "console", NODE)["end"] == len(BOOT)
    say.state("lost", "the BMC does not answer")
    assert run(served, "node", "console", NODE).stderr == "Not recorded: the BMC does not answer.\n"
    assert "no node" in said(served, "node", "console", "nothing", code=1)


def test_followed_on_the_command_line(served: Served, say: Said) -> None:
    say(b"begun ")
    say.state("recording")
    parts: Iterator[Callable[[], None]] = iter(
        [lambda: say(b"more "), lambda: say.state("lost", "gone"), lambda: say(b"end")]
    )
    found = cli.pieces(served.local, NODE, 4096, sleep=lambda _: next(parts)())
    assert [(each["text"], each["about"]) for each in islice(found, 4)] == [
        ("begun ", ""),
        ("more ", ""),
        ("", "gone"),
        ("end", "gone"),
    ]


def test_followed_as_json(served: Served, say: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    say(b"text")

    def end(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cod.cli.nodes.console.time.sleep", end)
    monkeypatch.setattr(cli.pieces, "__defaults__", (end,))
    lines = run(served, "node", "console", NODE, "--follow", "--json", code=130).stdout.splitlines()
    assert json.loads(lines[0])["text"] == "text"


# ---------------------------------------------------------------- in the portal


def test_on_the_nodes_page(served: Served, say: Said) -> None:
    say(b"\x1b[31m<b>boot</b>\x1b[0m\r\n")
    say.state("recording")
    page = signed_in(served).get(f"/nodes/{NODE}")
    assert "<b>boot</b>" in page.words
    assert "&lt;b&gt;boot" in page.text
    (link,) = page.tree.xpath("//a[contains(@href, 'format=text')]/@href")
    assert page.browser.get(link).text == "<b>boot</b>\n"
    part = page.browser.get(f"/nodes/{NODE}", part="console")
    assert "boot" in part.text
    assert "data-again" in part.text, "it is looked at again by itself"
    assert "<h1" not in part.text


def test_the_page_shows_holders_their_own(served: Served, say: Said) -> None:
    say(b"of nobody\r\n", FREE)
    say(b"of physics\r\n")
    own = signed_in(served, of_group(served, "olga", Role.OWNER)).get(f"/nodes/{NODE}")
    assert "of physics" in own.words
    assert "of nobody" not in own.words
    viewer = signed_in(served, of_group(served, "vera", Role.VIEWER)).get(f"/nodes/{NODE}")
    assert viewer.status == 200
    assert "Console" not in viewer.words
    assert "of physics" not in viewer.words
    alone = viewer.browser.get(f"/nodes/{NODE}", part="console")
    assert "of physics" not in alone.text


def test_the_page_says_why_there_is_none(served: Served, say: Said) -> None:
    page = signed_in(served).get("/nodes/node02")
    assert "Not recorded: it has no power driver" in page.words
    assert "data-again" not in page.text


# ---------------------------------------------------------------- typing


def let(served: Served, who: str) -> None:
    """Let these people type."""
    site = served.server._apis[0].context.site
    site.current = replace(site.current, consoles=replace(site.current.consoles, type=who))


def taken(served: Served, server: str = "head", at: float = NOW) -> list[str]:
    return [each.text for each in served.tx(consoles.typed, server, at)]


def test_an_administrator_types_and_the_audit_has_who_and_not_what(served: Served) -> None:
    reply = served.local.post(f"/nodes/{NODE}/console", {"typed": "hunter2\r\n"})
    assert reply == {"node": NODE, "bytes": 8}
    (entry,) = [
        one for one in served.local.get("/audit")["items"] if one["action"] == "node console"
    ]
    assert entry["actor"] == "user:root"
    assert (entry["after"] or {}).get("bytes") == 8
    assert "hunter2" not in json.dumps(served.local.get("/audit"))
    assert taken(served, "another") == [], "it does not follow the consoles"
    assert taken(served) == ["hunter2\r"]
    assert taken(served) == [], "never twice"


def test_what_was_typed_is_dropped_when_it_is_late(served: Served) -> None:
    served.local.post(f"/nodes/{NODE}/console", {"typed": "rm -rf /tmp/x\n"})
    served.tx(claims.hold, "consoles", "head", NOW + 29, 60.0)
    assert taken(served, at=NOW + 31) == []
    assert taken(served, at=NOW) == []


@pytest.mark.parametrize("change", [{"vcluster_id": 3}, {"assigned_at": NOW}, {"state": "wipe"}])
def test_what_a_holder_typed_is_dropped_when_the_node_is_not_theirs_any_longer(
    served: Served, change: dict[str, Any]
) -> None:
    let(served, "holders")
    client = as_user(served, "olga", "physics", Role.OWNER)
    client.post(f"/nodes/{NODE}/console", {"typed": "secret\n"})
    served.tx(lambda tx: tx.execute(update(t.nodes).where(t.nodes.c.name == NODE).values(**change)))
    assert taken(served) == []
    assert served.tx(lambda tx: tx.execute(select(t.console_input)).all()) == []


@pytest.mark.parametrize(
    ("rule", "role", "state", "why"),
    [
        ("administrators", Role.OWNER, "active", "administrators alone"),
        ("nobody", None, "active", "nobody types"),
        ("holders", Role.OWNER, "prime", "its own system"),
    ],
)
def test_who_cannot_type(
    served: Served, rule: str, role: Role | None, state: str, why: str
) -> None:
    let(served, rule)
    served.tx(
        lambda tx: tx.execute(update(t.nodes).where(t.nodes.c.name == NODE).values(state=state))
    )
    client = as_user(served, "olga", "physics", role) if role else served.local
    with pytest.raises(ApiError, match=why):
        client.post(f"/nodes/{NODE}/console", {"typed": "x"})
    assert taken(served) == []


def test_one_console_has_few_texts_that_wait(served: Served) -> None:
    for _ in range(consoles.MOST_WAITING):
        served.local.post(f"/nodes/{NODE}/console", {"typed": "x"})
    with pytest.raises(ApiError, match="20 texts wait"):
        served.local.post(f"/nodes/{NODE}/console", {"typed": "x"})
    assert taken(served) == ["x"] * consoles.MOST_WAITING


def test_a_holder_types_on_the_page(served: Served, say: Said) -> None:
    say(b"login: ")
    say.state("recording")
    own = signed_in(served, of_group(served, "olga", Role.OWNER))
    assert "administrators alone type on consoles here" in own.get(f"/nodes/{NODE}").words
    let(served, "holders")
    page = own.get(f"/nodes/{NODE}")
    page.send(f"/nodes/{NODE}/console", typed="root")
    page.send(f"/nodes/{NODE}/console", typed="", key="Ctrl-C")
    assert taken(served) == ["root\r", "\x03"]
    viewer = signed_in(served, of_group(served, "vera", Role.VIEWER)).get(f"/nodes/{NODE}")
    assert "Type on the console" not in viewer.words


def test_typed_on_the_command_line(served: Served, say: Said) -> None:
    say(b"login: ")
    say.state("recording")
    assert run(served, "node", "console", NODE, "--type", "root").stdout == "login: "
    assert taken(served) == ["root\r"]


def test_a_console_is_found_by_any_label_of_its_node(served: Served, say: Said) -> None:
    say(b"login: ")
    say.state("recording")
    for label in (say.node.boot_mac.upper(), say.node.boot_mac.replace(":", "-")):
        assert run(served, "node", "console", label).stdout == "login: "
    assert "no node" in run(served, "node", "console", "node99", code=1).stderr
    assert "burnt in" in run(served, "node", "burnin", say.node.boot_mac, code=1).stderr


def test_a_terminal_gets_the_bytes_as_they_came(served: Served, say: Said) -> None:
    say(b"\x1b[2Jhalf \xc3")
    found = console(served.local, raw="true")
    assert base64.b64decode(found["data"]) == b"\x1b[2Jhalf \xc3"
    assert (found["text"], found["end"]) == ("", 10)
    say(b"\xbc")
    assert base64.b64decode(console(served.local, raw="true", since=10)["data"]) == b"\xbc"
    assert console(served.local)["data"] is None


def test_a_server_without_widgets_says_so_and_shows_text(
    served: Served, say: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(b"login: ")
    say.state("recording")
    portal = next(each.portal for each in served.server._apis if each.portal)
    there = {"xterm.js": False, "uplot.js": False}
    monkeypatch.setitem(portal.templates.globals, "has_asset", there.__getitem__)
    page = signed_in(served).get(f"/nodes/{NODE}")
    assert "This server has no terminal for its pages" in page.words
    assert "login:" in page.words
    assert "xterm" not in page.text
