"""A node's whole way, stage by stage, for 1, 2, 4 and 8 nodes at once: from power-on to active in a
vcluster.

    firmware   power-on until the firmware's loader runs
    loader     until kernel, ramdisk and secret are loaded
    kernel     until the trampoline's first process runs
    report     until its report is stored
    prime      from the order until the disk is written
    reboot     until its boot decision sends it to its disk
    system     until the system on the disk has answered its readiness check: active

The nodes are switched on together, and primed together once all idle. What the server sends to them
is read from its network interface. The pictures are those of the paper's figures 4 (bytes over
time) and 5 (rate over time), and one of the stages.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cod.lab.spec import LabDisk, LabNode
from tests.bench.arena import PLOTS, Measure, Smoke, write
from tests.system.qemu import Rack, build_all, offer, rack

COUNTS = (1, 2, 4, 8)
IMAGE, MIB = "hello-a", 1 << 20
STAGES = ("firmware", "loader", "kernel", "report", "prime", "reboot", "system")
PERIOD = 0.1  # seconds between looks
# What a machine's console says when a stage has ended; the rest is known from the node's history.
SAYS = {
    "firmware": b"for the iPXE command line",
    "loader": b"secret.cpio",
    "kernel": b"COD trampoline on Linux",
    "reboot": b"/boot/disk/",
}
SMOKE = Smoke(
    rows=("power-on to active, 1 node", "1 node at once"),
    sizes={"COUNTS": (1,)},
    system=True,
    slow=True,
)


@dataclass
class Watch:
    """Notes, while it runs, when consoles said what, and how many bytes the server had sent
    when."""

    stand: Rack
    names: Sequence[str]
    said: dict[tuple[str, str], float] = field(default_factory=dict)
    sent: list[tuple[float, int]] = field(default_factory=list)
    ending: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Watch:
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ending.set()
        self.thread.join()

    def _run(self) -> None:
        while not self.ending.wait(PERIOD):
            now = time.time()
            self.sent.append((now, self.stand.bytes_sent()))
            for name in self.names:
                text = self.stand.console(name).encode()
                for stage, words in SAYS.items():
                    if (name, stage) not in self.said and words in text:
                        self.said[name, stage] = now


@dataclass
class Result:
    """Seconds of each stage of each node; seconds from power-on until all are active; (seconds,
    bytes) sent."""

    stages: dict[str, list[float]]
    whole: float
    sent: list[tuple[float, int]]


def main() -> None:
    build_all(IMAGE)
    results = {count: way(count) for count in COUNTS}
    write(
        "way", [measure for count, result in results.items() for measure in measures(count, result)]
    )
    draw(results)


def way(count: int, switch: str = "bridge") -> Result:
    """Take `count` nodes from power-on to active, on a lab's `switch`."""
    machines = [
        LabNode(f"n{number}", "bios", memory=512, disks=(LabDisk(640 * MIB),))
        for number in range(count)
    ]
    names = [machine.name for machine in machines]
    with rack(machines, patience=3.0, switch=switch) as stand:
        offer(stand, IMAGE)
        with Watch(stand, names) as watch:
            on = time.time()
            for name in names:
                stand.power(name, "on")
            all_are(stand, count, "inactive")
            stand.cod("vcluster", "create", "web", "--size", str(count), "--template", IMAGE)
            all_are(stand, count, "active")
        histories = {name: stand.history(name) for name in names}
    each = [durations(watch.said, name, on, history) for name, history in histories.items()]
    whole = max(row["at"] for history in histories.values() for row in history) - on
    before = watch.sent[0][1]
    result = Result(
        {stage: [row[stage] for row in each] for stage in STAGES},
        whole,
        [(at - on, sent - before) for at, sent in watch.sent],
    )
    print(
        f"  {nodes(count)}: {result.whole:.1f} s; "
        + ", ".join(
            f"{stage} {statistics.median(seconds):.1f}" for stage, seconds in result.stages.items()
        ),
        flush=True,
    )
    return result


def all_are(stand: Rack, count: int, state: str) -> None:
    """Wait until all nodes are in `state`."""
    stand.wait(
        lambda: [node["state"] for node in stand.nodes().values()] == [state] * count,
        f"all are {state}",
    )


def durations(
    said: dict[tuple[str, str], float], name: str, on: float, history: list[Any]
) -> dict[str, float]:
    """Seconds of each of a node's stages."""
    at = {row["to_state"]: row["at"] for row in history}
    ends = [said[name, "firmware"], said[name, "loader"], said[name, "kernel"], at["registering"]]
    begins = [on, *ends[:-1], at["prime"], at["boot"], said[name, "reboot"]]
    ends += [at["boot"], said[name, "reboot"], at["active"]]
    return {
        stage: round(end - begin, 2) for stage, begin, end in zip(STAGES, begins, ends, strict=True)
    }


def measures(count: int, result: Result) -> list[Measure]:
    """The whole, the median of each stage, and what was sent."""
    many = f"{nodes(count)} at once"
    return [
        Measure(f"power-on to active, {many}", round(result.whole, 2), "s"),
        *(
            Measure(f"{many}: {stage}", round(statistics.median(seconds), 2), "s", rounds=seconds)
            for stage, seconds in result.stages.items()
        ),
        Measure(f"{many}: sent by the server", round(result.sent[-1][1] / 1e6, 1), "MB"),
    ]


def nodes(count: int) -> str:
    """'1 node', '2 nodes'."""
    return f"{count} node{'s' * (count > 1)}"


def draw(results: dict[int, Result]) -> None:
    """The three pictures."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "cod"  # the same numbers, the same picture
    from matplotlib import pyplot

    def save(name: str) -> None:
        PLOTS.mkdir(exist_ok=True)
        pyplot.tight_layout()
        pyplot.savefig(PLOTS / f"{name}.svg", metadata={"Date": None})
        pyplot.close()

    pyplot.figure(figsize=(8, 4))
    for count, result in results.items():
        pyplot.plot(
            [at for at, _ in result.sent],
            [sent / 1e6 for _, sent in result.sent],
            label=nodes(count),
        )
    _labels(pyplot, "MB sent by the server")
    save("way_cumulative")
    pyplot.figure(figsize=(8, 4))
    for count, result in results.items():
        rates = rate(result.sent)
        pyplot.plot([at for at, _ in rates], [each / 1e6 for _, each in rates], label=nodes(count))
    _labels(pyplot, "MB/s sent by the server")
    save("way_rate")
    pyplot.figure(figsize=(8, 0.5 * len(results) + 1.5))
    for place, result in enumerate(results.values()):
        left = 0.0
        for number, stage in enumerate(STAGES):
            seconds = statistics.median(result.stages[stage])
            pyplot.barh(
                place, seconds, left=left, color=f"C{number}", label=stage if place == 0 else None
            )
            left += seconds
    pyplot.yticks(range(len(results)), [nodes(count) for count in results])
    pyplot.xlabel("seconds, median over the nodes")
    pyplot.legend(ncols=len(STAGES), fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1))
    save("way_stages")


def _labels(pyplot: Any, what: str) -> None:
    pyplot.xlabel("seconds since power-on")
    pyplot.ylabel(what)
    pyplot.legend()


def rate(sent: Sequence[tuple[float, int]], window: float = 1.0) -> list[tuple[float, float]]:
    """Bytes a second over the last `window` seconds."""
    rates, first = [], 0
    for at, total in sent:
        while sent[first][0] < at - window:
            first += 1
        then, before = sent[first]
        rates.append((at, (total - before) / max(at - then, PERIOD)))
    return rates


if __name__ == "__main__":
    main()
