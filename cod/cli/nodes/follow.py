"""`--wait` for work on one node, a capture or a burn-in: shows its progress until its end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Container
from typing import Any

import click

from cod.cli.show import console, for_programs, node_word
from cod.cli.wait import POLL, LiveView, Silent, TimedOut
from cod.client import Client
from cod.quantity import exact_span


def follow(
    api: Client,
    place: str,
    noun: str,
    over: Container[str],
    timeout: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Any:
    """Fetch the `noun` at `place` until its state is one of `over`; return its last value."""
    until = clock() + timeout
    with (
        Silent() if for_programs() else _Bar(noun) if sys.stdout.isatty() else _Lines(noun) as view
    ):
        while (value := api.get(place))["state"] not in over:
            view.show(value)
            if clock() > until:
                raise TimedOut(
                    f"the {noun} of {value['node']} is not over after {exact_span(timeout)};"
                    " it goes on without being watched"
                )
            sleep(POLL)
        view.show(value)
    return value


class _Lines(Silent):
    """A printer of one line for each change of state."""

    def __init__(self, noun: str) -> None:
        self._noun, self._last = noun, ("", "")

    def show(self, value: Any) -> None:
        """Print the changes."""
        now = (value["state"], value["node_state"])
        if now != self._last:
            word = node_word(value["node_state"])
            click.echo(f"{value['node']}: {self._noun} {value['state']}, node {word}")
        self._last = now


class _Bar(LiveView):
    """A bar of bytes."""

    def __init__(self, noun: str) -> None:
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TransferSpeedColumn,
        )

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeElapsedColumn(),
            console=console(),
        )
        self._task = self._progress.add_task(noun, total=None)

    def show(self, value: Any) -> None:
        """Update the bar."""
        waits = value["state"] == "wanted"
        at = node_word(value["node_state"]) if waits else value["state"]
        self._progress.update(
            self._task,
            description=f"{value['node']} {at}",
            total=value["total"] or None,
            completed=value["done"],
        )
