"""Check that each of the server's parts runs as a user of its own, and that the files it needs have
the right owners."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from cod.doctor.checks.ports import is_server
from cod.doctor.finding import BAD, GOOD, UNSEEN, WARNING, Context, Finding
from cod.model import Site
from cod.security import partusers
from cod.site import load, ownership


def findings(context: Context) -> Iterator[Finding]:
    """Yield a finding for each fault; if there is no fault, yield a finding that says so."""
    if missing := partusers.missing():
        yield Finding(
            WARNING,
            f"this host has no {', '.join(missing)}: all parts run as the user that starts the"
            " server, and web can read the authority's key and the passwords of BMCs",
            "install the Debian package, or run systemd-sysusers with"
            " docs/systemd/cod.sysusers.conf; then restart the server",
        )
        return
    found = [*_processes(), *_fileservers(context.site), *_files(context)]
    yield from found or [Finding(GOOD, "each part of the server has a user of its own")]


def _processes(processes: Path = Path("/proc")) -> Iterator[Finding]:
    for process in processes.glob("[0-9]*"):
        with suppress(OSError):
            line, called = ((process / each).read_bytes() for each in ("cmdline", "comm"))
            # a program of its own, or a fork of the server, which has its command line
            only = re.search(rb"\0--only\0(\w+)\0", line) or re.match(rb"cod-(\w+)", called)
            part = only[1].decode() if only else ""
            user = re.search(r"^Uid:\s+\d+\s+(\d+)", (process / "status").read_text(), re.M)
            if is_server(line) and part in partusers.USERS and user:
                wanted = partusers.uid(part)
                if int(user[1]) != wanted:
                    yield Finding(
                        WARNING,
                        f"the part {part}, process {process.name}, runs as user {user[1]}, not as"
                        f" {partusers.USERS[part].name}",
                        "restart it by the unit file of this version",
                    )


def _fileservers(site: Site) -> Iterator[Finding]:
    for each in site.fileservers:
        if not each.ssh:
            yield Finding(
                WARNING,
                f"[[fileserver]] {each.name} has no ssh: it is changed on this host, which the part"
                f" manager's user {partusers.USERS['manager'].name} may not do",
                'set ssh = "root@localhost", ssh_key and known_hosts (docs/volumes)',
            )


def _files(context: Context) -> Iterator[Finding]:
    file = load.read(context.settings.path)
    try:
        closed = list(ownership.closed(file, context.settings))
    except PermissionError as error:
        yield _unseen(error)
        return
    for part, path in closed:
        yield Finding(
            BAD,
            f"{path} is closed to the part {part}",
            f"let the user {partusers.USERS[part].name} read it (write to it, if it is the database"
            " or its folder) and pass through its folders",
        )
    try:
        unfit = list(ownership.settle(file, context.settings, change=False))
    except PermissionError as error:
        yield _unseen(error)
        return
    if unfit:
        yield Finding(
            WARNING,
            f"{len(unfit)} files have other owners than the parts need, {unfit[0]}",
            "run `cod permissions`, as the units do at each start",
        )


def _unseen(error: PermissionError) -> Finding:
    return Finding(UNSEEN, f"{error.filename}: {error.strerror}", "run `cod doctor` as root")
