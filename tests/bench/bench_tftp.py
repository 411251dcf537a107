"""TFTP against tftpd-hpa (lockstep), atftpd (windows) and dnsmasq. Clients: curl and atftp, who are
the same for all.

tftpd-hpa and atftpd exclude each other as packages, so tftpd-hpa's is only unpacked, below
`build/`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.bench.arena import (
    CLIENT,
    ROOT,
    SERVER,
    Arena,
    Measure,
    Run,
    Smoke,
    alternate,
    compare,
    python,
    write,
)

SIZE = 16_000_000
MANY = 500
FETCH = True  # the peer that is not installed
PEERS = ROOT / "build" / "peers"
SMOKE = Smoke(
    rows=("tftp ",),
    sizes={"SIZE": 1_000_000, "MANY": 10, "FETCH": False},
    system=True,
    needs=("atftpd",),
)


def tftpd_hpa() -> str | None:
    """tftpd-hpa's program, unpacked before or now (an installed `in.tftpd` may be atftpd under
    another name)."""
    unpacked = PEERS / "usr" / "sbin" / "in.tftpd"
    if FETCH and not unpacked.exists():
        PEERS.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            "apt-get -q download tftpd-hpa && dpkg -x tftpd-hpa_*.deb .",
            shell=True,
            cwd=PEERS,
            check=False,
            capture_output=True,
        )
    return str(unpacked) if unpacked.exists() else None


def servers(root: Path) -> dict[str, Sequence[str | Path]]:
    """Commands of the contenders that are installed."""
    found: dict[str, Sequence[str | Path]] = {
        "cod": python("tests.bench.serve", "tftp", root, SERVER, 69)
    }
    if in_tftpd := tftpd_hpa():
        found["tftpd-hpa"] = [in_tftpd, "-L", "-4", "-a", f"{SERVER}:69", "-s", root, "-u", "root"]
    if shutil.which("atftpd"):
        found["atftpd"] = [
            "atftpd",
            "--daemon",
            "--no-fork",
            "--no-multicast",
            "--bind-address",
            SERVER,
            "--maxthread",
            "600",
            "--user",
            "root",
            "--group",
            "root",
            root,
        ]
    if shutil.which("dnsmasq"):
        found["dnsmasq"] = [
            "dnsmasq",
            "--no-daemon",
            "-C",
            "/dev/null",
            "--port=0",
            "--enable-tftp",
            f"--tftp-root={root}",
            f"--listen-address={SERVER}",
            "--bind-interfaces",
            "--user=root",
            "--tftp-max=600",
        ]
    return found


def curl(target: str | Path = "/dev/null") -> list[str | Path]:
    return ["curl", "-sf", "--tftp-blksize", "1428", "-o", target, f"tftp://{SERVER}/file"]


def atftp(target: str | Path = "/dev/null") -> list[str | Path]:
    return [
        "atftp",
        "--option",
        "blksize 1428",
        "--option",
        "windowsize 16",
        "-g",
        "-r",
        "file",
        "-l",
        target,
        SERVER,
    ]


class Bench:
    """Each round starts its server afresh: all listen on port 69 of the same address."""

    def __init__(self, arena: Arena, root: Path) -> None:
        self.arena, self.root, self.commands = arena, root, servers(root)

    def ready(self) -> bool:
        command = [
            "ip",
            "netns",
            "exec",
            self.arena.client_side,
            "curl",
            "-sf",
            "-m",
            "1",
            "-o",
            "/dev/null",
            f"tftp://{SERVER}/tiny",
        ]
        return subprocess.run(command, check=False).returncode == 0

    def round(
        self, name: str, clients: int, client: Callable[[], list[str | Path]]
    ) -> Callable[[], Run]:
        def run() -> Run:
            with self.arena.serving(self.commands[name], self.ready):
                return self.arena.measured([client() for _ in range(clients)], clients * SIZE / 1e6)

        return run

    def exact(self, client: Callable[[Path], list[str | Path]]) -> None:
        """What our server sends is the file, bit for bit."""
        target = self.root / "got"
        with self.arena.serving(self.commands["cod"], self.ready):
            self.arena.clients([client(target)])
        assert _digest(target) == _digest(self.root / "file")

    def many(self, name: str) -> Run:
        """`MANY` sessions at once, each checked; raises unless all are bit-exact and were open
        together."""
        amount = MANY * 1.0
        with self.arena.serving(self.commands[name], self.ready):
            command = python(
                "tests.bench.tftp_crowd", SERVER, MANY, "megabyte", self.root / "megabyte"
            )
            return self.arena.measured([command], amount)


def _digest(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes()).hexdigest()


def main() -> None:
    measures: list[Measure] = []
    with ExitStack() as stack:
        root = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(dir="/dev/shm", prefix="cod-bench-tftp-")
            )
        )
        root.chmod(0o755)
        (root / "file").write_bytes(os.urandom(SIZE))
        (root / "megabyte").write_bytes(os.urandom(1_000_000))
        (root / "tiny").write_bytes(b"ready")
        bench = Bench(stack.enter_context(Arena("tftp")), root)
        bench.exact(curl)
        bench.exact(atftp)
        for title, peers, clients, client, peer, goal in (
            ("lockstep, 8 clients", ("tftpd-hpa", "dnsmasq"), 8, curl, "tftpd-hpa", ">= 0.8"),
            ("windowsize 16, 4 clients", ("atftpd",), 4, atftp, "atftpd", ">= 1.1"),
        ):
            print(title, f"(MB, server at {SERVER}, clients at {CLIENT})")
            names = ["cod", *(name for name in peers if name in bench.commands)]
            results = alternate({name: bench.round(name, clients, client) for name in names})
            for name in names[1:]:
                measures += compare(
                    f"tftp {title}", "MB", results, "cod", name, goal if name == peer else ""
                )
        print(f"{MANY} sessions at once (MB)")
        results = alternate(
            {name: lambda name=name: bench.many(name) for name in ("cod", "dnsmasq")}, 3
        )
        measures += compare(
            f"tftp {MANY} sessions at once, all bit-exact", "MB", results, "cod", "dnsmasq", "all"
        )
    write("tftp", measures)


if __name__ == "__main__":
    main()
