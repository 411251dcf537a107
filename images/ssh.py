"""An SSH server for images: Dropbear, as the distribution has it, and the libraries that it is
linked with.

The host's key and who gets in stand in the node's seed: rootfs/sshkeys. Without a key in the seed
the node makes one. Dropbear is a tenth of OpenSSH's size, which counts where a system is unpacked
into memory by an emulated processor.
"""

from __future__ import annotations

from pathlib import Path
from stat import S_IMODE, S_ISLNK

from trampoline.recipe import python

PACKAGES = (
    "dropbear-bin",
    "libc6",
    "libcrypt1",
    "libgmp10",
    "libtomcrypt1",
    "libtommath1",
    "zlib1g",
)
PROGRAMS = ("usr/sbin/dropbear", "usr/bin/dropbearkey", "usr/bin/dropbearconvert")


def files(packages: Path) -> dict[str, tuple[bytes, int]]:
    """Return the server and what makes or reads its key, (content, mode) by path, from the unpacked
    PACKAGES."""
    found = {name: ((packages / name).read_bytes(), 0o755) for name in PROGRAMS}
    linked = python.libraries(packages, [packages / name for name in PROGRAMS])
    for path, entry in linked.items():
        found[path] = (entry.content, entry.mode if S_ISLNK(entry.mode) else S_IMODE(entry.mode))
    return found
