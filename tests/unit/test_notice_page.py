"""The page on notices: it names every kind, and its examples verify what COD signs."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import String

from cod.notice_texts import KINDS, Audience
from cod.store import tables as t
from cod.wire import webhook
from tests.manual import page
from tests.unit.test_notice_wire import NOTICE

PAGE = page("notices").read_text()
KEY = webhook.group_key(bytes(32), 3, "physics")


def example(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found
    return found[1]


def test_it_names_every_kind() -> None:
    assert re.findall(r"^\| `([a-z-]+)` \|", PAGE, re.MULTILINE) == list(KINDS)


def test_every_kind_fits_its_column() -> None:
    """SQLite takes any; MariaDB refuses the transaction that tells of it."""
    column = t.notices.c.kind.type
    assert isinstance(column, String)
    assert [kind for kind in KINDS if len(kind) > (column.length or 0)] == []


def test_it_says_who_is_told() -> None:
    """People can choose for what they are told; the page and the code agree on that."""
    said = dict(re.findall(r"^\| `([a-z-]+)` \| ([^|]+) \|", PAGE, re.MULTILINE))
    same = ""
    for kind, to in said.items():
        same = same if to == "the same" else to
        told = {
            audience
            for audience, word in (
                (Audience.WATCHERS, "watch"),
                (Audience.SITE, "site"),
                (Audience.GROUP, "group"),
            )
            if word in same and not (word == "group" and "watch" in same)
        }
        assert KINDS[kind].to == told, kind


def test_it_names_what_stays_on() -> None:
    (line,) = re.findall(r"What stays on\.\*\* (.*?): the", PAGE, re.DOTALL)
    stays = [name for name, kind in KINDS.items() if kind.stays]
    assert re.findall("`([a-z-]+)`", line) == stays


def test_its_python_verifies() -> None:
    names: dict[str, Any] = {}
    exec(example("python"), names)
    body = webhook.body("lab", NOTICE, "physics", "web")
    headers = webhook.headers(KEY, "lab", NOTICE, time.time(), body)
    assert names["is_genuine"](webhook.secret(KEY), headers, body)
    assert not names["is_genuine"](webhook.secret(KEY), headers, body + b" ")
    assert not names["is_genuine"](webhook.secret(bytes(32)), headers, body)
    old = webhook.headers(KEY, "lab", NOTICE, time.time() - 1000, body)
    assert not names["is_genuine"](webhook.secret(KEY), old, body)


@pytest.mark.parametrize("body", [webhook.body("lab", NOTICE, "physics", "web"), b"\0\xff\n"])
def test_its_shell_verifies(tmp_path: Path, body: bytes) -> None:
    (tmp_path / "body").write_bytes(body)
    headers = webhook.headers(KEY, "lab", NOTICE, 1e9, body)
    done = subprocess.run(
        ["sh", "-euc", example("sh")],
        cwd=tmp_path,
        capture_output=True,
        check=True,
        text=True,
        env={
            "PATH": "/usr/bin:/bin",
            "secret": webhook.secret(KEY),
            "id": headers["webhook-id"],
            "timestamp": headers["webhook-timestamp"],
        },
    )
    assert "v1," + done.stdout.strip() == headers["webhook-signature"]
