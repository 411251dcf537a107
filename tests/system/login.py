"""Logging in with a real SSH client: its keys, its words, and images' root file systems to log in
to without a boot."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from images.linux import SYSTEM_MIB


class Key:
    """A key pair in a folder, as `ssh-keygen` makes it; `line` is its public half."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / name
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", self.path], check=True
        )
        self.line = self.path.with_name(f"{name}.pub").read_text()


def ssh(
    key: Key, *words: str, known: Path, before: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """`ssh WORDS...` with that key alone. Host keys that `known` has not yet are put in there,
    changed ones refused. `before` is a command that runs commands elsewhere."""
    options = {
        "BatchMode": "yes",
        "IdentitiesOnly": "yes",
        "IdentityAgent": "none",
        "ConnectTimeout": "60",
        "StrictHostKeyChecking": "accept-new",
        "UserKnownHostsFile": str(known),
        "LogLevel": "ERROR",
    }
    return subprocess.run(
        [
            *before,
            "ssh",
            "-F",
            "none",
            "-i",
            str(key.path),
            *(f"-o{name}={value}" for name, value in options.items()),
            *words,
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def fingerprints(known: Path) -> set[str]:
    """Return the fingerprints of the host keys that somebody who logged in has seen."""
    listed = subprocess.run(
        ["ssh-keygen", "-l", "-f", known], check=True, capture_output=True, text=True
    ).stdout
    return {line.split()[1] for line in listed.splitlines()}


def root_of(image: Path, mib: int, folder: Path) -> Path:
    """`folder`/root with the files of an image's root partition of `mib` MiB, which is
    `folder`/root.ext4."""
    partition, tree = folder / "root.ext4", folder / "root"
    subprocess.run(
        [
            "dd",
            f"if={image}",
            f"of={partition}",
            "bs=1M",
            f"skip={2 + SYSTEM_MIB}",
            f"count={mib}",
            "conv=sparse",
            "status=none",
        ],
        check=True,
    )
    subprocess.run(["e2fsck", "-fn", partition], check=True, capture_output=True)
    tree.mkdir()
    subprocess.run(["debugfs", "-R", f"rdump / {tree}", partition], check=True, capture_output=True)
    return tree
