"""Carries out a burn-in order: one test after the other, each with its share of the time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from cod.orders import BurninPlan, Order, TestResult
from trampoline.burnin import kernel, memory, network, surface
from trampoline.disks import erasable
from trampoline.errors import PrimeError
from trampoline.inventory import Disk, Nic
from trampoline.pipeline import Progress

_SHARES = {"memory": 4, "disk": 5, "network": 1}
_NETWORK_MOST = 20.0  # seconds: a link shows what it can soon


def burnin(
    order: Order,
    disks: Sequence[Disk],
    nics: Callable[[], Sequence[Nic]],
    root: Path,
    progress: Progress,
    most_memory: int | None = None,
) -> tuple[TestResult, ...]:
    """Test this machine; return the results. Raises PrimeError if the order names no test.

    most_memory  bytes that are tested at most; None: nearly all free memory
    """
    plan = order.burnin
    if plan is None:
        raise PrimeError("the order does not say what is to be tested")
    spans = seconds(plan)
    results: list[TestResult] = []
    log, listener = (
        kernel.KernelLog(),
        network.ThroughputListener(plan.secret if plan.network else ""),
    )
    try:
        if plan.memory:
            results.append(memory.run(spans["memory"], root, progress, log, most_memory))
        if plan.disk:
            results += surface.run(chosen(order, disks, plan.write), spans["disk"], progress, log)
        if plan.network:
            results += network.run(plan, nics, spans["network"], root, progress)
    finally:
        listener.close()
        log.close()
    return tuple(results)


def chosen(order: Order, disks: Sequence[Disk], write: bool) -> list[tuple[Disk, bool]]:
    """Return the local disks, and whether each may be written. Disks that a mark keeps are only
    read."""
    mine = erasable(disks, order.keep)
    return [(disk, write and disk in mine) for disk in disks if disk.local]


def seconds(plan: BurninPlan) -> dict[str, float]:
    """Return each test's share of the time. The network test leaves what it has beyond
    `_NETWORK_MOST` to the others, if there are any."""
    shares = {name: share for name, share in _SHARES.items() if getattr(plan, name)}
    spans: dict[str, float] = {}
    if "network" in shares and len(shares) > 1:
        network = plan.seconds * shares["network"] / sum(shares.values())
        spans["network"] = min(network, _NETWORK_MOST)
        del shares["network"]
    rest = plan.seconds - sum(spans.values())
    return {name: rest * share / sum(shares.values()) for name, share in shares.items()} | spans
