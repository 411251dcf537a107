"""Recordings of consoles: the owner of each piece, the nodes that are recorded, and when a lost
console is tried again.

A console may show secrets, such as keys at a first boot or typed passwords. So a recording is cut
whenever the node changes its holder, and each piece is named by its tenure: the vcluster that held
the node, and since when. This needs no counter, and a database that was restored from a backup
cannot give an old piece to a new holder.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from cod.choices import PowerDriverKind
from cod.model import ConsoleRules
from cod.states import NodeState

FREE = "free"

FIRST_PAUSE = 5.0  # seconds after the first failure, twice as long after each further one
LONGEST_PAUSE = 300.0
# after a failure that will last, such as a refused password: BMCs lock accounts that fail too often
REFUSED_PAUSE = 3600.0


def tenure(vcluster_id: int | None, assigned_at: float | None) -> str:
    """Return the name of the piece recorded while `vcluster_id` (None: no vcluster) holds the node
    since `assigned_at`. The name is part of a file's name."""
    return FREE if vcluster_id is None else f"v{vcluster_id}-{round((assigned_at or 0.0) * 1000)}"


def unrecorded(rules: ConsoleRules, name: str, driver: str) -> str:
    """Return why the console of the node `name` is not recorded; '' if it is."""
    if driver not in PowerDriverKind.names():
        return f"the driver {driver} has no consoles"
    if why := PowerDriverKind(driver).can.no_console:
        return why
    if not rules.record:
        return "this site records no consoles: [console] record of the site file"
    if not fnmatchcase(name, rules.match):
        return (
            f"this site records the consoles of nodes called {rules.match!r} alone: [console] match"
            " of the site file"
        )
    return ""


def untyped(rules: ConsoleRules, name: str, driver: str, state: str, *, administrator: bool) -> str:
    """Return why a user of the node cannot type on its console; '' if they can. The node's holders
    may type only while their own system runs, not to the firmware or the installer."""
    if why := unrecorded(rules, name, driver):
        return why
    if not PowerDriverKind(driver).can.type:
        return f"the consoles of the driver {driver} only listen"
    if rules.type == "nobody":
        return "nobody types on consoles here: [console] type of the site file"
    if administrator:
        return ""
    if rules.type != "holders":
        return "administrators alone type on consoles here"
    if state != NodeState.ACTIVE:
        return "only its own system can be typed to, and that does not run"
    return ""


def pause(failures: int, lasting: bool) -> float:
    """Return the seconds to wait after `failures` failures in a row; `lasting`: trying again soon
    is useless."""
    return (
        REFUSED_PAUSE if lasting else min(FIRST_PAUSE * 2 ** min(failures - 1, 10), LONGEST_PAUSE)
    )
