"""A node's console as it is shown: read from the files, made text. Who may read what of it, the flow has decided."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from cod import consolefiles
from cod.flows.nodes.consoles import Readable
from cod.web.bodies import ConsoleReply
from cod.wire import terminal


def shown(folder: Path | None, found: Readable, since: int | None, most: int) -> ConsoleReply:
    """At most `most` bytes of it, from the byte `since` on or the last of it. `folder`: where consoles are kept."""
    piece = consolefiles.Piece(0, b"", 0, 0, 0, None)
    if folder is not None:
        piece = consolefiles.read(folder, found.node_id, found.tenure, since, most)
    cut = terminal.from_line(piece.data) if since is None and piece.start > piece.first else 0
    data = piece.data[cut:]
    whole = terminal.whole(data)
    state, about = _state(folder, found)
    return ConsoleReply(node=found.node, state=state, about=about, first=piece.first, start=piece.start + cut,
                        end=piece.stop - len(data) + whole, at=piece.at, text=terminal.plain(data[:whole]))


def _state(folder: Path | None, found: Readable) -> tuple[Literal["recording", "lost", "off"], str]:
    """How its recording goes. Why it does not is told to administrators alone: it may name what only they know."""
    if found.about:
        return "off", found.about
    if not found.server:
        return "lost", "no server records consoles now"
    noted = None if folder is None else consolefiles.noted(folder, found.node_id)
    if noted is None:
        return "lost", f"nothing was heard of it yet on this server; consoles are recorded by {found.server}"
    if noted.state == "recording":
        return "recording", ""
    return "lost", noted.about if found.tenure is None else "it cannot be followed now"
