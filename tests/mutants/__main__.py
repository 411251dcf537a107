"""Command that plants faults and shows which ones the quick tests catch: `make mutants`.

The repository is copied to build/mutants, and only the copy is changed. All tests of planted faults
run in a network and process namespace of their own.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from coverage import CoverageData

from tests.mutants import by_hand
from tests.mutants.plant import Fault, plant

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "build" / "mutants"
TREE = OUT / "tree"
FOLDERS = ("cod/flows", "cod/policy", "cod/store", "cod/core", "trampoline")
TESTS = ("tests/unit", "tests/store", "tests/net")
CHOICE = ["-m", "not system and not mariadb", "--hypothesis-profile", "fast"]
NAMESPACES = ["unshare", "--net", "--pid", "--fork", "--mount-proc", "--kill-child"]


def main() -> None:
    """Plant faults, run them, and print the table."""
    parser = argparse.ArgumentParser(prog="make mutants")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument(
        "--seconds", type=float, default=30.0, help="of processor time, of one fault's tests"
    )
    parser.add_argument("--workers", type=int, default=2, help="processes that write the map")
    parser.add_argument("--only", default="", help="only faults whose FILE:LINE begins so")
    parser.add_argument("--by-hand", action="store_true", help="the faults of by_hand.toml instead")
    options = parser.parse_args()
    if options.by_hand:
        copy_tree(OUT / "by-hand")
        by_hand.run(OUT / "by-hand", options.only)
        return
    copy_tree(TREE)
    files = [path for folder in FOLDERS for path in (TREE / folder).rglob("*.py")]
    faults = plant(files, TREE, options.seed, options.count)
    maps = write_maps(options.workers)
    wanted = [fault for fault in faults if fault.where.startswith(options.only)]
    print(shown(run(wanted, Map(maps), options.seconds)))


def copy_tree(to: Path) -> None:
    """Copy what git knows or would add; what is built is used as it is."""
    shutil.rmtree(to, ignore_errors=True)
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True).stdout
    for name in names.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name, follow_symlinks=False)
    (to / ".venv").symlink_to(ROOT / ".venv")
    (to / "build").mkdir()
    for name in ("trampoline", "images", "cache"):
        (to / "build" / name).symlink_to(ROOT / "build" / name)


def write_maps(workers: int) -> list[Path]:
    """Return the folders of maps that hold: one of all tests, one of files changed since.

    The first is written again when the code changes, or what the tests share.
    """
    whole, later = OUT / "map", OUT / "map-later"
    tests = {
        str(path.relative_to(TREE)): _digest([path])
        for folder in TESTS
        for path in sorted((TREE / folder).rglob("test_*.py"))
    }
    shared = [path for path in (TREE / "tests").rglob("*.py") if "test_" not in path.name]
    shared = [path for path in shared if path.parts[-2] not in {"mutants", "system", "bench"}]
    code = _digest(sorted(shared + [path for name in FOLDERS for path in _python(TREE / name)]))
    if _read(whole).get("code") != code:
        shutil.rmtree(later, ignore_errors=True)
        _write_map(whole, TESTS, workers, {"code": code, "tests": tests})
    known = _read(whole)["tests"]
    changed = {name: digest for name, digest in tests.items() if known.get(name) != digest}
    if changed and _read(later).get("tests") != changed:
        _write_map(later, tuple(changed), workers, {"tests": changed})
    return [whole, later] if changed else [whole]


def _python(folder: Path) -> Iterator[Path]:
    return folder.rglob("*.py")


def _digest(paths: list[Path]) -> str:
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in paths)).hexdigest()


def _read(folder: Path) -> dict[str, Any]:
    path = folder / "made-of.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def _write_map(folder: Path, tests: tuple[str, ...], workers: int, made_of: dict[str, Any]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    environment = {"COD_MUTANTS_MAP": str(folder), "COD_MUTANTS_FOLDERS": " ".join(FOLDERS)}
    plugin = ["-p", "tests.mutants.measure", "-n", str(workers)]
    _pytest([*plugin, *CHOICE, *tests], environment)
    (folder / "made-of.json").write_text(json.dumps(made_of))


def _pytest(arguments: list[str], environment: dict[str, str]) -> None:
    """Run pytest in the copied tree; its exit code is the tests' affair."""
    command = [".venv/bin/python", "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    script = 'ip link set lo up && exec "$@"'
    subprocess.run(
        [*NAMESPACES, "sh", "-c", script, "sh", *command],
        cwd=TREE,
        check=False,
        env=os.environ | environment | {"PYTHONPATH": str(TREE), "PYTHONDONTWRITEBYTECODE": "1"},
    )


class Map:
    """Which tests execute a line of one file, and what they cost; only tests that passed."""

    def __init__(self, folders: list[Path]) -> None:
        changed = set(_read(folders[-1])["tests"]) if len(folders) > 1 else set()
        self.seconds: dict[str, float] = {}
        self._data = list[tuple[CoverageData, bool]]()
        for folder in folders:
            old = folder == folders[0]
            for path in sorted(folder.glob("seconds.*.json")):
                for test, taken in json.loads(path.read_text()).items():
                    if not (old and test.split("::")[0] in changed):
                        self.seconds[test] = taken
            for path in sorted(folder.glob("lines.*")):
                data = CoverageData(str(path))
                data.read()
                self._data.append((data, old))
        self._changed = changed
        self._lines: dict[str, dict[int, set[str]]] = {}

    def tests(self, fault: Fault) -> list[str]:
        """Return the tests that execute a fault: the cheapest of each file, the second ones, …"""
        lines = self._of_file(fault.path)
        found = lines.get(fault.line) or lines.get(fault.statement) or set()
        rank: dict[str, int] = {}
        ranked = list[tuple[int, float, str]]()
        for taken, test in sorted((self.seconds[test], test) for test in found):
            file = test.split("::")[0]
            rank[file] = rank.get(file, 0) + 1
            ranked.append((rank[file], taken, test))
        return [test for _, _, test in sorted(ranked)]

    def _of_file(self, path: str) -> dict[int, set[str]]:
        if path not in self._lines:
            lines = self._lines[path] = {}
            for data, old in self._data:
                for line, tests in data.contexts_by_lineno(str(TREE / path)).items():
                    lines.setdefault(line, set()).update(
                        test
                        for test in tests
                        if test in self.seconds
                        and not (old and test.split("::")[0] in self._changed)
                    )
        return self._lines[path]


def run(faults: list[Fault], found: Map, most: float) -> list[dict[str, Any]]:
    """Run the faults, and return and keep the results in build/mutants.json.

    most  seconds of processor time, as measured, of the tests that one fault is run against
    """
    work = list[dict[str, Any]]()
    unreached = list[dict[str, Any]]()
    for fault in faults:
        tests, total = found.tests(fault), 0.0
        chosen = [test for test in tests if (total := total + found.seconds[test]) <= most]
        one = {"fault": asdict(fault), "tests": chosen or tests[:1], "reached_by": len(tests)}
        (work if tests else unreached).append(one | {"limit": 60 + 20 * min(total, most)})
    (OUT / "work.json").write_text(json.dumps(work))
    results = OUT / "results.jsonl"
    results.unlink(missing_ok=True)
    environment = {
        "COD_MUTANTS_WORK": str(OUT / "work.json"),
        "COD_MUTANTS_RESULTS": str(results),
    }
    if work:
        _pytest(["-p", "tests.mutants.run", "-o", "timeout=60", *CHOICE, *TESTS], environment)
    by_place = {
        (one["fault"]["path"], one["fault"]["start"], one["fault"]["kind"]): one
        for one in map(json.loads, results.read_text().splitlines() if work else ())
    }
    done = [*by_place.values(), *({**one, "test": None, "run": 0} for one in unreached)]
    (ROOT / "build" / "mutants.json").write_text(json.dumps(done, indent=1))
    return done


def shown(results: list[dict[str, Any]]) -> str:
    """Return the table of results by folder, and each fault that was not caught."""
    counts = {folder: [0, 0, 0] for folder in (*FOLDERS, "all")}
    lines = list[str]()
    for one in sorted(results, key=lambda one: (one["fault"]["path"], one["fault"]["line"])):
        fault = Fault(**one["fault"])
        how = 2 if one["test"] is None else 0 if one["test"] else 1
        folder = next(folder for folder in FOLDERS if fault.path.startswith(folder + "/"))
        for name in (folder, "all"):
            counts[name][how] += 1
        if how:
            change = f"{_line(fault.before)}  ->  {_line(fault.after)}"
            tests = "no test" if how == 2 else f"{one['run']} of {one['reached_by']} tests"
            lines.append(f"{fault.where}  {fault.kind} ({tests})\n    {change}")
    table = [f"{'':12}{'caught':>8}{'survived':>10}{'no test executes it':>21}"]
    table += [f"{name:12}{a:8}{b:10}{c:21}" for name, (a, b, c) in counts.items()]
    return "\n".join([*lines, "", *table])


def _line(text: str) -> str:
    return " ".join(text.split())[:100]


if __name__ == "__main__":
    sys.exit(main())
