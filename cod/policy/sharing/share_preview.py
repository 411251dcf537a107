"""The effect that changed shares would have had on the waits of past days, in a sentence. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cod.policy.sharing.site_use import percent
from cod.quantity import span

LISTED = 4  # groups in the sentence
NEGLIGIBLE = 60.0  # seconds on average: a smaller difference is not reported
NEGLIGIBLE_IDLE = 0.001  # of the site


@dataclass(frozen=True, slots=True)
class GroupWait:
    """The average time that a group's requests wait until their systems run, in seconds: `before`
    the change and `after` it."""

    group: str
    requests: int
    before: float
    after: float

    @property
    def longer(self) -> float:
        """Return by how many seconds the wait is longer; negative: shorter."""
        return self.after - self.before


def sentence(waits: Sequence[GroupWait], idle_before: float, idle_after: float) -> str:
    """Return the differences that the change would have made. `idle_before`, `idle_after`: the part
    of the site's nodes that no vcluster held, 0 to 1."""
    moved = sorted(
        (one for one in waits if abs(one.longer) >= NEGLIGIBLE),
        key=lambda one: (-abs(one.longer), one.group),
    )
    parts = [
        f"{one.group} would have waited {span(abs(one.longer))} {_more_or_less(one.longer)}"
        if number == 0
        else f"{one.group} {span(abs(one.longer))} {_more_or_less(one.longer)}"
        for number, one in enumerate(moved[:LISTED])
    ]
    if len(moved) > LISTED:
        parts.append(f"{len(moved) - LISTED} other groups otherwise, too")
    text = ", ".join(parts) or "no group would have waited longer or less"
    idle = idle_after - idle_before
    if abs(idle) >= NEGLIGIBLE_IDLE:
        text += f"; {percent(abs(idle))} {'more' if idle > 0 else 'fewer'} nodes idle"
    return f"With these shares {text}."


def _more_or_less(longer: float) -> str:
    return "more" if longer > 0 else "less"
