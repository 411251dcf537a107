"""Owner, group and mode of every file of a site whose parts run as different users: one table for
the data folder, one for the files that the site file names.

Nothing here follows a symbolic link or changes a file with several names (hard links), because the
parts themselves write below some of these folders.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cod.model.keys import SiteTable
from cod.security import partusers
from cod.security.partusers import GROUP, PEOPLE, USERS
from cod.site.file import SiteFile, keys
from cod.site.load import Settings

ROOT = "root"
SECRETS: dict[tuple[str, str], tuple[str, ...]] = {
    ("account", "password_file"): ("edge", "manager"),
    ("api", "certificate"): ("web",),
    ("api", "key"): ("web",),
    ("dns", "transfer_key_file"): ("edge",),
    ("energy", "curve_file"): ("manager",),
    ("fileserver", "known_hosts"): ("manager",),
    ("fileserver", "ssh_key"): ("manager",),
    ("ldap", "ca_file"): ("manager", "web"),
    ("ldap", "password_file"): ("manager", "web"),
    ("notices", "ca_file"): ("manager",),
    ("oidc", "secret_file"): ("web",),
    ("smtp", "password_file"): ("manager",),
    ("switch", "ca_file"): ("manager",),
    ("switch", "certificate"): ("manager",),
    ("switch", "key"): ("manager",),
}
"""The parts that read a file which the site file names, by table and key."""
DEEPEST = 16  # folders in folders that are looked into: a part could make very many


@dataclass(frozen=True, slots=True)
class Place:
    """A file or folder. `owner`: a part, or 'root'.

    inside  modes of the folders and of the files in it, which have its owner and its group; None:
            its content is not looked at
    made    a missing folder is made: no part could, since the data folder is root's
    """

    path: Path
    owner: str
    group: str
    mode: int
    inside: tuple[int, int] | None = None
    made: bool = False


def places(settings: Settings) -> list[Place]:
    """Return the server's own files and folders; a folder comes before its content."""
    data, run = settings.data, settings.run
    return [
        Place(settings.path, ROOT, GROUP, 0o640),
        Place(data, ROOT, GROUP, 0o750),
        # the first part to come makes SQLite's -wal and -shm, with the mode of the database's file
        Place(database_folder(settings), ROOT, GROUP, 0o770, made=True),
        Place(database_folder(settings) / "cod.db", ROOT, GROUP, 0o660),
        Place(settings.boot, ROOT, ROOT, 0o755, (0o755, 0o644)),
        Place(settings.images, "images", GROUP, 0o750, (0o755, 0o640), made=True),
        # the part images removes files that the part web has put there
        Place(settings.incoming, "web", GROUP, 0o770, (0o770, 0o640), made=True),
        Place(settings.consoles, "manager", GROUP, 0o750, (0o750, 0o640), made=True),
        Place(settings.memory.parent, "manager", GROUP, 0o750, (0o750, 0o640), made=True),
        Place(settings.authority, "edge", GROUP, 0o750),
        Place(settings.authority / "ca.key", "edge", GROUP, 0o600),
        Place(settings.authority / "ca.crt", "edge", GROUP, 0o640),
        Place(settings.webhook_key, ROOT, PEOPLE, 0o640),
        Place(settings.web, "web", GROUP, 0o700, (0o700, 0o600)),
        Place(run, ROOT, GROUP, 0o1770),  # no part removes another's socket
        *(Place(run / f"{part}.wake", part, GROUP, 0o660) for part in USERS),
        # made by the supervisor or a part: under fs.protected_regular, only root's can be opened by
        # others
        *(Place(settings.lock(part), ROOT, GROUP, 0o660) for part in USERS),
        Place(settings.socket, "web", GROUP, 0o600),
        Place(settings.signer, "edge", GROUP, 0o660),
    ]


def database_folder(settings: Settings) -> Path:
    """Return the folder of the SQLite file. It is separate, because all parts may write to it."""
    return settings.data / "db"


def named(file: SiteFile) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """Yield each file that the site file names, with the parts that read it."""
    readers: dict[Path, set[str]] = {}
    for table, key, path in paths(file):
        readers.setdefault(path, set()).update(SECRETS[table, key])
    for path, parts in readers.items():
        yield path, tuple(sorted(parts))


def paths(table: SiteTable, name: str = "") -> Iterator[tuple[str, str, Path]]:
    """Yield each file that the site file names, with its table and its key."""
    for key in keys(type(table)):
        value = getattr(table, key.name)
        if key.table is not None:
            for each in value if key.repeated else [value] if value is not None else []:
                yield from paths(each, key.name)
        elif key.file and value:
            yield name, key.name, Path(value)


# ---------------------------------------------------------------- what a part cannot read


def closed(file: SiteFile, settings: Settings) -> Iterator[tuple[str, Path]]:
    """Yield (part, file) for each file that a part needs and that `settle` cannot make readable for
    it: a folder on the way is closed, or an administrator has given the file to somebody else. An
    SQLite file in an administrator's folder, and that folder, must be writable."""
    own = [(settings.path, tuple(USERS)), (settings.data, tuple(USERS))]
    for path, parts in [*own, *named(file)]:
        for part in parts:
            with suppress(OSError):  # the file does not exist, which is reported elsewhere
                if not _within_reach(part, path.resolve(strict=True), settings.data):
                    yield part, path
    yield from _closed_database(settings)


