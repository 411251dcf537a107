"""The agent's command line. A module of its own, and not in the ramdisk: nobody gives options there, and loading
argparse would take longer than the rest of the agent's start."""

from __future__ import annotations

import argparse
from pathlib import Path

from trampoline.ctramp import Options


def parse(arguments: list[str] | None = None) -> Options:
    """The options as `trampoline.ctramp.main` wants them."""
    usual = Options()
    parser = argparse.ArgumentParser(prog="ctramp", description="Reports this machine to COD and obeys its orders.")
    add = parser.add_argument
    add("--confd", metavar="HOST:PORT", default="", help="the server; default: cod.confd= of the kernel")
    add("--mac", default="", help="the NIC that this machine booted from; default: cod.mac= of the kernel")
    add("--secret", type=Path, default=usual.secret, metavar="FILE", help="this boot's secret")
    add("--root", type=Path, default=usual.root, metavar="DIR", help="where proc and sys are")
    add("--disk", dest="disks", type=Path, action="append", metavar="FILE", help="act on FILE as a disk")
    add("--reboot-command", default=usual.reboot_command, metavar="CMD")
    add("--poweroff-command", default=usual.poweroff_command, metavar="CMD")
    add("--once", action="store_true", help="end with the first connection")
    given = vars(parser.parse_args(arguments))
    return Options(**{**given, "disks": tuple(given["disks"] or ())})
