"""Which power driver a new machine gets; when a power command that failed is tried again."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from cod.model import PowerRule

BUDGET = 6  # attempts of one power wish
FIRST_PAUSE = 2.0  # seconds after the first failure, twice as long after each further one
LONGEST_PAUSE = 60.0


def rule_for(rules: Iterable[PowerRule], name: str, mac: str) -> tuple[str, str]:
    """(driver, address) from the first rule whose pattern fits `name` or `mac`; ('none', '') without one.

    The rule's address may name {name} and {mac}.
    """
    for rule in rules:
        if fnmatchcase(name, rule.match) or fnmatchcase(mac, rule.match.lower()):
            return rule.driver, rule.address.format(name=name, mac=mac)
    return "none", ""


def retry_after(attempts: int) -> float | None:
    """Seconds to wait after the failed attempt number `attempts`; None when the budget is spent."""
    return min(FIRST_PAUSE * 2 ** (attempts - 1), LONGEST_PAUSE) if attempts < BUDGET else None
