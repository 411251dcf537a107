"""`cod` with a clock for Slurm's limits that runs `SPEED` times as fast: run as a program."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

from cod.__main__ import main
from cod.vcm.slurm import system
from cod.vcm.slurm.limits import AccountingLimits

SPEED = 30.0


class QuickLimits(AccountingLimits):
    """Limits whose pauses are over sooner."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(lambda: SPEED * clock())


if __name__ == "__main__":
    with patch.object(system, "AccountingLimits", QuickLimits):
        main()
