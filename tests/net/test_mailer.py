"""Mail through real SMTP servers on loopback: plain, STARTTLS, TLS, with sign-in; that refuse,
stall, break off."""

from __future__ import annotations

import email
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from email import policy
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.python.threadpool import ThreadPool

from cod.flows.notices.notices import Delivery
from cod.model import Mail, Notice, NoticeRules, Send, Site, SiteRef
from cod.net.notify import mailer
from cod.net.notify.delivery_errors import DeliveryError
from cod.net.notify.mailer import Mailer
from tests.net.certificates import Authority
from tests.net.receivers import PASSWORD, MovedTime, serving
from tests.ports import free_port
from tests.waiting import until

NOW = 1_000_000.0
NOTICE = Notice(17, NOW, "test", 3, None, "a subject", "Words: ä.\n.\nFrom here on.")


@contextmanager
def speaking(
    *replies: bytes, stall: bool = False, asked: threading.Event | None = None
) -> Iterator[int]:
    """A TCP server that says each of `replies` in turn, one a line that it reads; then it closes,
    or stalls."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def speak() -> None:
            line, _ = server.accept()
            with line, line.makefile("rb") as lines:
                for reply in replies:
                    line.sendall(reply)
                    lines.readline()
                if asked is not None:
                    asked.set()
                if stall:
                    over.wait(120)

        thread = threading.Thread(target=speak, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        over.set()
        thread.join(60)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
def send(
    reactor: Any,
    in_reactor: Callable[..., Any],
    threads: ThreadPool,
    site: Site,
    authority: Authority,
) -> Callable[..., Any]:
    """send(mail server's settings, to=…): sends NOTICE by it."""

    def send(mail: Mail, to: str = "ann@x.org", ca: bool = True, **parts: Any) -> Any:
        used = replace(
            site, mail=mail, notices=NoticeRules(ca_file=str(authority.ca) if ca else None)
        )
        sender = Mailer(parts.get("reactor", reactor), SiteRef(used), threads)
        row = Send(1, 17, "email", to, 1, NOW, "a", NOW + 60, None, False, "")
        return in_reactor(
            lambda: Deferred.fromCoroutine(sender.send(Delivery(row, NOTICE, "physics", None)))
        )

    return send


def server(port: int, tls: str = "none", **more: Any) -> Mail:
    return Mail(
        host="127.0.0.1", port=port, tls=tls, sender="cod@x.org", admins=("root@x.org",), **more
    )


def unsent(send: Callable[..., Any], *args: Any, **kwargs: Any) -> DeliveryError:
    with pytest.raises(DeliveryError) as caught:
        send(*args, **kwargs)
    assert PASSWORD not in caught.value.sentence
    return caught.value


@pytest.fixture
def password_file(tmp_path: Path) -> str:
    path = tmp_path / "smtp.password"
    path.write_text(PASSWORD + "\n")
    path.chmod(0o600)
    return str(path)


# ---------------------------------------------------------------- good ones


def test_a_mail_arrives_whole(send: Callable[..., Any]) -> None:
    with serving() as box:
        assert send(server(box.port), "ann@x.org, bob@y.org") == ""
    ((sender, to, content),) = box.got
    assert (sender, to) == ("cod@x.org", ["ann@x.org", "bob@y.org"])
    found: Any = email.message_from_bytes(content, policy=policy.default)
    assert found["Subject"] == "[test] a subject"
    assert found.get_content().replace("\r\n", "\n").startswith("Words: ä.\n.\nFrom here on.\n")


def test_the_administrators_are_those_of_the_site_file(send: Callable[..., Any]) -> None:
    with serving() as box:
        assert send(server(box.port), "") == ""
    assert box.got[0][1] == ["root@x.org"]


# of the test's own server, whose port is TLS from the start
@pytest.mark.filterwarnings("ignore:Requiring AUTH")
@pytest.mark.parametrize("tls", ["starttls", "tls"])
def test_secured_and_signed_in(
    send: Callable[..., Any], authority: Authority, password_file: str, tls: str
) -> None:
    with serving(authority.certificate("127.0.0.1"), tls, user=True) as box:
        assert send(server(box.port, tls, user="cod", password_file=password_file)) == ""
    assert (len(box.got), box.signed_in) == (1, ["cod"])


def test_a_bad_goodbye_changes_nothing(send: Callable[..., Any]) -> None:
    with serving() as box:
        box.says["QUIT"] = "500 what?"
        assert send(server(box.port)) == ""
    ok = b"250 ok\r\n"
    # closes instead of saying that it took the mail
    with speaking(b"220 hi\r\n", ok, ok, ok, b"354 go\r\n") as port:
        assert unsent(send, server(port)).dead


# ---------------------------------------------------------------- bad ones


@pytest.mark.parametrize(
    ("says", "lasting", "dead", "words"),
    [
        ({"MAIL": "550 not you"}, False, True, "refused: 550 not you"),
        ({"MAIL": "451 later"}, False, True, "451 later"),
        ({"DATA": "554 spam"}, True, False, "refused the mail: 554 spam"),
        ({"DATA": "452 full"}, False, False, "452 full"),
        (
            {"ann@x.org": "550 no such user", "bob@y.org": "553 nor he"},
            True,
            False,
            "ann@x.org was refused: 550 no such",
        ),
        (
            {"ann@x.org": "550 no such user", "bob@y.org": "451 later"},
            False,
            False,
            "bob@y.org was refused: 451",
        ),
    ],
)
def test_a_refusal(
    send: Callable[..., Any], says: dict[str, str], lasting: bool, dead: bool, words: str
) -> None:
    with serving() as box:
        box.says = says
        error = unsent(send, server(box.port), "ann@x.org, bob@y.org")
    assert (error.lasting, error.dead) == (lasting, dead)
    assert words in error.sentence
    assert box.got == []


def test_who_was_refused_is_told_when_others_were_not(send: Callable[..., Any]) -> None:
    with serving() as box:
        box.says = {"bob@y.org": "550 gone"}
        assert send(server(box.port), "ann@x.org, bob@y.org") == "bob@y.org was refused: 550 gone"
    assert box.got[0][1] == ["ann@x.org"]


def test_a_wrong_password(send: Callable[..., Any], authority: Authority, tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_text("wrong")
    path.chmod(0o600)
    with serving(authority.certificate("127.0.0.1"), "starttls", user=True) as box:
        error = unsent(send, server(box.port, "starttls", user="cod", password_file=str(path)))
    assert error.dead
    assert "refused: 535" in error.sentence


def test_a_password_that_others_can_read(
    send: Callable[..., Any], authority: Authority, password_file: str
) -> None:
    Path(password_file).chmod(0o644)
    with serving(authority.certificate("127.0.0.1"), "starttls", user=True) as box:
        error = unsent(send, server(box.port, "starttls", user="cod", password_file=password_file))
    assert error.dead
    assert "chmod 600" in error.sentence


@pytest.mark.slow
def test_a_password_that_cannot_be_sent(
    send: Callable[..., Any], authority: Authority, password_file: str
) -> None:
    Path(password_file).write_text("gehärtet")
    with serving(authority.certificate("127.0.0.1"), "starttls", user=True) as box:
        error = unsent(send, server(box.port, "starttls", user="cod", password_file=password_file))
    assert "other than ASCII" in error.sentence
    assert "ä" not in error.sentence


@pytest.mark.parametrize("tls", ["starttls", "tls"])
@pytest.mark.parametrize("kind", ["unknown", "other name"])
def test_a_wrong_certificate(
    send: Callable[..., Any], authority: Authority, tls: str, kind: str
) -> None:
    with serving(
        authority.certificate("mail.test" if kind == "other name" else "127.0.0.1"), tls
    ) as box:
        error = unsent(send, server(box.port, tls), ca=kind == "other name")
    assert error.dead
    assert (
        "certificate verify failed" in error.sentence
        or "CERTIFICATE_VERIFY_FAILED" in error.sentence
    )
    assert box.got == []


def test_no_mail_without_tls_where_tls_is_wanted(send: Callable[..., Any]) -> None:
    with serving() as box:
        error = unsent(send, server(box.port, "starttls"))
    assert error.dead
    assert "STARTTLS" in error.sentence
    assert box.got == []


def test_nobody_there(send: Callable[..., Any]) -> None:
    error = unsent(send, server(free_port()))
    assert (error.sentence, error.dead) == (
        "the mail server cannot be used: Connection refused",
        True,
    )


@pytest.mark.parametrize(
    "replies",
    [
        [],
        [b"HTTP/1.1 400 Bad Request\r\n"],
        [b"554 go away\r\n"],
        [b"220 hi\r\n", b"250 ok\r\n"],
        [b"\xff\xfe\r\n"],
        [b"220 hi\r\n", b"250 ok\r\n", b"250 ok\r\n", b"250 ok\r\n", b"354 go\r\n"],
        [b"220 " + b"x" * 10_000 + b"\r\n"],
    ],
)
def test_what_closes_midway_or_speaks_something_else(
    send: Callable[..., Any], replies: list[bytes]
) -> None:
    with speaking(*replies) as port:
        error = unsent(send, server(port))
    assert error.dead
    assert len(error.sentence) < 400


def test_a_site_without_a_mail_server_or_administrators(send: Callable[..., Any]) -> None:
    error = unsent(send, Mail())
    assert (error.sentence, error.lasting) == (mailer.NO_SERVER, True)
    error = unsent(send, replace(server(25), admins=()), to="")
    assert (error.sentence, error.lasting) == (mailer.NO_ADMINS, True)


@pytest.mark.parametrize("replies", [[], [b"220 hi\r\n", b"250 ok\r\n"]])
def test_who_stalls_is_broken_off(
    reactor: Any,
    in_reactor: Callable[..., Any],
    threads: ThreadPool,
    site: Site,
    replies: list[bytes],
) -> None:
    """The attempt's time is moved; the connection, and the thread that waits on it, are real."""

    moved, asked, failed = MovedTime(reactor), threading.Event(), []
    with speaking(*replies, stall=True, asked=asked) as port:
        sender = Mailer(moved, SiteRef(replace(site, mail=server(port))), threads)
        row = Send(1, 17, "email", "ann@x.org", 1, NOW, "a", NOW + 60, None, False, "")

        def begin() -> None:
            work = Deferred.fromCoroutine(sender.send(Delivery(row, NOTICE, "physics", None)))
            work.addErrback(lambda failure: failed.append(failure.value))

        in_reactor(begin)
        assert asked.wait(60)
        until(lambda: threads.working, "the thread is not at work")
        in_reactor(moved.clock.advance, mailer.ATTEMPT - 0.1)
        assert failed == []
        in_reactor(moved.clock.advance, 0.2)
        until(lambda: failed, "the attempt did not end")
    assert (failed[0].sentence, failed[0].dead) == (
        "the mail server cannot be used: no end within 40 s",
        True,
    )
