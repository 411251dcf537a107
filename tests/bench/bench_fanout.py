"""An image to many nodes at once over slow links: how much longer than to one node it takes.

A lab with a real server and so many simulated nodes, a namespace each, whose links (the server's,
too) `tc tbf` limits in both directions. The nodes boot, report and wait; then one vcluster of one
node is created, and then, of another image of the same size, one of all the other nodes. The agents
are the product's and have their orders from the server; what they would write to their disks goes
nowhere (`tests.bench.fanout_node`). Some nodes may come late, whose time is counted from their own
order, and some may vanish while they fetch, with their links.

    python -m tests.bench.bench_fanout [--nodes N --mib MIB --rate MBIT --late N --dying N --alone]

Without options: the sets of `SETS`, and the curve of docs/plots/fanout.svg.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from cod import svg
from cod.demo.stage import Stage
from cod.lab import agents, network, record
from cod.lab.standin import MARK
from tests.bench.arena import PLOTS, Measure, Smoke, write

MIB = 1 << 20
BURST = "128kb"  # of the limited links: 64 KiB, which the kernel sends as one, and their headers
# TCP's congestion control: Linux's own default is cubic, which namespaces may not choose. With BBR,
# which the host may have, nodes that send and receive are some 8 % slower.
CONGESTION = "reno"
LATE_AT, DIES_AT = 0.4, 0.3  # shares of the time that one node takes
POLICY = "new_rate = 1000.0\nnew_burst = 1000\nnew_machines = 1000\napproved_share = 0.0\n"
TEMPLATE = '<template name="{0}"><image target="disk" name="{0}"/><boot mode="disk"/></template>'


@dataclass(frozen=True, slots=True)
class Fan:
    """So many nodes at once, an image of `mib` MiB that nothing can make smaller, links of `rate`
    Mbit/s; `late` of the nodes come late, and `dying` vanish; `goal`: of the ratio; `alone`: nodes
    pass nothing on."""

    nodes: int
    mib: int
    rate: int
    late: int = 0
    dying: int = 0
    goal: str = ""
    alone: bool = False

    def __str__(self) -> str:
        odd = f", {self.late} late" * bool(self.late) + f", {self.dying} dying" * bool(self.dying)
        odd += ", server alone" * self.alone
        return f"{self.nodes} nodes, {self.mib} MiB at {self.rate} Mbit/s{odd}"


SETS = (
    Fan(16, 32, 50, alone=True),
    Fan(16, 256, 50, goal="<= 1.3"),
    Fan(16, 1024, 50, goal="<= 1.1"),
    Fan(64, 1024, 20, 6, 2, goal="<= 1.1"),
)
CURVE, CURVE_MIB, CURVE_RATE = (1, 2, 4, 8, 16, 32), 64, 50
# Seconds of N clients: Hibler and others, "Fast, Scalable Disk Imaging with Frisbee", USENIX 2003;
# EZIO's README, which are the figures of https://www.mdpi.com/2076-3417/9/2/296.
FRISBEE = ((1, 33.8), (80, 33.6))
EZIO = ((1, 675), (2, 1273), (4, 1331), (8, 1412), (16, 1005), (24, 1048), (32, 1143))
CLONEZILLA = ((1, 390), (2, 474), (4, 638), (8, 980), (16, 1454), (24, 1992), (32, 2203))
SMOKE = Smoke(
    rows=(
        "fan-out, 3 nodes, 2 MiB at 50 Mbit/s",
        "fan-out, 5 nodes, 2 MiB at 50 Mbit/s, 1 late, 1",
    ),
    sizes={
        "SETS": (Fan(5, 2, 50, 1, 1),),
        "CURVE": (1, 3),
        "CURVE_MIB": 2,
    },
    system=True,
    slow=True,
    needs=("busybox",),
)


class Node(agents.Agent):
    """A simulated node that keeps nothing of an image but its beginning."""

    program = "tests.bench.fanout_node"

    def vanish(self, lab: str) -> None:
        """End without a word: no connection is closed."""
        ip("-n", record.namespace(lab), "link", "set", f"v{self.name}", "down")
        self.off()

    def times(self) -> tuple[float, float] | None:
        """Return when the agent got its last prime order and when it had done it, both by the
        monotonic clock; None: not yet."""
        found = re.findall(
            r"^([\d.]+) agent: order \S+: prime( done)?$", self.console.read_text(), re.M
        )
        if len(found) < 2 or not found[-1][1]:
            return None
        return float(found[-2][0]), float(found[-1][0])

    def ordered(self) -> bool:
        """Return whether the agent has had a prime order."""
        return ": prime\n" in self.console.read_text()


@dataclass(frozen=True, slots=True)
class Found:
    """What came of one image: seconds from the first order until the last node had done, those of
    each node from its own order, and of the late ones; bytes that the server sent; the image's;
    the share of the host's processors that all but the server took."""

    seconds: float
    each: Sequence[float]
    late: Sequence[float]
    sent: int
    stored: int
    busy: float


