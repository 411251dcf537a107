"""What goes wrong while a node is primed, said for people."""

from __future__ import annotations


class PrimeError(Exception):
    """Note that the order cannot be carried out. The text is one sentence for the node's record.

    cause  what `wire.confd.messages.Failed` says of it
    """

    cause = ""


class OrderError(PrimeError):
    """An order that is wrong: another node would not carry it out either."""

    cause = "order"


class WayError(PrimeError):
    """A failure to serve what the order needs."""

    cause = "way"
