"""Checks of who can read the site's secrets, and of the server's limit of open files."""

from __future__ import annotations

import os
import pwd
import re
import resource
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from cod.doctor.checks.ports import is_server
from cod.doctor.finding import BAD, GOOD, PASSWORD, UNSEEN, WARNING, Context, Finding
from cod.model import Site
from cod.security import partusers, secretfile
from cod.site.load import Settings

HANDLES = 4096  # open files below which some hundreds of nodes at once are too many


def findings(context: Context) -> Iterator[Finding]:
    """Yield a finding for each secret that others can read or that cannot be used, and one for the
    limit of open files."""
    named, own = _password_files(context.site), _own_secrets(context.settings)
    data = context.settings.data
    found = [*_unusable(named, context.root), *_open(own), *_in_data(data, context.root)]
    good = f"{len(named) + len(own)} files with secrets are their owner's alone"
    yield from found or [Finding(GOOD, good)]
    yield _handles()


def _password_files(site: Site) -> dict[str, str]:
    """Return the tables of the site file that name files with passwords, by file."""
    named = {account.password_file: f"[[account]] {account.name}" for account in site.accounts}
    tables = {
        site.mail.password_file: "[smtp]",
        site.signin.ldap.password_file: "[ldap]",
        site.signin.oidc.secret_file: "[oidc]",
    }
    return named | {path: table for path, table in tables.items() if path}


def _own_secrets(settings: Settings) -> list[Path]:
    return [
        settings.path,
        settings.webhook_key,
        settings.authority / "ca.key",
        settings.web / "web.key",
        settings.run,
        *([settings.certificate.key] if settings.certificate else []),
    ]


def _unusable(named: Mapping[str, str], is_root: bool) -> Iterator[Finding]:
    for path, table in named.items():
        try:
            secretfile.first_line(path)
        except secretfile.Unreadable as error:
            refused = not is_root and "Permission denied" in str(error)
            yield Finding(
                UNSEEN if refused else BAD,
                f"{table}: {error}",
                ("run `cod doctor` as root" if refused else PASSWORD),
            )


def _open(secrets: Iterable[Path]) -> Iterator[Finding]:
    for secret in secrets:
        # it is not there yet, or its folder is closed to us, and so to others
        with suppress(OSError):
            found = secret.stat()
            mode = stat.S_IMODE(found.st_mode)
            # the group of the parts that need it, where they are users of their own
            if mode & (0o007 if found.st_gid in partusers.group_ids() else 0o077):
                yield Finding(
                    BAD, f"{secret} may be read by others (mode {mode:04o})", f"chmod go= {secret}"
                )


def _in_data(data: Path, is_root: bool) -> Iterator[Finding]:
    if not (is_root or os.access(data, os.W_OK)):
        yield Finding(
            UNSEEN,
            f"{data} cannot be written to by this user",
            "run `cod doctor` as root, or as the user that the server runs as",
        )
    foreign = None if is_shared(data) else others_files(data, server_user())
    if foreign:
        yield foreign


def is_shared(data: Path) -> bool:
    """Return whether the data folder belongs to parts with users of their own, whose files the
    check `users` examines."""
    try:
        return data.stat().st_gid in partusers.group_ids()
    except OSError:
        return False


def server_user() -> int | None:
    """Return the id of the user that the server runs as; None if no server runs on this host."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if is_server((process / "cmdline").read_bytes()):
                return process.stat().st_uid
    return None


def others_files(data: Path, user: int | None) -> Finding | None:
    """Return a finding if the data folder, or something directly in it, does not belong to the
    server's `user`. None: no server runs, and all should belong to the folder's owner."""
    try:
        owner = user if user is not None else data.stat().st_uid
        places = [data, *sorted(data.iterdir())]
        foreign = [path for path in places if path.lstat().st_uid != owner]
    except OSError:
        return None  # another check reports that
    if owner == 0 or not foreign:  # root may write to all
        return None
    return Finding(
        BAD,
        f"{foreign[0]} belongs to {_user(foreign[0].lstat().st_uid)}, the server runs as"
        f" {_user(owner)}"
        if user is not None
        else f"{foreign[0]} belongs to {_user(foreign[0].lstat().st_uid)}, {data} to"
        f" {_user(owner)}",
        f"chown -R {_user(owner)}: {data}",
    )


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _handles() -> Finding:
    """Return a finding about the number of files that the running server may open. Without a server
    it is about this shell."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    whose = "this shell; the unit file sets 65536"
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if is_server((process / "cmdline").read_bytes()):
                found = re.search(r"Max open files +\S+ +(\d+)", (process / "limits").read_text())
                limit = int(found[1]) if found else limit
                whose = f"the server, process {process.name}"
                break
    words = f"at most {limit} open files ({whose})"
    if limit < HANDLES:
        return Finding(
            WARNING,
            words,
            "LimitNOFILE=65536 in the unit: each agent and each download of a node holds one",
        )
    return Finding(GOOD, words)
