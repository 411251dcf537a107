"""A real SSH server on loopback."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.ports import free_port
from tests.waiting import until


@contextmanager
def listening(folder: Path, host_key: str, *options: str) -> Iterator[int]:
    """Run an SSH server that shows this private key; its port. `options`: of sshd_config."""
    key, port = folder / "ssh_host_ed25519_key", free_port()
    key.write_text(host_key)
    key.chmod(0o600)
    Path("/run/sshd").mkdir(exist_ok=True)
    said = (f"Port={port}", "ListenAddress=127.0.0.1", "PidFile=none", "UsePAM=no", *options)
    with open(folder / "log", "wb") as log:
        server = subprocess.Popen(
            [
                *("/usr/sbin/sshd", "-D", "-e", "-f", "none", "-h", str(key)),
                *(word for option in said for word in ("-o", option)),
            ],
            stderr=log,
        )
        try:
            until(lambda: "listening" in (folder / "log").read_text(), "the SSH server listens")
            yield port
        finally:
            server.kill()
            server.wait()
