"""What nodes, vclusters and images may be called. Pure."""

from __future__ import annotations

import re

from cod.model import Refused

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")  # RFC 1123, in lower case
_IMAGE = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")  # as in schema/template.rng


def check_label(name: str) -> None:
    """Raise `Refused` unless `name` can be a part of a DNS name: nodes' and vclusters' names become that."""
    if not _LABEL.fullmatch(name):
        raise Refused("invalid", f"{name!r} is no DNS label: use a-z, 0-9 and -, at most 63 of them", "name")


def check_image(name: str) -> None:
    """Raise `Refused` unless templates can name an image so."""
    if not _IMAGE.fullmatch(name):
        raise Refused("invalid", f"{name!r} is no name for an image: lower-case letters, digits, '.', '_', '-'", "name")
