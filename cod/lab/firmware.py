"""A stand-in for the firmware of a machine that begins with a snapshot, run in a network namespace
with the machine's MAC: ``python -m cod.lab.firmware``.

The stand-in sends all requests of a network boot before the trampoline's first packet: DHCP as the
firmware and as iPXE, and the fetches of the boot script, the kernel, the ramdisk and the secret. It
prints JSON: `system`, the key of the fetched files, and `secret`; or nothing, if the server has the
machine boot another system than the trampoline.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import uuid
from pathlib import Path

from cod.lab import snapshots
from cod.lab.standin import StandIn


def boot(stand_in: StandIn) -> dict[str, str]:
    """Return `system` and `secret` of one boot; {} if another system than the trampoline is
    booted."""
    script = stand_in.script(stand_in.dhcp(stand_in.options))
    kernel = re.search(r"^kernel (\S+) (.*)$", script, re.M)
    ramdisks = re.findall(r"^initrd .*?(http://\S+)", script, re.M)
    if kernel is None or not ramdisks or not ramdisks[-1].endswith("/secret.cpio"):
        return {}
    files = [hashlib.sha256(stand_in.fetch(url)).hexdigest() for url in (kernel[1], *ramdisks[:-1])]
    return {
        "system": snapshots.system_key(kernel[2], files),
        "secret": stand_in.secret(script).decode().strip(),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--mac", required=True)
    parser.add_argument("--arch", type=int, default=0)
    parser.add_argument("--uuid", type=uuid.UUID, required=True)
    options = parser.parse_args()
    stand_in = StandIn(options.folder, options.mac, options.arch)
    stand_in.options += ["-x", f"0x61:00{options.uuid.bytes_le.hex()}"]
    stand_in.say = lambda line: print(line, file=sys.stderr)  # type: ignore[method-assign]
    print(json.dumps(boot(stand_in)))


if __name__ == "__main__":
    main()
