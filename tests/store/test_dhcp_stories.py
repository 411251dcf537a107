"""Systems of held nodes ask DHCP: what the database has forgotten keeps its address."""

from __future__ import annotations

from cod.core.nodes import transitions
from cod.core.nodes.stories import by_agent
from cod.flows.boot.dhcp import MOST_LEFT
from cod.flows.nodes import hold
from cod.model import Site, dotted, ipv4
from cod.states import NodeEvent
from cod.store import stories, vcms
from cod.store.engine import Tx
from cod.store.nodes import bindings, dns_names, metadata
from tests.store.test_dhcp_flow import MAC, NOW, ask, dora, held_node, node_of, one, os_asks


def verdict(tx: Tx) -> tuple[str, str]:
    [(_, story)] = hold.show(tx).nodes
    return story.verdict, story.said


def forgotten(tx: Tx, site: Site) -> str:
    """Hold the site with a node in the trampoline whose system still has an address; return it."""
    own = held_node(tx, site, state="active")
    os_asks(tx, site, NOW, requested=own)
    transitions.move(tx, node_of(tx), NodeEvent.RELEASED, now=NOW, cause="t", actor="t")
    bindings.release(tx, node_of(tx).id, NOW)
    bindings.returned(tx, node_of(tx).id)
    hold.start(tx, NOW)
    return own


def test_a_forgotten_system_keeps_its_address_and_holds_its_node(tx: Tx, site: Site) -> None:
    own = forgotten(tx, site)
    answer = os_asks(tx, site, NOW + 100, ciaddr=own)
    assert answer is not None
    assert (answer.kind, answer.yiaddr) == ("ACK", own)
    assert verdict(tx) == ("differs", f"a system runs on it with the address {own}")
    assert node_of(tx).state == "trampoline", "a packet moves nothing"
    again = os_asks(tx, site, NOW + 200, ciaddr=own)
    assert again is not None
    assert again.kind == "ACK"
    assert own_state(tx, own) == "left"


def own_state(tx: Tx, address: str) -> str:
    found = bindings.ROWS.get(tx, ipv4(address))
    assert found is not None
    return found.state


def test_a_forgotten_system_gets_no_address_of_another(tx: Tx, site: Site) -> None:
    own = forgotten(tx, site)
    os_asks(tx, site, NOW + 100, ciaddr=own)
    other = bindings.ROWS.get(tx, ipv4(own))
    assert other is not None
    bindings.ROWS.set(tx, other.address, state="bound", mac="52:54:00:00:00:99")
    assert os_asks(tx, site, NOW + 200, ciaddr=own) is None
    assert os_asks(tx, site, NOW + 200, ciaddr="10.77.1.9") is None, "of a boot pool"


def test_one_held_node_keeps_a_few_addresses_at_most(tx: Tx, site: Site) -> None:
    own = forgotten(tx, site)
    said = [os_asks(tx, site, NOW + 100, ciaddr=dotted(ipv4(own) + n)) for n in range(20)]
    assert sum(answer is not None for answer in said) == MOST_LEFT
    assert bindings.left(tx, node_of(tx).id) == MOST_LEFT
    again = os_asks(tx, site, NOW + 200, ciaddr=own)
    assert again is not None, "the one that it has is renewed"
    later = NOW + 201 + site.policy.binding_time
    again = os_asks(tx, site, later, ciaddr=own)
    assert again is not None, "and so it is once it is over"
    assert again.kind == "ACK"
    assert os_asks(tx, site, later, ciaddr=dotted(ipv4(own) + 19)) is None


def test_an_agent_that_looks_frees_what_its_system_kept(tx: Tx, site: Site) -> None:
    own = forgotten(tx, site)
    os_asks(tx, site, NOW + 100, ciaddr=own)
    assert bindings.left(tx, node_of(tx).id) == 1
    by_agent(tx, node_of(tx), "other", site, NOW + 200)
    assert node_of(tx).state == "quarantined"
    assert bindings.left(tx, node_of(tx).id) == 0


def test_a_running_system_of_another_holder_keeps_its_address(tx: Tx, site: Site) -> None:
    own = held_node(tx, site, state="active")
    theirs = dotted(ipv4(own) + 7)
    hold.start(tx, NOW)
    answer = os_asks(tx, site, NOW + 100, ciaddr=theirs)
    assert answer is not None
    assert (answer.kind, answer.yiaddr) == ("ACK", theirs)
    assert verdict(tx) == ("differs", f"a system runs on it with the address {theirs}")
    starts = os_asks(tx, site, NOW + 200, requested=theirs)
    assert starts is not None
    assert starts.kind == "NAK", "a system that starts asks anew"


def test_a_system_in_doubt_moves_no_name_of_its_node(tx: Tx, site: Site) -> None:
    """Anybody can ask in a machine's name for an address near its own."""
    own = held_node(tx, site, state="active")
    node = node_of(tx)
    assert node.vcluster_id is not None
    hold.start(tx, NOW)
    for far in (-1, 1):
        assert os_asks(tx, site, NOW + 100, ciaddr=dotted(ipv4(own) + far)) is not None
    assert [one.address for one in dns_names.of_vcluster(tx, node.vcluster_id).values()] == [
        ipv4(own)
    ]
    assert len(dns_names.named_between(tx, ipv4(own) - 1, ipv4(own) + 1)) == 1
    assert [address for _, address, _ in metadata.peers(tx, node.vcluster_id)] == [ipv4(own)]
    assert vcms.addresses(tx, [node.id]) == {node.id: own}


def test_a_packet_does_not_outweigh_what_an_agent_said(tx: Tx, site: Site) -> None:
    own = forgotten(tx, site)
    [(node, _)] = hold.show(tx).nodes
    stories.ROWS.set(tx, node.id, verdict="agrees", source="agent")
    answer = os_asks(tx, site, NOW + 100, ciaddr=own)
    assert answer is not None
    assert answer.kind == "NAK", "as on a site that is not held"
    assert verdict(tx)[0] == "agrees"


def test_a_held_node_whose_system_starts_is_not_power_cycled(tx: Tx, site: Site) -> None:
    forgotten(tx, site)
    assert one(tx, ask("DISCOVER", MAC, 78, "os"), site, NOW + 5000) is None
    assert (node_of(tx).state, node_of(tx).power_wanted) == ("trampoline", None)


def test_a_system_that_renews_its_own_address_agrees(tx: Tx, site: Site) -> None:
    own = held_node(tx, site, state="active")
    os_asks(tx, site, NOW, requested=own)
    hold.start(tx, NOW)
    assert verdict(tx) == ("silent", "")
    os_asks(tx, site, NOW + 100, ciaddr=own)
    assert verdict(tx) == ("agrees", f"its system uses its address {own}")
    assert hold.end(tx, NOW + 200).nodes == ()


def test_a_system_that_takes_the_address_it_is_offered_says_nothing(tx: Tx, site: Site) -> None:
    """A forgotten system that boots anew without a lease is offered its node's address as well."""
    own = held_node(tx, site, state="active")
    hold.start(tx, NOW)
    assert dora(tx, site, stage="os", now=NOW + 50) == own
    assert verdict(tx) == ("silent", "")
