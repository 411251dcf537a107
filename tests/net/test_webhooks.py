"""Posting to webhooks: real HTTP and HTTPS listeners that are good, slow, broken, redirecting, or
not who they say."""

from __future__ import annotations

import datetime
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.python.threadpool import ThreadPool

from cod.flows.notices.notices import Delivery
from cod.model import Notice, NoticeRules, Send, Site, SiteRef
from cod.net.notify import webhooks
from cod.net.notify.delivery_errors import DeliveryError
from cod.net.notify.webhooks import Webhooks
from cod.wire import webhook
from tests.net.certificates import Authority
from tests.net.receivers import MovedTime, listening
from tests.ports import free_port
from tests.unit.test_notice_wire import verified
from tests.waiting import until

KEY = bytes(32)
NOW = 1_000_000.0
NOTICE = Notice(17, NOW, "test", 3, None, "a subject", "Words: ä.")


@contextmanager
def speaking(
    *pieces: bytes,
    forever: bytes = b"",
    asked: threading.Event | None = None,
    cut: threading.Event | None = None,
) -> Iterator[int]:
    """A TCP server that reads a little and says `pieces` whatever it is asked; its port.

    forever   what it says after that, again and again
    asked     set when it was asked
    cut       set when the other side does not take any more
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        over = threading.Event()

        def speak() -> None:
            line, _ = server.accept()
            with line:
                line.recv(65536)
                if asked is not None:
                    asked.set()
                try:
                    for piece in pieces:
                        line.sendall(piece)
                    while forever and not over.is_set():
                        line.sendall(forever)
                except OSError:
                    if cut is not None:
                        cut.set()
                    return
                if forever == b"" and not pieces:
                    over.wait(120)

        thread = threading.Thread(target=speak, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        over.set()
        thread.join(60)


@pytest.fixture
def local(site: Site) -> Site:
    """A site whose webhooks may be on loopback."""
    return replace(site, notices=NoticeRules(local_webhooks=True))


@pytest.fixture
def post(reactor: Any, in_reactor: Callable[..., Any], threads: ThreadPool) -> Callable[..., Any]:
    """post(site, url, resolve=…): sends NOTICE there, in the reactor's thread."""

    def post(site: Site, url: str, **more: Any) -> Any:
        sender = Webhooks(reactor, SiteRef(site), KEY, threads, lambda: NOW + 5, **more)
        send = Send(1, 17, "webhook", url, 1, NOW, "a", NOW + 60, None, False, "")
        return in_reactor(
            lambda: Deferred.fromCoroutine(sender.send(Delivery(send, NOTICE, "physics", None)))
        )

    return post


def unsent(post: Callable[..., Any], *args: Any, **kwargs: Any) -> DeliveryError:
    with pytest.raises(DeliveryError) as caught:
        post(*args, **kwargs)
    assert args[1] not in caught.value.sentence, "a webhook's URL may be a secret"
    return caught.value


# ---------------------------------------------------------------- good ones


def test_a_notice_is_posted_and_signed(post: Callable[..., Any], local: Site) -> None:
    with listening() as listener:
        assert post(local, listener.url()) == ""
    ((path, headers, body),) = listener.got
    assert path == "/hook?x=1"
    assert json.loads(body)["about"] == "Words: ä."
    assert json.loads(body)["group"] == "physics"
    low = {name.lower(): value for name, value in headers.items()}
    assert (low["content-type"], low["x-cod-notice"], low["webhook-timestamp"]) == (
        "application/json",
        "17",
        "1000005",
    )
    assert low["host"] == f"127.0.0.1:{listener.port}"
    assert verified(webhook.secret(webhook.group_key(KEY, 3, "physics")), low, body)


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_any_2xx_is_a_yes(post: Callable[..., Any], local: Site, status: int) -> None:
    with listening() as listener:
        listener.status = status
        assert post(local, listener.url()) == ""


def test_a_name_is_resolved_and_each_of_its_addresses_tried(
    post: Callable[..., Any], local: Site
) -> None:
    with listening() as listener:

        def resolve(host: str, port: int, *_rest: Any) -> list[Any]:
            assert host == "hooks.test"
            return [
                (socket.AF_INET6, 0, 0, "", ("::1", port, 0, 0)),
                (socket.AF_INET, 0, 0, "", ("127.0.0.1", port)),
            ]

        assert post(local, listener.url("hooks.test"), resolve=resolve) == ""
    assert listener.got[0][1]["Host"] == f"hooks.test:{listener.port}"


