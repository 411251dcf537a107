"""A node's console for the API: read from the files, and made text. The flow has decided who may
read how much of it."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Literal

from pydantic import Field

from cod import consolefiles
from cod.flows.nodes.consoles import Readable
from cod.web.api.models import Body, Query, Reply
from cod.wire import terminal


class ConsoleQuery(Query):
    """Selection of a part of a console."""

    bytes: int = Field(
        default=2**16,
        ge=2**10,
        le=2**22,
        description="bytes of it at most, as it was sent: the last, or with `since` the next ones",
    )
    since: int | None = Field(
        default=None,
        ge=0,
        le=2**53,
        description="from that byte on: the `end` of the answer before",
    )
    raw: bool = Field(
        default=False, description="the bytes as they came, in `data`, instead of their text"
    )
    format: Literal["json", "text"] | None = Field(default=None, description="text: the text alone")


class ConsoleTyped(Body):
    """Text to type on a console, with the ends of its lines, or with keys as terminals send them
    (\\u0003: Ctrl-C)."""

    typed: str = Field(
        min_length=1, max_length=1000, description="an end of line is the Enter key; never shown"
    )


class ConsoleTypedReply(Reply):
    """Text that was accepted for a node's console. It is typed within seconds, or never. `bytes`:
    its length."""

    node: str
    bytes: int


class ConsoleReply(Reply):
    """Output of a node on its serial console, as text without the sequences that a terminal would
    obey. Holders get the output since they got the node; administrators get all that is kept.

    Bytes are counted as they were sent, from the first byte that was ever recorded of the node.
    `first`: the oldest byte that is kept; `start`: the first byte in `text`; `end`: the byte after
    the last in `text`. `at`: when the last byte came. `about`: why nothing is being recorded, if
    `state` is not 'recording'. `untyped`: why people who may use the node cannot type; '' if they
    can. `data`: with `raw`, the bytes in base64, with the sequences that a terminal would obey.
    """

    node: str
    state: Literal["recording", "lost", "off"]
    about: str
    first: int
    start: int
    end: int
    at: float | None
    untyped: str
    text: str
    data: str | None = None

    def as_text(self) -> str:
        """Return the text alone."""
        return self.text


def console_reply(
    folder: Path | None, found: Readable, since: int | None, most: int, *, raw: bool = False
) -> ConsoleReply:
    """Return at most `most` bytes of a console, from the byte `since` on; with None, the last ones.
    `folder` is where consoles are kept. With `raw` the reply has the bytes as they came, and no
    text."""
    piece = consolefiles.Piece(0, b"", 0, 0, 0, None)
    if folder is not None:
        piece = consolefiles.read(folder, found.node_id, found.tenure, since, most)
    cut = terminal.from_line(piece.data) if since is None and piece.start > piece.first else 0
    data = piece.data[cut:]
    whole = len(data) if raw else terminal.whole(data)
    state, about = _state(folder, found)
    return ConsoleReply(
        node=found.node,
        state=state,
        about=about,
        first=piece.first,
        start=piece.start + cut,
        end=piece.stop - len(data) + whole,
        at=piece.at,
        untyped=found.untyped,
        text="" if raw else terminal.plain(data[:whole]),
        data=base64.b64encode(data).decode() if raw else None,
    )


def _state(folder: Path | None, found: Readable) -> tuple[Literal["recording", "lost", "off"], str]:
    """Return how the recording goes, and why if it does not. Only administrators are told why,
    because the reason may name things that only they know."""
    if found.about:
        return "off", found.about
    if not found.server:
        return "lost", "no server records consoles now"
    noted = None if folder is None else consolefiles.noted(folder, found.node_id)
    if noted is None:
        return (
            "lost",
            f"nothing was heard of it yet on this server; consoles are recorded by {found.server}",
        )
    if noted.state == "recording":
        return "recording", ""
    return "lost", noted.about if found.tenure is None else "it cannot be followed now"
