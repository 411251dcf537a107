"""The VCM of virtual hosts as a program: ``python3 -m cod.vcm.libvirt CONFIG [--dry-run]``."""

from __future__ import annotations

import sys
from importlib.metadata import version

from cod.vcm import daemon
from cod.vcm.libvirt.pool import HostPool
from cod.vcm.libvirt.settings import LibvirtSettings

if __name__ == "__main__":
    sys.exit(
        daemon.main(
            f"cod-vcm-libvirt {version('cod')}",
            lambda read: HostPool(
                read.libvirt,
                read.vcluster,
                dry_run=any(word.startswith("--d") for word in sys.argv[1:]),
            ),
            LibvirtSettings,
        )
    )
