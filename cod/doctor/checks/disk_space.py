"""Check of the free space on the disks of images, uploads and the database."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from cod.doctor.finding import BAD, GOOD, UNSEEN, WARNING, Context, Finding

# bytes: below the first, images cannot be taken in; below the second, not for long
LEAST, FEW = 1 << 30, 10 << 30
FILES = 1000  # files that may be made at least


def findings(context: Context) -> Iterator[Finding]:
    """Yield a finding for each file system of the data folder."""
    settings = context.settings
    seen = dict[int, Path]()
    for path in (settings.data, settings.images, settings.incoming, settings.data / "cache"):
        try:
            seen.setdefault(path.stat().st_dev, path)
        except FileNotFoundError:
            if path == settings.data:
                yield Finding(BAD, f"{path} is not there", "`cod init` makes it")
        except OSError as error:
            yield Finding(UNSEEN, f"{path}: {error.strerror}", "run `cod doctor` as root")
    for path in seen.values():
        found = os.statvfs(path)
        free, whole = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
        words = f"{path}: {free / (1 << 30):.1f} of {whole / (1 << 30):.1f} GiB free"
        if found.f_flag & os.ST_RDONLY:
            yield Finding(
                BAD,
                f"{path} is on a file system that is mounted read-only: nothing can be changed",
                "`dmesg` says whether the kernel did that after an error of the disk; once it is"
                f" mended: mount -o remount,rw $(findmnt -no TARGET -T {path})",
            )
        elif found.f_files and found.f_favail < FILES:
            yield Finding(
                BAD,
                f"{path}: room for {found.f_favail} more files",
                "delete files, or make the file system anew with more inodes",
            )
        elif free < LEAST:
            yield Finding(
                BAD,
                words,
                "delete images (`cod image list`), empty the cache folder, or move the data folder"
                " to a larger disk: images are not taken in, and the database cannot grow",
            )
        elif free < FEW or free < whole // 20:
            yield Finding(
                WARNING, words, "images will not fit for long: delete some, or add a disk"
            )
        else:
            yield Finding(GOOD, words)
