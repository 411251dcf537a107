"""Backup and restore of a whole site: `cod backup FOLDER`, `cod restore FOLDER`.

A backup folder holds sets, one for each backup, and the files that sets share::

    sets/20260131T030000Z/set.json     what belongs to the set, with digests; written last
    sets/20260131T030000Z/database.gz  every row (`cod.store.backup`)
    files/SHA256                       the site file, files that it names, keys, certificates,
                                       loaders, the trampoline
    images/DIGEST/                     images as they are served (`cod.images.store`)

Files and images are named by their digests and copied once, so a second backup copies only what is
new. Each copied image is read back and checked. The server may run meanwhile. All rows are read at
one moment; when an image was deleted between that moment and its copying, the backup begins anew.
After a crash, the unfinished set does not count as a set.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from cod.core.database.writer import connect
from cod.images import store as image_store
from cod.images.verify import verify
from cod.security import secretfile
from cod.site import load
from cod.site.load import Settings
from cod.site.ownership import paths
from cod.store import backup as rows
from cod.store import schema
from cod.store.images import images

# subfolders of the data folder that a backup leaves out
NOT_KEPT = {"run", "cache", "incoming", "images", "consoles", "manager"}
TRIES = 3  # snapshots of the database, where images are deleted while they are copied
LARGEST_NAMED = 1 << 20  # bytes of a file outside the data folder that the site file names
_FORMAT = 1

Progress = Callable[[str, int, int], object]
"""progress(what is being done, bytes done, bytes in all)"""


def _untold(_what: str, _done: int, _total: int) -> None:
    """Tell nobody."""


class BackupRefused(Exception):
    """The backup or restore cannot be done; the message is a sentence that says why. Nothing that
    was there before has changed."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A file of a set. `place`: site (the site file), data (`path` is below the data folder) or
    host (absolute)."""

    place: str
    path: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Set:
    """The members of one backup. `missing`: digests of images that the site has lost, or whose
    files are damaged."""

    name: str
    site: str
    made_at: float
    schema: str
    site_file: str
    rows: int
    database: str
    files: tuple[Kept, ...]
    images: tuple[str, ...]
    missing: tuple[str, ...] = ()
    format: int = _FORMAT


@dataclass(slots=True)
class Done:
    """The result of a backup or a restore: the set, images copied, bytes copied, and sentences for
    people."""

    set: Set
    images: int = 0
    bytes: int = 0
    notes: list[str] = field(default_factory=list)


# ---------------------------------------------------------------- backup


def backup(
    site_file: Path, folder: Path, now: float, keep: int = 0, progress: Progress = _untold
) -> Done:
    """Add a set to the backups in `folder`. `keep`: the number of sets that are kept, 0: all.
    Raises `BackupRefused`, OSError."""
    site, settings = load.load(site_file)
    if folder.resolve().is_relative_to(settings.data.resolve()):
        raise BackupRefused(
            f"{folder} is in the data folder {settings.data}, and each backup would hold those"
            " before it: name a folder outside"
        )
    engine = connect(settings.database)
    try:
        schema.check_own(engine)
        with _opened(folder):
            if (before := sets(folder)) and before[-1].site != site.name:
                raise BackupRefused(
                    f"{folder} holds backups of the site {before[-1].site!r}, not of {site.name!r}"
                )
            name = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
            if (folder / "sets" / name).exists():
                raise BackupRefused(f"{folder} has a set {name} already: try again in a second")
            with _growing(folder / "sets") as growing:
                database = growing / "database.gz"
                count, named, copied = _backed_up(
                    engine, database, settings.images, folder, progress
                )
                made = Set(
                    name=name,
                    site=site.name,
                    made_at=now,
                    schema=schema.head(),
                    site_file=str(settings.path),
                    rows=count,
                    database=_digest(database),
                    files=tuple(_files(settings, folder / "files")),
                    images=tuple(each for each in named if each not in copied.faults),
                    missing=tuple(copied.faults),
                )
                secretfile.write(
                    growing / "set.json", json.dumps(asdict(made), indent=1).encode() + b"\n"
                )
                growing.rename(folder / "sets" / name)
                image_store.flush(folder / "sets")
            if keep:
                _forget(folder, keep)
    finally:
        engine.dispose()
    return Done(made, copied.count, copied.bytes, copied.sentences())


def _backed_up(
    engine: Engine, database: Path, source: Path, folder: Path, progress: Progress
) -> tuple[int, list[str], _Copied]:
    """Write the rows to `database`, and copy the images that they name. Return the number of rows,
    the images' digests, and what was copied."""
    for _ in range(TRIES):
        count = rows.backup(engine, database)
        ready = (row for row in rows.read(database, "images") if row["state"] == "ready")
        named = sorted({row["digest"] for row in ready})
        copied = _copied(named, source, folder / "images", progress)
        with engine.connect() as connection:
            still = images.digests(connection)
        if copied.faults.keys() <= still:
            return count, named, copied
    raise BackupRefused("images are deleted faster than they are copied: try again later")


