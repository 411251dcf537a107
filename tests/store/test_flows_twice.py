"""Each flow that a pool may run again, after a commit whose answer was lost, is run twice with
made-up arguments: the second run does nothing, or the flow is found by its key in the audit.

The flows are found in the sources: a new one fails here until it has a case (decision 0058).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from cod.flows.people.access import has_run
from cod.flows.scheduler import apply_plan
from cod.model import Effect, Refused, Result, Site
from cod.net.nmp import verbs
from cod.store import claims
from cod.store.database import connect
from cod.store.engine import Tx
from tests.repeats import contents
from tests.store import busy_site
from tests.store.agentlab import Lab
from tests.store.flow_cases import CASES, VARIABLE, name_of, uses
from tests.store.manager_world import planned

pytestmark = pytest.mark.slow

RUN = "ab" * 16
USES = list(uses())
FOUND = {use.flow for use in USES} - {""}
ONCE = {use.flow for use in USES if use.method in ("run_once", "_once") and use.flow}
KEYED = ONCE - {"vcms.vcms.spoken"} | {"vcms.certificates.renew"}
# Found by another way than their name beside a pool: see `VARIABLE`.
ELSEWHERE = {
    "images.uploads.complete",
    "vcms.certificates.renew",
    *(f"vcms.vcms.spoken {body.__name__}" for body in verbs._FLOWS),
}
READS = {
    "agents.sessions.lookup",
    "core.networks.isolation.subnets",
    "store.nodes.sessions.peers_of",
    "vcms.vcms.spoken RequestStatus",
    "vcms.vcms.spoken ParkNodes",
    "vcms.vcms.spoken MaintenanceStatus",
    "vcms.vcms.spoken Status",
}
# The claim or the connection is the caller's a second time, under a new number, which is returned.
CLAIMED_AGAIN = {
    "agents.sessions.open": "sessions",
    "images.images.fail": "claims",
    "images.images.finish": "claims",
    "scheduler.maintenance.run": "claims",
    "store.claims.hold": "claims",
    "vcms.vcms.greet": "vcms",
}
# The second run changes nothing, and returns less than the first one.
RETURN_LESS = {
    "agents.sessions.lost": "the log does not have it",
    "nodes.hold.watch": "the log does not have it",
    "images.uploads.drop": "refused; the file is removed by the next sweep",
    "images.uploads.sweep": "the files are removed as those that nobody needs",
    "nodes.consoles.typed": "the text is never typed; its author sees that on the console",
    "nodes.energy.note": "nobody looks at what it returns",
    "nodes.power.claim": "the wish is carried out when the claim has run out",
    "nodes.switches.claim": "the session is begun when the claim has run out",
    "notices.mail_choices.send_digests": "nobody looks at what it returns",
    "notices.notices.claim": "the notice is sent when the claim has run out",
    "notices.webhook_feed.gather": "nobody looks at what it returns",
    "people.directory_sync.record": "who is gone is in the audit, not in the log",
    "people.signin.attempt": "somebody who has failed before waits as after one more failure",
    "pruning.forget_machines": "the rest is deleted an hour later",
    "pruning.prune": "the rest is deleted an hour later",
    "scheduler.usage.note": "nobody looks at what it returns",
    "store.nodes.power.prune": "the rest is deleted at the next look",
    "vcms.certificates.look": "a wake-up is late",
    "volumes.exports.claim": "the change is made when the claim has run out",
    "volumes.exports.failed": "nobody looks at what it returns",
    "volumes.exports.succeeded": "the log does not have it, and a wake-up is late",
}
# What the second run changes, and why it does no harm.
CHANGE_MORE = {
    "people.signin.unverified": "one failure more is forgotten, while the directory is away",
}


@pytest.fixture(scope="module")
def database(empty_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A database that every test leaves as empty as it was."""
    path = tmp_path_factory.mktemp("twice") / "cod.db"
    shutil.copy(empty_sqlite, path)
    engine = connect(f"sqlite:///{path}")
    yield engine
    engine.dispose()


@pytest.fixture
def lab(database: Engine, site: Site) -> Iterator[Lab]:
    """A site whose database is rolled back."""
    with database.connect() as tx, tx.begin() as transaction:
        yield Lab(tx, site)
        transaction.rollback()


def told(value: Any) -> str:
    """Return what a flow returned, without its wake-ups: those that are lost are late."""
    if isinstance(value, Result):
        value = value.value
    if isinstance(value, list | tuple) and all(isinstance(each, Effect) for each in value):
        return "effects"
    return repr(value)


