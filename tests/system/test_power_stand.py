"""Whole sites whose machines are switched by BMCs and by magic packets: real server, real agent,
stand-in machines."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cod.store.nodes import nodes
from tests.system.bmcs import IpmiSim
from tests.system.site_images import offer
from tests.system.stand import Host, Stand

pytestmark = [pytest.mark.system, pytest.mark.in_turn(2), pytest.mark.slow]

LISTENER = """
import socket, sys
mac = bytes.fromhex(sys.argv[1].replace(":", ""))
card = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
print("listening", flush=True)
while True:
    if b"\\xff" * 6 + mac * 16 in card.recv(2000):
        print("woken", flush=True)
"""


def switched_by(stand: Stand, driver: str, address: str, account: str | None = None) -> None:
    """Before the server starts: m1 is switched so."""
    stand.write_site()
    with stand.engine.begin() as tx:
        node = nodes.by_name(tx, "m1")
        assert node is not None
        nodes.change(tx, node, power_driver=driver, power_address=address, power_account=account)


@contextmanager
def sleeping_card(host: Host) -> Iterator[None]:
    """The machine's network card, which has power when the machine has not: a magic packet switches
    the machine on."""
    argv = ["ip", "netns", "exec", host.namespace, sys.executable, "-S", "-c", LISTENER, host.mac]
    card = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert card.stdout is not None
    assert card.stdout.readline() == "listening\n"

    def listen() -> None:
        assert card.stdout is not None
        for _line in card.stdout:
            host.on()

    thread = threading.Thread(target=listen)
    thread.start()
    try:
        yield
    finally:
        card.kill()
        card.wait()
        thread.join()


def test_a_node_is_seized_through_its_bmc_though_that_was_away(
    tmp_path: Path, short_folder: Path
) -> None:
    with Stand(tmp_path, machines=1) as stand:
        bmc = IpmiSim(short_folder / "bmc", stand.socket_folder / "switches", "m1")
        password = short_folder / "password"
        password.touch(0o600)
        password.write_text("secret\n")
        switched_by(stand, "ipmi", bmc.address, "rack")
        with open(stand.site_file, "a") as site:
            site.write(
                f'[[account]]\nname = "rack"\nuser = "admin"\npassword_file = "{password}"\n'
            )
        with bmc.run(stand.namespace):
            stand.serve()
            stand.cod("node", "power", "on", "m1")
            stand.reaches("m1", "inactive")
            assert bmc.boot() == "pxe"
            offer(stand, "red")
            stand.cod("vcluster", "create", "web", "--size", "1", "--template", "red")
            stand.reaches("m1", "active")
            stand.wait(lambda: "red" in stand["m1"].running(), what="its system runs")
        stand.cod("vcluster", "delete", "web")
        stand.reaches("m1", "trampoline")
        stand.wait(lambda: "the BMC does not answer" in (stand.folder / "server.log").read_text())
        assert "red" in stand["m1"].running()
        with bmc.run(stand.namespace):
            stand.reaches("m1", "inactive")
            assert stand.node("m1").disk == "clean"
            assert stand.node("m1").power == "on"

            password.write_text("wrong-word\n")
            stand.cod("node", "power", "cycle", "m1")
            stand.wait(lambda: stand.node("m1").reason == "power: the BMC refuses the password")
            password.write_text("secret\n")
            stand.cod("node", "power", "soft", "m1")
            stand.wait(lambda: not stand["m1"].is_on, 180, "the machine has gone off")
            stand.wait(lambda: stand.node("m1").power == "off", 180, "and that is known")
        shown = (stand.folder / "server.log").read_text() + str(stand.cod("node", "show", "m1"))
        assert "wrong-word" not in shown
        assert "'rack'" in shown


def test_a_node_that_sleeps_is_woken_by_a_packet_and_one_that_runs_is_left_to_an_operator(
    tmp_path: Path,
) -> None:
    with Stand(tmp_path, machines=1) as stand:
        switched_by(stand, "wol", f"{stand['m1'].mac}@10.77.255.255")
        with sleeping_card(stand["m1"]):
            stand.serve()
            stand.cod("node", "power", "on", "m1")
            stand.reaches("m1", "inactive")
            stand.cod("node", "power", "off", "m1")
            stand.wait(lambda: not stand["m1"].is_on, 180, "its agent has switched it off")
            assert (stand.node("m1").state, stand.node("m1").reason) == ("off", "")
            offer(stand, "red")
            stand.cod("vcluster", "create", "web", "--size", "1", "--template", "red")
            stand.reaches("m1", "active")
            stand.wait(lambda: "red" in stand["m1"].running(), what="its system runs")
            stand.cod("vcluster", "delete", "web")
            stand.wait(lambda: "needs an operator" in stand.node("m1").reason)
            assert "red" in stand["m1"].running()
            stand["m1"].reset()  # the operator
            stand.reaches("m1", "inactive")
            assert (stand.node("m1").disk, stand.node("m1").reason) == ("clean", "")
