"""COD's side of a switch: one session a question, as the edge has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from twisted.internet.defer import Deferred

from cod.switches.driver import SwitchDriver, SwitchTarget


def ask(
    in_reactor: Callable[..., Any],
    driver: SwitchDriver,
    target: SwitchTarget,
    change: Mapping[str, int],
    *read: str,
) -> tuple[Any, Any, str]:
    """Put ports into VLANs and read others in one session: what was refused, what was read, and
    what the switch says of itself."""

    async def session() -> tuple[Any, Any, str]:
        opened = await driver.open(target)
        try:
            refused = await opened.change(change) if change else {}
            return refused, await opened.read(read), opened.about
        finally:
            await opened.close()

    done: tuple[Any, Any, str] = in_reactor(lambda: Deferred.fromCoroutine(session()))
    return done
