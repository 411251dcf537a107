"""Reasons why a notice could not be delivered, in words for its group."""

from __future__ import annotations

LONGEST = 300  # characters of what the other side said


class DeliveryError(Exception):
    """The notice was not delivered; for `lasting` and `dead` see `flows.notices.notices.failed`."""

    def __init__(self, sentence: str, *, lasting: bool = False, dead: bool = False) -> None:
        super().__init__(sentence)
        self.sentence, self.lasting, self.dead = sentence, lasting, dead


def brief(error: object) -> str:
    """Return a peer's words, or an error, as a short text without line breaks."""
    if isinstance(error, bytes):
        error = error.decode(errors="replace")
    elif isinstance(error, OSError) and error.strerror:
        error = error.strerror
    text = " ".join("".join(c if c.isprintable() else " " for c in str(error)).split())
    return text[:LONGEST] or type(error).__name__
