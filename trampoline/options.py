"""The agent's command line. It is a module of its own, and not in the ramdisk: no options are given
there, and loading argparse would take longer than the rest of the agent's start."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def parse(arguments: list[str] | None = None) -> dict[str, Any]:
    """Return the options that were given, by the names of `trampoline.ctramp.Options`."""
    parser = argparse.ArgumentParser(
        prog="ctramp",
        description="Reports this machine to COD and obeys its orders.",
        argument_default=argparse.SUPPRESS,
    )
    add = parser.add_argument
    add(
        "--confd",
        metavar="HOST:PORT,...",
        help="the servers; default: cod.confd= of the kernel",
    )
    add("--mac", help="the NIC that this machine booted from; default: cod.mac= of the kernel")
    add("--secret", type=Path, metavar="FILE", help="this boot's secret")
    add("--root", type=Path, metavar="DIR", help="where proc and sys are")
    add(
        "--disk",
        dest="disks",
        type=Path,
        action="append",
        metavar="FILE",
        help="act on FILE as a disk",
    )
    add("--reboot-command", metavar="CMD")
    add("--poweroff-command", metavar="CMD")
    add("--memory", type=int, metavar="BYTES", help="keep chunks of images for others in so much")
    add("--once", action="store_true", help="end with the first connection")
    given = vars(parser.parse_args(arguments))
    return given | ({"disks": tuple(given["disks"])} if "disks" in given else {})
