"""Parts of transactions: what is undone, and which error is told."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError

from cod.store.engine import Tx, savepoint, trial

DEADLOCK = OperationalError("update", None, Exception(1213, "Deadlock found"))


def undo_all(tx: Tx) -> None:
    """Undo the transaction as MariaDB does by itself at a deadlock, and raise its error."""
    assert tx.connection.driver_connection is not None
    tx.connection.driver_connection.rollback()
    raise DEADLOCK


@pytest.mark.parametrize("part", [savepoint, trial])
def test_a_deadlock_in_a_part_is_told_as_one(part: object) -> None:
    """The pool runs the flow again for that, and not for a savepoint that is gone."""
    with create_engine("sqlite://").connect() as tx:
        tx.exec_driver_sql("CREATE TABLE x (y)")
        with pytest.raises(OperationalError) as told, part(tx):  # type: ignore[operator]
            undo_all(tx)
    assert told.value is DEADLOCK
