"""OCI images as folders of files: a layout's manifest, and its layers applied one upon another.

Formats: OCI Image Format Specification 1.1, `image-layout.md`, `manifest.md` and `layer.md`. Every
blob is compared with its digest. A layer is what somebody else has written: nothing of it lands
outside the tree, devices are not made, and sizes are bounded.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
import stat
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

import zstandard

BYTES, ENTRIES = 64 << 30, 4_000_000
"""The most that all layers of an image may unpack to, and files in them."""

_DOCUMENT = 4 << 20  # bytes of a manifest or an index (distribution-spec, "Pushing Manifests")
_AT_ONCE = 4 << 20  # bytes that one read may ask for: a header that says more is hostile
_LINKS = 40  # symbolic links on the way to one file, as Linux follows
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_PLAIN = ("application/vnd.oci.image.layer.v1.tar",)
_GZIP = (
    "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.docker.image.rootfs.diff.tar.gzip",
)
_ZSTD = ("application/vnd.oci.image.layer.v1.tar+zstd",)
_NAME = "org.opencontainers.image.ref.name"


class BadImage(Exception):
    """The image cannot be used; the sentence says why."""


def layers_of(layout: Path, tag: str = "") -> list[dict[str, Any]]:
    """Return the descriptors of an image's layers, the lowest first.

    layout  a folder in the OCI image layout
    tag     which image of several
    Raises BadImage.
    """
    _read_json(layout / "oci-layout", "oci-layout")
    found = _listed(_read_json(layout / "index.json", "index.json"), "manifests")
    named = [each for each in found if _annotations(each).get(_NAME) == tag] if tag else found
    if len(named) != 1:
        tags = ", ".join(sorted(str(_annotations(each).get(_NAME, "-")) for each in found)[:20])
        raise BadImage(
            f"the layout has no image {tag!r}, but: {tags}"
            if tag
            else f"the layout has {len(found)} images: say which with --tag ({tags})"
        )
    descriptor = named[0]
    for _ in range(3):  # an index may list others, for platforms
        document = _blob_json(layout, descriptor)
        if descriptor.get("mediaType") not in _INDEXES:
            return _listed(document, "layers")
        descriptor = _for_this(_listed(document, "manifests"))
    raise BadImage("the image's index leads to indexes only")


def _for_this(found: list[dict[str, Any]]) -> dict[str, Any]:
    platforms = []
    for each in found:
        platform = each.get("platform")
        platform = platform if isinstance(platform, dict) else {}
        if (platform.get("os"), platform.get("architecture")) == ("linux", "amd64"):
            return each
        platforms.append(f"{platform.get('os')}/{platform.get('architecture')}")
    raise BadImage(f"the image is for {', '.join(platforms[:20])}, not for linux/amd64")


def apply(layout: Path, layers: list[dict[str, Any]], tree: Path) -> None:
    """Apply layers in order to `tree`, an empty folder. Takes root where files are others'. Raises
    BadImage."""
    budget = Budget(BYTES, ENTRIES)
    for number, layer in enumerate(layers, 1):
        try:
            with _unpacked(layout, layer) as tar:
                apply_layer(tar, tree, budget)
        except BadImage as error:
            raise BadImage(f"layer {number}: {error}") from None


class Budget:
    """Bytes and entries that the layers of an image may still take."""

    def __init__(self, size: int, entries: int) -> None:
        self._bytes, self._entries = size, entries

    def take(self, size: int) -> None:
        """Take an entry of `size` bytes. Raises BadImage."""
        self._bytes -= size
        self._entries -= 1
        if size < 0 or self._bytes < 0 or self._entries < 0:
            raise BadImage(
                f"the layers unpack to more than {BYTES >> 30} GiB or {ENTRIES} files, the most "
                "that is accepted"
            )


# ---------------------------------------------------------------- blobs


def _read_json(path: Path, name: str) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            text = file.read(_DOCUMENT + 1)
        found = json.loads(text) if len(text) <= _DOCUMENT else None
    except FileNotFoundError:
        raise BadImage(f"no {name}: this is not an OCI image layout") from None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise BadImage(f"{name} is no JSON object of at most {_DOCUMENT >> 20} MiB")
    return found


def _blob(layout: Path, descriptor: dict[str, Any]) -> Path:
    """Return the path of a blob that has the size and the digest that its descriptor says."""
    told = str(descriptor.get("digest"))
    match = _DIGEST.fullmatch(told)
    if match is None:
        raise BadImage(f"a blob's digest is {told[:100]!r}; sha256 alone is known")
    path = layout / "blobs/sha256" / match[1]
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise BadImage(f"blob {told} is no file")
        with path.open("rb") as file:
            size, digest = path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise BadImage(f"blob {told} is missing") from None
    if size != descriptor.get("size") or digest != match[1]:
        raise BadImage(f"blob {told} is damaged: its {size} bytes have the sha256 {digest}")
    return path


def _blob_json(layout: Path, descriptor: dict[str, Any]) -> dict[str, Any]:
    return _read_json(_blob(layout, descriptor), str(descriptor.get("digest")))


def _listed(document: dict[str, Any], key: str) -> list[dict[str, Any]]:
    found = document.get(key)
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise BadImage(f"the image has no list of {key}")
    return found


def _annotations(descriptor: dict[str, Any]) -> dict[str, Any]:
    found = descriptor.get("annotations")
    return found if isinstance(found, dict) else {}


@contextmanager
def _unpacked(layout: Path, layer: dict[str, Any]) -> Iterator[BinaryIO]:
    kind = layer.get("mediaType")
    if kind not in (*_PLAIN, *_GZIP, *_ZSTD):
        raise BadImage(f"a layer of the type {str(kind)[:100]!r} is not known")
    with _blob(layout, layer).open("rb") as file:
        if kind in _GZIP:
            yield cast(BinaryIO, gzip.GzipFile(fileobj=file))
        elif kind in _ZSTD:
            reader = zstandard.ZstdDecompressor(max_window_size=1 << 27)
            yield cast(BinaryIO, reader.stream_reader(file, read_across_frames=True))
        else:
            yield file


class _Forward:
    """A stream that `tarfile` reads from start to end, a little at a time. Zeros stand for what
    fills the last block where an archive ends without: umoci 0.4 makes such layers."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._at = file, 0
        self._filling = b""

    def read(self, size: int) -> bytes:
        if not 0 <= size <= _AT_ONCE:
            raise BadImage(f"a header of {size} bytes")
        parts = []
        while size and (data := self._file.read(size)):
            parts.append(data)
            size -= len(data)
        found = b"".join(parts) or self._filling[:size]
        self._filling = self._filling[len(found) :]
        self._at += len(found)
        return found

    def tell(self) -> int:
        return self._at

    def seek(self, at: int) -> None:
        if at < self._at:
            raise BadImage("its headers lead backwards")
        while left := at - self._at:
            if not self.read(min(left, _AT_ONCE)):
                if left >= tarfile.BLOCKSIZE:
                    raise BadImage("it is cut short")
                self._filling = bytes(left + 1)  # the last byte is for the one who seeks