class Stand(Stage):
    """The lab, its server and its nodes. `rate`: Mbit/s of each link; `alone`: nodes pass nothing
    on."""

    def __init__(self, folder: Path, nodes: int, size: int, rate: int, *, alone: bool) -> None:
        policy = POLICY + "[images]\npass_on = false\n" * alone
        super().__init__(folder, (), f"fan{os.getpid()}", patience=30.0, policy=policy)
        self._count, self._size, self._rate = nodes, size, rate
        self.nodes: list[Node] = []
        self._images = 0

    def __enter__(self) -> Stand:
        super().__enter__()
        try:
            namespace = record.namespace(self.lab)
            self._limit(namespace, network.BRIDGE)
            _choose_congestion(namespace)
            (record.folder(self.lab) / agents.FOLDER).mkdir()
            for number in range(1, self._count + 1):
                node = Node(self.lab, number, self._size)
                self.nodes.append(node)
                self._limit(namespace, f"v{node.name}")
                self._limit(node.namespace, "eth0")
                _choose_congestion(node.namespace)
                node.on()
            self._wait("all nodes wait", self._all_idle, 120 + 3 * self._count)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for node in self.nodes:
            node.off()
        super().__exit__(None, None, None)

    def _limit(self, namespace: str, interface: str) -> None:
        words = f"root tbf rate {self._rate}mbit burst {BURST} latency 200ms"
        command = ["tc", "qdisc", "add", "dev", interface, *words.split()]
        subprocess.run(network.inside(namespace, command), check=True)

    def _all_idle(self) -> bool:
        with self.client() as client:
            states = [node["state"] for node in client.every("/nodes")]
        return states == ["inactive"] * self._count

    def _wait(self, what: str, truth: Callable[[], object], seconds: float) -> None:
        until = time.monotonic() + seconds
        while not truth():
            if time.monotonic() > until:
                raise RuntimeError(f"not within {seconds:.0f} s: {what}")
            time.sleep(0.25)

    def offer(self, mib: int) -> tuple[str, int]:
        """Add another image, and a template of the same name; return the name, and how many bytes
        the image has on its way."""
        self._images += 1
        name, path = f"fan{self._images}", self.folder / "image"
        with path.open("wb") as image:
            image.write((MARK + name.encode()).ljust(512, b"\0"))
            for _ in range(mib):
                image.write(os.urandom(MIB))
            image.truncate(mib * MIB)
        made = self.cod("image", "add", name, str(path), "--raw", "--wait")
        path.unlink()
        template = self.folder / f"{name}.xml"
        template.write_text(TEMPLATE.format(name))
        self.cod("template", "add", str(template))
        return name, int(made["stored"])

    def sent(self) -> int:
        """Return how many bytes the server has sent to nodes."""
        words = ["-n", record.namespace(self.lab), "-s", "-j", "link", "show", network.BRIDGE]
        return int(json.loads(ip(*words))[0]["stats64"]["tx"]["bytes"])

    def give(self, count: int, mib: int, one: float = 0.0, late: int = 0, dying: int = 0) -> Found:
        """Give a new image to `count` nodes that wait: to the last `late` of them once `LATE_AT` of
        `one`, the time of one node, has passed."""
        name, stored = self.offer(mib)
        waiting = [node for node in self.nodes if not node.ordered()]
        before, limit = self.sent(), 60 + 3 * count * mib * 8.4 / self._rate
        self._ask(name, name, count - late)

        def have_orders() -> bool:
            return sum(node.ordered() for node in waiting) == count - late

        self._wait("all have their orders", have_orders, limit)
        began, cpu = time.monotonic(), self._others_cpu()
        first = [node for node in waiting if node.ordered()]
        if dying:
            self._wait("time passes", lambda: time.monotonic() > began + DIES_AT * one, limit)
            for node in (gone := first[1 :: len(first) // dying][:dying]):
                node.vanish(self.lab)
            first = [node for node in first if node not in gone]
            waiting = [node for node in waiting if node not in gone]
        if late:
            self._wait("time passes", lambda: time.monotonic() > began + LATE_AT * one, limit)
            self._ask(f"{name}-late", name, late)
        there = count - dying

        def have_it() -> list[Node]:
            return [node for node in waiting if node.times()]

        self._wait("all have the image", lambda: len(have_it()) == there, limit)
        cpu = (self._others_cpu() - cpu) / (time.monotonic() - began) / (os.cpu_count() or 1)
        times = {node.name: node.times() or (0.0, 0.0) for node in have_it()}
        soon = [times.pop(node.name) for node in first]
        return Found(
            max(end for _, end in soon) - min(start for start, _ in soon),
            [round(end - start, 2) for start, end in soon],
            [round(end - start, 2) for start, end in times.values()],
            self.sent() - before,
            stored,
            cpu,
        )

    def _others_cpu(self) -> float:
        """Return the CPU seconds of this host so far, without those of the server's processes."""
        words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
        ticks = sum(map(int, words)) - sum(map(int, words[3:5]))  # idle, and waiting for disks
        for process in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):  # it has ended
                fields = process.read_text().rpartition(")")[2].split()
                if self._server and fields[2] == str(self._server.pid):  # its group
                    ticks -= int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def _ask(self, vcluster: str, template: str, size: int) -> None:
        self.cod("vcluster", "create", vcluster, "--size", str(size), "--template", template)


@contextmanager
def stand(nodes: int, mib: int, rate: int, *, alone: bool = False) -> Iterator[Stand]:
    """A stand with so many nodes that wait. Nothing of it is left, however this process ends: the
    folder has the name that `cod.lab.cleaner` looks for."""
    with (
        tempfile.TemporaryDirectory(prefix=f"codf{os.getpid()}-") as folder,
        patch.dict(os.environ, {"COD_LAB_ROOT": f"{folder}/labs"}),
        Stand(Path(folder) / "s", nodes, (mib + 1) * MIB, rate, alone=alone) as there,
    ):
        yield there


def run(fan: Fan) -> list[Measure]:
    """Measure one set: one node, then all others at once."""
    with stand(fan.nodes + 1, fan.mib, fan.rate, alone=fan.alone) as there:
        one = there.give(1, fan.mib)
        many = there.give(fan.nodes, fan.mib, one.seconds, fan.late, fan.dying)
    return measures(fan, one, many)


def measures(fan: Fan, one: Found, many: Found) -> list[Measure]:
    """Return what is told of a set, and print it."""
    name = f"fan-out, {fan}"
    rows = [
        beside(name, many.seconds, one, fan.goal, many.each),
        Measure(
            f"{name}: images sent by the server",
            round(many.sent / many.stored, 3),
            "images",
            goal="" if fan.alone else "<= 2 images",
        ),
        Measure(f"{name}: CPU in use besides the server's", round(many.busy, 3), "of the host's"),
    ]
    if many.late:
        rows.append(beside(f"{name}: slowest late node", max(many.late), one, fan.goal, many.late))
    for row in rows:
        print(f"  {row}", flush=True)
    return rows


def beside(
    name: str, seconds: float, one: Found, goal: str = "", each: Sequence[float] = ()
) -> Measure:
    """Return a measure of seconds beside those of one node."""
    ratio = round(seconds / one.seconds, 3)
    peer = round(one.seconds, 2)
    return Measure(name, round(seconds, 2), "s", "one node", peer, ratio, goal, list(each))


def curve() -> list[Measure]:
    """Measure a small image for growing numbers of nodes, and draw the ratios."""
    rows, points = [], []
    with stand(sum(CURVE), CURVE_MIB, CURVE_RATE) as there:
        one = there.give(1, CURVE_MIB)
        for count in CURVE:
            many = there.give(count, CURVE_MIB) if count > 1 else one
            points.append((count, many.seconds / one.seconds))
            if count > 1:
                rows += measures(Fan(count, CURVE_MIB, CURVE_RATE), one, many)
    draw(points)
    return rows


def draw(points: svg.Points) -> None:
    """Draw how much longer N nodes take than one, beside what others published."""
    published = (("Frisbee, 642 MB", FRISBEE), ("EZIO, 50 GB", EZIO), ("Clonezilla", CLONEZILLA))
    lines = [svg.Line(f"COD, {CURVE_MIB} MiB", points)]
    lines += [
        svg.Line(what, [(count, seconds / found[0][1]) for count, seconds in found])
        for what, found in published
    ]
    ticks = [(count, str(count)) for count in (1, 2, 4, 8, 16, 32, 64)]
    text = svg.lines(
        "An image to N nodes at once, time beside that of one node",
        lines,
        svg.Axis("nodes", ticks, log=True),
        svg.Axis("finish(N) / finish(1)"),
    )
    PLOTS.mkdir(parents=True, exist_ok=True)
    (PLOTS / "fanout.svg").write_text(text)


def main() -> None:
    """Measure what the command line says, or all sets and the curve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=0, help="measure one set of so many nodes")
    for name, default in (("mib", 256), ("rate", 50), ("late", 0), ("dying", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--alone", action="store_true", help="nodes pass nothing on")
    asked = parser.parse_args()
    if asked.nodes:
        sizes = (asked.nodes, asked.mib, asked.rate, asked.late, asked.dying)
        run(Fan(*sizes, alone=asked.alone))
        return
    write("fanout", [*curve(), *(row for fan in SETS for row in run(fan))])


def _choose_congestion(namespace: str) -> None:
    command = f"echo {CONGESTION} > /proc/sys/net/ipv4/tcp_congestion_control"
    subprocess.run(network.inside(namespace, ["sh", "-ec", command]), check=True)


def ip(*words: str) -> str:
    """Run `ip`; return what it prints."""
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
