"""A large site for measuring what people look at: 10,000 nodes, 500 vclusters, 1,000,000 history
rows.

    python -m tests.bench.large_site FOLDER   founds it in FOLDER, for `tests.portal_site FOLDER` to
    serve
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sqlalchemy import Engine, insert

from cod.store import schema
from cod.store import tables as t
from cod.store.database import connect
from cod.store.engine import Tx
from tests.bench.pass_world import DAY, GROUPS, NOW, Size, fill

# two of three requests are of vclusters that wait: 500 in all
SIZE = Size(nodes=10_000, requests=300, holders=300)
HISTORY, NOTICES, AUDITED = 1_000_000, 20_000, 20_000
STEPS = (
    ("asked", "inactive", "trampoline"),
    ("idled", "trampoline", "inactive"),
    ("prime_ordered", "inactive", "prime"),
    ("primed", "prime", "boot"),
    ("booted", "boot", "active"),
)
BATCH = 20_000
# another schema, another file
TABLES = sum(len(table.columns) for table in t.metadata.tables.values())


def furnish(engine: Engine, *, history: int, size: Size | None = None, seed: int = 1) -> None:
    """Write the site into an empty database, of that size (None: `SIZE`); its times end at
    `pass_world.NOW`, thirty days of history before that."""
    size = size or SIZE
    fill(engine, size, seed)
    dice = random.Random(seed)
    with engine.begin() as tx:
        for start in range(0, history, BATCH):
            tx.execute(
                insert(t.node_history),
                [_step(number, history, dice, size) for number in range(start, start + BATCH)],
            )
        tx.execute(
            insert(t.notices),
            [
                {
                    "at": NOW - 30 * DAY + number * 100,
                    "kind": "ready",
                    "group_id": 1 + number % GROUPS,
                    "subject": f"notice {number}",
                    "about": "All nodes are active.",
                }
                for number in range(NOTICES)
            ],
        )
        tx.execute(
            insert(t.audit),
            [
                {
                    "at": NOW - 30 * DAY + number * 100,
                    "actor": "user:somebody",
                    "action": "vcluster resize",
                    "thing": f"v{number % 300}",
                    "group_id": 1 + number % GROUPS,
                    "before": '{"size":3}',
                    "after": '{"size":4}',
                }
                for number in range(AUDITED)
            ],
        )


def _step(number: int, history: int, dice: random.Random, size: Size) -> dict[str, object]:
    event, before, after = STEPS[number // size.nodes % len(STEPS)]
    holder = 1 + dice.randrange(size.holders)
    return {
        "node_id": 1 + number % size.nodes,
        "at": NOW - 30 * DAY * (1 - number / history),
        "event": event,
        "from_state": before,
        "to_state": after,
        "generation": number // size.nodes,
        "cause": "as it goes",
        "vcluster_id": holder if after in ("prime", "boot", "active") else None,
        "actor": "agent",
    }


@contextmanager
def changing(
    url: str, rate: float, draw: Callable[[Tx], tuple[int, int, str, str]]
) -> Iterator[None]:
    """Meanwhile a node's change of state is written `rate` times a second. `draw` returns the node,
    its vcluster, its state before and after."""
    over = threading.Event()

    def change() -> None:
        engine = connect(url)
        while not over.wait(1 / rate):
            with suppress(Exception), engine.begin() as tx:
                node, vcluster, was, state = draw(tx)
                tx.execute(
                    insert(t.node_history).values(
                        node_id=node,
                        at=time.time(),
                        event="booted",
                        from_state=was,
                        to_state=state,
                        generation=1,
                        vcluster_id=vcluster,
                        cause="bench",
                        actor="bench",
                    )
                )
        engine.dispose()

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def found(folder: Path, size: Size | None = None, history: int = 0) -> Path:
    """The SQLite database of a site of that size (None: `SIZE` and `HISTORY`) in `folder`, made if
    it is not there; it is copied by whoever changes it."""
    size, history = size or SIZE, history or HISTORY
    shape = f"{size.nodes}-{size.requests}-{size.holders}-{history}"
    path = folder / f"large-{shape}-{schema.head()}-{TABLES}.db"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        making = folder / f"making-{time.time_ns()}.db"
        engine = connect(f"sqlite:///{making}")
        schema.upgrade(engine)
        furnish(engine, history=history, size=size)
        engine.dispose()
        making.rename(path)
    return path


if __name__ == "__main__":
    print(found(Path(sys.argv[1])))
