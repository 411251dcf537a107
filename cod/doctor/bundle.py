"""Files for the people who help a site, in one archive, without secrets.

Files with passwords, which the site file names, are not read. Other secrets (a password in the
database's URL, a token in a log) are removed from every text.
"""

from __future__ import annotations

import io
import json
import os
import platform
import re
import subprocess
import tarfile
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from sqlalchemy import func, select

from cod.core.database.writer import connect
from cod.doctor.finding import Finding
from cod.site import load
from cod.store import schema
from cod.store import tables as t
from cod.store.engine import snapshot

MOST = 4 * 2**20  # bytes of the log, its newest end
_LINES = 20_000  # of the log
_PATIENCE = 30.0  # seconds for the log
_HIDDEN = "…"
_KEYS = re.compile(r"password|secret|token|community|key|credential", re.IGNORECASE)
_SECRETS = (
    (re.compile(r"(?<=://)[^\s\"']{1,999}(?=@)"), _HIDDEN),  # user:password@ of a URL
    # a URL's query and fragment: an invitation's link has its secret there
    (re.compile(r"((?<=://)[^\s?#\"']{1,999}[?#])[^\s\"']+"), rf"\1{_HIDDEN}"),
    (re.compile(r"\bcod_[A-Za-z0-9_-]{20,}"), _HIDDEN),  # tokens of the API
    (re.compile(r"(?i)\b(bearer|basic) +[A-Za-z0-9._~+/=-]+"), rf"\1 {_HIDDEN}"),
    (re.compile(r"(?s)-----BEGIN [A-Z ]+-----.{1,9999}?-----END [A-Z ]+-----"), _HIDDEN),
)
QUESTIONS = ("/server", "/servers", "/health", "/faults", "/conflicts", "/nodes?state=quarantined")


def write(
    path: Path, site_file: Path, findings: Sequence[Finding], ask: Callable[[str], Any], now: float
) -> list[str]:
    """Write a .tar.gz that only its owner can read. Return the names of the files in it.

    A file that cannot be produced has the reason as its content. Raises OSError if `path` exists
    already, or cannot be written.

    ask  answers a GET of the API, or raises any exception
    now  seconds since the epoch
    """
    parts: dict[str, Callable[[], str]] = {
        "about.json": about,
        "findings.json": lambda: _json([asdict(each) for each in findings]),
        "site.json": lambda: site_values(site_file),
        "database.json": lambda: database(site_file),
        "server.json": lambda: _json({path: _answer(ask, path) for path in QUESTIONS}),
        "log.txt": log,
    }
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, part in parts.items():
            try:
                text = part()
            except Exception as error:  # an error in one part must not lose the others
                text = f"{type(error).__name__}: {error}"
            content = without_secrets(text).encode(errors="replace")
            entry = tarfile.TarInfo(f"{path.name.removesuffix('.tar.gz')}/{name}")
            entry.size, entry.mtime, entry.mode = len(content), int(now), 0o600
            archive.addfile(entry, io.BytesIO(content))
    return list(parts)


def without_secrets(text: str) -> str:
    """Return a text without passwords in URLs, their queries and fragments, tokens and private
    keys."""
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return text


def about() -> str:
    """Return the operating system, the version of Python, and the environment's packages, as
    JSON."""
    packages = {each.metadata["Name"]: each.version for each in distributions()}
    return _json(
        {
            "system": platform.freedesktop_os_release().get("PRETTY_NAME", ""),
            "kernel": platform.platform(),
            "python": platform.python_version(),
            "cpus": os.cpu_count(),
            "load": os.getloadavg(),
            "packages": dict(sorted(packages.items(), key=lambda item: item[0].lower())),
        }
    )


def site_values(site_file: Path) -> str:
    """Return the site file's values as JSON, without comments, and without the values of keys that
    name secrets. Raises OSError and ValueError."""
    return _json(_hidden(tomllib.loads(site_file.read_text())))


def database(site_file: Path) -> str:
    """Return the database's schema and its numbers of rows by table, as JSON. Raises the database's
    exceptions."""
    _, settings = load.load(site_file)
    engine = connect(settings.database)
    try:
        with snapshot(engine) as tx:
            version = ".".join(map(str, engine.dialect.server_version_info or ()))
            rows = {
                table.name: tx.scalar(select(func.count()).select_from(table))
                for table in t.metadata.sorted_tables
            }
        found = {
            "engine": f"{engine.dialect.name} {version}",
            "schema": schema.current(engine),
            "program": schema.head(),
            "rows": rows,
        }
    finally:
        engine.dispose()
    return _json(found)


def log() -> str:
    """Return the newest part of the messages of COD's services in systemd's journal. Raises OSError
    and subprocess.SubprocessError."""
    command = ("journalctl", "--no-pager", "--output=short-iso", "-n", str(_LINES), "--unit=cod*")
    done = subprocess.run(
        command, capture_output=True, check=True, timeout=_PATIENCE, stdin=subprocess.DEVNULL
    )
    return done.stdout[-MOST:].decode(errors="replace")


def _answer(ask: Callable[[str], Any], path: str) -> Any:
    try:
        return ask(path)
    except Exception as error:  # the server may be down: that is why people ask for help
        return f"{type(error).__name__}: {error}"


def _hidden(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _HIDDEN if _KEYS.search(key) and not _path(key, each) else _hidden(each)
            for key, each in value.items()
        }
    if isinstance(value, str):  # a password in a database's URL may have any character but @
        return re.sub(r"(?s)(?<=://).+(?=@)", _HIDDEN, value)
    return [_hidden(each) for each in value] if isinstance(value, list) else value


def _path(key: str, value: Any) -> bool:
    """Return whether a value is the path of a secret's file. A password that was written there by
    mistake is not."""
    return key.endswith("_file") and isinstance(value, str) and value.startswith("/")


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False, default=str) + "\n"