# ---------------------------------------------------------------- one layer


def apply_layer(file: BinaryIO, tree: Path, budget: Budget) -> None:
    """Apply an unpacked layer to `tree`. Raises BadImage."""
    written: set[Path] = set()
    try:
        # mode r and a stream that cannot go back: r| would read headers of any size into memory
        with tarfile.TarFile(fileobj=cast(Any, _Forward(file)), errorlevel=2) as tar:
            while (member := tar.next()) is not None:
                cast(Any, tar).members.clear()  # or it keeps all of them
                budget.take(member.size if member.isreg() else 0)
                _apply(tar, member, tree, written)
    except (
        tarfile.TarError,
        RecursionError,
        OverflowError,  # of a time or an owner
        ValueError,
        EOFError,
        zlib.error,
        zstandard.ZstdError,
    ) as error:
        raise BadImage(f"the archive is damaged ({error})") from None
    except OSError as error:
        name = os.path.relpath(error.filename, tree) if error.filename else "the archive"
        raise BadImage(f"{name}: {error.strerror or error}") from None


def _apply(tar: tarfile.TarFile, member: tarfile.TarInfo, tree: Path, written: set[Path]) -> None:
    parts = _parts(member.name)
    if not parts:  # the root itself
        if member.isdir():
            _dress(tree, member)
        return
    folder, last = resolve(tree, parts[:-1], make=True), parts[-1]
    if last.startswith(".wh."):
        _hide(folder, last.removeprefix(".wh."), member.name, written)
        return
    place = folder / last
    written.update((place, *place.parents))
    if member.isdir():
        if not place.is_dir() or place.is_symlink():
            _remove(place)
            place.mkdir()
    elif member.isreg():
        _remove(place)
        source = tar.extractfile(member)
        assert source is not None
        with source, place.open("xb") as target:
            shutil.copyfileobj(source, target)
    elif member.issym():
        _remove(place)
        place.symlink_to(member.linkname)
    elif member.islnk():
        linked = _parts(member.linkname)
        original = resolve(tree, linked[:-1]) / linked[-1] if linked else tree
        if not original.is_symlink() and not original.is_file():
            raise BadImage(f"{member.name!r} is a hard link to {member.linkname!r}: no such file")
        if original != place:
            _remove(place)
            os.link(original, place, follow_symlinks=False)
        return  # its owner and mode are the original's
    elif parts[0] == "dev":  # the kernel makes them
        return
    else:
        raise BadImage(f"{member.name!r} is a device, a pipe or of a type that is not known")
    _dress(place, member)


