"""The root file system of a batch host's image, without booting it: looked at from a chroot."""

from __future__ import annotations

import subprocess
from pathlib import Path

from images import batch, build
from tests.system.login import root_of

OUT, CACHE = build.CHECKOUT / "build/images", build.CHECKOUT / "build/cache/images"


def image_of(name: str) -> Path:
    """Return the image's file, built if need be."""
    build.build(name, OUT, CACHE)
    return OUT / f"{name}.img"


def files_of(name: str, folder: Path) -> Path:
    """Return a folder in `folder` with the files of the image's root partition, which lies beside
    it as it is."""
    return root_of(image_of(name), batch.root_mib("lab"), folder)


def copied(built: Path, folder: Path) -> Path:
    """Return a copy of these files, for a test that changes some."""
    subprocess.run(["cp", "-a", built, folder], check=True)
    return folder / built.name


def inside(root: Path, script: str) -> str:
    """Return what a shell script says in there."""
    return subprocess.run(
        ["chroot", root, "/bin/sh", "-c", script], check=True, capture_output=True, text=True
    ).stdout


def with_user_data(root: Path, user_data: str) -> Path:
    """Return the root with the settings of these user data, as after a boot."""
    (root / "run/seed").mkdir(exist_ok=True)
    (root / "run/seed/user-data").write_text(user_data)
    inside(root, "/etc/cod/settings")
    return root
