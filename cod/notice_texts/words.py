"""The text of a notice, and the words and links that several notices share."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TypedDict
from urllib.parse import quote

from cod.model import Vcluster
from cod.quantity import counted, first_few

LONGEST_SUBJECT = 200
MOST_NAMES = 20  # nodes that a sentence names


class NoticeText(TypedDict):
    """A notice without its recipient; names as in `model.Notice`."""

    kind: str
    subject: str
    about: str
    link: str


def notice(kind: str, subject: str, about: str, link: str = "") -> NoticeText:
    """Return a notice, with its subject cut to `LONGEST_SUBJECT`."""
    return NoticeText(kind=kind, subject=subject[:LONGEST_SUBJECT], about=about, link=link)


def page(*parts: str) -> str:
    """Return the path of a page of the portal."""
    return "".join(f"/{quote(part, safe='')}" for part in parts)


def fault_page(what: str) -> str:
    """Return the path of the portal's page of faults, with the fault of that name as its
    fragment."""
    return f"/faults#{quote(what.replace(' ', '-'), safe='')}"


def cluster_page(vcluster: Vcluster, form: str = "") -> str:
    """Return the path of the vcluster's page in the portal, with that form as its fragment."""
    return page("vclusters", vcluster.name) + (f"#{form}" if form else "")


def moment(at: float | None) -> str:
    """Return a time in the form of notices, in UTC."""
    return (
        "at a time not set yet"
        if at is None
        else f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"
    )


def node_count(count: int) -> str:
    """Return '1 node', '2 nodes'."""
    return counted(count, "node")


def node_names(nodes: Sequence[str]) -> str:
    """Return the names of nodes, at most `MOST_NAMES` of them."""
    return first_few(nodes, MOST_NAMES)


def sentence(text: str) -> str:
    """Return the text with a full stop."""
    return text if text.endswith((".", "!", "?")) else text + "."
