"""The base of all errors of a peer: a message that cannot be understood, or that is not allowed."""

from __future__ import annotations


class PeerError(Exception):
    """The other side of a connection erred. A rule that says no is `cod.model.Refused`."""
