"""Errors of priming, worded for people."""

from __future__ import annotations


class PrimeError(Exception):
    """An order that cannot be carried out. The text is one sentence for the node's record.

    cause  the cause that `wire.confd.messages.Failed` names
    """

    cause = ""


class OrderError(PrimeError):
    """An order that is wrong: another node would not carry it out either."""

    cause = "order"


class WayError(PrimeError):
    """A failure to serve what the order needs."""

    cause = "way"