def sets(folder: Path) -> list[Set]:
    """Return the complete sets in `folder`, oldest first. Raises `BackupRefused` where a set cannot
    be read."""
    return [
        _set(path)
        for path in sorted(folder.glob("sets/*/set.json"))
        if not path.parent.name.startswith(".")
    ]


def _set(path: Path) -> Set:
    try:
        content = json.loads(path.read_bytes())
        if content["format"] != _FORMAT:
            raise BackupRefused(
                f"{path} has the format {content['format']}, this program reads {_FORMAT}: use a"
                " newer version"
            )
        return Set(
            **content
            | {
                "files": tuple(Kept(**each) for each in content["files"]),
                "images": tuple(content["images"]),
                "missing": tuple(content["missing"]),
            }
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BackupRefused(f"{path} cannot be read: {error}") from None


@contextmanager
def _opened(folder: Path) -> Iterator[None]:
    """Provide the backup folder, locked for this process; create it where it is missing."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(folder.iterdir()) and not (folder / "sets").is_dir():
        raise BackupRefused(
            f"{folder} is not empty and holds no backups of COD: name another folder"
        )
    for part in ("sets", "files", "images"):
        (folder / part).mkdir(mode=0o700, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        image_store.clean(folder / "images")
        for left in folder.glob("sets/.new-*"):
            shutil.rmtree(left)
        yield
    except BlockingIOError:
        raise BackupRefused(f"another backup into {folder} is under way") from None
    finally:
        os.close(lock)


@contextmanager
def _growing(folder: Path) -> Iterator[Path]:
    """Provide a temporary folder below `folder`. At the end it is removed, unless it was
    renamed."""
    growing = Path(tempfile.mkdtemp(prefix=".new-", dir=folder))
    try:
        yield growing
    finally:
        shutil.rmtree(growing, ignore_errors=True)


@dataclass(slots=True)
class _Copied:
    """Images that were copied: their number and bytes, and why others were not, by digest."""

    count: int = 0
    bytes: int = 0
    faults: dict[str, str] = field(default_factory=dict)

    def sentences(self) -> list[str]:
        return [f"image {digest[:12]}: {fault}" for digest, fault in self.faults.items()]


def _copied(digests: Iterable[str], source: Path, target: Path, progress: Progress) -> _Copied:
    """Copy the images that `target` lacks."""
    done = _Copied()
    lacking = [digest for digest in digests if not (target / digest).exists()]
    for digest in _with_progress(lacking, source, "copying images", progress):
        with image_store.new_folder(target) as scratch:
            try:
                shutil.copytree(source / digest, scratch / digest, copy_function=_copy_private)
            except FileNotFoundError:
                done.faults[digest] = "its folder is not there"
                continue
            except shutil.Error as error:
                done.faults[digest] = f"it cannot be read: {error.args[0][0][2]}"
                continue
            if bad := verify(scratch, digest).bad:
                done.faults[digest] = bad[0]
                continue
            done.bytes += sum(path.stat().st_size for path in (scratch / digest).iterdir())
            image_store.publish(scratch / digest, target, digest)
            done.count += 1
    return done


def _with_progress(
    digests: Iterable[str], root: Path, what: str, progress: Progress
) -> Iterator[str]:
    """Yield the digests of images below `root`, and tell the progress in bytes."""
    sizes = dict.fromkeys(digests, 0)
    for digest in sizes:
        with suppress(OSError):  # the image is being deleted
            sizes[digest] = sum(path.stat().st_size for path in (root / digest).glob("*"))
    done, total = 0, sum(sizes.values())
    for digest, size in sizes.items():
        progress(what, done, total)
        yield digest
        done += size
        progress(what, done, total)


def _copy_private(source: str, target: str) -> None:
    with (
        open(source, "rb") as file,
        open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as copy,
    ):
        shutil.copyfileobj(file, copy, 1 << 20)


def _files(settings: Settings, target: Path) -> Iterator[Kept]:
    """Copy the site file, the files that it names, and the files of the data folder. Each content
    is copied once, named by its digest."""
    yield Kept("site", str(settings.path), _kept(settings.path, target))
    for *_, path in paths(load.read(settings.path)):
        if (
            not path.is_relative_to(settings.data)
            and path.is_file()
            and path.stat().st_size <= LARGEST_NAMED
        ):
            yield Kept("host", str(path), _kept(path, target))
    database = Path(settings.database.removeprefix("sqlite:///"))
    skipped = {
        Path(f"{each}{end}")
        for each in (database, database.resolve())
        for end in ("", "-wal", "-shm", "-journal")
    }
    for top in sorted(settings.data.iterdir()):
        for path in sorted(top.rglob("*")) if top.is_dir() and top.name not in NOT_KEPT else [top]:
            own = {path, path.resolve()} & {*skipped, settings.path, settings.path.resolve()}
            if path.is_file() and not path.is_symlink() and not own:
                yield Kept("data", str(path.relative_to(settings.data)), _kept(path, target))


def _kept(path: Path, target: Path) -> str:
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if not (target / digest).exists():
        secretfile.write(target / digest, content)
    return digest


def _forget(folder: Path, keep: int) -> None:
    """Remove all sets but the newest `keep`, and the files and images that no set names any
    more."""
    every = sets(folder)
    for old in every[:-keep]:
        # the first step renames the set: after a crash, the rest of it does not count as a set
        with _growing(folder / "sets") as going:
            (folder / "sets" / old.name).rename(going / "removed")
    left = every[-keep:]
    for digest in image_store.digests(folder / "images") - {
        digest for each in left for digest in each.images
    }:
        image_store.remove(folder / "images", digest)
    for path in (folder / "files").iterdir():
        if path.name not in {each.sha256 for one in left for each in one.files}:
            path.unlink()


# ---------------------------------------------------------------- restore


def chosen(folder: Path, name: str = "") -> Set:
    """Return the set of that name; '': the newest. Raises `BackupRefused`."""
    every = sets(folder)
    if not every:
        raise BackupRefused(f"{folder} holds no complete backup of COD")
    for each in reversed(every):
        if name in ("", each.name):
            return each
    raise BackupRefused(
        f"{folder} has no set {name!r}; it has {', '.join(each.name for each in every)}"
    )


def check(folder: Path, wanted: Set, progress: Progress = _untold) -> list[str]:
    """Read the whole set and compare it with its digests. Return a sentence for each fault."""
    faults = []
    if _digest(folder / "sets" / wanted.name / "database.gz") != wanted.database:
        faults.append("database.gz is not as it was written")
    for each in wanted.files:
        if _digest(folder / "files" / each.sha256) != each.sha256:
            faults.append(f"{each.path} is not as it was written")
    for digest in _with_progress(wanted.images, folder / "images", "checking images", progress):
        faults += [
            f"image {digest[:12]}: {fault}" for fault in verify(folder / "images", digest).bad
        ]
    return faults


def restore(
    folder: Path,
    wanted: Set,
    site_file: Path,
    now: float,
    *,
    replace: bool = False,
    hold: bool = True,
    say: Callable[[str], object] = lambda line: None,
    progress: Progress = _untold,
) -> Done:
    """Write the set's files, images and rows to the places that the site file names. A site file
    that exists already is kept.

    replace  replace rows, and files that exist and differ; otherwise these are a reason to refuse
    hold     hold the site afterwards, until its machines were compared with the rows

    Everything is read and checked before the first byte is written. The rows come last, in one
    transaction. Raises `BackupRefused`, `rows.BadBackup`, OSError.
    """
    if faults := check(folder, wanted, progress):
        raise BackupRefused(
            f"the backup {wanted.name} is damaged: {'; '.join(faults[:5])}. Nothing was restored"
        )
    kept = {each.place: each for each in wanted.files}["site"]
    text = (site_file if site_file.exists() else folder / "files" / kept.sha256).read_text()
    settings = load.settings(load.parse(text, site_file), site_file)
    if answers := running(settings.run):
        raise BackupRefused(f"the server runs ({answers}): stop it first")
    targets = {
        _target(each, settings): folder / "files" / each.sha256
        for each in wanted.files
        if each.place != "site"
    }
    differ = [
        path
        for path, source in targets.items()
        if path.exists() and path.read_bytes() != source.read_bytes()
    ]
    if differ and not replace:
        raise BackupRefused(
            f"{', '.join(map(str, differ[:5]))}{' …' if len(differ) > 5 else ''} would be"
            " overwritten: move the old site away, or say --replace"
        )
    settings.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    engine = connect(settings.database)
    try:
        if schema.current(engine) is None:
            schema.upgrade(engine)
        database = folder / "sets" / wanted.name / "database.gz"
        rows.check(engine, database, replace=replace)
        if site_file.exists():
            say(f"kept {site_file}")
        else:
            targets[site_file] = folder / "files" / kept.sha256
        image_store.private(settings.images)
        image_store.clean(settings.images)
        for digest in wanted.images:
            if (settings.images / digest).exists() and verify(settings.images, digest).bad:
                image_store.remove(settings.images, digest)
        copied = _copied(wanted.images, folder / "images", settings.images, progress)
        if copied.faults:
            raise BackupRefused("; ".join(copied.sentences()))
        for path, source in targets.items():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            secretfile.write(path, source.read_bytes())
        rows.restore(engine, database, now, replace=replace, hold=hold)
    finally:
        engine.dispose()
    lost = "is not in the backup: the site had lost it"
    notes = [f"image {digest[:12]} {lost}" for digest in wanted.missing]
    return Done(wanted, copied.count, copied.bytes, notes)


def _target(kept: Kept, settings: Settings) -> Path:
    path = Path(kept.path) if kept.place == "host" else settings.data / kept.path
    if ".." in path.parts or (kept.place == "host") != Path(kept.path).is_absolute():
        raise BackupRefused(f"the backup is no backup of COD: it would write {kept.path!r}")
    return path


def running(run: Path) -> str:
    """Return the path of a socket in the run folder on which a process listens; '' where there is
    none."""
    for path, kind in [
        (run / "api.sock", socket.SOCK_STREAM),
        *((p, socket.SOCK_DGRAM) for p in run.glob("*.wake")),
    ]:
        with socket.socket(socket.AF_UNIX, kind) as probe, suppress(OSError):
            probe.connect(str(path))
            return str(path)
    return ""


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


def described(made: Set) -> dict[str, Any]:
    """Return a set as JSON for programs: counts in place of the lists."""
    return {
        "name": made.name,
        "site": made.site,
        "made_at": made.made_at,
        "schema": made.schema,
        "rows": made.rows,
        "files": len(made.files),
        "images": len(made.images),
        "missing": list(made.missing),
    }
