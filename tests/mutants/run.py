"""Plugin of pytest that runs each planted fault against the tests that execute its line.

Tests are collected once. A child process is forked for each fault, and gets the changed code in the
functions that are already loaded. The changed file is there for what is loaded later and for other
processes. The child ends at the first failure, or is killed when its time is over.
"""

from __future__ import annotations

import gc
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import types
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.mutants.plant import Fault, changed_codes

Functions = dict[tuple[str, str, int], list[types.FunctionType]]


class Runner:
    """Runs the faults in `work`, a JSON file, and writes each result as a line of `results`.

    The last line of a fault is the one that holds.
    """

    def __init__(self, work: Path, results: Path) -> None:
        self._work: list[dict[str, Any]] = json.loads(work.read_text())
        self._results = results
        self._failed: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run every fault. A fault that was caught by an unsteady test is run again without it."""
        if session.testsfailed:  # errors of collection are shown by pytest itself
            raise session.Interrupted("errors during collection")
        items = {item.nodeid: item for item in session.items}
        functions = loaded()
        caught = list[dict[str, Any]]()
        for work in self._work:
            result = self._one(session, functions, items, work, set())
            self._write(work, result)
            caught += [work | result] if result["test"] in items else []
        unsteady = set[str]()
        names = sorted({work["test"] for work in caught})
        while (failed := self._forked(session, [items[name] for name in names])["test"]) in names:
            unsteady.add(failed)
            names = names[names.index(failed) + 1 :]
        if failed:
            pytest.exit(f"the tests that caught faults do not end without one: {failed}", 3)
        for work in caught:
            if work["test"] in unsteady:
                self._write(work, self._one(session, functions, items, work, unsteady))
        return True

    def _write(self, work: dict[str, Any], result: dict[str, Any]) -> None:
        with self._results.open("a") as file:
            json.dump(work | result | {"tests": len(work["tests"])}, file)
            file.write("\n")

    def _one(
        self,
        session: pytest.Session,
        functions: Functions,
        items: dict[str, pytest.Item],
        work: dict[str, Any],
        unsteady: set[str],
    ) -> dict[str, Any]:
        fault = Fault(**work["fault"])
        chosen = [items[name] for name in work["tests"] if name in items and name not in unsteady]
        path = session.config.rootpath / fault.path
        with planted(path, fault) as source:
            new = changed_codes(source, str(path), fault)

            def change() -> None:
                for key, code in new.items():
                    for function in functions.get((str(path), *key), ()):
                        function.__code__ = code

            return self._forked(session, chosen, change, limit=work["limit"])

    def _forked(
        self,
        session: pytest.Session,
        items: list[pytest.Item],
        change: Any = lambda: None,
        limit: float = 900,
    ) -> dict[str, Any]:
        """Run tests in a child process: the first that fails, and how many were run."""
        folder = tempfile.mkdtemp(prefix="mutant-")
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.setsid()
                os.environ["TMPDIR"] = tempfile.tempdir = folder
                session.config.pluginmanager.unregister(name="terminalreporter")
                change()
                os.write(writing, json.dumps(self._tests(items)).encode())
            finally:
                os._exit(0)
        os.close(writing)
        ready, _, _ = select.select([reading], [], [], limit)
        said = os.read(reading, 65536) if ready else b""
        os.close(reading)
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        shutil.rmtree(folder, ignore_errors=True)
        if said:
            return dict(json.loads(said))
        return {"test": "the process ended" if ready else "the time limit", "run": len(items)}

    def _tests(self, items: list[pytest.Item]) -> dict[str, Any]:
        for at, item in enumerate(items):
            following = items[at + 1] if at + 1 < len(items) else None
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._failed:
                return {"test": self._failed[0], "run": at + 1}
        return {"test": "", "run": len(items)}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.append(report.nodeid)


@contextmanager
def planted(path: Path, fault: Fault) -> Iterator[bytes]:
    """Keep a fault in its file for a while; the value is the text without it."""
    source, found = path.read_bytes(), path.stat()
    path.write_bytes(fault.planted(source))
    try:
        yield source
    finally:
        path.write_bytes(source)
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def loaded() -> Functions:
    """Return all functions that are loaded, by file, qualified name and first line."""
    gc.unfreeze()
    found: Functions = {}
    for function in gc.get_objects():
        if isinstance(function, types.FunctionType):
            code = function.__code__
            key = (code.co_filename, code.co_qualname, code.co_firstlineno)
            found.setdefault(key, []).append(function)
    gc.freeze()
    return found


def pytest_configure(config: pytest.Config) -> None:
    """Run faults in place of tests."""
    files = [Path(os.environ[name]) for name in ("COD_MUTANTS_WORK", "COD_MUTANTS_RESULTS")]
    config.pluginmanager.register(Runner(*files))
    sys.dont_write_bytecode = True
