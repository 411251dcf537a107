"""`cod serve`: the server on this host, as one process or one for each part."""

from __future__ import annotations

import gc
import logging
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from cod import host, logs, supervisor
from cod.security import partusers
from cod.service.parts import PARTS, load_program
from cod.service.preparation import (
    BadService,
    check_database,
    counters_folder,
    forget_ended,
    has_own_user,
    join,
    only_one,
    prepare,
)
from cod.service.process import run
from cod.site import load
from cod.site.load import ConfigError
from cod.site.own_address import lists_several, on_host

log = logging.getLogger("cod.service")


def serve(site_file: Path, only: Iterable[str] = (), *, users: bool = False) -> int:
    """Run the server until it is told to stop; return the exit status. A single part runs in this
    process, several run in processes of their own. With `users`, each runs as its user in
    `security.partusers`, for whom `cod permissions` has prepared the files."""
    try:
        return _serve(site_file, list(only) or list(PARTS), users)
    except BadService as error:
        log.error("%s", error)
        return 1


def _serve(site_file: Path, names: list[str], users: bool) -> int:
    lacking = _lacking() if users else ""
    split = users and not lacking
    alone = len(names) == 1 and not split
    supervisor.die_with_supervisor()
    if split:
        partusers.join()
    try:
        site, settings = load.load(site_file)
        site = on_host(site, settings.path, _addresses() if lists_several(site) else ())
        logs.set_up(
            settings.server.log_level,
            settings.server.log_format,
            names[0] if alone else "supervisor",
        )
        if lacking:
            log.warning("all parts run as one user: %s", lacking)
        check_database(settings)
        if split or has_own_user():
            join(settings)
        else:
            prepare(site, settings)
    except ConfigError as error:
        logs.set_up("info", "text", "serve")
        for problem in str(error).splitlines():
            log.error("%s", problem)
        return 1
    counters, supervised = counters_folder(settings), supervisor.PARENT in os.environ
    status = 0
    with only_one(settings, [] if supervised else names) as locks:

        def part(name: str) -> int:
            locks.close()
            return serve(site_file, [name])

        if alone:
            status = run(names[0], site, settings)
        else:
            if not split:
                load_program()
            gc.freeze()  # a look for garbage in a fork would copy what all of them share
            gc.enable()
            supervisor.Supervisor(names, site_file, counters, serve=None if split else part).run()
    if not supervised:
        forget_ended(counters)
        with suppress(OSError):  # another part counts there
            counters.rmdir()
    return status


def _addresses() -> set[str]:
    """Return the addresses of this host. Raises `BadService`."""
    try:
        return host.addresses(host.interfaces())
    except host.Unknown as error:
        raise BadService(f"which of the servers is this host? {error}") from None


def _lacking() -> str:
    """Return why the parts cannot run as users of their own; '' if they can."""
    if os.geteuid():
        return "only root can start the parts as users of their own"
    if missing := partusers.missing():
        return f"this host has no {', '.join(missing)} (docs/systemd/cod.sysusers.conf)"
    return "" if shutil.which("setpriv") else "the program setpriv (util-linux) is missing"
