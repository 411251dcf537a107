"""Run each flow of a pool twice: `pytest -p tests.repeats FILES`.

The pool runs a flow again when the answer of its commit was lost, and nobody knows whether it was
committed (decision 0058). Here the tests of `FILES` do what they always do, and each flow that they
hand to a pool for writing runs twice in its transaction. The second run has to return what the
first one returned, and to change nothing. It is rolled back, so that the tests go on as ever. A
flow of `Pool.run_once` does not run twice: the database has to know its work instead.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, Table, select

from cod import pool
from cod.pool import _Call
from cod.store import tables
from cod.store.engine import Tx
from cod.store.watermarks import FENCE

SEEN = "FLOWS_SEEN"  # a file, in the environment: gets the names of the flows that ran, as JSON
ran: set[str] = set()
differed: dict[str, str] = {}  # flows whose second run did something else: what


def name(flow: Any) -> str:
    """Return a flow's module and name: cod.flows.nodes.power.claim."""
    while isinstance(flow, partial):
        flow = flow.func
    return f"{flow.__module__}.{flow.__qualname__}"


def rows_of(tx: Tx, table: Table) -> Sequence[Any]:
    """Return every row of a table that stands for something."""
    query = select(table)
    if table is tables.marks:
        query = query.where(~table.c.name.startswith(FENCE))
    return tx.execute(query).all()


def contents(tx: Tx) -> dict[str, list[Any]]:
    """Return every row of every table that stands for something."""
    return {
        table.name: sorted(map(repr, rows_of(tx, table))) for table in tables.metadata.sorted_tables
    }


def run_call(call: _Call[Any], tx: Tx) -> Any:
    """Run a flow of a pool twice."""
    if call.committed is None:
        return run_twice(tx, call.flow, *call.args, **call.kwargs)
    value = call.flow(tx, *call.args, **call.kwargs)
    if not call.committed(tx):  # an answer by Idempotency-Key: it changes nothing
        twice = call.flow(tx, *call.args, **call.kwargs)
        if repr(twice) != repr(value):
            differed.setdefault(name(call.flow), f"returned {twice!r:.300} after {value!r:.300}")
    ran.add(name(call.flow))
    return value


def in_transaction(engine: Engine, flow: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a flow twice where tests do without a pool."""
    with engine.begin() as tx:
        return run_twice(tx, flow, *args, **kwargs)


def run_twice(tx: Tx, run: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a flow, and once more as if nothing were known of the first time."""
    value, flow = run(tx, *args, **kwargs), name(run)
    if tx.get_execution_options().get("reading") or not flow.startswith("cod."):
        return value
    ran.add(flow)
    told, _, wrote = second(tx, run, *args, **kwargs)
    if wrote:  # perhaps what was there already
        before = contents(tx)
        told, after, _ = second(tx, run, *args, **kwargs)
        if changed := [table for table, rows in after.items() if rows != before[table]]:
            differed.setdefault(flow, f"changed {', '.join(changed)}")
    if told != repr(value):
        differed.setdefault(flow, f"returned {told[:300]} after {value!r:.300}")
    return value


def second(tx: Tx, run: Any, *args: Any, **kwargs: Any) -> tuple[str, dict[str, list[Any]], int]:
    """Run a flow and take it back; return what it returned, all rows then, and how many it wrote
    (SQLite counts them)."""
    driver: Any = tx.connection.driver_connection
    written, savepoint = driver.total_changes, tx.begin_nested()
    try:
        told = repr(run(tx, *args, **kwargs))
    except Exception as error:
        told = f"raised {error!r}"
    wrote = driver.total_changes - written
    found = contents(tx) if wrote else {}
    savepoint.rollback()
    return told, found, wrote


def pytest_configure() -> None:
    """Have every pool of this process run its flows twice."""
    _Call.run = run_call  # type: ignore[assignment, method-assign]
    pool.in_transaction = in_transaction


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run where a second run did something else, and say which flows ran."""
    if differed and session.exitstatus == 0:
        session.exitstatus = 1
    if path := os.environ.get(SEEN):
        Path(path).write_text(json.dumps({"ran": sorted(ran), "differed": differed}, indent=1))
