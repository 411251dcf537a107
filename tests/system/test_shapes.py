"""Machines of a covering set of shapes, from power-on to active without one step that had to be
repeated, or to a refusal.

`make matrix` tries all shapes. UEFI firmware lists a NIC with an iPXE ROM several times, and the
entries that it goes through after a served local boot were taken for a failed boot: such machines
were primed for ever.
"""

from __future__ import annotations

import pytest

from tests.system import shapes
from tests.system.qemu import PATIENCE, build_all, offer

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(2400)]


@pytest.mark.parametrize(
    "firmware",
    [
        pytest.param(name, marks=pytest.mark.xdist_group(f"shapes-{name}"))
        for name in shapes.COVERING
    ],
)
def test_machines_of_the_covering_set_become_active_or_are_refused(firmware: str) -> None:
    image = shapes.LIGHT if firmware == "bios" else shapes.IMAGE
    build_all(image)
    chosen = [shapes.named(name) for name in shapes.COVERING[firmware]]
    with shapes.rack_of(chosen) as stand:
        offer(stand, image)
        for shape in chosen:
            outcome = shapes.bring_up(stand, shape, PATIENCE, image)
            print(f"{shape.name}: {outcome}")
            assert shapes.as_expected(shape, outcome), f"{shape.name}: {outcome}"
            assert outcome.firmware == shape.node.firmware
            if not shape.refused:
                way = outcome.states[-4:]
                assert way == ("inactive", "prime", "boot", "active"), f"{shape.name}: {way}"
