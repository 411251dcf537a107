"""Virtual hosts: machines are placed within declared capacities, whatever fails, and libvirt's own
command does it on libvirt's test driver."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cod.vcm.batch.commands import CommandFailed, NotUnderstood
from cod.vcm.libvirt import virsh
from cod.vcm.libvirt.placement import Size, VirtualHost, new_hosts, place
from cod.vcm.libvirt.pool import GONE, HostPool
from cod.vcm.libvirt.settings import LibvirtTable
from cod.vcm.libvirt.virsh import Machine, Virsh, owned, read
from cod.vcm.pool import ANY, Demand, GivenUp, Member, NotYet
from cod.wire.nmp.bodies import Reclaim

# ---------------------------------------------------------------- placement

sizes = st.builds(Size, st.integers(1, 8), st.integers(1, 4096))
rooms = st.builds(Size, st.integers(0, 16), st.integers(0, 8192))
named = st.dictionaries(st.sampled_from([f"vm{number}" for number in range(12)]), sizes)


@st.composite
def sites(draw: st.DrawFn) -> tuple[dict[str, Size], dict[str, VirtualHost]]:
    """Machines that should run, and hosts on which some run already, each on one; capacities may
    have been lowered since."""
    hosts, left = dict[str, VirtualHost](), draw(named)
    for number in range(draw(st.integers(0, 5))):
        here = {name: left.pop(name) for name in list(left) if draw(st.booleans())}
        hosts[f"n{number}"] = VirtualHost(draw(rooms), here, draw(st.booleans()))
    return draw(named), hosts


@given(sites())
def test_no_host_is_ever_overbooked(site: tuple[dict[str, Size], dict[str, VirtualHost]]) -> None:
    """And each machine runs once, nothing that runs is moved, and nothing waits that would fit."""
    wanted, hosts = site
    found = place(wanted, hosts)
    running = {name for host in hosts.values() for name in host.running}
    assert found.start.keys() | {*found.waiting} == wanted.keys() - running
    assert not found.start.keys() & {*found.waiting}
    for name, host in hosts.items():
        new = [wanted[machine] for machine, at in found.start.items() if at == name]
        left = host.room - sum(new, Size())
        assert not new or (host.open and left.holds(Size())), "overbooked, or closed"
        assert not host.open or not any(left.holds(wanted[one]) for one in found.waiting)


@given(named, rooms)
def test_new_hosts_take_all_machines_that_a_host_can_take(
    machines: dict[str, Size], capacity: Size
) -> None:
    count, too_large = new_hosts(machines, capacity)
    assert {*too_large} == {name for name, size in machines.items() if not capacity.holds(size)}
    rest = {name: size for name, size in machines.items() if name not in too_large}
    assert count <= len(rest)
    assert bool(count) == bool(rest)
    total = sum(rest.values(), Size())
    assert capacity.cpus * count >= total.cpus
    assert capacity.memory * count >= total.memory


# ---------------------------------------------------------------- the pool, with failures drawn


def document(name: str, cpus: int = 1, mib: int = 256, kind: str = "test") -> str:
    return (
        f"<domain type='{kind}'><name>{name}</name><memory unit='MiB'>{mib}</memory>"
        f"<vcpu>{cpus}</vcpu><os><type>hvm</type></os></domain>"
    )


class Node(Virsh):
    """A node's libvirt, which fails at random: before it does something, or after."""

    def __init__(self, draws: random.Random, faults: float) -> None:
        super().__init__("")
        self.here, self._draws, self.faults = dict[str, Machine](), draws, faults
        self.has, self.heeds = Size(8, 4096), 0.5  # how often a system shuts down when it is asked

    def _fails(self) -> None:
        if self._draws.random() < self.faults:
            raise CommandFailed("it does not answer")

    def capacity(self) -> Size:
        self._fails()
        return self.has

    def machines(self) -> dict[str, Machine]:
        self._fails()
        return dict(self.here)

    def start(self, document: str) -> None:
        self._fails()
        machine = read(document)
        assert machine.name not in self.here
        self.here[machine.name] = machine
        self._fails()

    def shut_down(self, name: str) -> None:
        self._fails()
        if self._draws.random() < self.heeds:
            self.here.pop(name, None)

    def end(self, name: str) -> None:
        self._fails()
        self.here.pop(name, None)


