"""Many rows are inserted and changed at once, by values that go to the driver as they are."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, event, exc, select, update

from cod.states import NodeState
from cod.store import tables as t
from cod.store.database import connect
from cod.store.engine import Among, Tx
from cod.store.rows import RowChange, found_in, insert_all, remove_all, update_all
from cod.store.scheduler import node_picks
from tests.store.manager_world import add_node

pytestmark = pytest.mark.mariadb_always
_n = t.nodes.c
COLUMNS = _n.id, _n.state, _n.deadline, _n.reason, _n.boot_unordered


def seen(tx: Tx) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in tx.execute(select(*COLUMNS).order_by(_n.id))]


def test_changes_of_different_columns_reach_their_rows_alone(engine: Engine) -> None:
    with engine.begin() as tx:
        nodes = [add_node(tx, number) for number in range(6)]
        generations = [{"id": one.id, "generation": one.generation} for one in nodes]
        free: dict[str, Any] = {"vcluster_id": None}
        quoted = '100 % of "it" isn\'t; \\ %s ? ü'
        changes = [
            RowChange(generations[0] | free, {"state": NodeState.OFF, "deadline": 1e9 + 0.5}),
            RowChange(generations[1] | free, {"state": NodeState.BOOT, "deadline": None}),
            RowChange(generations[2] | free, {"reason": quoted, "boot_unordered": True}),
            RowChange({"id": nodes[3].id, "generation": 77} | free, {"reason": "not this one"}),
            RowChange({"id": nodes[4].id, "deadline": 5.0}, {"reason": "nor this one"}),
        ]
        assert update_all(tx, t.nodes, changes) == 3
        assert [row[1:] for row in seen(tx)] == [
            ("off", 1e9 + 0.5, "", False),
            ("boot", None, "", False),
            ("inactive", None, quoted, True),
            *[("inactive", None, "", False)] * 3,
        ]
        assert update_all(tx, t.nodes, []) == 0


def test_rows_that_are_changed_as_they_were_count(engine: Engine) -> None:
    with engine.begin() as tx:
        nodes = [add_node(tx, number) for number in range(3)]
        same = [RowChange({"id": one.id}, {"reason": one.reason}) for one in nodes]
        assert update_all(tx, t.nodes, same) == 3


def test_a_thousand_changes_are_few_statements(engine: Engine) -> None:
    with engine.begin() as tx:
        row = {"kind": "vcluster", "serial": 1}
        insert_all(tx, t.dns_zones, [row | {"key": f"v{n}"} for n in range(1000)])
        row_by_row: list[bool] = []
        event.listen(tx, "before_cursor_execute", lambda *told: row_by_row.append(told[-1]))
        changes = [
            RowChange({"kind": "vcluster", "key": f"v{n}"}, {"serial": n}) for n in range(1000)
        ]
        assert update_all(tx, t.dns_zones, changes) == 1000
        # what MariaDB's driver gets row by row, it sends row by row
        assert row_by_row == ([True] if tx.dialect.name == "sqlite" else [False, False])
        found = dict(tx.execute(select(t.dns_zones.c.key, t.dns_zones.c.serial)).all())
        assert found == {f"v{n}": n for n in range(1000)}


def test_inserted_rows_have_the_defaults_of_other_columns(engine: Engine) -> None:
    with engine.begin() as tx:
        insert_all(tx, t.dns_zones, [])
        insert_all(tx, t.node_blocks, [{"id": 5, "name": "a"}, {"name": "b", "id": 4}])
        assert dict(tx.execute(select(t.node_blocks.c.id, t.node_blocks.c.name)).all()) == {
            4: "b",
            5: "a",
        }
        node = add_node(tx, 1)
        wish = {
            "node_id": node.id,
            "generation": 1,
            "desired": "on",
            "next_at": 1,
            "wished_at": 2.5,
        }
        insert_all(tx, t.power_actions, [wish])
        a = t.power_actions.c
        assert tuple(tx.execute(select(a.attempts, a.stage, a.done_at, a.wished_at)).one()) == (
            0,
            0,
            None,
            2.5,
        )
        with pytest.raises(exc.IntegrityError):
            insert_all(tx, t.node_blocks, [{"id": 6, "name": "a"}])


NAMES = ['it\'s "one"', "% \\ ü", "[1]", "1"]


def test_rows_are_found_and_removed_by_lists_of_values(engine: Engine) -> None:
    """Texts that mean something in JSON or in SQL are values like others, and so are numbers."""
    zones = t.dns_zones.c
    with engine.begin() as tx:
        rows = [{"kind": "vcluster", "key": name, "serial": 7} for name in NAMES]
        insert_all(tx, t.dns_zones, rows)
        assert found_in(tx, zones.key, [*NAMES[:3], "nobody", "nor it"]) == set(NAMES[:3])
        assert found_in(tx, zones.key, ["1\0", "1\0x"]) == set(), "no row's key begins so"
        assert found_in(tx, zones.serial, [7, 8]) == {7}
        assert found_in(tx, zones.serial, []) == set()
        raised = update(t.dns_zones).where(Among(zones.key, "some") | (zones.serial == 9))
        assert tx.execute(raised.values(serial=8), {"some": NAMES[2:]}).rowcount == 2
        assert tx.execute(raised.values(serial=8), {"some": []}).rowcount == 0
        remove_all(tx, zones.key, NAMES[1:])
        assert list(tx.scalars(select(zones.key))) == NAMES[:1]


def test_picked_nodes_are_looked_up_by_their_ids() -> None:
    """SQLite looked through all free nodes for them, in each transaction of a large plan."""
    engine = connect("sqlite://")
    t.metadata.create_all(engine)
    plans = []

    def explain(tx: Tx, _cursor: Any, text: str, values: Any, *_: Any) -> None:
        if not text.startswith("EXPLAIN"):
            told = tx.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", values)
            plans.append([row.detail for row in told if "nodes" in row.detail])

    with engine.begin() as tx:
        event.listen(tx, "before_cursor_execute", explain)
        tx.execute(node_picks._STILL, {"picked": [1, 2]})
    assert plans[0][0] == "SEARCH nodes USING INTEGER PRIMARY KEY (rowid=?)"
