"""The base of all errors of a peer: what it has sent cannot be understood, or may not be said."""

from __future__ import annotations


class PeerError(Exception):
    """The other side of a connection erred. A rule that says no is `cod.model.Refused`."""
