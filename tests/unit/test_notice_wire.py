"""A notice as a signed webhook and as a mail: what foreign code reads in it; that no text can add
anything to it."""

from __future__ import annotations

import base64
import email
import hashlib
import hmac
import json
import re
from dataclasses import replace
from email import policy
from email.message import EmailMessage

from hypothesis import given
from hypothesis import strategies as st

from cod.model import Notice
from cod.wire import mail, webhook

NOTICE = Notice(
    17,
    1_000_000_000.25,
    "lease-warning",
    3,
    7,
    "web: lease ends in 1 hour",
    "The lease ends. Do: `x`.",
)
KEY = bytes(range(32))


def verified(secret: str, headers: dict[str, str], body: bytes) -> bool:
    """A receiver, written from the specification."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = b".".join(
        [headers["webhook-id"].encode(), headers["webhook-timestamp"].encode(), body]
    )
    good = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return any(
        hmac.compare_digest(each, f"v1,{good}") for each in headers["webhook-signature"].split(" ")
    )


def test_a_webhooks_body() -> None:
    assert json.loads(webhook.body("lab", NOTICE, "physics", "web")) == {
        "site": "lab",
        "id": 17,
        "at": 1_000_000_000.25,
        "kind": "lease-warning",
        "group": "physics",
        "vcluster": "web",
        "subject": "web: lease ends in 1 hour",
        "about": "The lease ends. Do: `x`.",
        "link": "",
    }
    linked = replace(NOTICE, link="/vclusters/web#extend")
    found = json.loads(webhook.body("lab", linked, "physics", "web", "https://cod.example"))
    assert found["link"] == "https://cod.example/vclusters/web#extend"


def test_a_mail_ends_with_what_can_be_done() -> None:
    text = mail.message(
        "lab",
        "cod.example",
        NOTICE,
        "group physics",
        "cod@example.org",
        ["ann@x.org"],
        "Extend the lease: https://cod.example/vclusters/web#extend",
    )
    body = read(text).get_content()
    assert "\r\n\r\nExtend the lease: https://cod.example/vclusters/web#extend\r\n" in body


def test_a_receiver_can_verify_the_signature() -> None:
    key, body = webhook.group_key(KEY, 3, "physics"), webhook.body("lab", NOTICE, "physics", "web")
    headers = webhook.headers(key, "lab", NOTICE, 1_000_000_500.9, body)
    assert headers["webhook-timestamp"] == "1000000500"
    assert headers["X-COD-Notice"] == "17"
    assert verified(webhook.secret(key), headers, body)
    assert not verified(webhook.secret(key), headers, body + b" ")
    assert not verified(webhook.secret(key), headers | {"webhook-timestamp": "1000000501"}, body)
    assert not verified(webhook.secret(key), headers | {"webhook-id": "18"}, body)
    assert not verified(webhook.secret(webhook.group_key(KEY, 4, "physics")), headers, body)


def test_a_known_signature() -> None:
    """So that a change of the form is seen."""
    assert webhook.secret(webhook.group_key(b"\0" * 32, 1, "site")) == (
        "whsec_"
        + base64.b64encode(
            hmac.new(b"\0" * 32, b"webhook 1 site", hashlib.sha256).digest()
        ).decode()
    )
    made = webhook.headers(b"k", "lab", NOTICE, 2.0, b"{}")
    assert (
        made["webhook-id"]
        == "17-" + hashlib.blake2b(b"lab 1000000000.25", digest_size=8).hexdigest()
    )
    assert (
        made["webhook-signature"]
        == "v1,"
        + base64.b64encode(
            hmac.new(b"k", f"{made['webhook-id']}.2.{{}}".encode(), hashlib.sha256).digest()
        ).decode()
    )


def test_each_group_has_its_own_key() -> None:
    keys = {webhook.group_key(KEY, n, name) for n in (1, 2) for name in ("a", "b")}
    assert len(keys) == 4


def read(content: bytes) -> EmailMessage:
    made = email.message_from_bytes(content, policy=policy.default)
    assert isinstance(made, EmailMessage)
    assert made.defects == []
    return made


def sent(notice: Notice = NOTICE, site: str = "lab", whom: str = "group physics") -> bytes:
    return mail.message(
        site, "cod.example", notice, whom, "cod@example.org", ["ann@x.org", "bob@y.org"]
    )


def test_a_mail_has_what_a_mail_should_have() -> None:
    found = read(sent())
    assert found["From"].addresses[0].addr_spec == "cod@example.org"
    assert [each.addr_spec for each in found["To"].addresses] == ["ann@x.org", "bob@y.org"]
    assert found["Subject"] == "[lab] web: lease ends in 1 hour"
    assert found["Date"].datetime.timestamp() == 1_000_000_000
    assert re.fullmatch(r"<17-[0-9a-f]{16}@cod\.example>", found["Message-ID"])
    assert found["Auto-Submitted"] == "auto-generated"
    assert found.get_content_type() == "text/plain"
    assert "The lease ends. Do: `x`." in found.get_content()
    assert "for group physics" in found.get_content()
    assert "for you, as" in read(sent(whom="you, as your account says")).get_content()


def test_a_repeat_is_the_same_mail_and_another_notice_is_not() -> None:
    assert sent() == sent()
    later = Notice(
        17,
        2_000_000_000.0,
        *[
            getattr(NOTICE, name)
            for name in ("kind", "group_id", "vcluster_id", "subject", "about")
        ],
    )  # a database that began anew
    assert read(sent())["Message-ID"] != read(sent(later))["Message-ID"]
    assert webhook.unique("lab", NOTICE) != webhook.unique("lab", later)


@given(st.text(max_size=200), st.text(max_size=300), st.text(min_size=1, max_size=63))
def test_no_text_adds_a_header_or_ends_the_mail(subject: str, about: str, site: str) -> None:
    clean = [text.encode(errors="replace").decode() for text in (subject, about, site)]
    content = sent(Notice(17, 1e9, "test", 3, None, clean[0], clean[1]), site=clean[2])
    assert content.isascii()
    assert b"\n" not in content.replace(b"\r\n", b"")
    assert max(map(len, content.split(b"\r\n"))) <= 998  # RFC 5322, 2.1.1
    found = read(content)
    assert sorted(found.keys()) == sorted(
        [
            "From",
            "To",
            "Subject",
            "Date",
            "Message-ID",
            "Auto-Submitted",
            "X-COD-Notice",
            "X-COD-Kind",
            "Content-Type",
            "Content-Transfer-Encoding",
            "MIME-Version",
        ]
    )
    assert [each.addr_spec for each in found["To"].addresses] == ["ann@x.org", "bob@y.org"]


def test_a_header_in_a_name_stays_in_the_subject() -> None:
    found = read(
        sent(Notice(1, 1e9, "test", 3, None, "x\r\nBcc: eve@z.org", "y"), site="a\nb <eve@z.org>")
    )
    assert "Bcc" not in found
    assert "Bcc: eve@z.org" in found["Subject"]
    assert [each.addr_spec for each in found["From"].addresses] == ["cod@example.org"]