class Ground:
    """A pool of such nodes, and its folder."""

    def __init__(
        self,
        folder: Path,
        draws: random.Random,
        faults: float = 0.0,
        dry_run: bool = False,
        **rules: Any,
    ) -> None:
        self.now, self.folder, self.nodes = 1000.0, folder, dict[str, Node]()
        self.draws, self.faults = draws, faults
        values = {"machines": folder, "uri": "{hostname}", "stop_time": 30.0, **rules}
        values.setdefault("capacities", [{"cpus": 4, "memory": 1024}])
        self.pool = HostPool(
            LibvirtTable.model_validate(values),
            "vm",
            dry_run=dry_run,
            connect=self._node,
            clock=lambda: self.now,
        )
        self.members: dict[str, Member] = {}

    def _node(self, uri: str) -> Node:
        return self.nodes.setdefault(uri, Node(self.draws, self.faults))

    def joins(self, name: str, kind: str = "") -> None:
        one = Member(f"m{name[1:]}", name, "10.0.0.2", "active", "host@1", kind)
        self.pool.add(one)
        self.members[name] = one

    def runs(self, *documents: str) -> None:
        for path in self.folder.glob("*.xml"):
            path.unlink()
        for each in documents:
            (self.folder / f"{read(each).name}.xml").write_text(each)

    def look(self, seconds: float = 10.0, coming: int = 0) -> Any:
        self.now += seconds
        return self.pool.look(self.members, Counter({"": coming}), self.now)

    def anew(self) -> Ground:
        """The VCM is started anew: another pool of the same nodes."""
        after = Ground(self.folder, self.draws, stop_time=30.0)
        after.nodes, after.members, after.now = self.nodes, dict(self.members), self.now
        return after

    def on(self) -> dict[str, set[str]]:
        return {name: set(node.here) for name, node in self.nodes.items()}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(25))
def test_whatever_fails_no_node_is_overbooked_and_no_machine_runs_twice(
    seed: int, tmp_path: Path
) -> None:
    draws = random.Random(seed)
    ground = Ground(tmp_path, draws, faults=0.25)
    joining = [f"n{number}" for number in range(2, 7)]
    for _ in range(80):
        step = draws.randrange(4)
        try:
            if step == 0 and joining:
                ground.joins(joining[0])
                joining.pop(0)
            elif step == 1:
                ground.runs(
                    *(
                        document(f"vm{number}", draws.randint(1, 4), draws.choice([256, 512, 1024]))
                        for number in range(draws.randint(0, 9))
                        if not any(f"vm{number}" in node.here for node in ground.nodes.values())
                    ),
                    *(
                        document(name, machine.size.cpus, machine.size.memory)
                        for node in ground.nodes.values()
                        for name, machine in node.here.items()
                        if draws.random() < 0.8
                    ),
                )
            elif step == 2 and ground.members:
                name = draws.choice(sorted(ground.members))
                ground.pool.remove(ground.members[name], False)
                del ground.members[name], ground.nodes[name]
            else:
                ground.look()
        except (CommandFailed, NotYet):
            pass
        for name, node in ground.nodes.items():
            used = sum((one.size for one in node.here.values()), Size())
            assert Size(4, 1024).holds(used), name
        counts = Counter(each for node in ground.nodes.values() for each in node.here)
        assert not [name for name, count in counts.items() if count > 1]
    for node in ground.nodes.values():
        node.faults = 0.0
    ground.faults = 0.0
    ground.joins("n9")
    ground.runs(document("last", 1, 256))
    for _ in range(6):
        ground.look(40.0)
    assert sorted(each for node in ground.nodes.values() for each in node.here) == ["last"]


def test_a_pool_of_virtual_hosts_grows_with_its_machines_and_shrinks(tmp_path: Path) -> None:
    ground = Ground(tmp_path, random.Random(1), idle_limit=60.0)
    ground.runs(*(document(f"vm{number}", 2, 512) for number in range(3)))
    demand = ground.look()
    assert (demand.grow, demand.why) == ({ANY: 2}, "3 virtual machines wait")
    assert ground.look(coming=2).grow == {}
    assert ground.look(coming=3).withdraw == {"": 1}
    for name in ("n2", "n3"):
        ground.joins(name)
    assert ground.look().grow == {}
    assert ground.on() == {"n2": {"vm0", "vm1"}, "n3": {"vm2"}}
    ground.runs(document("vm0", 2, 512))
    for _ in range(8):  # asked to shut down, then ended
        ground.look(30.0)
    assert ground.on() == {"n2": {"vm0"}, "n3": set()}
    demand = ground.look(60.0)
    assert (demand.leave, demand.why) == (("n3",), "empty for 60 s")
    ground.runs(document("large", 64, 512))
    assert ground.look().grow == {}, "no node could run it"


