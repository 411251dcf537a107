"""Two web servers on one database, each with folders of its own: sessions, forms, events and
uploads go on at the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, select

from cod.client import ApiError, uploads
from cod.client.uploads import Sender
from cod.model import Site
from cod.pool import Pool
from cod.store import tables as t
from tests.net.apiserver import Served, serving
from tests.net.portalclient import Browser
from tests.net.test_event_streams import Stream, _people, held
from tests.net.test_portal_account import KEY
from tests.net.test_portal_signing import PASSWORD, _bob
from tests.waiting import until

pytestmark = [pytest.mark.usefixtures("quick_passwords"), pytest.mark.slow]


class Killed(Exception):
    """The client of the first server is gone."""


@pytest.fixture
def two(
    engine: Engine,
    reactor: Any,
    in_reactor: Callable[..., Any],
    site: Site,
) -> Iterator[list[Served]]:
    """The servers; the second knows the tokens of the first."""
    pools = [Pool(engine, reactor), Pool(engine, reactor)]
    with ExitStack() as stack:
        first = stack.enter_context(serving(pools[0], reactor, in_reactor, site))
        second = stack.enter_context(
            serving(pools[1], reactor, in_reactor, site, with_tokens=False)
        )
        yield [first, second]
    for pool in pools:
        pool.close()


def test_a_session_and_its_forms_hold_at_the_other_server(two: list[Served]) -> None:
    """One name has both addresses; the browser takes either."""
    first, second = two
    first.tx(_bob)
    browser = Browser(first.server.ports[0])
    page = browser.get("/sign-in")
    browser.port = second.server.ports[0]
    page.send("/sign-in", name="bob", password=PASSWORD)
    browser.port = first.server.ports[0]
    page = browser.get("/account")
    form = page.filled("/account/keys", key=KEY)
    browser.port = second.server.ports[0]
    assert "fits" not in browser.post("/account/keys", form).words
    browser.port = first.server.ports[0]
    again = browser.post("/account/keys", form)  # its answer was lost: it is sent once more
    assert again.status == 200
    assert len(first.tx(lambda tx: tx.execute(select(t.ssh_keys.c.id)).all())) == 1
    kept = dict(browser.cookies)
    browser.get("/account").send("/sign-out")
    browser.cookies, browser.port = kept, second.server.ports[0]
    assert browser.ask("GET", "/").status == 303  # the session is over there, too


def test_events_arrive_at_both_servers(two: list[Served]) -> None:
    first, second = two
    first.tx(_people)
    streams = [Stream(each, "admin", after=0) for each in two]
    first.tx(held, "n1", 1, "physics")
    second.tx(held, "n2", 2, None)
    for stream in streams:
        assert [each["node"] for each in stream.until_node("n2")] == ["n1", "n2"]
        stream.close()


@pytest.fixture
def half_sent(two: list[Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of 250,000 bytes. The first server has 200,000 of them."""
    monkeypatch.setattr(uploads, "PIECE", 100_000)
    file = tmp_path / "kernel"
    file.write_bytes(bytes(range(250)) * 1000)

    def cut(what: str, done: int, total: int) -> None:
        if what == "sending" and done > 100_000:
            raise Killed

    with file.open("rb") as data, pytest.raises(Killed):
        Sender(two[0].local, cut).add("kernel", data, plain=True)
    # what had left the client arrives, and is kept
    until(lambda: two[0].local.get("/uploads")["items"][0]["offset"] == 200_000, "it is noted")
    until(lambda: not two[0].server.intake._pieces, "the broken connection is noticed")
    return file


def test_a_server_without_an_upload_s_file_leaves_it_to_the_one_that_has_it(
    two: list[Served], half_sent: Path
) -> None:
    """A question, or a piece that does not begin where that server's file ends, changes nothing."""
    first, second = two
    second.server.intake._boot = "another host's"
    [upload] = first.local.get("/uploads")["items"]
    one = f"/uploads/{upload['id']}"
    assert second.local.get(one) == upload | {"offset": 0}
    headers = {
        "Content-Type": uploads.PIECE_TYPE,
        "Content-Length": "1000",
        "Upload-Offset": f"{upload['offset']}",
    }
    with pytest.raises(ApiError, match="this server has 0 bytes of the upload"):
        second.local.send("PATCH", one, iter([bytes(1000)]), headers)
    assert first.local.get(one) == upload
    with half_sent.open("rb") as data:
        assert Sender(first.local).add("kernel", data, plain=True)["stored"] == 250_000


def test_an_upload_that_lost_its_server_is_sent_to_the_other(
    two: list[Served], half_sent: Path
) -> None:
    """From its beginning, as the other has nothing of it."""
    _, second = two
    with half_sent.open("rb") as data:
        image = Sender(second.local).add("kernel", data, plain=True)
    assert (image["state"], image["stored"]) == ("ingesting", 250_000)
    [came] = (second.folder / "incoming").iterdir()
    assert came.read_bytes() == half_sent.read_bytes()
