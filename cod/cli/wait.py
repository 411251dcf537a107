"""`--wait`: waits for a vcluster's wished state, with a bar for each node while its disk is
written."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Self

import click

from cod.cli.show import SPAN, console, for_programs, node_word, size
from cod.client import ApiError, Client, path
from cod.quantity import exact_span

POLL = 0.5  # seconds
# how far along a state is
WAY = {"trampoline": 0.05, "wipe": 0.1, "prime": 0.15, "boot": 0.85, "active": 1.0}


class TimedOut(click.ClickException):
    """Exit code 4."""

    exit_code = 4


def wait_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--wait` and `--timeout`."""
    command = click.option(
        "--timeout", type=SPAN, default=1800.0, show_default="30m", help="For --wait."
    )(command)
    return click.option(
        "--wait", is_flag=True, help="Wait until it is done. Exit code 4 after --timeout."
    )(command)


def wait_until(api: Client, name: str, done: Callable[[Any], bool], timeout: float) -> Any:
    """Fetch the vcluster until it is `done`; return its last value. Ends early if its request was
    rejected or is stopped."""
    return _watched(api, name, lambda value: value is not None and done(value), timeout)


def wait_until_gone(api: Client, name: str, timeout: float) -> None:
    """Fetch the vcluster until there is none."""
    _watched(api, name, lambda value: value is None, timeout)


def _watched(api: Client, name: str, done: Callable[[Any], bool], timeout: float) -> Any:
    until = time.monotonic() + timeout
    with Silent() if for_programs() else Bars() if sys.stdout.isatty() else Lines() as view:
        while True:
            value = _ask(api, name)
            view.show(value["nodes"] if value else [])
            if done(value):
                return value
            _check_not_rejected(api, name, ended=value is None)
            if time.monotonic() > until:
                raise TimedOut(
                    f"{name} is not as wished after {exact_span(timeout)}; it goes on without being"
                    " watched"
                )
            time.sleep(POLL)


def _ask(api: Client, name: str) -> Any:
    try:
        value = api.get(path("vclusters", name))
        return None if value["ended_at"] else value
    except ApiError as error:
        if error.code == "not_found":
            return None
        raise


def _check_not_rejected(api: Client, name: str, ended: bool) -> None:
    for request in api.newest("/requests", 1, vcluster=name):
        if request["state"] in ("rejected", "stopped"):
            raise ApiError(409, "conflict", f"{name}: {request['reason']}")
    if ended:
        raise ApiError(409, "conflict", f"{name} has ended")


class Silent:
    """A display that shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def show(self, value: Any) -> None:
        """Print nothing."""


class Lines(Silent):
    """A printer of a line for each change of a node's state, for logs and pipes."""

    def __init__(self) -> None:
        self._states: dict[str, str] = {}

    def show(self, value: list[Any]) -> None:
        """Print the changes of these nodes."""
        for node in value:
            if self._states.get(node["name"]) != node["state"]:
                self._states[node["name"]] = node["state"]
                where = f" {node['address']}" if node["address"] else ""
                host, word = node["hostname"] or node["name"], node_word(node["state"])
                click.echo(f"{host} ({node['name']}): {word}{where}")


class LiveView(Silent):
    """A view at a terminal, which is kept up to date by `_progress` of rich."""

    _progress: Any

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


class Bars(LiveView):
    """A bar for each node."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

        self._bars: dict[str, TaskID] = {}
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            console=console(),
        )

    def show(self, value: list[Any]) -> None:
        """Update the bars of these nodes."""
        for node in value:
            name = node["name"]
            if name not in self._bars:
                self._bars[name] = self._progress.add_task(
                    node["hostname"] or name, total=1.0, state=""
                )
            self._progress.update(self._bars[name], completed=far(node), state=_about(node))


def far(node: Any) -> float:
    """Return a node's progress on its way to active, 0 to 1. Most of the way is the writing of its
    disk."""
    progress = node["progress"]
    start = WAY.get(node["state"], 0.0)
    if node["state"] == "prime" and progress:
        return float(start + (WAY["boot"] - start) * progress["done"] / progress["total"])
    return start


def _about(node: Any) -> str:
    word = node_word(node["state"])
    if node["progress"]:
        return f"{word} {size(node['progress']['rate'])}/s"
    return f"{word}: {node['reason']}" if node["state"] == "quarantined" else word
