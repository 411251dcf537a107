"""A site whose machines are all behind a relay and a router: they boot, report, are primed and
become active."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.system.site_images import offer
from tests.system.stand import Stand, ip
from tests.waiting import until

pytestmark = [pytest.mark.system, pytest.mark.slow]

SERVER, ROUTER = "192.0.2.1", "192.0.2.2"  # the two ends of the wire between server and router
RELAY = "10.77.0.1"  # the router on the machines' network


@contextmanager
def far_server(stand: Stand) -> Iterator[None]:
    """Move the server of `stand` behind a router that relays DHCP; the stand's bridge becomes the
    router's."""
    namespace = f"{stand.namespace}s"
    ip("netns", "add", namespace)
    ip("-n", namespace, "link", "set", "lo", "up")
    ip(
        "-n",
        namespace,
        "link",
        "add",
        "up0",
        "type",
        "veth",
        "peer",
        "name",
        "srv0",
        "netns",
        stand.namespace,
    )
    for name, link, address in ((namespace, "up0", SERVER), (stand.namespace, "srv0", ROUTER)):
        ip("-n", name, "address", "add", f"{address}/30", "dev", link)
        ip("-n", name, "link", "set", link, "up")
    ip("-n", namespace, "route", "add", "default", "via", ROUTER)
    subprocess.run(
        ["ip", "netns", "exec", stand.namespace, "sysctl", "-qw", "net.ipv4.ip_forward=1"],
        check=True,
    )
    log = stand.folder / "relay.log"
    with open(log, "wb") as to:
        relay = subprocess.Popen(
            [
                "ip",
                "netns",
                "exec",
                stand.namespace,
                "dhcrelay",
                "-4",
                "-d",
                "-a",
                "-m",
                "append",
                "-iu",
                "srv0",
                "-id",
                "br0",
                "--no-pid",
                SERVER,
            ],
            stderr=to,
        )
    stand.server_namespace = namespace
    try:
        until(lambda: "Sending on   Socket" in log.read_text(), log.read_text)
        yield
    finally:
        stand.kill()
        relay.terminate()
        relay.wait(timeout=60)
        subprocess.run(["ip", "netns", "del", namespace], check=False, capture_output=True)


def test_a_machine_behind_a_relay_becomes_active(tmp_path: Path) -> None:
    with Stand(tmp_path, machines=1) as stand, far_server(stand):
        stand.write_site()
        text = stand.site_file.read_text()
        assert 'server = "10.77.0.1"\ninterface = "br0"' in text
        stand.site_file.write_text(
            text.replace(
                'server = "10.77.0.1"\ninterface = "br0"', f'server = "{SERVER}"\nrelay = "{RELAY}"'
            )
        )
        stand.serve()
        stand["m1"].on()
        stand.reaches("m1", "inactive")
        assert stand.node("m1").relay == RELAY
        offer(stand, "red")
        stand.cod("vcluster", "create", "web", "--size", "1", "--template", "red")
        stand.reaches("m1", "active")
        assert stand["m1"].running().split()[0] == "red"
