"""docs/confd.md says what the code does: its examples are valid, and its worked example comes out of the machines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cod.wire import confd, xmldoc
from cod.wire.confd import AgentSide, Secret, ServerSide, verifier
from cod.wire.confdxml import _DECODERS, Heartbeat, decode

PAGE = (Path(__file__).parents[2] / "docs" / "confd.md").read_text()
EXAMPLES = re.findall(r"```xml\n(.*?)\n```", PAGE, re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda text: text[1:12])
def test_the_examples_are_valid(example: str) -> None:
    assert decode(xmldoc.parse(example.encode(), "confd"))


def test_every_message_has_an_example() -> None:
    assert {xmldoc.parse(example.encode(), "confd").tag for example in EXAMPLES} == set(_DECODERS)


def test_the_worked_example_is_true() -> None:
    secret = Secret("0123456789abcdef", bytes(range(32)))
    kept = verifier(secret.key, bytes(range(16)))
    agent = AgentSide(secret, "52:54:00:12:34:56", b"\xaa" * 32)
    server = ServerSide(b"\xbb" * 32)
    said = [agent.to_send()]
    server.receive(said[-1])
    server.known(kept)
    said.append(server.to_send())
    (new,) = agent.receive(said[-1])
    said.append(agent.to_send())
    server.receive(said[-1])
    server.welcome("node1", 5.0)
    said.append(server.to_send())
    agent.receive(said[-1])
    assert isinstance(new, confd.NewSecret)
    keys = agent._session
    values = [kept.stored_key, kept.server_key, new.secret.key, keys.agent_seal, keys.server_seal,
              agent.send(Heartbeat())]
    for text in [*(frame[4:].decode() for frame in said), new.secret.id, *(value.hex() for value in values)]:
        assert text in PAGE