def second(tx: Tx, flow: Any) -> tuple[str, list[str]]:
    """Run a flow once more; return what it told, and the tables that it changed."""
    before, savepoint = contents(tx), tx.begin_nested()
    try:
        said = told(flow(tx))
    except Refused as no:
        savepoint.rollback()
        return repr(no), []
    return said, [table for table, rows in contents(tx).items() if rows != before[table]]


def test_every_flow_has_a_case() -> None:
    unknown = sorted(FOUND - CASES.keys() - {"vcms.vcms.spoken"})
    assert not unknown, (
        f"{unknown[0]} is handed to a pool, which may run it again after a commit whose answer was "
        "lost: add a case to tests/store/flow_cases.py, a function of its name with '__' for '.' "
        "that makes its world and returns the flow with arguments. If its second run is not like "
        "none at all, mend it, or give it a key by Pool.run_once (decision 0058)"
    )
    unnamed = sorted(
        {(use.file, use.text) for use in USES if not use.flow and use.file.split("/")[0] != "vcm"}
        - VARIABLE.keys()
    )
    assert not unnamed, (
        f"cod/{unnamed[0][0]} hands the variable {unnamed[0][1]} to a pool: add it to VARIABLE in "
        "tests/store/flow_cases.py with how its flows are found, and a case for each of them"
    )
    body = sorted({f"vcms.vcms.spoken {one.__name__}" for one in verbs._FLOWS} - CASES.keys())
    assert not body, f"{body[0].split()[-1]} of NMP has no case: add it to VERBS"


def test_no_case_is_left_of_a_flow_that_is_gone() -> None:
    assert CASES.keys() - FOUND - ELSEWHERE == set()
    listed = {*READS, *CLAIMED_AGAIN, *RETURN_LESS, *CHANGE_MORE}
    assert listed - CASES.keys() == set()
    assert VARIABLE.keys() - {(use.file, use.text) for use in USES} == set()


def test_what_routes_change_has_a_key() -> None:
    doors = [use for use in USES if use.file.startswith(("web/api/", "web/portal/"))]
    assert [(use.file, use.method) for use in doors] == [("web/api/calls.py", "run_once")]


@pytest.mark.parametrize("name", sorted(KEYED))
def test_a_flow_with_a_key_is_found_by_it(lab: Lab, name: str) -> None:
    flow = CASES[name](lab)
    assert not has_run(lab.tx, RUN, lab.now)
    flow(lab.tx, run=RUN)
    assert has_run(lab.tx, RUN, lab.now)


@pytest.mark.parametrize("name", sorted(CASES.keys() - KEYED))
def test_a_flow_that_runs_twice_has_done_what_it_does_once(lab: Lab, name: str) -> None:
    flow = CASES[name](lab)
    assert name_of(flow) == name or name in ELSEWHERE
    before = contents(lab.tx)
    first = told(flow(lab.tx))
    assert (contents(lab.tx) != before) == (name not in READS), "the case makes up too little"
    said, changed = second(lab.tx, flow)
    if name in CLAIMED_AGAIN:
        assert changed == [CLAIMED_AGAIN[name]]
    elif name in CHANGE_MORE:
        assert changed
    else:
        assert changed == []
        assert (said != first) == (name in RETURN_LESS), f"{first} then {said}"


def test_an_act_of_a_plan_that_runs_twice_finds_that_the_world_has_changed(
    lab: Lab,
) -> None:
    site = busy_site.ruled(lab.site)
    busy_site.build(lab.tx, site)
    claim = claims.hold(lab.tx, "manager", "a", busy_site.NOW, 10.0)
    ran = set()
    for act in planned(lab.tx, site, busy_site.NOW):
        try:
            act.flow(lab.tx, claim=claim, now=busy_site.NOW)
        except apply_plan.Stale:
            continue  # an act before it has changed its rows
        ran.add(act.name.rstrip(" 0123456789"))
        before, savepoint = contents(lab.tx), lab.tx.begin_nested()
        try:
            act.flow(lab.tx, claim=claim, now=busy_site.NOW)
        except (apply_plan.Stale, Refused):
            savepoint.rollback()
        changed = [table for table, rows in contents(lab.tx).items() if rows != before[table]]
        assert set(changed) <= {"claims"}, f"{act.name} changed {changed}"
    assert ran == set(busy_site.EVERY_KIND)
