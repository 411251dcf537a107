"""A pool in the test's hands, for clockworks whose clock the test moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Engine
from twisted.internet.defer import Deferred, fail, succeed

from cod.pool import Pool, in_transaction
from cod.store.engine import of_one_moment


class HandPool:
    """The pool's promise without its threads: a flow runs when it is asked for, in a transaction of
    its own.

    flows   names of those that have run; reads: of those that ran without SQLite's write lock
    before  called with each flow's name first; what it raises is the flow's failure
    broken  names of flows that fail, as if the server died there
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.flows: list[str] = []
        self.reads: set[str] = set()
        self.before: Callable[[str], object] = lambda name: None
        self.broken: set[str] = set()

    is_away, is_race = staticmethod(Pool.is_away), staticmethod(Pool.is_race)

    def run(self, flow: Any, *args: Any, **kwargs: Any) -> Deferred[Any]:
        """Run it now."""
        return self._run(self.engine, flow, *args, **kwargs)

    def read(self, flow: Any, *args: Any, **kwargs: Any) -> Deferred[Any]:
        """Run it now; it only reads."""
        self.reads.add(flow.__name__)
        return self._run(self.engine.execution_options(reading=True), flow, *args, **kwargs)

    def snapshot(self, flow: Any, *args: Any, **kwargs: Any) -> Deferred[Any]:
        """Run it now; all that it reads is of one moment."""
        self.reads.add(flow.__name__)
        return self._run(of_one_moment(self.engine), flow, *args, **kwargs)

    def _run(self, engine: Engine, flow: Any, *args: Any, **kwargs: Any) -> Deferred[Any]:
        name = getattr(flow, "func", flow).__name__
        try:
            self.before(name)
            if name in self.broken:
                raise RuntimeError("the server died here")
            value = in_transaction(engine, flow, *args, **kwargs)
        except Exception:
            return fail()
        self.flows.append(name)
        return succeed(value)
