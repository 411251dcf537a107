"""docs/nmp says what the code does: its messages to the byte, its numbers, its states, its
reasons, its diagram."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from cod.flows.vcms import vcms
from cod.net.nmp import connection, limits, server, session
from cod.policy.nodes import inner_vcm
from cod.states import NodeState, RequestState, VclusterState
from cod.store import vcms as store
from cod.wire.nmp import frames, protocol, xml
from cod.wire.nmp.frames import Decoder, encode
from cod.wire.nmp.protocol import TRANSITIONS, VERBS, dot
from tests.manual import page

ROOT = Path(__file__).parents[2]
PAGE = page("nmp").read_text()
MESSAGES: list[str] = re.findall(r"```nmp\n(.*?)\n```", PAGE, re.DOTALL)
RNG = "{http://relaxng.org/ns/structure/1.0}"


def test_the_page_has_every_verb_and_every_code() -> None:
    for verb in VERBS:
        assert f"`{verb}`" in PAGE, verb
    modules = (frames, xml, protocol, connection, session)
    sources = "".join(Path(module.__file__ or "").read_text() for module in modules)
    for code in set(re.findall(r'Fault\(\s*"([a-z-]+)"', sources)):
        assert f"| `{code}` |" in PAGE, code


def test_the_page_s_diagram_is_the_tables() -> None:
    """After a change: `python -c 'from cod.wire.nmp.protocol import dot; print(dot())'`, and paste
    it."""
    assert dot() in PAGE
    assert len(TRANSITIONS) == len(set(TRANSITIONS))


def test_every_verb_has_a_message_on_the_page() -> None:
    assert {text.split()[1] for text in MESSAGES} == set(VERBS)


@pytest.mark.parametrize("text", MESSAGES, ids=lambda text: text.split()[1])
def test_the_page_s_messages_are_what_the_code_reads_to_the_byte(text: str) -> None:
    """Lines end in LF on the page, which is understood; the length is that of the body, and nothing
    is left over."""
    decoder = Decoder()
    (message,) = decoder.feed(text.encode())
    assert not decoder.midway
    head, _, body = text.partition("\n\n")
    assert (message.body, f"Content-Length: {len(message.body)}" in head) == (body.encode(), True)
    assert encode(message) == head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body.encode()
    said = xml.read(message)
    assert ET.canonicalize(xml.write(said).decode(), strip_text=True) == ET.canonicalize(
        body, strip_text=True
    )
    assert bool(message.sequence) == VERBS[message.verb].kept
    assert bool(message.answers) == bool(VERBS[message.verb].answers)


# ---------------------------------------------------------------- numbers


NUMBERS: list[tuple[str, float]] = [
    (r"at most ([\d,]+) bytes long \(without their end\)", frames.LONGEST_LINE),
    (r"at most ([\d,]+) headers", frames.MOST_HEADERS),
    (r"A body that a VCM sends has at most (\d+) KiB", frames.LONGEST_BODY / 1024),
    (r"KiB \((\d+) KiB before it is welcomed\)", frames.LONGEST_HELLO / 1024),
    (r"one that COD sends at most (\d+) MiB", frames.LONGEST_SENT / 2**20),
    (r"more than\s([\d,]+) messages were owed", store.MOST_UNACKNOWLEDGED),
    (r"Each side may have (\d+) questions", protocol.MOST_OPEN),
    (r"A VCM may say (\d+) messages a second", limits.RATE),
    (r"messages a second \((\d+) at once\)", limits.BURST),
    (r"`request-nodes` once a second \((\d+) at once\)", limits.COSTLY["request-nodes"][1]),
    (r"`status` once a second \((\d+) at once\)", limits.COSTLY["status"][1]),
    (r"`renew` once in ten seconds \((\d+)\s+at\s+once\)", limits.COSTLY["renew"][1]),
    (r"It may send (\d+) KiB a second", limits.BYTES[0] / 1024),
    (r"KiB a second \((\d+) KiB at once\)", limits.BYTES[1] / 1024),
    (r"A VCM with more than (\d+) faults", limits.MOST_FAULTS[1]),
    (r"may say `hello` once a second \((\d+) at once\)", limits.HELLOS[1]),
    (r"it, and (\d+) connections from one address", limits.MOST_STRANGERS),
    (r"COD sends at most (\d+) numbered messages", session.WINDOW),
    (r"more than (\d+) messages were owed and were dropped: ask", store.MOST_UNACKNOWLEDGED),
]


@pytest.mark.parametrize(("pattern", "value"), NUMBERS)
def test_the_page_s_numbers_are_those_of_the_code(pattern: str, value: float) -> None:
    found = re.search(pattern, PAGE)
    assert found, pattern
    assert float(found[1].replace(",", "")) == value


def test_what_the_page_says_in_words_is_so_too() -> None:
    assert (connection.GREETING, connection.STALLED, inner_vcm.LASTS) == (10.0, 60.0, 86400.0)
    assert "a stranger\nhas ten seconds for it" in PAGE
    assert "has to be whole\nwithin ten seconds" in PAGE
    assert "has not read for a minute" in PAGE
    assert "An invitation is good for a day" in PAGE
    assert (limits.COSTLY["status"][0], limits.COSTLY["request-nodes"][0]) == (1.0, 1.0)
    assert (limits.COSTLY["renew"][0], limits.HELLOS[0], limits.MOST_FAULTS[0]) == (0.1, 1.0, 1.0)
    assert server.SWEEP == 2.0
    assert "Told every two seconds" in PAGE


def test_the_table_of_headers_has_those_of_a_message() -> None:
    said = frames.encode(frames.Message("done", "c1", b"<done/>", "q1", 7)).decode()
    table = PAGE[PAGE.index("| Header | Stands in") : PAGE.index("The body is one XML element")]
    assert re.findall(r"^\| `([A-Z][\w-]+)`", table, re.MULTILINE) == re.findall(
        r"^([A-Z][\w-]+):", said, re.MULTILINE
    )
    later = said.replace("In-Reply-To: q1", "IN-REPLY-TO: \tq1 ").encode()
    (message,) = frames.Decoder().feed(later)
    assert (message.answers, message.sequence) == ("q1", 7)
    assert "compared without regard to case" in PAGE


def grammar(name: str) -> Any:
    """What the schema says of a value."""
    root = ET.parse(ROOT / "schema/nmp.rng").getroot()
    found = next(one for one in root.iter(f"{RNG}define") if one.get("name") == name)
    return {one.get("name"): one.text for one in found.iter(f"{RNG}param")}


def test_the_sizes_are_those_of_the_schema() -> None:
    assert grammar("sentence") == {"maxLength": "2000"}
    assert "| `reason`, `sentence` | at most 2,000 characters |" in PAGE
    assert grammar("words") == {"pattern": "[ -~]{0,200}"}
    assert "| `vcm`, `server` | at most 200 printable ASCII" in PAGE
    assert grammar("number") == {"maxInclusive": "9007199254740992"}
    assert "| numbers | 0 to 9,007,199,254,740,992 |" in PAGE
    assert grammar("der") == {"pattern": "[A-Za-z0-9+/]{40,3000}={0,2}"}
    assert "| DER in base64 | 40 to 3,000 characters, and its `=` |" in PAGE
    assert grammar("seconds") == {"pattern": r"[0-9]{1,12}(\.[0-9]{1,9})?"}
    assert "up to 12 digits, and up to 9 after a point" in PAGE
    assert {"maxInclusive": "1000000", "maxLength": "144"}.items() <= grammar(
        "request-nodes"
    ).items()
    assert "| `count` of a `wanted` | 1 to 1,000,000 |" in PAGE
    assert "| `template` | at most 144 characters:" in PAGE


# ---------------------------------------------------------------- states and reasons


def states(of: str) -> set[str]:
    """The values that the page's table of states lists of a thing."""
    found, thing = set[str](), ""
    section = PAGE.partition("## States")[2].partition("\n## ")[0]
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 5:
            thing = cells[1] or thing
            found |= set(re.findall(r"`([a-z]+)`", cells[2])) if thing == of else set()
    return found