def _hide(folder: Path, hidden: str, whiteout: str, written: set[Path]) -> None:
    """Remove what a whiteout hides from the lower layers: one file, or all of a folder."""
    if hidden == ".wh..opq":
        _clear(folder, written)
    elif hidden in ("", ".", ".."):
        raise BadImage(f"{whiteout!r} hides no file")
    elif not hidden.startswith(".wh."):  # what AUFS keeps for itself
        _remove(folder / hidden)


def _dress(place: Path, member: tarfile.TarInfo) -> None:
    """Give a file its owner, mode, time and attributes."""
    if os.geteuid() == 0:
        os.chown(place, member.uid, member.gid, follow_symlinks=False)
    if not member.issym():
        place.chmod(member.mode & 0o7777)  # after the owner, whose change takes setuid away
    for key, value in member.pax_headers.items():
        name = key.removeprefix("SCHILY.xattr.")
        if name != key and name.startswith(("user.", "security.", "system.posix_acl_")):
            content = value.encode("utf-8", "surrogateescape")
            os.setxattr(place, name, content, follow_symlinks=False)
    os.utime(place, (member.mtime, member.mtime), follow_symlinks=False)


def _parts(name: str) -> tuple[str, ...]:
    """Return a member's path below the root. Raises BadImage where it leads out."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise BadImage(f"the path {name[:200]!r} leads out of the image")
    return path.parts


def resolve(tree: Path, parts: tuple[str, ...], make: bool = False) -> Path:
    """Return the folder or file that a path leads to where `tree` is the root: symbolic links are
    followed, and none leads out. `make`: folders that are missing are made. Raises BadImage."""
    todo, here, links = list(reversed(parts)), tree, 0
    while todo:
        part = todo.pop()
        if part == "..":
            here = here if here == tree else here.parent
            continue
        step = here / part
        if step.is_symlink():
            links += 1
            if links > _LINKS:
                raise BadImage(f"{'/'.join(parts)}: too many symbolic links")
            target = PurePosixPath(os.readlink(step))
            here = tree if target.is_absolute() else here
            todo += reversed([each for each in target.parts if each != "/" * len(each)])
            continue
        if make and not step.is_dir():
            if step.exists():
                raise BadImage(f"{'/'.join(parts)}: {part!r} is no folder")
            step.mkdir()
        here = step
    return here


def cleared(tree: Path, path: str) -> Path:
    """Return where a file of `tree` can be made: its folder is there, and nothing has its name, no
    symbolic link either. Raises BadImage."""
    parts = Path(path).parts
    place = resolve(tree, parts[:-1], make=True) / parts[-1]
    _remove(place)
    return place


def _remove(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)


def _clear(folder: Path, written: set[Path]) -> None:
    """Remove what lower layers have put into a folder, and leave what this one has."""
    for child in [*folder.iterdir()]:
        if child not in written:
            _remove(child)
        elif child.is_dir() and not child.is_symlink():
            _clear(child, written)
