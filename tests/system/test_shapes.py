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


def cases(names: dict[str, tuple[str, ...]], *marks: pytest.MarkDecorator) -> list[object]:
    """Return a case for each firmware with machines, which one worker runs."""
    return [
        pytest.param(firmware, some, marks=[pytest.mark.xdist_group(f"shapes-{firmware}"), *marks])
        for firmware, some in names.items()
    ]


@pytest.mark.parametrize(
    ("firmware", "names"),
    [*cases(shapes.COVERING), *cases(shapes.BY_NIGHT, pytest.mark.nightly)],
    ids=["bios", "uefi", "bios-by-night", "uefi-by-night"],
)
def test_machines_of_the_covering_set_become_active_or_are_refused(
    firmware: str, names: tuple[str, ...]
) -> None:
    image = shapes.LIGHT if firmware == "bios" else shapes.IMAGE
    build_all(image)
    chosen = [shapes.named(name) for name in names]
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
