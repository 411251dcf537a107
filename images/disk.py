"""Whole-disk images from parts: a sparse file, a partition table, and what goes into the
partitions.

Needs no root and mounts nothing. The partition table comes from sfdisk, FAT from mkfs.fat and
mcopy, ext4 from mke2fs; all identifiers and times are given, so the same parts make the same bytes.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from stat import S_IMODE, S_ISDIR, S_ISLNK

MIB = 1 << 20
EPOCH = 1704067200  # 2024-01-01: the time that every file has
TIMES = {
    "SOURCE_DATE_EPOCH": str(EPOCH),
    "E2FSPROGS_FAKE_TIME": str(EPOCH),
    "TZ": "UTC",
    "MTOOLS_SKIP_CHECK": "1",
}
# any fixed value: it keeps these identifiers apart
_IDS = uuid.UUID("0c0d1a6e-5f3b-5b1c-8e7a-1d5c0ffee000")
TYPES = {
    "bios": "21686148-6449-6E6F-744E-656564454649",
    "esp": "C12A7328-F81F-11D2-BA4B-00A0C93EC93B",
    "linux": "0FC63DAF-8483-4772-8E79-3D69D8477DE4",
    "data": "EBD0A0A2-B9E5-4433-87C0-68B6B72699C7",
}


@dataclass(frozen=True, slots=True)
class ImagePartition:
    """A partition: sizes in MiB. `type` is a key of TYPES, or an MBR type in hexadecimal."""

    name: str
    size: int
    type: str


def identifier(*words: object) -> str:
    """Return a UUID that depends on the words alone."""
    return str(uuid.uuid5(_IDS, "/".join(map(str, words))))


def starts(parts: Sequence[ImagePartition]) -> list[int]:
    """Return the MiB at which each partition starts."""
    return [1 + sum(part.size for part in parts[:number]) for number in range(len(parts))]


def create(path: Path, size: int, table: str, parts: Sequence[ImagePartition]) -> None:
    """An empty image of `size` MiB with a partition table, 'gpt' or 'dos'."""
    with open(path, "wb") as file:
        file.truncate(size * MIB)
    script = [f"label: {table}", f"label-id: {_label_id(path.stem, table)}", "unit: sectors"]
    for start, part in zip(starts(parts), parts, strict=True):
        words = [
            f"start={start * 2048}",
            f"size={part.size * 2048}",
            f"type={TYPES.get(part.type, part.type)}",
        ]
        if table == "gpt":
            words += [f"name={part.name}", f"uuid={identifier(path.stem, part.name)}"]
        script.append(", ".join(words))
    _run(["sfdisk", "-q", "--no-reread", "--no-tell-kernel", str(path)], "\n".join(script) + "\n")


def put(path: Path, content: bytes, offset: int) -> None:
    """Write `content` at `offset` bytes, leaving holes where it has whole blocks of zeros."""
    with open(path, "r+b") as file:
        for at in range(0, len(content), 4096):
            block = content[at : at + 4096]
            if block.strip(b"\0"):
                file.seek(offset + at)
                file.write(block)


def fat(scratch: Path, label: str, size: int, files: Mapping[str, bytes]) -> bytes:
    """Return a FAT16 file system of `size` MiB with `files` by path."""
    image, tree = scratch / "fat.img", scratch / "fat"
    image.unlink(missing_ok=True)
    _run(
        [
            "mkfs.fat",
            "-C",
            "-F",
            "16",
            "--invariant",
            "-i",
            volume_id(label).replace("-", ""),
            "-n",
            label.upper()[:11],
            str(image),
            str(size * 1024),
        ]
    )
    write_tree(tree, {path: (content, 0o644) for path, content in files.items()})
    _run(
        [
            "mcopy",
            "-s",
            "-m",
            "-i",
            str(image),
            *(str(path) for path in sorted(tree.iterdir())),
            "::",
        ]
    )
    return image.read_bytes()


def volume_id(label: str) -> str:
    """Return the identifier of a FAT file system with that label, as /etc/fstab names it."""
    digest = hashlib.sha256(label.encode()).hexdigest().upper()
    return f"{digest[:4]}-{digest[4:8]}"


def ext4(scratch: Path, label: str, size: int, files: Mapping[str, tuple[bytes, int]]) -> bytes:
    """Return an ext4 file system of `size` MiB with `files` as `write_tree` takes them; they are
    root's."""
    image, tree = scratch / "ext4.img", scratch / "ext4"
    image.unlink(missing_ok=True)
    write_tree(tree, files)
    ext4_from(image, 0, size, tree, label, identifier(label))
    # mke2fs copies the time of the last change and the owner, too, and those of a file of ours
    # cannot be set.
    places = ["/", *(f"/{path.relative_to(tree)}" for path in sorted(tree.rglob("*")))]
    fields = {"ctime": f"@{EPOCH}", "uid": "0", "gid": "0"}
    _run(
        ["debugfs", "-w", "-f", "/dev/stdin", str(image)],
        "".join(
            f'set_inode_field "{place}" {key} {value}\n'
            for place in places
            for key, value in fields.items()
        ),
    )
    return image.read_bytes()


def ext4_from(
    path: Path, start: int, size: int, tree: Path, label: str, uuid_: str, inodes: int = 0
) -> None:
    """Make an ext4 file system with the files of `tree` at `start` of an image, `size` large (both
    in MiB).

    inodes  the most files that it can hold; 0: as many as mke2fs gives that size
    """
    # GRUB of Debian 12 cannot read what newer mke2fs may choose by itself
    _run(
        [
            "mke2fs",
            "-q",
            "-t",
            "ext4",
            "-O",
            "^metadata_csum_seed,^orphan_file",
            *(("-N", str(inodes)) if inodes else ()),
            "-d",
            str(tree),
            "-L",
            label[:16],
            "-U",
            uuid_,
            "-E",
            (
                f"offset={start * MIB},hash_seed={uuid_},root_owner=0:0,lazy_itable_init=0,"
                "lazy_journal_init=0"
            ),
            str(path),
            f"{size}M",
        ]
    )


def write_tree(tree: Path, files: Mapping[str, tuple[bytes, int]]) -> None:
    """The folder `tree` with `files`, all of one time. A mode may say that it is a folder, or a
    link to its content."""
    for path, (content, mode) in sorted(files.items()):
        target = tree / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if S_ISLNK(mode):
            target.symlink_to(content.decode())
            continue
        if S_ISDIR(mode):
            target.mkdir(exist_ok=True)
        else:
            target.write_bytes(content)
        target.chmod(S_IMODE(mode))
    for found in sorted(tree.rglob("*"), reverse=True):
        os.utime(found, (EPOCH, EPOCH), follow_symlinks=False)
    os.utime(tree, (EPOCH, EPOCH))


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _label_id(name: str, table: str) -> str:
    return (
        identifier(name) if table == "gpt" else "0x" + hashlib.sha256(name.encode()).hexdigest()[:8]
    )


def _run(argv: list[str], text: str = "") -> None:
    done = subprocess.run(
        argv, input=text, text=True, capture_output=True, check=False, env=os.environ | TIMES
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}")