def test_a_node_is_given_up_without_a_declared_capacity_or_with_less(tmp_path: Path) -> None:
    declared = [
        {"type": "large", "cpus": 8, "memory": 4096},
        {"type": "huge", "cpus": 64, "memory": 4096},
    ]
    ground = Ground(tmp_path, random.Random(1), capacities=declared)
    ground.joins("n2", "large")
    with pytest.raises(GivenUp, match="no capacity is declared for nodes of type 'small'"):
        ground.joins("n3", "small")
    with pytest.raises(GivenUp, match="8 processors and 4096 MiB, less than is declared"):
        ground.joins("n4", "huge")


def test_a_reclaimed_node_s_machines_run_elsewhere_and_foreign_ones_end_with_it(
    tmp_path: Path,
) -> None:
    ground = Ground(tmp_path, random.Random(1), stop_time=30.0)
    for name in ("n2", "n3"):
        ground.joins(name)
    ground.nodes["n3"].here["by-hand"] = Machine("by-hand", Size(1, 512))
    ground.runs(document("vm0", 1, 512))
    ground.look()
    assert ground.on() == {"n2": set(), "n3": {"by-hand", "vm0"}}, "the fuller one first"
    ground.runs(document("vm0", 1, 512), document("vm1", 1, 768))
    ground.look()
    reclaim = Reclaim(1, 1, ground.now + 600.0, "others")
    (chosen,) = ground.pool.choose(reclaim, ground.members, ground.now)
    assert (chosen.node, chosen.within) == ("n2", 30.0)
    gone = ground.members.pop("n2")
    ground.nodes["n2"].heeds = 0.0
    with pytest.raises(NotYet):
        ground.pool.remove(gone, False)
    assert (ground.look().grow, ground.on()["n2"]) == ({}, {"vm1"}), "it runs there still"
    ground.now += 30.0
    with pytest.raises(NotYet):
        ground.pool.remove(gone, False)
    ground.pool.remove(gone, False)
    assert ground.on()["n2"] == set()
    assert ground.look().grow == {ANY: 1}, "it has no room on the other"
    ground.joins("n4")
    ground.look()
    assert ground.on()["n4"] == {"vm1"}


def test_a_dry_run_starts_and_ends_nothing(tmp_path: Path) -> None:
    ground = Ground(tmp_path, random.Random(1), dry_run=True)
    ground.joins("n2")
    ground.nodes["n2"].here["old"] = Machine("old", Size(1, 256), "cod:vm")
    ground.runs(document("vm0"), document("vm1", 4, 1024))
    assert ground.look().grow == {ANY: 1}
    assert ground.on() == {"n2": {"old"}}


def test_nothing_is_started_on_a_node_that_was_named_for_a_reclaim(tmp_path: Path) -> None:
    ground = Ground(tmp_path, random.Random(1))
    ground.joins("n2")
    ground.pool.choose(Reclaim(1, 1, ground.now + 600.0, "others"), ground.members, ground.now)
    ground.runs(document("vm0"))
    assert (ground.look().grow, ground.on()) == ({ANY: 1}, {"n2": set()})
    ground.joins("n2")  # it may stay
    ground.look()
    assert ground.on() == {"n2": {"vm0"}}


def test_a_vcm_that_was_started_anew_starts_nothing_before_it_has_seen_all_nodes(
    tmp_path: Path,
) -> None:
    """What runs on a node that does not answer would run twice."""
    ground = Ground(tmp_path, random.Random(1))
    for name in ("n2", "n3"):
        ground.joins(name)
    ground.runs(document("vm0"))
    ground.look()
    assert ground.on() == {"n2": {"vm0"}, "n3": set()}
    ground.nodes["n2"].faults = 1.0
    ground.nodes["n3"].here["old"] = Machine("old", Size(1, 256), "cod:vm")
    after = ground.anew()
    assert after.look() == Demand(), "what waits is not known"
    after.look(40.0)
    assert ground.on() == {"n2": {"vm0"}, "n3": set()}, "the rest of the pool goes on"
    ground.nodes["n2"].faults = 0.0
    ground.runs(document("vm0"), document("vm1"))
    after.look()
    assert ground.on() == {"n2": {"vm0", "vm1"}, "n3": set()}


