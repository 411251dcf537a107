"""What goes wrong while a node is primed, said for people."""

from __future__ import annotations


class PrimeError(Exception):
    """Note that the order cannot be carried out. The text is one sentence for the node's record."""
