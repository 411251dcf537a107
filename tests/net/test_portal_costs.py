"""What a stranger may cost: text that takes long to look at, the same part asked for again and
again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cod.client import ApiError
from cod.images.verify import Checked
from cod.security import password_hash
from cod.store.images import images
from cod.web.api.resources import software
from tests.net.apiserver import ADMIN, NOW, Served
from tests.net.portalclient import Browser, signed_in
from tests.net.test_portal_signing import PASSWORD, _bob

pytestmark = pytest.mark.usefixtures("quick_passwords")


@pytest.fixture
def bob(served: Served) -> Browser:
    """A browser that is not signed in, of somebody with an account."""
    served.tx(_bob)
    return Browser(served.server.ports[0])


def test_a_password_longer_than_any_is_wrong_before_it_is_looked_at(
    bob: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def noted(kept: str, password: str, real: Any = password_hash.matches) -> bool:
        seen.append(password[:2000])
        return bool(real(kept, seen[-1]))

    monkeypatch.setattr(password_hash, "matches", noted)
    page = bob.get("/sign-in").send("/sign-in", name="bob", password="a" + "\u0301\u0316" * 4000)
    assert page.status == 401
    assert seen == [""]


def test_a_part_is_rendered_once_however_often_it_is_named(
    served: Served, bob: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered: list[str] = []
    portal = served.server._apis[1].portal
    assert portal is not None
    blocks = portal.templates.get_template("sign-in.html").blocks

    def counted(name: str, block: Callable[[Any], Iterator[str]]) -> Callable[[Any], Iterator[str]]:
        def render(context: Any) -> Iterator[str]:
            rendered.append(name)
            return block(context)

        return render

    for name, block in list(blocks.items()):
        monkeypatch.setitem(blocks, name, counted(name, block))
    shown = bob.get("/sign-in", part=",".join(["main", "title"] * 200))
    assert shown.status == 200
    assert rendered == ["main", "title"]
    assert PASSWORD not in shown.text


@pytest.mark.parametrize(("signed", "status"), [(False, 413), (True, 403)])
def test_a_stranger_s_body_is_not_kept_for_long(served: Served, signed: bool, status: int) -> None:
    browser = signed_in(served) if signed else Browser(served.server.ports[0])
    browser.cookies.setdefault("__Host-cod", "made-up")
    for path in ("/sign-in", "/account/profile"):
        assert browser.ask("POST", path, b"x=" + b"y" * 100_000, browser.form).status == status
    reply = browser.ask(
        "POST", "/api/v1/sign-in", b"[" + b" " * 100_000, {"Content-Type": "application/json"}
    )
    assert reply.status == status


@pytest.mark.slow
def test_one_image_is_read_again_at_a_time(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        served.tx(
            images.add,
            name=name,
            state="ready",
            format="raw",
            content="disk",
            digest=name,
            created_at=NOW,
        )
    begun, goes_on = threading.Event(), threading.Event()

    def slow(root: Path, digest: str) -> Checked:
        begun.set()
        assert goes_on.wait(60)
        return Checked(1, ())

    monkeypatch.setattr(software, "verify", slow)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(served.remote(ADMIN).post, "/images/one/verify")
        assert begun.wait(60)
        with pytest.raises(ApiError) as refused:
            served.remote(ADMIN).post("/images/two/verify")
        goes_on.set()
        assert first.result(60)["ok"]
    assert refused.value.status == 503
    assert served.remote(ADMIN).post("/images/two/verify")["ok"]