def test_a_vcm_that_was_started_anew_starts_nothing_before_it_has_seen_nodes_that_leave(
    tmp_path: Path,
) -> None:
    """A node that leaves is no member any more, and may run what would run twice."""
    ground = Ground(tmp_path, random.Random(1))
    for name in ("n2", "n3"):
        ground.joins(name)
    ground.runs(document("vm0"))
    ground.look()
    after = ground.anew()
    leaves = after.members.pop("n2")
    after.pool.recall({"n2": ground.now + 600.0})
    after.look()
    assert ground.on() == {"n2": {"vm0"}, "n3": set()}
    ground.nodes["n2"].heeds = 1.0
    for _ in range(2):
        with suppress(NotYet):
            after.pool.remove(leaves, False)
    after.look()
    assert ground.on() == {"n2": set(), "n3": {"vm0"}}


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("lost", [False, True])
def test_machines_of_a_silent_or_lost_node_start_elsewhere_when_its_power_has_been_cut(
    lost: bool, anew: bool, tmp_path: Path
) -> None:
    ground = Ground(tmp_path, random.Random(1), stop_time=30.0)
    for name in ("n2", "n3"):
        ground.joins(name)
    ground.runs(document("vm0"))
    ground.look()
    ground.nodes["n2"].faults = 1.0
    after = ground.anew() if anew else ground
    after.look()
    gone = replace(after.members.pop("n2"), since=1.0)
    if not lost:
        with pytest.raises(NotYet):  # it may answer in a moment, and shut its machines down
            after.pool.remove(gone, False)
        after.now += 30.0
    after.pool.remove(gone, lost)
    after.look(GONE - 1.0)
    assert ground.on() == {"n2": {"vm0"}, "n3": set()}
    after.look(1.0)
    assert ground.on()["n3"] == {"vm0"}


def test_a_node_whose_output_is_no_libvirt_s_keeps_no_other(tmp_path: Path) -> None:
    ground = Ground(tmp_path, random.Random(1))
    for name in ("n2", "n3"):
        ground.joins(name)

    def odd() -> dict[str, Machine]:
        raise NotUnderstood("this is no libvirt domain document")

    ground.nodes["n2"].machines = odd  # type: ignore[method-assign]
    ground.runs(document("vm0"))
    ground.look()
    assert ground.on() == {"n2": set(), "n3": {"vm0"}}


def test_nodes_are_looked_at_together(tmp_path: Path) -> None:
    """Silent nodes take a minute each, in which no reclaim is answered."""
    ground = Ground(tmp_path, random.Random(1))
    for name in ("n2", "n3"):
        ground.joins(name)
    together = Barrier(2, timeout=10.0)

    def waits() -> dict[str, Machine]:
        together.wait()
        return {}

    for name in ("n2", "n3"):
        ground.nodes[name].machines = waits  # type: ignore[method-assign]
    ground.look()
    assert not together.broken


def test_a_node_may_stay_after_all_though_it_was_never_removed(tmp_path: Path) -> None:
    """COD has cancelled its reclaim: it is a member again, and nobody adds it."""
    ground = Ground(tmp_path, random.Random(1))
    ground.joins("n2")
    ground.pool.choose(Reclaim(1, 1, ground.now + 600.0, "others"), ground.members, ground.now)
    ground.runs(document("vm0"))
    for _ in range(2):
        ground.look()
    assert ground.on() == {"n2": {"vm0"}}


def test_a_machine_that_no_node_can_run_keeps_no_empty_node(tmp_path: Path) -> None:
    ground = Ground(tmp_path, random.Random(1), idle_limit=60.0)
    ground.joins("n2")
    ground.runs(document("large", 64, 512))
    ground.look()
    assert ground.look(60.0).leave == ("n2",)


def test_a_machine_that_is_unwanted_again_may_shut_down_again(tmp_path: Path) -> None:
    ground = Ground(tmp_path, random.Random(1), stop_time=30.0)
    ground.joins("n2")
    ground.nodes["n2"].heeds = 0.0
    ended: list[str] = []
    ground.nodes["n2"].end = ended.append  # type: ignore[method-assign, assignment]
    for wanted in (True, False, True, False):
        ground.runs(*[document("vm0")] * wanted)
        ground.look(40.0)
    assert ended == []
    ground.look(40.0)
    assert ended == ["vm0"]


