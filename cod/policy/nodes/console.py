"""The owner of a stretch of a console, the nodes whose consoles are followed, and the time at which
a lost console is tried again.

A console may show anything: keys at a first boot, passwords that somebody types. So what is
recorded is cut where a node changes hands, and each stretch is called by its tenure: which vcluster
held the node, and since when. Nobody has to keep a counter for that, and a database that was
restored from a backup does not give an old stretch to a new holder.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from cod.choices import PowerDriverKind
from cod.model import ConsoleRules
from cod.states import NodeState

FREE = "free"

FIRST_PAUSE = 5.0  # seconds after the first failure, twice as long after each further one
LONGEST_PAUSE = 300.0
# after what trying again cannot mend: BMCs lock accounts that fail too often
REFUSED_PAUSE = 3600.0


def tenure(vcluster_id: int | None, assigned_at: float | None) -> str:
    """Return the name of a stretch that was recorded while `vcluster_id` (None: no vcluster) held
    the node since `assigned_at`: part of a file's name."""
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
    """Return why somebody who may use the node cannot type on its console; '' if they can. Holders
    type while the node's own system runs: before that the firmware and the installer listen."""
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
    """Return seconds to wait after the failure number `failures` in a row; `lasting`: trying again
    is useless."""
    return (
        REFUSED_PAUSE if lasting else min(FIRST_PAUSE * 2 ** min(failures - 1, 10), LONGEST_PAUSE)
    )
