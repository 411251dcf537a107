"""Preparation of the server's host before it runs: locks, folders, keys, certificates, counters."""

from __future__ import annotations

import fcntl
import logging
import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from hashlib import blake2b
from ipaddress import ip_address
from pathlib import Path

from cod import supervisor
from cod.core.database.writer import connect
from cod.images import store
from cod.model import Site, Subnet
from cod.security import ca, partusers, secretfile, webcert
from cod.security.ca import Ca
from cod.site.load import Settings

MEMORY = Path("/dev/shm")  # a file system in memory
AWAY, PAUSE = 60.0, 0.5  # seconds that a part waits for the database, and between two looks

log = logging.getLogger("cod.service")


class BadService(Exception):
    """The database or the data folder cannot be used for a server; the text says what to do."""


@contextmanager
def only_one(settings: Settings, names: Iterable[str]) -> Iterator[ExitStack]:
    """Hold the locks of those parts of this server. The kernel drops a lock when the process has
    ended, and each fork that has not closed the yielded stack. Raises `BadService` if another
    process holds one of the locks: the two would compete for ports, agents and sockets."""
    with ExitStack() as held:
        for name in names:
            path = settings.lock(name)
            try:
                lock = held.enter_context(open(path, "a+b", buffering=0, opener=_no_link))
            except OSError as error:  # a full disk, say: no reason not to serve
                log.warning("%s cannot be made: %s", path, error.strerror)
                continue
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.seek(0)
                process = (lock.read(20) or b"").decode(errors="replace").strip()
                raise BadService(
                    f"another `cod serve` (process {process or 'unknown'}) runs {name} on"
                    f" {settings.data}: stop it first, or give this one a data folder of its own"
                ) from None
            except OSError as error:  # a file system without locks
                log.warning("%s cannot be locked: %s", path, error.strerror)
                continue
            with suppress(OSError):
                lock.truncate(0)
                lock.write(str(os.getpid()).encode())
        yield held


def _no_link(path: str, flags: int) -> int:
    """Open a file of the run folder, but no symbolic link: another part could have put it there to
    point at a file of a third part."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o660)


def check_database(settings: Settings) -> None:
    """Raise `BadService` if the database cannot be used. While the database is away, a part that a
    supervisor has started waits for it: ending would only lengthen the pauses between its
    starts."""
    from sqlalchemy.exc import DBAPIError

    from cod.store import schema
    from cod.store.engine import is_retryable

    engine = connect(settings.database)
    end = time.monotonic() + (AWAY if supervisor.PARENT in os.environ else 0.0)

    def check() -> str:
        while True:
            try:
                return schema.check(engine)
            except DBAPIError as error:
                if not is_retryable(error) or time.monotonic() >= end:
                    raise
            time.sleep(PAUSE)

    try:
        if newer := check():
            log.warning("%s", newer)
    except schema.SchemaMismatch as error:
        raise BadService(str(error)) from None
    except DBAPIError as error:
        raise BadService(f"the database cannot be used: {error.orig}") from None
    finally:
        engine.dispose()


def prepare(site: Site, settings: Settings) -> None:
    """Make the run folder, missing keys and certificates, and the folder for the metrics of this
    host's processes (before prometheus_client is imported). Raises `BadService`."""
    counters = counters_folder(settings)
    try:
        settings.run.mkdir(mode=0o700, parents=True, exist_ok=True)
        partusers.close(settings.run)
        store.private(settings.images)
        _make_private(counters)
        secretfile.key(settings.webhook_key)  # made once, before several processes want it
        if Ca(settings.authority, site.name).renew(datetime.now(UTC)):
            log.warning(
                "the site's authority for VCMs was about to end: its certificate is renewed"
            )
        if not settings.api.plain:
            webcert.loaded(web_certificate(site.subnets, settings))
    except (webcert.BadWebCertificate, ca.BadAuthority) as error:
        raise BadService(str(error)) from None
    except OSError as error:
        folder = error.filename or settings.run
        raise BadService(f"{folder} cannot be made or written to: {error.strerror}") from None
    except secretfile.Unreadable as error:
        raise BadService(str(error)) from None
    _count_in(counters)


def join(settings: Settings) -> None:
    """Check that this part can write to the folders that `cod permissions` has made, and keep its
    metrics there. Raises `BadService`."""
    os.umask(0o027)  # parts may read, but not write, each other's files
    counters = counters_folder(settings)
    for folder in (settings.run, counters):
        if not (os.access(folder, os.W_OK) and folder.stat().st_gid in partusers.group_ids()):
            raise BadService(
                f"{folder} is not there or not for the parts' users: run `cod permissions`"
            )
    _count_in(counters)


def _count_in(counters: Path) -> None:
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(counters)
    if supervisor.PARENT not in os.environ:  # a supervised part continues its predecessor's counts
        forget_ended(counters)


def counters_folder(settings: Settings) -> Path:
    """Return the folder for the metrics of this host's processes. It is in memory: a counter is a
    mapped file, and on a full disk SIGBUS would kill a process that counts."""
    runtime = os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]  # of a systemd unit
    if runtime:
        return Path(runtime, "metrics")
    if not MEMORY.is_dir():
        return settings.run / "metrics"
    data = blake2b(bytes(settings.data.resolve()), digest_size=8).hexdigest()
    with suppress(FileNotFoundError):  # one folder for all parts, whichever users they run as
        return MEMORY / f"cod-{settings.data.stat().st_uid}-{data}"
    return MEMORY / f"cod-{os.geteuid()}-{data}"


def _make_private(folder: Path) -> None:
    """Make a folder for this user alone. Raises `BadService` if it belongs to another user."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise BadService(f"{folder} belongs to another user: remove it")


def forget_ended(counters: Path) -> None:
    """Delete the metrics of ended processes, and those under this process's own id."""
    for file in counters.glob("*.db"):
        process = file.stem.rpartition("_")[2]
        if process == str(os.getpid()) or _has_ended(process):
            file.unlink(missing_ok=True)


def _has_ended(process: str) -> bool:
    """Return whether the process of that id does not exist, or is a zombie. A slow init, as in some
    containers, may leave zombies for long, and their metrics must not stay."""
    try:
        state = Path("/proc", process, "stat").read_text("latin-1").rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in "ZX"


def has_own_user() -> bool:
    """Return whether this process is a part that runs as a user of its own, and so cannot read
    other parts' secrets."""
    return partusers.part_of(os.geteuid()) is not None


def web_certificate(subnets: Iterable[Subnet], settings: Settings) -> webcert.WebCertificate:
    """Return the site's own certificate, or else the one that COD has made, renewed if
    necessary."""
    listening = [
        address for address, _ in settings.listen if not ip_address(address).is_unspecified
    ]
    servers = [each for subnet in subnets for each in sorted(subnet.servers)]
    names = [*settings.names, "localhost", *servers, *listening]
    return settings.certificate or webcert.self_signed(settings.web, names)
