"""Findings of a check, and the arguments of a check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cod.host import Interface
from cod.model import Site
from cod.site.load import Settings

PASSWORD = "put the password into its first line, and chmod 600 it"
GOOD, WARNING, BAD, UNSEEN = "good", "warning", "bad", "not seen"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check for one thing; `examine` fills in the check's name.

    state   GOOD; WARNING: works, with a drawback; BAD: does not work; UNSEEN: could not be checked
    remedy  a sentence that says what to do; '' if nothing has to be done
    """

    check: str = field(default="", kw_only=True)
    state: str
    found: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Context:
    """The arguments of every check.

    interfaces  network interfaces by name; None if they cannot be listed
    root        whether the program may see other users' processes and open raw sockets
    """

    site: Site
    settings: Settings
    interfaces: Mapping[str, Interface] | None
    now: float
    root: bool