@pytest.mark.parametrize("name", ["a'; screenshot test /tmp/x; '", "a\tb", "\u00fc"])
def test_a_name_that_a_node_tells_is_no_command(name: str) -> None:
    asked: list[str] = []

    class Told(Virsh):
        def ask(self, command: str) -> str:
            asked.append(command)
            return name

    with pytest.raises(NotUnderstood):
        Told("").machines()
    with pytest.raises(NotUnderstood):
        Told("").end(name)
    assert asked == ["list --uuid"]


def test_a_machine_of_a_size_beyond_all_numbers_is_not_understood() -> None:
    with pytest.raises(NotUnderstood):
        read(f"<domain><name>a</name><memory>{'9' * 400}</memory></domain>")


def test_a_node_that_says_too_much_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "virsh").write_text("#!/bin/sh\nexec yes\n")
    (tmp_path / "virsh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(virsh, "MOST", 2**20)
    with pytest.raises(CommandFailed, match="it says more than 1048576 bytes"):
        Virsh("x:///").machines()


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("<domain><name>a</name><memory>1048577</memory><vcpu>2</vcpu></domain>", Size(2, 1025)),
        ("<domain><name>a</name><memory unit='GiB'>2</memory></domain>", Size(1, 2048)),
        ("<domain><name>a</name><memory unit='b'>1</memory></domain>", Size(1, 1)),
    ],
)
def test_a_machine_s_size_is_never_rounded_down(text: str, size: Size) -> None:
    assert read(text).size == size


@pytest.mark.parametrize("text", ["", "<domain/>", "<domain><name>a</name></domain>", "<domain>"])
def test_what_is_no_machine_is_said_with_its_file(text: str, tmp_path: Path) -> None:
    ground = Ground(tmp_path, random.Random(1))
    (tmp_path / "a.xml").write_text(text)
    with pytest.raises(NotUnderstood, match=r"a\.xml: "):
        ground.look()


def test_a_machine_has_no_number_for_a_name(tmp_path: Path) -> None:
    ground = Ground(tmp_path, random.Random(1))
    ground.runs(document("7"))
    with pytest.raises(NotUnderstood, match=r"7\.xml: .* no number"):
        ground.look()


# ---------------------------------------------------------------- libvirt's own


@pytest.mark.skipif(shutil.which("virsh") is None, reason="not installed: virsh")
def test_a_machine_with_a_number_for_a_name_is_not_taken_for_another() -> None:
    """The one of the test driver has the number 1."""
    link = Virsh("test:///default")
    try:
        link.start(document("1", 2, 400))
        assert link.machines().keys() == {"1", "test"}
    finally:
        link.close()


@pytest.mark.skipif(shutil.which("virsh") is None, reason="not installed: virsh")
def test_virsh_starts_and_ends_machines_on_libvirt_s_test_driver(tmp_path: Path) -> None:
    """Each process has a node of its own there, of 16 processors and 3 GiB, with a machine of 8."""
    table = LibvirtTable.model_validate(
        {
            "machines": tmp_path,
            "uri": "test:///default",
            "capacities": [{"cpus": 4, "memory": 2800}],
            "keep": ["n1"],
        }
    )
    pool = HostPool(table, "vm")
    members: Mapping[str, Member] = {
        name: Member(name, name, "10.0.0.2", "active", "host@1") for name in ("n1", "n2")
    }
    try:
        for name, cpus in (("vm0", 1), ("vm1", 4)):
            (tmp_path / f"{name}.xml").write_text(document(name, cpus, 400))
        pool.add(members["n2"])
        assert pool.look(members, Counter(), 0.0).grow == {ANY: 2}, "a foreign machine takes all"
        pool._links["n2"].end("test")
        pool._links["n2"].start(document("by-hand", 2, 400))
        assert pool.look(members, Counter(), 0.0).grow == {ANY: 1}, "a foreign machine has 2 CPUs"
        seen = pool._links["n2"].machines()
        assert seen == {
            "by-hand": Machine("by-hand", Size(2, 400), ""),
            "vm0": Machine("vm0", Size(1, 400), "cod:vm"),
        }
        with pytest.raises(CommandFailed, match="already exists"):
            pool._links["n2"].start(owned(document("vm0"), "cod:vm"))
        (tmp_path / "vm0.xml").unlink()
        pool.look(members, Counter(), 10.0)
        assert pool._links["n2"].machines().keys() == {"by-hand"}
        pool.remove(members["n2"], False)
        assert pool._links == {}
    finally:
        for link in pool._links.values():
            link.close()
