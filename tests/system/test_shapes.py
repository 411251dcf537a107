"""Machines of two shapes at once, from power-on to active, without one step that had to be
repeated.

`make matrix` tries all shapes. UEFI firmware lists a NIC with an iPXE ROM several times, and the
entries that it goes through after a served local boot were taken for a failed boot: such machines
were primed for ever.
"""

from __future__ import annotations

import pytest

from tests.system import shapes
from tests.system.qemu import build_all, offer

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.xdist_group("shapes"),
    pytest.mark.timeout(1800),
]


def test_machines_of_several_shapes_become_active() -> None:
    build_all(shapes.IMAGE)
    chosen = [shapes.named(name) for name in shapes.IN_CI]
    with shapes.rack_of(chosen) as stand:
        offer(stand, shapes.IMAGE)
        for shape in chosen:
            stand.power(shape.name, "on")
        for shape in chosen:
            stand.reaches(shape.name, "inactive")
        stand.cod(
            "vcluster",
            "create",
            "web",
            "--size",
            str(len(chosen)),
            "--template",
            shapes.IMAGE,
            "--spread",
        )
        for shape in chosen:
            stand.reaches(shape.name, "active")
            assert stand.states(shape.name)[-4:] == [
                "inactive",
                "prime",
                "boot",
                "active",
            ], shape.name