def _closed_database(settings: Settings) -> Iterator[tuple[str, Path]]:
    database = Path(settings.database.removeprefix("sqlite:///"))
    if database.is_absolute() and database != settings.data.absolute() / "cod.db":
        for path in (database.parent, database):
            for part in USERS:
                if path.exists() and not _allowed(part, path.stat(), 2):
                    yield part, path


def _within_reach(part: str, path: Path, data: Path) -> bool:
    return all(_allowed(part, folder.stat(), 1) for folder in path.parents if folder != data) and (
        _is_ours(path.stat()) or _allowed(part, path.stat(), 4)
    )


def _is_ours(found: os.stat_result) -> bool:
    """Return whether a file may be given to a part: it belongs to root, or to a part already."""
    return found.st_uid in {0, *(partusers.uid(part) for part in USERS)}


def _allowed(part: str, found: os.stat_result, right: int) -> bool:
    """Return whether the part's user has that right: 4 to read, 2 to write, 1 to pass through a
    folder."""
    if found.st_uid == partusers.uid(part):
        return bool(found.st_mode >> 6 & right)
    if found.st_gid in {partusers.gid(group) for group in partusers.groups_of(part)}:
        return bool(found.st_mode >> 3 & right)
    return bool(found.st_mode & right)


# ---------------------------------------------------------------- giving files their owners


def settle(
    file: SiteFile, settings: Settings, counters: Path | None = None, *, change: bool = True
) -> Iterator[str]:
    """Give every file its owner, group and mode; yield a sentence for each file that had others.
    `counters`: the folder of the parts' counters; `change`: False only reports. Raises OSError."""
    shared = [Place(counters, ROOT, GROUP, 0o770)] if counters else []
    for place in places(settings) + shared:
        yield from _settle(place, change)
    for path, parts in named(file):
        with suppress(FileNotFoundError):
            real = path.resolve(strict=True)
            reached = all(_within_reach(part, real, settings.data) for part in parts)
            if reached and not all(_allowed(part, real.stat(), 4) for part in parts):
                yield from _settle_named(real, parts, change)


def _settle_named(path: Path, parts: Collection[str], change: bool) -> Iterator[str]:
    """Let these parts read an administrator's file: a single part becomes its owner, several read
    it by their group. A file of another user than root and the parts is not changed."""
    found = path.lstat()
    mode = stat.S_IMODE(found.st_mode)
    if len(parts) == 1:
        (owner,) = parts
        group = found.st_gid
        yield from _give(None, path, partusers.uid(owner), group, mode | 0o400, change)
    else:
        group = partusers.gid(partusers.group_of(parts))
        yield from _give(None, path, 0, group, mode | 0o440, change)


def _settle(place: Place, change: bool) -> Iterator[str]:
    owner, group = partusers.uid(place.owner), partusers.gid(place.group)
    if place.made and change:
        place.path.mkdir(mode=0o700, exist_ok=True)
    yield from _give(None, place.path, owner, group, place.mode, change)
    if place.inside and place.path.is_dir() and not place.path.is_symlink():
        folders, files = place.inside
        for top, names, others, descriptor in os.fwalk(place.path, follow_symlinks=False):
            for name in names:
                yield from _give(descriptor, Path(top, name), owner, group, folders, change)
            for name in others:
                yield from _give(descriptor, Path(top, name), owner, group, files, change)
            if len(Path(top).parts) - len(place.path.parts) >= DEEPEST:
                names.clear()


def _give(
    folder: int | None, path: Path, owner: int, group: int, mode: int, change: bool
) -> Iterator[str]:
    """Give one file its owner, group and mode, unless it does not exist or is a link. `folder`: a
    descriptor of its folder."""
    try:
        descriptor = os.open(
            path.name if folder is not None else path,
            os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC,
            dir_fd=folder,
        )
    except FileNotFoundError:
        return
    try:
        found = os.fstat(descriptor)
        several = stat.S_ISREG(found.st_mode) and found.st_nlink > 1
        has = (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode))
        if stat.S_ISLNK(found.st_mode) or several or has == (owner, group, mode):
            return
        if change:
            os.chown(f"/proc/self/fd/{descriptor}", owner, group)
            os.chmod(f"/proc/self/fd/{descriptor}", mode)
        was, now = (f"{_names(*each[:2])} {each[2]:04o}" for each in (has, (owner, group, mode)))
        yield f"{path}: {was}, now {now}" if change else f"{path}: {was} in place of {now}"
    finally:
        os.close(descriptor)


def _names(owner: int, group: int) -> str:
    """Return a file's owner and group, by name where they have names."""
    words = [str(owner), str(group)]
    with suppress(KeyError):
        words[0] = pwd.getpwuid(owner).pw_name
    with suppress(KeyError):
        words[1] = grp.getgrgid(group).gr_name
    return ":".join(words)
