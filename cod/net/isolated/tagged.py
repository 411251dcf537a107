"""Tagged interfaces of the server: one for each VLAN of an isolated vcluster, on the interface that
carries all VLANs.

An interface that exists already is used, whoever made it; only its address is changed. Packets that
arrive by such an interface are never forwarded, whatever the host does with other packets: two
vclusters must not reach each other through this server.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from socket import if_nameindex

from cod.model import Isolation, Subnet

ALIAS = "made by cod"  # what an interface is called that goes with its network
_SETTINGS = {
    "forwarding": 0,
    "rp_filter": 1,
    "arp_ignore": 1,
    "arp_announce": 2,
    "accept_redirects": 0,
    "send_redirects": 0,
    "proxy_arp": 0,
}


def join(subnet: Subnet) -> None:
    """Make the subnet's interface if it is missing, give it the server's address and switch it on.
    Raises OSError if the parent interface is missing, or if this server lacks the right."""
    assert subnet.interface is not None
    name = subnet.interface
    trunk, _, vlan = name.rpartition(".")
    if name not in {each for _, each in if_nameindex()}:
        _ip("link", "add", "link", trunk, "name", name, "type", "vlan", "id", vlan)
        _ip("link", "set", "dev", name, "alias", ALIAS)
    for key, value in _SETTINGS.items():
        Path(f"/proc/sys/net/ipv4/conf/{name}/{key}").write_text(str(value))
    bits = subnet.network.partition("/")[2]
    _ip("address", "replace", f"{subnet.server}/{bits}", "brd", "+", "dev", name)
    _ip("link", "set", "dev", name, "up")


def leave(rules: Isolation | None, present: Sequence[Subnet]) -> None:
    """Take down the interfaces of VLANs without a vcluster: COD's own interfaces are removed,
    others lose their address."""
    if rules is None or rules.interface is None:
        return
    kept = {subnet.interface for subnet in present}
    for _, name in if_nameindex():
        match = re.fullmatch(re.escape(rules.interface) + r"\.([0-9]{1,4})", name)
        if match and rules.vlans[0] <= int(match[1]) <= rules.vlans[1] and name not in kept:
            if Path(f"/sys/class/net/{name}/ifalias").read_text().strip() == ALIAS:
                _ip("link", "delete", "dev", name)
            else:
                _ip("address", "flush", "dev", name, "scope", "global")


def _ip(*argv: str) -> None:
    try:
        done = subprocess.run(
            ["ip", *argv], capture_output=True, text=True, check=False, timeout=30
        )
    except FileNotFoundError:
        raise OSError("the program ip is not installed: install the package iproute2") from None
    except subprocess.TimeoutExpired:
        raise OSError(f"ip {' '.join(argv)} did not end") from None
    if done.returncode:
        raise OSError(f"ip {' '.join(argv)}: {done.stderr.strip()}")
