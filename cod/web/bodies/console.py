"""What is said of a node's console."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cod.web.bodies.base import Query, Reply


class ConsoleQuery(Query):
    """Which part of a console."""

    bytes: int = Field(default=2**16, ge=2**10, le=2**22, description="bytes of it at most, as it was sent: the last, "
                       "or with `since` the next ones")
    since: int | None = Field(default=None, ge=0, le=2**53, description="from that byte on: the `end` of the answer "
                              "before")
    format: Literal["json", "text"] | None = Field(default=None, description="text: the text alone")


class ConsoleReply(Reply):
    """What a node wrote on its serial console, as text: without what a terminal would obey. Of those who hold it now,
    what was recorded since they got it; for administrators, all that is kept.

    Bytes are counted as they were sent, from the first that was ever recorded of the node. `first`: of the oldest that
    is kept; `start`, `end`: of the first in `text`, and after the last. `at`: when the last came. `about`: why nothing
    is being recorded, where `state` is not 'recording'.
    """

    node: str
    state: Literal["recording", "lost", "off"]
    about: str
    first: int
    start: int
    end: int
    at: float | None
    text: str

    def as_text(self) -> str:
        """The text alone."""
        return self.text
