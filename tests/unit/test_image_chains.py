"""Who is to ask whom for an image."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from cod.model import ImageReceiver
from cod.orders import ChunkSource, ImageSource, Order, PassOn
from cod.policy.image_chains import ABOVE, CHAIN, chains
from cod.wire import chunktoken, xmldoc
from cod.wire.confd.messages import decode, encode
from cod.wire.errors import PeerError


def node(number: int, **more: object) -> ImageReceiver:
    made = ImageReceiver(number, 7, f"n{number}", 1, "boot", f"10.0.0.{number}", True, "")
    return made._replace(**more)


def names(receivers: list[ImageReceiver]) -> dict[str, list[str]]:
    found = chains(receivers)
    return {each.name: [one.name for one in found[each.node_id]] for each in receivers}


def test_each_asks_the_ones_before_it_the_nearest_first() -> None:
    assert names([node(number) for number in (4, 1, 3, 2, 9)]) == {
        "n4": [],
        "n1": ["n4"],
        "n3": ["n1", "n4"],
        "n2": ["n3", "n1", "n4"],
        "n9": ["n2", "n3", "n1"],
    }


def test_nodes_of_other_subnets_and_templates_are_not_asked() -> None:
    others = [node(1), node(2, subnet="far"), node(3, template_id=2), node(4)]
    assert names(others) == {"n1": [], "n2": [], "n3": [], "n4": ["n1"]}


def test_nodes_that_erase_first_ask_each_other_and_then_those_that_write() -> None:
    others = [
        node(1),
        node(2, clean=False, phase="wipe"),
        node(3, clean=False, phase="write"),
        node(4, phase="pass on"),
        node(5, clean=False),
        node(6),
        node(7, clean=False),
    ]
    assert names(others) == {
        "n1": [],
        "n2": ["n1"],
        "n3": ["n1"],
        "n4": ["n3", "n1"],
        "n5": ["n2", "n3", "n1"],
        "n6": ["n3", "n1"],
        "n7": ["n5", "n2", "n6"],
    }


def test_new_machines_that_are_installed_together_ask_each_other() -> None:
    found = chains([node(number, clean=False) for number in range(CHAIN)])
    assert [node_id for node_id, above in found.items() if not above] == [0]


def test_the_server_sends_an_image_to_one_node_of_each_chain() -> None:
    many = [node(number) for number in range(2 * CHAIN + 1)]
    found = chains(many)
    heads = [each.node_id for each in many if not found[each.node_id]]
    assert heads == [0, CHAIN, 2 * CHAIN]
    assert max(map(len, found.values())) == ABOVE


# ---------------------------------------------------------------- what travels

ORDER = Order(
    "1.7",
    "prime",
    images=(
        ImageSource(
            "disk",
            "http://10.0.0.1:8069/images/ab",
            "chunks",
            "ab" * 32,
            1 << 20,
            sources=(ChunkSource("http://10.0.0.2:8074", "123.ff", "n2"),),
        ),
    ),
    pass_on=PassOn(8074, "cd" * 32, 125_000_000, 60, 1.7e9),
)


def test_an_order_says_whom_to_ask_and_how_to_pass_on() -> None:
    document = encode(ORDER)
    assert decode(xmldoc.parse(document, "confd")) == ORDER
    assert "123.ff" not in repr(ORDER)
    assert "cd" * 32 not in repr(ORDER)


def test_an_order_without_them_is_what_it_was() -> None:
    plain = replace(
        ORDER, pass_on=None, images=tuple(replace(each, sources=()) for each in ORDER.images)
    )
    [image] = ElementTree.fromstring(encode(plain))
    assert (image.tag, len(image)) == ("image", 0)


def test_a_token_is_of_a_key_a_digest_an_address_and_a_time() -> None:
    key, digest, address = "ab" * 32, "cd" * 32, "10.0.0.7"
    token = chunktoken.token(key, digest, address, 100)
    assert chunktoken.allows(token, key, digest, address, 99.0)
    assert not chunktoken.allows(token, key, digest, address, 100.0)
    assert not chunktoken.allows(token, "ba" * 32, digest, address, 99.0)
    assert not chunktoken.allows(token, key, "dc" * 32, address, 99.0)
    assert not chunktoken.allows(token, key, digest, "10.0.0.70", 99.0)
    for made_up in ("", ".", "200", token.replace("100.", "200."), "\u0661.x", "1" * 99 + ".x"):
        assert not chunktoken.allows(made_up, key, digest, address, 99.0)


@pytest.mark.parametrize("key", ["", "cd"])
def test_a_key_has_32_bytes(key: str) -> None:
    assert ORDER.pass_on
    broken = replace(ORDER, pass_on=replace(ORDER.pass_on, key=key))
    with pytest.raises(PeerError):
        xmldoc.parse(encode(broken), "confd")