def test_every_state_that_a_vcm_can_be_told_is_on_the_page() -> None:
    assert states("a request") == set(RequestState)
    assert states("the vcluster") == set(VclusterState) - {VclusterState.ENDED}, (
        "then nobody is connected any more"
    )
    held = {
        NodeState.TRAMPOLINE,
        NodeState.WIPE,
        NodeState.PRIME,
        NodeState.BOOT,
        NodeState.ACTIVE,
        NodeState.CAPTURE,
    }
    assert states("a node") == held | {"lost"}


def reasons() -> set[str]:
    """Every reason that the server gives for a goodbye, as literals in its code."""
    found = set[str]()
    for module in (server, session):
        for call in ast.walk(ast.parse(Path(module.__file__ or "").read_text())):
            if (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Attribute)
                and call.func.attr == "leave"
            ):
                found |= {
                    arg.value for arg in call.args if isinstance(arg, ast.Constant) and arg.value
                }
    tree = ast.walk(ast.parse(Path(vcms.__file__).read_text()))
    why = next(one for one in tree if isinstance(one, ast.FunctionDef) and one.name == "why_over")
    assert why.body[0].value.value  # type: ignore[attr-defined] # its docstring is none of them
    return found | {
        one.value
        for statement in why.body[1:]
        for one in ast.walk(statement)
        if isinstance(one, ast.Constant) and isinstance(one.value, str) and " " in one.value.strip()
    }


def test_every_reason_for_a_goodbye_is_on_the_page() -> None:
    section = " ".join(PAGE.partition("## Reasons for goodbye")[2].partition("\n## ")[0].split())
    found = reasons()
    assert len(found) >= 9
    for reason in found:
        assert reason.strip() in section, reason