def test_https_with_a_trusted_certificate(
    post: Callable[..., Any], local: Site, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    trusting = replace(local, notices=NoticeRules(True, str(authority.ca)))
    with listening(authority.certificate("127.0.0.1")) as listener:
        assert post(trusting, listener.url(scheme="https")) == ""
    with listening(authority.certificate("hooks.test")) as listener:
        assert post(trusting, listener.url("hooks.test", "https"), resolve=loopback) == ""
    assert len(listener.got) == 1


def loopback(_host: str, port: int, *_rest: Any) -> list[Any]:
    return [(socket.AF_INET, 0, 0, "", ("127.0.0.1", port))]


# ---------------------------------------------------------------- bad ones


@pytest.mark.parametrize(
    ("status", "dead", "words"),
    [
        (500, True, "answered 500 Internal Server Error"),
        (503, True, "503"),
        (429, True, "429"),
        (408, True, "408"),
        (400, False, "400"),
        (404, False, "404"),
        (410, False, "410"),
        (302, True, "redirects are not followed"),
        (307, True, "redirects"),
        (304, True, "304"),
    ],
)
def test_a_refusal(
    post: Callable[..., Any], local: Site, status: int, dead: bool, words: str
) -> None:
    with listening() as listener:
        listener.status, listener.more = status, b"do not tell" if status != 304 else b""
        error = unsent(post, local, listener.url())
    assert (error.dead, error.lasting) == (dead, False)
    assert words in error.sentence
    assert "do not tell" not in error.sentence, "what an inner server says is not shown"
    assert len(listener.got) == 1, "no redirect is followed"


@pytest.mark.parametrize("kind", ["unknown", "other name", "expired", "plain"])
def test_a_wrong_certificate(
    post: Callable[..., Any], local: Site, tmp_path: Path, kind: str
) -> None:
    authority = Authority(tmp_path)
    trusting = replace(
        local, notices=NoticeRules(True, None if kind == "unknown" else str(authority.ca))
    )
    past = datetime.datetime(2021, 1, 1)
    certificate = {
        "unknown": lambda: authority.certificate("127.0.0.1"),
        "other name": lambda: authority.certificate("hooks.test"),
        "expired": lambda: authority.certificate("127.0.0.1", past),
        "plain": lambda: None,
    }[kind]()
    with listening(certificate) as listener:
        error = unsent(post, trusting, listener.url(scheme="https"))
    assert error.dead
    assert listener.got == []
    assert "certificate or its TLS is not good" in error.sentence


def test_a_certificate_file_that_cannot_be_read(
    post: Callable[..., Any], local: Site, tmp_path: Path
) -> None:
    for path in (tmp_path / "none", tmp_path / "empty"):
        (tmp_path / "empty").write_text(
            "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n"
        )
        trusting = replace(local, notices=NoticeRules(True, str(path)))
        assert f"{path} cannot be used" in unsent(post, trusting, "https://127.0.0.1:9/").sentence


def test_nobody_there(post: Callable[..., Any], local: Site) -> None:
    error = unsent(post, local, f"http://127.0.0.1:{free_port()}/")
    assert error.dead
    assert "cannot be reached: Connection refused" in error.sentence


def test_no_such_name(post: Callable[..., Any], local: Site) -> None:
    def resolve(*_args: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    error = unsent(post, local, "http://nowhere.test/", resolve=resolve)
    assert (error.sentence, error.dead) == (
        "nowhere.test cannot be found: Name or service not known",
        True,
    )


@pytest.mark.parametrize(
    "pieces",
    [
        [b"\n"],
        [b"HTTP/1.1 200"],
        [b"HTTP/1.1 200 OK\r\nContent-Le"],
        [b"\xff" * 100],
        [b"SSH-2.0-OpenSSH\r\n"],
        [b"HTTP/1.1 abc OK\r\n\r\n"],
    ],
)
def test_what_closes_midway_or_speaks_something_else(
    post: Callable[..., Any], local: Site, pieces: list[bytes]
) -> None:
    with speaking(*pieces) as port:
        assert unsent(post, local, f"http://127.0.0.1:{port}/").dead


def test_a_yes_counts_however_the_rest_ends(post: Callable[..., Any], local: Site) -> None:
    with speaking(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nsome") as port:
        assert post(local, f"http://127.0.0.1:{port}/") == ""


def test_endless_headers_are_cut_off(post: Callable[..., Any], local: Site) -> None:
    with speaking(b"HTTP/1.1 200 OK\r\n", forever=b"X-Y: " + b"z" * 1000 + b"\r\n") as port:
        error = unsent(post, local, f"http://127.0.0.1:{port}/")
    assert error.dead
    assert "closed the connection" in error.sentence, "by their size, long before the time is over"


def test_an_endless_body_is_not_read(post: Callable[..., Any], local: Site) -> None:
    cut = threading.Event()
    with speaking(b"HTTP/1.1 200 OK\r\n\r\n", forever=b"z" * 65536, cut=cut) as port:
        assert post(local, f"http://127.0.0.1:{port}/") == ""
        assert cut.wait(60), "the connection is not kept"


def test_who_says_nothing_is_given_ten_seconds(
    reactor: Any, in_reactor: Callable[..., Any], threads: ThreadPool, local: Site
) -> None:
    """The attempt's time is moved, the connection is real."""

    moved = MovedTime(reactor)
    failed: list[Any] = []
    asked = threading.Event()
    with speaking(asked=asked) as port:
        sender = Webhooks(moved, SiteRef(local), KEY, threads, lambda: NOW)
        send = Send(
            1, 17, "webhook", f"http://127.0.0.1:{port}/", 1, NOW, "a", NOW + 60, None, False, ""
        )

        def begin() -> None:
            work = Deferred.fromCoroutine(sender.send(Delivery(send, NOTICE, "physics", None)))
            work.addErrback(lambda failure: failed.append(failure.value))

        in_reactor(begin)
        assert asked.wait(60)
        in_reactor(moved.clock.advance, webhooks.ATTEMPT - 0.1)
        assert failed == []
        in_reactor(moved.clock.advance, 0.2)
        until(lambda: failed, "the attempt did not end")
    assert (failed[0].sentence, failed[0].dead) == ("no answer within 10 s", True)


# ---------------------------------------------------------------- where it may not go


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "169.254.169.254", "10.77.0.1", "0.0.0.0", "224.0.0.1"]
)
def test_a_name_that_means_the_server_itself_is_refused_when_it_is_connected_to(
    post: Callable[..., Any], site: Site, address: str
) -> None:
    with listening() as listener:

        def resolve(_host: str, port: int, *_rest: Any) -> list[Any]:
            return [(socket.AF_INET, 0, 0, "", (address, port))]

        error = unsent(post, site, listener.url("innocent.test"), resolve=resolve)
    assert error.dead
    assert "webhooks may not be there" in error.sentence
    assert listener.got == []


def test_a_closed_network_is_closed_when_it_is_connected_to(
    post: Callable[..., Any], local: Site
) -> None:
    closed = replace(
        local, notices=NoticeRules(local_webhooks=True, closed_networks=("127.0.0.0/8", "fd00::/8"))
    )
    with listening() as listener:
        error = unsent(post, closed, listener.url())
    assert "closed to webhooks" in error.sentence
    assert listener.got == []


def test_of_several_addresses_only_the_allowed_are_tried(
    post: Callable[..., Any], site: Site
) -> None:
    asked = []

    def resolve(_host: str, port: int, *_rest: Any) -> list[Any]:
        asked.append(port)
        return [
            (socket.AF_INET6, 0, 0, "", ("::1", port, 0, 0)),
            (socket.AF_INET, 0, 0, "", ("127.0.0.1", port)),
            (socket.AF_INET, 0, 0, "", ("255.255.255.255", port)),
        ]

    with listening() as listener:
        unsent(post, site, listener.url("innocent.test"), resolve=resolve)
    assert listener.got == []
    assert asked == [listener.port], "resolved once: what it means a moment later plays no part"


def test_an_address_of_the_machine_is_its_own_whatever_the_site_file_says(
    post: Callable[..., Any], site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The management address of the server, say, which is in none of the site's subnets."""
    assert webhooks._is_ours(socket.AF_INET, "127.0.0.9")
    assert not webhooks._is_ours(socket.AF_INET, "192.0.2.1")  # TEST-NET-1
    monkeypatch.setattr(webhooks, "_is_ours", lambda family, address: address == "192.0.2.1")

    def resolve(_host: str, port: int, *_rest: Any) -> list[Any]:
        return [(socket.AF_INET, 0, 0, "", ("192.0.2.1", port))]

    error = unsent(post, site, "http://innocent.test/", resolve=resolve)
    assert error.dead
    assert "an address of this server itself" in error.sentence
