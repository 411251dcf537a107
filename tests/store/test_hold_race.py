"""Messages of agents that are under way when the hold of their site begins."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from sqlalchemy import Engine, update

from cod.flows.nodes import hold
from cod.model import Site
from cod.pool import in_transaction
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.nodes import burnins
from tests.store.agentlab import Lab
from tests.waiting import until

pytestmark = pytest.mark.mariadb
WAITS = "SELECT COUNT(*) FROM information_schema.INNODB_LOCK_WAITS"


def waits(engine: Engine) -> bool:
    """Return whether a transaction waits for another one's lock."""
    with engine.connect() as tx:
        return bool(tx.exec_driver_sql(WAITS).scalar())


@pytest.mark.parametrize("state", ["trampoline", "wipe"])
def test_a_node_that_moves_as_a_hold_begins_is_held_in_the_trampoline(
    mariadb_engine: Engine, site: Site, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """The agent's message has found the site not held: it would have the disks written next."""
    with mariadb_engine.begin() as tx:
        lab = Lab(tx, site)
        lab.machine(1, "inactive")
        peer = lab.boots(1)
        if state == "wipe":  # it is primed for its holder next
            lab.assign(1, lab.vcluster(lab.template()))
        tx.execute(update(t.nodes).values(state=state, disk="dirty"))
        order = f"{lab.node(1).id}.{lab.node(1).generation}"
    holds = threading.Thread(target=in_transaction, args=(mariadb_engine, hold.start, lab.now))
    what_waits = burnins.what_waits

    def looked(tx: Tx, node_id: int) -> Any:
        found = what_waits(tx, node_id)
        holds.start()
        # the table is read anew for who has not asked for a tenth of a second
        until(lambda: waits(mariadb_engine) or not holds.is_alive(), every=0.2)
        return found

    monkeypatch.setattr(burnins, "what_waits", looked)
    with mariadb_engine.begin() as lab.tx:
        if state == "wipe":
            lab.done(peer, order)
        else:
            lab.report(peer)
    holds.join()
    with mariadb_engine.begin() as lab.tx:
        assert (lab.node(1).state, lab.order(1).action) == ("trampoline", "look")
