"""What a seed means: the site of a world, how bad its network and its database are, and the list of
what people do and what breaks."""

from __future__ import annotations

import random
from dataclasses import dataclass

from cod.model import Energy
from tests.world.network import Weather


@dataclass(frozen=True)
class Act:
    """Something that happens `at` that many seconds after the beginning."""

    at: float
    what: str
    who: int = 0
    amount: float = 0.0

    def __str__(self) -> str:
        return f"{self.what} {self.who} {self.amount:.2f}"


@dataclass
class Plan:
    """What a seed means."""

    machines: int
    threads: int
    energy: Energy
    patience: float
    weather: Weather
    chances: dict[str, float]
    acts: list[Act]
    servers: int = 1
    compared: bool = False  # with the same world without faults, which takes as long again
    volumes: bool = False  # it has a file server
    switch: float = 0.5  # seconds that a change of a port takes at most
    poll: float = 2.0  # seconds between looks of what looks twice a second: a wake-up comes between


# An entry more changes what every seed means. Acts that are added later have a table of their own,
# drawn after those that are there (`plan`): so each seed's other acts stay as they are.
WEIGHTS = {
    "create": 10,
    "resize": 6,
    "release": 3,
    "delete": 5,
    "extend": 1,
    "replay": 5,
    "quarantine": 1,
    "cycle": 1,
    "kill": 6,
    "kill server": 2,
    "reset": 3,
    "unplug": 2,
    "stuck": 2,
    "hang": 4,
    "drop": 6,
    "bmc": 5,
    "failing": 2,
    "slow": 1,
    "away": 2,
    "storm": 2,
}
OF_SERVERS = {
    "still": 3,
    "still deciding": 3,
    "still reading": 4,
    "late answer": 4,
    "clock": 2,
    "kill server": 2,
}
OF_VCMS = {"vcm": 4, "jobs": 6, "vcm kill": 3, "vcm anew": 1, "vcm cut": 2, "vcm still": 2}
OF_SITE = {
    "maintain": 3,
    "drain": 3,
    "end maintenance": 2,
    "reinstall": 4,
    "tag": 2,
    "fail over": 2,
}
OF_VOLUMES = {"volume": 8, "detach": 3, "delete volume": 2, "file server": 6, "exports lost": 1}
OF_SWITCHES = {"isolate": 6, "switch": 6, "port moved": 3}
OF_DOCUMENTS = {"apply": 1}
OF_VLANS = {"exchange": 1}
OF_MANAGERS = {"still acting": 1}
"""Acts that are drawn after all others, so that a seed's other acts stay as they are."""


def plan(seed: int, *, short: bool = False) -> Plan:
    """Return what happens in the world of that seed, in its long or its short form."""
    rng = random.Random(f"{seed} short plan" if short else f"{seed} plan")
    part = 0.3 if short else 1.0
    span, count = part * rng.uniform(90.0, 240.0), round(part * rng.randint(15, 40))
    acts = []
    for at in sorted(rng.uniform(1.0, span) for _ in range(count)):
        what = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        acts.append(Act(at, what, rng.randrange(1000), rng.random()))
    bad = rng.choice((0.0, 0.05, 0.2))
    made = Plan(
        rng.randint(3, 6) if short else rng.randint(6, 14),
        rng.choice((1, 1, 4)),
        Energy(manage=rng.random() < 0.5, warm_low=1, warm_high=3, idle_time=30.0),
        rng.choice((0.2, 0.4)),
        Weather(rng.choice((0.0, 0.03, 0.15)), rng.choice((0.0, 0.1)), 0.002, rng.choice((0, 0.3))),
        {
            "lost answer": bad * rng.random(),
            "deadlock": bad * rng.random(),
            "wake": rng.choice((0.0, 0.5)),
        },
        acts,
        poll=4.0 if short else 2.0,
    )
    made.servers = rng.choice((1, 2, 2, 3))

    def add(weights: dict[str, int], count: int) -> None:
        for _ in range(round(part * count)):
            what = rng.choices(list(weights), list(weights.values()))[0]
            acts.append(Act(rng.uniform(1.0, span), what, rng.randrange(1000), rng.random()))

    of_servers, of_vcms = rng.randint(0, 2 * made.servers), rng.choice((0, 6, 12))
    add(OF_SERVERS, of_servers)
    add(OF_VCMS, of_vcms)
    made.compared = rng.random() < 0.4 * part
    add(OF_SITE, rng.choice((0, 4, 8)))
    of_volumes = rng.choice((0, 8, 16))
    made.volumes = of_volumes > 0
    add(OF_VOLUMES, of_volumes)
    of_switches = rng.choice((6, 12))
    add(OF_SWITCHES, of_switches)
    add(OF_DOCUMENTS, rng.choice((0, 3, 6)))
    made.switch = rng.choice((0.5, 30.0))
    exchanges = rng.choice((0, 2, 4))
    add(OF_VLANS, exchanges)
    add(OF_MANAGERS, rng.choice((0, 1, 3)) if made.servers > 1 else 0)
    # what was written by a wrong clock and forgotten is newer than what comes after it
    if made.servers > 1 and rng.random() < 0.25 and all(act.what != "clock" for act in acts):
        acts.append(Act(rng.uniform(1.0, span), "forget", rng.randrange(1000), rng.random()))
    acts.sort(key=lambda act: act.at)
    return made
