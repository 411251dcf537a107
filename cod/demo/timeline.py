"""Follows the events of the demo's machines. It shows them (a line for each event, and bars on a
terminal), and keeps them for the report."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from cod.client import Client, Unreachable

MIB = 1 << 20
PHASES = {"wipe": "erasing", "zero": "clearing", "write": "writing", "verify": "checking"}
STYLES = {
    "active": "bold green",
    "prime": "cyan",
    "wipe": "yellow",
    "boot": "blue",
    "inactive": "green",
    "quarantined": "bold red",
}


class Timeline:
    """A thread that reads the server's event stream. `names` has the demo's names of nodes by
    their boot MACs."""

    def __init__(
        self, client: Callable[[], Client], names: Mapping[str, str], console: Console
    ) -> None:
        self._client, self._names, self._console = client, names, console
        self._begin = time.time()
        self._called: dict[str, str] = {}
        self.states: dict[str, list[dict[str, Any]]] = {name: [] for name in names.values()}
        self.written: dict[str, list[dict[str, Any]]] = {name: [] for name in names.values()}
        self._bars: dict[str, TaskID] = {}
        self._last_line: dict[str, float] = {}
        self._phases: dict[str, str] = {}
        self.failure = ""
        self._progress = Progress(
            TextColumn("        {task.description:8}"),
            BarColumn(40),
            TextColumn("{task.fields[about]}"),
            console=console,
            transient=True,
        )
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def start(self) -> None:
        self._progress.start()
        self._thread.start()

    def stop(self) -> None:
        self._progress.stop()

    def say(self, text: str, style: str = "bold") -> None:
        self._console.print(
            f"{self.elapsed():6.1f}s  {text}", style=style, highlight=False, soft_wrap=True
        )

    def elapsed(self) -> float:
        """Return seconds since the demo began."""
        return time.time() - self._begin

    def _follow(self) -> None:
        try:
            with self._client() as client:
                ways = {
                    "transition": self._transition,
                    "progress": self._advance,
                    "notice": self._notified,
                }
                for kind, value in client.events(0):
                    ways[kind](value)
        except Unreachable as error:
            self.failure = str(error)

    def name(self, node: str) -> str:
        """Return the demo's name for the node that the server calls `node`."""
        if node not in self._called:
            with self._client() as client:
                mac = client.get(f"/nodes/{node}")["boot_mac"]
            self._called[node] = self._names.get(mac, node)
        return self._called[node]

    def _transition(self, row: Mapping[str, Any]) -> None:
        name = self.name(row["node"])
        self.states.setdefault(name, []).append({"state": row["to_state"], "at": row["at"]})
        self._drop_bar(name)
        self._phases.pop(name, None)
        if row["bytes_written"]:
            rate = row["rate"] or 0.0
            self.written.setdefault(name, []).append(
                {
                    "state": row["from_state"],
                    "bytes": row["bytes_written"],
                    "mb_per_second": rate / 1e6,
                }
            )
        at = row["at"] - self._begin
        style = STYLES.get(row["to_state"], "")
        where = f" in {row['vcluster']}" if row.get("vcluster") else ""
        self._console.print(
            f"{at:6.1f}s  {name:6} [{style or 'none'}]{row['to_state']:<11}[/]{where:9} "
            f"[dim]{row['cause']}[/]",
            highlight=False,
            soft_wrap=True,
        )

    def _notified(self, notice: Mapping[str, Any]) -> None:
        self.say(f"Told {notice['group'] or 'the administrators'}: {notice['subject']}")

    def _advance(self, row: Mapping[str, Any]) -> None:
        name, done, total, rate = self.name(row["node"]), row["done"], row["total"], row["rate"]
        phase = PHASES.get(row["phase"], row["phase"] or row["state"])
        if self._phases.get(name) != phase:  # each step has a bar of its own, and its own bytes
            self._phases[name] = phase
            self._drop_bar(name)
            self._last_line.pop(name, None)
        about = f"{phase} {done / MIB:.0f} of {total / MIB:.0f} MiB, {rate / 1e6:.0f} MB/s"
        if self._console.is_terminal:
            if name not in self._bars:
                self._bars[name] = self._progress.add_task(name, total=total, about="")
            self._progress.update(self._bars[name], completed=done, total=total, about=about)
        elif time.time() - self._last_line.get(name, 0) >= 2:
            self._last_line[name] = time.time()
            filled = int(30 * done / total) if total else 0
            self._console.print(
                f"{self.elapsed():6.1f}s  {name:6} |{'█' * filled:30}| {about}",
                highlight=False,
                soft_wrap=True,
            )

    def _drop_bar(self, name: str) -> None:
        bar = self._bars.pop(name, None)
        if bar is not None:
            self._progress.remove_task(bar)
