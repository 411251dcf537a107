"""The newc cpio format, as the kernel reads it
(Documentation/driver-api/early-userspace/buffer-format.rst).

Archives are written here, and not by the cpio program, so that equal files always give equal bytes:
names are sorted, and times, owners and inode numbers are fixed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from stat import S_IFDIR, S_IFLNK, S_IFREG


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, folder or symbolic link. `mode` includes the type; `content` of a link is its
    target."""

    mode: int
    content: bytes = b""


def file(content: bytes, mode: int = 0o644) -> Entry:
    return Entry(S_IFREG | mode, content)


def link(target: str) -> Entry:
    return Entry(S_IFLNK | 0o777, target.encode())


def folder(mode: int = 0o755) -> Entry:
    """Return a folder. `archive` adds missing folders above files."""
    return Entry(S_IFDIR | mode)


def archive(entries: Mapping[str, Entry]) -> bytes:
    """Return the archive of `entries` by path (no leading slash)."""
    whole = dict(entries)
    for path in entries:
        while "/" in path:
            path = path.rpartition("/")[0]
            whole.setdefault(path, folder())
    parts = [_record(path, whole[path], number) for number, path in enumerate(sorted(whole), 1)]
    return b"".join([*parts, _record("TRAILER!!!", Entry(0), 0)])


def _record(path: str, entry: Entry, inode: int) -> bytes:
    """Return header (hexadecimal: inode, mode, uid, gid, links, mtime, size, four device numbers,
    name size, sum) and data."""
    name = path.encode() + b"\0"
    links = 2 if entry.mode & S_IFDIR == S_IFDIR else 1
    fields = (inode, entry.mode, 0, 0, links, 0, len(entry.content), 0, 0, 0, 0, len(name), 0)
    header = b"070701" + b"".join(b"%08X" % field for field in fields)
    return padded(header + name) + padded(entry.content)


def padded(data: bytes) -> bytes:
    """Return `data` with zeros up to a multiple of four bytes, as everything in an initrd must
    be."""
    return data + bytes(-len(data) % 4)
