"""What it costs to find a node among many by each of its labels, and `POST /nodes/actions` for 500
of them, on SQLite and on MariaDB: CPU of program and database together, so that waiting for a core
is not in it, and the memory that the program takes for an action at most.

    python -m tests.bench find
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, insert, select, text, update

from cod.core.nodes import selection
from cod.flows import views
from cod.flows.nodes import actions
from cod.model import ActionOutcome, FlowContext, Page, Site, Who, ipv4
from cod.states import NodeState
from cod.store import tables as t
from cod.store.database import connect
from cod.store.engine import Tx
from cod.store.nodes.blocks import ensure
from cod.web.api.models import Query
from cod.web.api.resources import node_actions
from cod.web.api.routes import Call, Names
from tests.bench.arena import Measure, Smoke, write
from tests.bench.pass_world import NOW, Size, fill
from tests.mariadb import UNSYNCED, MariaDB

NODES = 5000
TIMES = 10
DISKS = 8  # of a node
REPORT = 8_000  # bytes of a node's hardware report
ADMIN = Who("user:ann", admin=True)
Clock = Callable[[], float]
SOUGHT = 4321
CHECKED = 500  # nodes of the action, as many as one may be for
WORDS = {
    "name": "m{n}",
    "part of many": "32",
    "MAC": "52-54-00-{hi:02X}-{lo:02X}-0A",
    "end of a MAC": "{hi:02x}{lo:02x}0a",
    "serial number": "SN{n:07}",
    "UUID": "00000000-0000-4000-8000-{n:012}",
    "host name": "host-{n}",
    "address": "10.20.{hi}.{lo}",
    "BMC": "10.30.{hi}.{lo}",
    "switch port": "eth{n}",
    "serial of a disk": "D{n:07}3",
    "tag": "tag-{n}",
    "part = …": "part = D{n:07}3",
    "tag = …": "tag = tag-{n}",
    "serial = …": "serial = SN{n:07}",
    "mac = …": "mac = 525400{hi:02x}{lo:02x}0a",
    "a word of none": "nowhere",
    "all that hold": "not vcluster = none",
    "rack and state": "rack = rack1 and state = free",
    "name in range": "n[0001-2000],m[1-2000]",
}


def furnish(engine: Engine, count: int) -> None:
    """Write a site whose nodes have all labels."""
    fill(engine, Size(count, 100, count // 15), 1)
    with engine.begin() as tx:
        ids = list(tx.scalars(select(t.nodes.c.id).order_by(t.nodes.c.id)))
        for name in ("nics", "bindings", "switch_ports", "node_labels"):
            tx.execute(t.metadata.tables[name].delete())
        rows, nics, bound, ports, labels = [], [], [], [], []
        for n, node_id in enumerate(ids):
            hi, lo = n >> 8, n & 255
            rows.append(
                {
                    "of": node_id,
                    "new_name": f"m{n}",
                    "serial_": f"SN{n:07}",
                    "uuid_": f"00000000-0000-4000-8000-{n:012}",
                    "host": f"host-{n}",
                    "bmc": f"https://10.30.{hi}.{lo}",
                    "tagged": f" tag-{n} ",
                    "report": f"<node>{'x' * REPORT}</node>",
                }
            )
            nics += [{"mac": f"52:54:00:{hi:02x}:{lo:02x}:0{k}", "node_id": node_id} for k in "ab"]
            labels += [
                {"node_id": node_id, "kind": "part", "label": f"d{n:07}{disk}"}
                for disk in range(DISKS)
            ]
            labels.append({"node_id": node_id, "kind": "reported_bmc", "label": f"10.30.{hi}.{lo}"})
            bound.append(
                {
                    "address": ipv4(f"10.20.{hi}.{lo}"),
                    "kind": "vcluster",
                    "node_id": node_id,
                    "subnet": "lab",
                    "state": "bound",
                    "expires_at": NOW,
                }
            )
            ports.append(
                {
                    "switch": f"sw{n // 48}",
                    "port": f"eth{n}",
                    "node_id": node_id,
                    "source": "lldp",
                    "seen_at": NOW,
                }
            )
        tx.execute(
            text(
                "UPDATE nodes SET name = :new_name, serial = :serial_, uuid = :uuid_,"
                " hostname = :host, power_driver = 'lab', power_address = :bmc,"
                " tags = :tagged, attributes = :report WHERE id = :of"
            ),
            rows,
        )
        tx.execute(insert(t.nics), nics)
        tx.execute(insert(t.bindings), bound)
        tx.execute(insert(t.switch_ports), ports)
        tx.execute(insert(t.node_labels), labels)
        block = ensure(tx, "rack1")
        tx.execute(update(t.nodes).where(t.nodes.c.id.in_(ids[:400])).values(block_id=block))
        fresh = {"state": NodeState.REGISTERING, "vcluster_id": None, "template_id": None}
        tx.execute(update(t.nodes).where(t.nodes.c.id.in_(ids[-CHECKED:])).values(fresh))


def measured(engine: Engine, flow: Callable[[Tx], object], cpu: Clock, times: int) -> float:
    """Return the mean of milliseconds of CPU, each time in a transaction that is undone."""
    spent = 0.0
    for _ in range(times):
        with engine.connect() as tx:
            start = cpu()
            flow(tx)
            spent += cpu() - start
            tx.rollback()
    return 1000 * spent / times


def asked(many: str, **fields: object) -> actions.ManyNodes:
    """Return what the route makes of a question for those nodes."""
    body = node_actions.NodeActionBody.model_validate({"names": [many], **fields})
    ask: Any = Call(Site("bench", "cod.test", ()), NOW, ADMIN, Path(), Names(), body, Query())
    return node_actions._many(ask)


def all_done(tx: Tx, many: actions.ManyNodes) -> None:
    """Carry out an action. Raises `AssertionError` where a node is refused it."""
    context = FlowContext(Site("bench", "cod.test", ()), NOW, ADMIN)
    acted = actions.carry_out(tx, context, many=many).value
    refused = [node for node in acted.nodes if node.outcome is not ActionOutcome.DONE]
    assert not refused, refused[0]


def measures(kind: str, engine: Engine, cpu: Clock) -> list[Measure]:
    """Measure and print each. `cpu`: seconds that the program and the database have used."""
    n = min(SOUGHT, NODES - 1)
    single: list[float] = []
    print(f"{kind}, {NODES} nodes: ms of CPU, mean of {TIMES}")
    for label, pattern in WORDS.items():
        where = pattern.format(n=n, hi=n >> 8, lo=n & 255)
        flow = partial(views.node_list, page=Page(), where=where, who=ADMIN, now=NOW)
        with engine.connect() as tx:
            found = flow(tx)
        spent = measured(engine, flow, cpu, TIMES)
        single += [spent] if found.total == 1 else []
        print(f"  {label:16} {where[:44]:44} {found.total!s:>6} {spent:8.1f}", flush=True)
    several = f"m[0-{min(CHECKED, NODES) - 1}]"
    for label in ("SN{n:07}", several):
        names = label.format(n=n)
        named = partial(selection.named, names=names, who=ADMIN)
        spent = measured(engine, named, cpu, TIMES)
        print(f"  {'named':16} {names:44} {'':6} {spent:8.1f}")
    name = f"find, {kind}: one of {NODES} nodes by any label, the dearest"
    made = [Measure(name, max(single), "ms of CPU", goal="< 100 ms")]
    newest = f"m[{NODES - CHECKED}-{NODES - 1}]"
    for label, many in {
        "approved, named and racked": asked(
            newest, action="approve", to=f"r2-[1-{CHECKED}]", changes={"block": "rack2"}
        ),
        "taken out of service": asked(several, action="quarantine", reason="x"),
    }.items():
        act = partial(all_done, many=many)
        spent = measured(engine, act, cpu, 1)
        tracemalloc.start()  # what the process has is no measure: it keeps what the rows above took
        measured(engine, act, cpu, 1)
        memory = tracemalloc.get_traced_memory()[1] / 1e6
        tracemalloc.stop()
        print(f"  {CHECKED} {label:61} {spent:8.1f}, {memory:.1f} MB", flush=True)
        name = f"find, {kind}: {CHECKED} of {NODES} nodes {label} at once"
        made.append(Measure(name, spent / 1000, "s of CPU"))
        made.append(Measure(f"{name}, memory", round(memory, 1), "MB"))
    return made


def _cpu(server: MariaDB) -> float:
    """Return the seconds of CPU that this program and the server have used."""
    assert server.process is not None
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return time.process_time() + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure on both databases."""
    found: list[Measure] = []
    with tempfile.TemporaryDirectory(prefix="cod-find-") as folder:
        engine = connect(f"sqlite:///{folder}/cod.db")
        t.metadata.create_all(engine)
        furnish(engine, NODES)
        found += measures("SQLite", engine, time.process_time)
        engine.dispose()
        if shutil.which("mariadbd", path="/usr/sbin:/usr/bin") is not None:
            server = MariaDB(Path(folder) / "mariadb")
            server.install()
            server.start("--innodb-flush-log-at-trx-commit=0", *UNSYNCED)
            try:
                engine = connect(server.url("find"))
                t.metadata.create_all(engine)
                furnish(engine, NODES)
                found += measures("MariaDB", engine, partial(_cpu, server))
                engine.dispose()
            finally:
                server.stop()
    write("find", found)


SMOKE = Smoke(rows=("find, ",), sizes={"NODES": 50, "TIMES": 1, "CHECKED": 10})

if __name__ == "__main__":
    main()
