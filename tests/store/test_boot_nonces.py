"""Nonces that BMCs hand to boots: who gets a boot's secret, and who does not."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import urlsplit

import pytest

from cod.core.nodes import boot_nonces
from cod.flows.agents import sessions
from cod.flows.boot import script
from cod.flows.nodes import power
from cod.model import Account, Binding, BootSecret, Refused, Site, ipv4
from cod.store.engine import Tx
from cod.store.nodes import bindings, nodes, secrets
from tests.store.agentlab import Lab, mac

HERE, ELSEWHERE = "10.77.1.1", "10.77.1.2"
NONCE = "ab" * 16


@pytest.fixture
def lab(tx: Tx, site: Site) -> Lab:
    """Node 1, on its way to the trampoline, needs a nonce; node 2 has an address, too."""
    rack = Account("rack", "admin", "/nowhere", boot_nonce=True)
    subnets = (*site.subnets, replace(site.subnets[0], name="other", network="10.78.0.0/16"))
    lab = Lab(tx, replace(site, accounts=(rack,), subnets=subnets))
    for number, address in ((1, HERE), (2, ELSEWHERE)):
        lab.machine(number, "trampoline", power_account="rack", home_subnet="lab")
        bind(lab, number, address)
    return lab


def bind(lab: Lab, number: int, address: str, subnet: str = "lab") -> None:
    until = lab.now + 90000
    row = Binding(ipv4(address), mac(number), "boot", None, subnet, None, "bound", until)
    bindings.add(lab.tx, [row])


def order(lab: Lab, number: int = 1, nonce: str = NONCE) -> str:
    """COD switches the node: the URI that its BMC is handed."""
    nodes.wish_power(lab.tx, lab.node(number), "cycle", lab.now)
    (task,) = power.claim(lab.tx, "s1", {"lab": 9}, lab.now, 60.0)
    uri = power.boot_uri(lab.tx, task, nonce, lab.site, lab.now)
    power.succeeded(lab.tx, task, "on", lab.now)
    return uri


def bring(lab: Lab, address: str = HERE, nonce: str = NONCE) -> None:
    script.bring(lab.tx, nonce, address, lab.site, lab.now)


def mint(lab: Lab, number: int = 1, address: str = HERE, name: str = "s") -> None:
    key = bytes(32)
    script.mint(lab.tx, mac(number), address, name, key, key, key, lab.site, lab.now)


def plan(lab: Lab, address: str = HERE) -> str:
    return script.script(lab.tx, mac(1), address, lab.site, lab.now).action


def test_the_ordered_boot_alone_gets_a_secret_until_its_agent_connects(lab: Lab) -> None:
    uri = urlsplit(order(lab))
    assert (uri.netloc, uri.path) == ("10.77.0.1:8069", f"/boot/once/{NONCE}/snponly.efi")
    assert plan(lab) == "none"
    with pytest.raises(Refused, match="node1 brought no nonce"):
        mint(lab)
    bring(lab)
    bring(lab)  # firmware asks for the file's size first
    assert plan(lab) == "trampoline"
    mint(lab)
    mint(lab)  # run once more, as nobody knew whether it was committed
    mint(lab, name="again")
    lab.open(1, "s", "mine")
    assert plan(lab) == "none"
    with pytest.raises(Refused, match="brought no nonce"):
        mint(lab, name="thief")


def test_a_nonce_is_for_one_node_at_one_address_for_a_while(lab: Lab) -> None:
    order(lab)
    with pytest.raises(Refused, match="another boot's"):
        bring(lab, ELSEWHERE)
    with pytest.raises(Refused, match="not bound"):
        bring(lab, "10.77.1.3")
    with pytest.raises(Refused, match="no such nonce"):
        bring(lab, nonce="cd" * 16)
    bring(lab)
    bind(lab, 1, "10.78.1.1", "other")  # another machine there uses the node's MAC
    with pytest.raises(Refused, match="another boot's"):
        bring(lab, "10.78.1.1")
    with pytest.raises(Refused, match="brought no nonce"):
        mint(lab, address="10.78.1.1")
    with pytest.raises(Refused, match="brought no nonce"):
        mint(lab, 2, ELSEWHERE)
    lab.now += lab.site.policy.secret_time
    with pytest.raises(Refused, match="brought no nonce"):
        mint(lab)


def test_firmware_may_boot_by_another_card(lab: Lab) -> None:
    other, address, key = mac(1, nic=1), "10.77.1.7", bytes(32)
    nodes.add_mac(lab.tx, lab.node(1).id, other)
    row = Binding(ipv4(address), other, "boot", None, "lab", None, "bound", lab.now + 900)
    bindings.add(lab.tx, [row])
    order(lab)
    bring(lab, address)
    script.mint(lab.tx, other, address, "s", key, key, key, lab.site, lab.now)
    made = BootSecret("mine", other, "session", address, key, key, key, 0.0)
    sessions.open(lab.tx, "s", made, "a", lab.site, lab.now)
    with pytest.raises(Refused, match="brought no nonce"):
        script.mint(lab.tx, other, address, "thief", key, key, key, lab.site, lab.now)


def test_a_later_order_ends_the_earlier_nonce(lab: Lab) -> None:
    order(lab)
    bring(lab)
    order(lab, nonce="cd" * 16)
    with pytest.raises(Refused, match="brought no nonce"):
        mint(lab)
    with pytest.raises(Refused, match="no such nonce"):
        bring(lab)
    bring(lab, nonce="cd" * 16)
    mint(lab)


def test_a_nonce_that_nobody_brings_expires(lab: Lab) -> None:
    order(lab)
    lab.now += boot_nonces.WAITS
    with pytest.raises(Refused, match="no such nonce"):
        bring(lab)


def test_a_nonce_proves_nothing_to_confd_and_is_not_kept_itself(lab: Lab) -> None:
    order(lab)
    bring(lab)
    (kept,) = secrets.of_mac(lab.tx, mac(1))
    assert NONCE not in repr(kept)
    assert sessions.lookup(lab.tx, kept.id, mac(1), HERE, lab.now) is None


def test_a_boot_s_secret_is_no_nonce(lab: Lab) -> None:
    order(lab)
    bring(lab)
    mint(lab, name=boot_nonces._digest("cd" * 16))
    with pytest.raises(Refused, match="no such nonce"):
        bring(lab, nonce="cd" * 16)


@pytest.mark.parametrize("state", ["new", "registering"])
def test_a_machine_that_waits_for_approval_needs_none(lab: Lab, state: str) -> None:
    lab.machine(3, state, power_account="rack", home_subnet="lab")
    bind(lab, 3, "10.77.1.9")
    assert order(lab, 3) == ""
    mint(lab, 3, "10.77.1.9")


def test_a_node_of_another_account_needs_none(lab: Lab) -> None:
    lab.machine(3, "trampoline", power_account=None, home_subnet="lab")
    bind(lab, 3, "10.77.1.9")
    assert order(lab, 3) == ""
    mint(lab, 3, "10.77.1.9")


def test_a_boot_of_a_vcluster_s_system_needs_none(lab: Lab) -> None:
    lab.machine(3, "boot", power_account="rack", home_subnet="lab")
    assert order(lab, 3) == ""


def test_a_node_is_sent_to_the_server_of_its_subnet(lab: Lab) -> None:
    far = replace(lab.site.subnets[1], server="10.78.0.1")
    lab.site = replace(lab.site, subnets=(lab.site.subnets[0], far))
    lab.machine(3, "trampoline", power_account="rack", home_subnet="renamed", subnet="other")
    assert urlsplit(order(lab, 3)).netloc == "10.78.0.1:8069"
    lab.machine(4, "trampoline", power_account="rack")
    with pytest.raises(Refused, match="the subnet in which node4 boots is not known"):
        order(lab, 4)


def test_a_subnet_that_is_the_only_one_may_be_renamed(lab: Lab) -> None:
    lab.site = replace(lab.site, subnets=lab.site.subnets[:1])
    lab.machine(3, "trampoline", power_account="rack", home_subnet="of-before")
    assert urlsplit(order(lab, 3)).netloc == "10.77.0.1:8069"
