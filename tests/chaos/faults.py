"""The faults of a chaos run: each begins, lasts for a time that is drawn, and is mended."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from cod.lab.servers.mariadb import DatabaseServer
from tests import cutlinks
from tests.chaos.site import ChaosServer, ChaosSite, children

HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class ChaosFault:
    """A fault that has begun.

    kind     as in `FAULTS`
    target   what it was done to: 's1', 's1 manager', 'a3', 'database 1' …
    seconds  after which `mend` is called
    hits     the server that cannot manage, or not see who does, while it lasts; '': none
    """

    kind: str
    target: str
    seconds: float
    mend: Callable[[], None] = lambda: None
    hits: str = ""


def _server(site: ChaosSite, rng: random.Random) -> ChaosServer:
    return rng.choice([server for server in site.servers if server.running is not None])


def kill_part(site: ChaosSite, rng: random.Random) -> ChaosFault | None:
    """kill -9 of a part; its supervisor starts it again."""
    server, part = _server(site, rng), rng.choice(("edge", "images", "manager", "web"))
    pid = server.parts().get(part)
    if pid is None:  # it has just ended, and its supervisor has not started it yet
        return None
    os.kill(pid, signal.SIGKILL)
    hits = server.name if part == "manager" else ""
    return ChaosFault("part killed", f"{server.name} {part}", 0.0, hits=hits)


def kill_server(site: ChaosSite, rng: random.Random) -> ChaosFault:
    """kill -9 of all processes of a server at once. Where there are others it serves again before
    the next fault: what is promised is for one server that is away."""
    server = _server(site, rng)
    server.kill()

    def mend() -> None:
        server.start()
        if len(site.servers) > 1:
            server.wait()

    return ChaosFault("server killed", server.name, rng.uniform(0.5, 40.0), mend, server.name)


def pause_server(site: ChaosSite, rng: random.Random) -> ChaosFault:
    """SIGSTOP of all processes of a server, as a host that hangs."""
    server = _server(site, rng)
    server.signal(signal.SIGSTOP)
    mend = partial(server.signal, signal.SIGCONT)
    return ChaosFault("server stopped", server.name, rng.uniform(4.0, 70.0), mend, server.name)


def pause_manager(site: ChaosSite, rng: random.Random) -> ChaosFault | None:
    """SIGSTOP of the manager alone that has the claim, for longer than that lasts."""
    (server,) = (server for server in site.servers if server.name == site.manager)
    pid = server.parts().get("manager")
    if pid is None:
        return None
    os.kill(pid, signal.SIGSTOP)

    def mend() -> None:
        if server.parts().get("manager") == pid:
            os.kill(pid, signal.SIGCONT)

    return ChaosFault("manager stopped", server.name, rng.uniform(17.0, 60.0), mend, server.name)


def reset_machine(site: ChaosSite, rng: random.Random) -> ChaosFault:
    """Power off and on of a machine."""
    machine = site.machines[rng.choice(sorted(site.machines))]
    machine.reset()
    return ChaosFault("machine reset", machine.name, 0.0)


def unplug_server(site: ChaosSite, rng: random.Random) -> ChaosFault:
    """No packet passes between a server and the machines."""
    server = _server(site, rng)
    server.plug_in(False)
    return ChaosFault(
        "network cut", server.name, rng.uniform(3.0, 30.0), partial(server.plug_in, True)
    )


def cut_database(site: ChaosSite, rng: random.Random) -> ChaosFault | None:
    """Nothing passes between a server and a node of the database, or all, and neither is told: not
    even TCP's acknowledgements."""
    server = _server(site, rng)
    links = server.links if rng.random() < 0.5 else rng.sample(server.links, 1)
    if not links:
        return None
    for link in links:
        os.killpg(link.pid, signal.SIGSTOP)
    pids = [pid for link in links for pid in (link.pid, *children(link.pid))]
    lines = [line for pid in pids for line in cutlinks.sockets_of(pid)]
    for line in lines:
        cutlinks.cut(line)

    def mend() -> None:
        for line in lines:
            cutlinks.mend(line)
            line.close()
        for link in links:
            os.killpg(link.pid, signal.SIGCONT)

    name = f"{server.name}, {len(links)} of {len(server.links)}"
    return ChaosFault("database link cut", name, rng.uniform(3.0, 30.0), mend, server.name)


def fill_disk(site: ChaosSite, rng: random.Random) -> ChaosFault:
    """A server's data folder is full."""
    server = _server(site, rng)
    server.fill()
    return ChaosFault("disk full", server.name, rng.uniform(3.0, 20.0), server.free)


def set_clock(site: ChaosSite, rng: random.Random) -> ChaosFault | None:
    """A server's clock is an hour ahead or behind."""
    if site.clocks is None:
        return None
    server = _server(site, rng)
    ahead = rng.choice((HOUR, -HOUR))
    server.step_clock(ahead)
    kind = "clock ahead" if ahead > 0 else "clock behind"
    return ChaosFault(kind, server.name, rng.uniform(5.0, 60.0), partial(server.step_clock, 0.0))


def _node(site: ChaosSite, rng: random.Random) -> tuple[str, DatabaseServer] | None:
    if not site.database.nodes:
        return None
    number = rng.randrange(len(site.database.nodes))
    return f"database {number + 1}", site.database.nodes[number]


def kill_database(site: ChaosSite, rng: random.Random) -> ChaosFault | None:
    """kill -9 of a node of the database."""
    if (found := _node(site, rng)) is None:
        return None
    name, node = found
    node.kill()
    mend = partial(site.database.start, node)
    return ChaosFault("database killed", name, rng.uniform(0.5, 10.0), mend)


def pause_database(site: ChaosSite, rng: random.Random) -> ChaosFault | None:
    """SIGSTOP of a node of the database, for longer than the writer's lease."""
    if (found := _node(site, rng)) is None:
        return None
    name, node = found
    assert node.process is not None
    node.process.send_signal(signal.SIGSTOP)
    mend = partial(site.database.resume, node)
    return ChaosFault("database stopped", name, rng.uniform(3.0, 20.0), mend)


def crash_database(site: ChaosSite, rng: random.Random) -> ChaosFault | None:
    """kill -9 of all nodes of a database of several."""
    if len(site.database.nodes) < 2:
        return None
    for node in site.database.nodes:
        node.kill()
    return ChaosFault("all databases killed", "", rng.uniform(0.5, 5.0), site.database.recover)


FAULTS: dict[str, Callable[[ChaosSite, random.Random], ChaosFault | None]] = {
    "part": kill_part,
    "server": kill_server,
    "stop": pause_server,
    "manager": pause_manager,
    "machine": reset_machine,
    "network": unplug_server,
    "link": cut_database,
    "disk": fill_disk,
    "clock": set_clock,
    "database": kill_database,
    "database-stop": pause_database,
    "crash": crash_database,
}
"""The faults by the names of the option --faults. Each returns None where it cannot begin."""
