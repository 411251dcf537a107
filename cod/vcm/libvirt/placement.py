"""Placement of virtual machines on virtual hosts. A host's declared capacity is never exceeded.
Pure.

A running machine stays where it is. A machine that should run and does not is put onto the open
host with the least room that it fits on, the largest machine first. A machine that fits on no host
waits for further hosts. Every machine on a host counts, whoever has started it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Size:
    """Needs of a machine, or capacity of a host: processors, and memory in MiB."""

    cpus: int = 0
    memory: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(self.cpus + other.cpus, self.memory + other.memory)

    def __sub__(self, other: Size) -> Size:
        return Size(self.cpus - other.cpus, self.memory - other.memory)

    def holds(self, other: Size) -> bool:
        """Return whether `other` fits into this size."""
        return other.cpus <= self.cpus and other.memory <= self.memory


@dataclass(frozen=True, slots=True)
class VirtualHost:
    """A node that runs virtual machines.

    capacity  declared
    running   the machines on it, by name
    open      it takes further ones
    """

    capacity: Size
    running: Mapping[str, Size] = field(default_factory=dict)
    open: bool = True

    @property
    def room(self) -> Size:
        """Return the unused capacity; negative after the capacity was lowered."""
        return self.capacity - sum(self.running.values(), Size())


@dataclass(frozen=True, slots=True)
class Placement:
    """The machines to start, each with its host, and the machines that wait for a host."""

    start: Mapping[str, str]
    waiting: tuple[str, ...]


def _largest_first(machines: Mapping[str, Size], names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: (-machines[name].memory, -machines[name].cpus, name))


def place(wanted: Mapping[str, Size], hosts: Mapping[str, VirtualHost]) -> Placement:
    """Return the machines to start, each with its host, and the machines that must wait. `wanted`
    are the machines that should run."""
    running = {name for host in hosts.values() for name in host.running}
    room = {name: host.room for name, host in hosts.items() if host.open}
    start, waiting = dict[str, str](), list[str]()
    for machine in _largest_first(wanted, wanted.keys() - running):
        size = wanted[machine]
        fitting = [name for name, left in room.items() if left.holds(size)]
        if not fitting:
            waiting.append(machine)
            continue
        host = min(fitting, key=lambda name: (room[name].memory, room[name].cpus, name))
        start[machine] = host
        room[host] -= size
    return Placement(start, tuple(waiting))


def new_hosts(machines: Mapping[str, Size], capacity: Size) -> tuple[int, tuple[str, ...]]:
    """Return how many empty hosts of that capacity the machines need (first fit, the largest
    first), and the machines that are too large for one host."""
    rooms, too_large = list[Size](), list[str]()
    for name in _largest_first(machines, machines):
        size = machines[name]
        if not capacity.holds(size):
            too_large.append(name)
            continue
        at = next((at for at, room in enumerate(rooms) if room.holds(size)), len(rooms))
        if at == len(rooms):
            rooms.append(capacity)
        rooms[at] -= size
    return len(rooms), tuple(too_large)
