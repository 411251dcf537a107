"""docs/confd says what the code does: its examples are valid, its formulas are run, its worked
example is true."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from cod.net.confd import connection
from cod.net.confd import server as confd_server
from cod.net.confd.server import USUAL
from cod.policy.nodes import lifecycle
from cod.wire import xmldoc
from cod.wire.confd import protocol
from cod.wire.confd.messages import _KINDS, Heartbeat, decode
from cod.wire.confd.protocol import AgentSide, Secret, ServerSide, verifier
from tests.manual import page

PAGE = page("confd").read_text()
AGENT_KEY, SERVER_KEY = b"\xcc" * 32, b"\xdd" * 32
EXAMPLES = re.findall(r"```xml\n(.*?)\n```", PAGE, re.DOTALL)
FORMULAS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
VALUES: dict[str, str] = dict(
    re.findall(r"^\| `?([^|`]+?)`? \| `([0-9a-f]{32,})` \|$", PAGE, re.MULTILINE)
)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda text: text[1:12])
def test_the_examples_are_valid(example: str) -> None:
    assert decode(xmldoc.parse(example.encode(), "confd"))


def test_every_message_has_an_example() -> None:
    assert {xmldoc.parse(example.encode(), "confd").tag for example in EXAMPLES} == set(_KINDS)


def document(tag: str) -> bytes:
    """The worked example's document of that name."""
    return next(
        text.encode() for text in EXAMPLES if text.startswith(f"<{tag} ") and len(text) > 60
    )


def run_formulas() -> dict[str, Any]:
    """Every name that the page's formulas define, from the worked example's inputs alone."""
    welcome = ET.fromstring(document("welcome"))
    names: dict[str, Any] = {
        "secret": bytes(range(32)),
        "salt": bytes(range(16)),
        "node": welcome.attrib["node"].encode(),
        "heartbeat": welcome.attrib["heartbeat"].encode(),
        "agent_private": AGENT_KEY,
        "server_public": bytes.fromhex(ET.fromstring(document("challenge")).attrib["key"]),
        **{tag: document(tag) for tag in ("hello", "challenge", "proof")},
    }
    for block in FORMULAS:
        exec(block, names)
    return names


def test_the_formulas_give_the_worked_example() -> None:
    """Byte for byte, without a line of the product's code."""
    found = run_formulas()
    assert found["agent_is_genuine"]
    assert document("proof").decode() == f'<proof value="{found["proof_value"].hex()}" />'
    assert f'proof="{found["welcome_proof"].hex()}"' in document("welcome").decode()
    assert set(VALUES) == {
        "stored_key",
        "server_key",
        "session_id",
        "session_key",
        "agent_seal",
        "server_seal",
        "agent_cipher",
        "server_cipher",
        'sealed(1, b"<heartbeat />")',
    }
    for formula, value in VALUES.items():
        made = eval(formula, found)
        assert (made if isinstance(made, str) else made.hex()) == value, formula


def test_the_code_gives_the_worked_example() -> None:
    secret = Secret("0123456789abcdef", bytes(range(32)))
    kept = verifier(secret.key, bytes(range(16)))
    agent = AgentSide(secret, "52:54:00:12:34:56", b"\xaa" * 32, AGENT_KEY)
    server = ServerSide(b"\xbb" * 32, SERVER_KEY)
    said = [agent.to_send()]
    server.receive(said[-1])
    server.known(kept)
    said.append(server.to_send())
    (new,) = agent.receive(said[-1])
    said.append(agent.to_send())
    (proved,) = server.receive(said[-1])
    server.welcome("node1", 5.0)
    said.append(server.to_send())
    agent.receive(said[-1])
    assert [frame[4:] for frame in said] == [
        document(tag) for tag in ("hello", "challenge", "proof", "welcome")
    ]
    assert isinstance(new, protocol.NewSecret)
    assert isinstance(proved, protocol.Proved)
    keys, found = agent._session, run_formulas()
    assert (kept.stored_key, kept.server_key) == (found["stored_key"], found["server_key"])
    assert (new.secret.id, new.secret.key) == (found["session_id"], found["session_key"])
    assert (proved.session, proved.verifier.salt) == (found["session_id"], found["session_salt"])
    for name in ("agent_seal", "server_seal", "agent_cipher", "server_cipher"):
        assert getattr(keys, name) == found[name]
    assert [agent.send(Heartbeat()) for _ in range(2)] == [
        found["sealed"](n, b"<heartbeat />") for n in (1, 2)
    ]
    assert server.send(Heartbeat()) == found["sealed"](
        1, b"<heartbeat />", found["server_seal"], found["server_cipher"]
    )


# ---------------------------------------------------------------- numbers


def figure(pattern: str) -> float:
    """The number at that place of the page."""
    found = re.search(pattern, PAGE)
    assert found, pattern
    return float(found[1].replace(",", "").replace(" ", ""))


def test_the_limits_are_those_of_the_code() -> None:
    assert figure(r"from connect to proof \| (\d+) s") == USUAL.proof_time
    assert figure(r"not proven \| (\d+) from one address") == USUAL.unproven_each
    assert figure(r"from one address, ([\d,]+) in all") == USUAL.unproven
    assert figure(r"connections in all \| ([\d,]+)") == USUAL.connections
    assert figure(r"awaited: (\d+) KiB") * 1024 == protocol.FIRST_LIMIT
    assert figure(r"proven itself, (\d+) MiB") * 2**20 == protocol.LIMIT
    assert f"under `{confd_server.log.name}`" in PAGE
    assert confd_server.log.name == connection.log.name
    rests = re.search(r"rests for ([\d, ]+) s before", PAGE)
    assert rests
    assert [float(one) for one in rests[1].split(", ")] == [lifecycle.rest(n) for n in range(1, 5)]


FAULTS = [  # in the order in which they are refused, each with what the refusal says
    (b" " * (protocol.LIMIT + 1), "at most"),
    (b"<ack>\0</ack>", "not UTF-8"),
    (b"<!DOCTYPE a><a/>", "document type"),
    (b'<?xml version="1.0" encoding="latin-1"?><a/>', "encoding"),
    (b"<a>" * 300 + b"</a>" * 300, "not well-formed"),
    (b"<a/>", "a"),
]


@pytest.mark.parametrize("place", range(len(FAULTS)))
def test_documents_are_refused_in_the_page_s_order(place: int) -> None:
    """A document with this fault and all that follow is refused for this one."""
    fault, says = FAULTS[place]
    later = b"".join(text for text, _ in FAULTS[place + 1 :])
    # an encoding is declared at the very beginning
    document = fault if place == 3 else fault + later
    with pytest.raises(xmldoc.BadDocument) as refused:
        xmldoc.parse(document, "confd")
    assert says in refused.value.reason
