"""Burn-ins: whether a node may be tested now, its first step, and whether it has passed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cod.choices import BurninTest
from cod.model import Burnin, BurninRules, Node, Refused
from cod.orders import TestResult
from cod.quantity import first_few
from cod.states import Disk, NodeEvent, NodeState, Step

FREE = (NodeState.INACTIVE, NodeState.OFF, NodeState.TRAMPOLINE, NodeState.WIPE)
MOST_NAMED = 3  # failures that a reason names


def check(node: Node) -> None:
    """Raise `Refused` unless the node may be burnt in now."""
    if node.vcluster_id is not None:
        raise Refused(
            "conflict",
            f"node {node.name} is held by a vcluster: only free nodes are burnt in",
            "name",
        )
    if node.state == NodeState.QUARANTINED:
        raise Refused("conflict", f"node {node.name} is out of service: restore it first", "name")
    if node.state == NodeState.REGISTERING:
        raise Refused("conflict", f"node {node.name} waits for approval: approve it first", "name")
    if node.state not in FREE:
        raise Refused(
            "conflict", f"node {node.name} is {node.state}: only free nodes are burnt in", "name"
        )
    if node.state == NodeState.OFF and node.power_driver == "none":
        raise Refused(
            "conflict",
            f"node {node.name} is off, and no power driver can wake it: switch it on first",
            "name",
        )


def tests(wanted: Iterable[str]) -> tuple[str, ...]:
    """Return the wanted tests in the order in which they run. Raises `Refused` for an unknown test,
    or if no test is wanted."""
    wanted = set(wanted)
    if unknown := sorted(wanted - set(BurninTest.names())):
        raise Refused(
            "invalid",
            f"there is no test {unknown[0]!r}; there are {', '.join(BurninTest)}",
            "tests",
        )
    if not wanted:
        raise Refused("invalid", f"name at least one of {', '.join(BurninTest)}", "tests")
    return tuple(test for test in BurninTest.names() if test in wanted)


def begin(node: Node, burnin: Burnin) -> Step:
    """Return the first step of a burn-in on a free node whose agent has reported. If disks may or
    must be erased, they are erased first, so that the tests may write to them. Disks must be erased
    if they are dirty, or if only their partition tables were."""
    erasable = (Disk.FOREIGN, Disk.CACHED) if burnin.erase else ()
    if node.disk in (Disk.DIRTY, Disk.TABLES, *erasable):
        return Step(NodeEvent.WIPE_ORDERED, "its disks are erased before its burn-in")
    return Step(
        NodeEvent.BURNIN_ORDERED, f"burn-in ({burnin.cause}): {burnin.tests.replace(',', ', ')}"
    )


def problems(results: Sequence[TestResult], wanted: Sequence[str], rules: BurninRules) -> list[str]:
    """Return why a node has not passed, as phrases: tests that failed, tests without a result, and
    measurements below the site's limits. The list is empty if the node has passed."""
    found = [
        f"{each.test} {each.part}: {each.about}" for each in results if each.outcome == "failed"
    ]
    found += [
        f"{test}: its agent told no result"
        for test in wanted
        if test not in {each.test for each in results}
    ]
    least = {"hdd": rules.least_hdd, "ssd": rules.least_ssd, "nvme": rules.least_nvme}
    for each in results:
        limits = {
            "disk": (("read_mb_s", least.get(each.kind, 0), "MB/s"),),
            "network": (
                ("link_mbit_s", rules.least_link, "Mb/s"),
                ("throughput_mbit_s", rules.least_network, "Mb/s"),
            ),
        }
        for figure, limit, unit in limits.get(each.test, ()):
            value = each.figures.get(figure)
            if each.outcome == "passed" and limit and value is not None and value < limit:
                found.append(
                    f"{each.test} {each.part}: {value:.0f} {unit}, at least {limit} wanted"
                )
    return found


def sentence(found: Sequence[str]) -> str:
    """Return the reason of a node that has not passed: the first few problems, and how many more
    there are."""
    return f"burn-in failed: {first_few(found, MOST_NAMED, '; ')}"
