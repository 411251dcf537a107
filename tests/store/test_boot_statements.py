"""How many statements a machine's way from its secret to its first order takes. A limit that is
exceeded is a cost for each machine of a site that is switched on as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, event

from cod.flows.boot import script
from cod.model import Binding, Site, ipv4
from cod.store.engine import Tx
from cod.store.nodes import bindings
from tests.store.agentlab import KEY, Lab, mac

ADDRESS = "10.77.1.1"


class Counted:
    """Statements of a transaction, counted."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._number = engine, 0

    def _count(self, *_: Any) -> None:
        self._number += 1

    def of(self, flow: Callable[..., Any], *args: Any) -> int:
        """Run a flow; return how many statements it takes."""
        self._number = 0
        event.listen(self._engine, "before_cursor_execute", self._count)
        try:
            flow(*args)
        finally:
            event.remove(self._engine, "before_cursor_execute", self._count)
        return self._number


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("known", "limits"),
    [
        (False, {"script": 1, "mint": 3, "open": 6, "report": 11}),
        (True, {"script": 1, "mint": 4, "open": 10, "report": 9}),
    ],
)
def test_a_boot_takes_few_statements(
    tx: Tx, engine: Engine, site: Site, known: bool, limits: dict[str, int]
) -> None:
    lab, counted = Lab(tx, site), Counted(engine)
    lab.machine(2)
    lab.boots(2)  # a machine of the same type: types are made once
    node = lab.machine(1)
    bindings.add(
        tx, [Binding(ipv4(ADDRESS), mac(1), "boot", node.id, "lab", None, "bound", lab.now + 1e6)]
    )
    if known:
        lab.boots(1)
        assert lab.node(1).state == "inactive"
        lab.now += 60

    def mint() -> None:
        script.mint(tx, mac(1), ADDRESS, "s", KEY, KEY, KEY, lab.site, lab.now)

    peers: list[Any] = []
    taken = {
        "script": counted.of(script.unchanged, tx, mac(1), ADDRESS, lab.site, lab.now),
        "mint": counted.of(mint),
        "open": counted.of(lambda: peers.append(lab.open(1, "s"))),
        "report": counted.of(lambda: lab.report(peers[0], mac(1))),
    }
    assert lab.node(1).state == "inactive"
    assert {step: number for step, number in taken.items() if number > limits[step]} == {}
