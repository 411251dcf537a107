"""Machines of a covering set of shapes, from power-on to active without one step that had to be
repeated, or to a refusal.

`make matrix` tries all shapes. UEFI firmware lists a NIC with an iPXE ROM several times, and the
entries that it goes through after a served local boot were taken for a failed boot: such machines
were primed for ever.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system import shapes
from tests.system.qemu import PATIENCE, build_all, offer

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(2400)]


def cases() -> Iterator[object]:
    """Yield a case for each machine. Those of a firmware run on one worker; those of `make
    test` take turns."""
    for names, by_night in ((shapes.COVERING, False), (shapes.BY_NIGHT, True)):
        for firmware, some in names.items():
            for number, name in enumerate(some):
                if by_night:
                    mark = pytest.mark.nightly
                elif firmware == "uefi":
                    mark = pytest.mark.in_turn(4, first=2 * number, together=True)
                else:
                    mark = pytest.mark.in_turn(3, first=1, together=True)
                worker = pytest.mark.xdist_group(f"shapes-{firmware}")
                yield pytest.param(name, marks=[worker, mark])


@pytest.mark.parametrize("name", list(cases()))
def test_a_machine_becomes_active_or_is_refused(name: str) -> None:
    shape = shapes.named(name)
    image = shapes.LIGHT if shape.node.firmware == "bios" else shapes.IMAGE
    build_all(image)
    with shapes.rack_of([shape]) as stand:
        offer(stand, image)
        outcome = shapes.bring_up(stand, shape, PATIENCE, image)
    print(outcome)
    assert shapes.as_expected(shape, outcome), outcome
    assert outcome.firmware == shape.node.firmware
    if not shape.refused:
        assert outcome.states[-4:] == ("inactive", "prime", "boot", "active"), outcome.states
