"""The distribution's packages as a folder of files. Nothing is installed: packages are fetched and
unpacked."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

# the cloud kernel (linux-image-cloud-amd64) has neither e1000 nor AHCI
KERNEL = "linux-image-amd64"
PACKAGES = (
    "busybox",  # linked with the libc that Python needs anyway: a third of busybox-static's size
    "libc6",
    "libexpat1",  # Python's program is linked with it
    "libffi8",  # ctypes
    "libpython3.11-minimal",
    "libpython3.11-stdlib",
    "libzstd1",  # cprime unpacks chunks with it, through ctypes
    "python3.11-minimal",
    "zlib1g",  # Python's program is linked with it
)


LIMIT = 1 << 30
"""Bytes of package files that a folder keeps; more only where one build uses more."""


class PackagesMissing(Exception):
    """The package lists or the archive cannot be read."""


@dataclass(frozen=True, slots=True, order=True)
class Package:
    """A package file of the archive: its file name, which includes the version, and its SHA-256."""

    file: str
    sha256: str


@contextmanager
def alone(cache: Path) -> Iterator[None]:
    """Lock the cache, because two builds that share it would unpack into the same folder."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def wanted(packages: Sequence[str] = PACKAGES) -> list[Package]:
    """Return the kernel and `packages` at the versions that apt would install today. Reads apt's
    lists only."""
    words = run("apt-cache", "depends", "--important", KERNEL).split()
    return exactly((words[words.index("Depends:") + 1], *packages))


def exactly(packages: Sequence[str]) -> list[Package]:
    """Return `packages`, without their dependencies, at the versions that apt would install
    today."""
    return _listed(run("apt-get", "download", "--print-uris", *packages))


def closure(packages: Sequence[str]) -> list[Package]:
    """Return `packages` (names, or apt's patterns) and all their dependencies, as apt would install
    them on an empty disk.

    Recommended packages are left out. Reads apt's lists only.
    """
    with TemporaryDirectory() as empty:
        options = {
            "Dir::State::status": "/dev/null",
            "Dir::Cache::archives": empty,
            "Acquire::ForceHash": "SHA256",
            "APT::Install-Recommends": "false",
        }
        words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        return _listed(run("apt-get", *words, "--print-uris", "install", *packages))


def _listed(uris: str) -> list[Package]:
    fields = [line.split() for line in uris.splitlines() if line.startswith("'")]
    return sorted(Package(file, digest.removeprefix("SHA256:")) for _, file, _, digest in fields)


def unpacked(packages: list[Package], cache: Path) -> Path:
    """Return a folder with the files of all `packages`, made under `cache` unless it is there
    already."""
    folder = cache / f"root-{hashlib.sha256(repr(packages).encode()).hexdigest()[:16]}"
    if folder.is_dir():
        return folder
    files = fetched(packages, cache / "packages")
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    for file in files:
        subprocess.run(["dpkg-deb", "-x", file, partial], check=True)
    for old in cache.glob("root-*"):
        if old != partial:
            shutil.rmtree(old)
    return partial.rename(folder)


def fetched(packages: list[Package], folder: Path) -> list[Path]:
    """Return the packages' files in `folder`, and fetch those that are missing there. Raises
    PackagesMissing."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = [p for p in packages if not _is_whole(folder / p.file, p.sha256)]
    if missing:
        # name=version, because the lists may name several
        run("apt-get", "download", *[_name_and_version(p.file) for p in missing], cwd=folder)
    for package in missing:
        if not _is_whole(folder / package.file, package.sha256):
            raise PackagesMissing(
                f"{package.file} came with another digest than the package lists say"
            )
    used = [folder / p.file for p in packages]
    for path in used:
        path.touch()
    _prune(folder, used)
    return used


def _prune(folder: Path, used: list[Path]) -> None:
    """Delete package files that are not `used` now beyond LIMIT, those of the oldest builds
    first."""
    total = sum(path.stat().st_size for path in used)
    others = {*folder.glob("*.deb")} - {*used}
    for path in sorted(others, key=lambda path: path.stat().st_mtime, reverse=True):
        total += path.stat().st_size
        if total > LIMIT:
            path.unlink()


def _is_whole(path: Path, sha256: str) -> bool:
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == sha256


def _name_and_version(file: str) -> str:
    name, version, _ = file.split("_")
    return f"{name}={version.replace('%3a', ':')}"


def run(*command: str, cwd: Path | None = None) -> str:
    """Run one of apt's programs and return its output. If it fails for root, apt's lists are
    updated and it is run again. Raises PackagesMissing."""
    # apt's own download user cannot write into a private folder, and would only warn about it
    options = ("-q", "-o", "APT::Sandbox::User=root") if command[0] == "apt-get" else ()
    whole = [command[0], *options, *command[1:]]
    done = subprocess.run(whole, cwd=cwd, capture_output=True, text=True)
    if done.returncode and os.getuid() == 0:  # lists that are old or were never fetched
        subprocess.run(["apt-get", "update", "-q", "-q"], capture_output=True)
        done = subprocess.run(whole, cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        raise PackagesMissing(
            f"{' '.join(command)}: {done.stderr.strip()} (as root: apt-get update)"
        )
    return done.stdout
