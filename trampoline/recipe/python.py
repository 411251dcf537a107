"""Python for the ramdisk: the distribution's interpreter, its libraries, and one zip of the modules
that the agent imports."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from trampoline.recipe import cpio, freeze

LIBRARIES = "lib/x86_64-linux-gnu"
LOADER = f"{LIBRARIES}/ld-linux-x86-64.so.2"
PROGRAM = "usr/bin/python3.11"
OPENED_LATE = ("usr/lib/x86_64-linux-gnu/libzstd.so.1",)  # by ctypes, by name
AGENT = ("trampoline.ctramp", "trampoline.cprime")
PROJECT = ("trampoline", "cod")


def tree(root: Path, checkout: Path, scratch: Path) -> dict[str, cpio.Entry]:
    """Return all files that `python3 -m trampoline.ctramp` needs. `root` has the unpacked
    packages."""
    mine, others = reachable(AGENT, checkout)
    archive = scratch / "python311.zip"
    script = Path(freeze.__file__)
    output = run(
        root, root / PROGRAM, "-S", "-s", "-B", script, checkout, archive, *mine, "--", *others
    )
    dynamic = [Path(name).relative_to(root) for name in json.loads(output)["dynamic"]]
    entries = {
        "bin/python3": cpio.file((root / PROGRAM).read_bytes(), 0o755),
        "lib/python311.zip": cpio.file(archive.read_bytes()),
        "lib/python3.11/lib-dynload": cpio.folder(),
    }
    entries |= {
        f"lib/python3.11/lib-dynload/{path.name}": cpio.file((root / path).read_bytes())
        for path in dynamic
    }
    programs = [PROGRAM, "bin/busybox", *OPENED_LATE, *map(str, dynamic)]
    return entries | libraries(root, [root / path for path in programs], late=OPENED_LATE)


def libraries(
    root: Path, programs: list[Path], late: tuple[str, ...] = ()
) -> dict[str, cpio.Entry]:
    """Return the shared libraries that `programs` are linked with, those that they load later
    (`late`), and the loader, at the paths where the loader looks for them."""
    found = {root / name for name in late}
    for program in programs:
        output = subprocess.run(
            [*_loader(root), "--list", program], capture_output=True, text=True
        ).stdout
        found |= {Path(path) for path in re.findall(r"=> (\S+) \(", output)}
    if strangers := [path for path in found if not path.is_relative_to(root)]:
        raise RuntimeError(
            f"libraries that no package of the recipe holds: {sorted(map(str, strangers))}"
        )
    entries = {f"{LIBRARIES}/{path.name}": cpio.file(path.read_bytes(), 0o755) for path in found}
    entries[LOADER] = cpio.file((root / LOADER).read_bytes(), 0o755)
    return {**entries, "lib64/ld-linux-x86-64.so.2": cpio.link(f"../{LOADER}")}


def reachable(names: tuple[str, ...], checkout: Path) -> tuple[list[str], list[str]]:
    """Return the project's modules that `names` import, directly or not, and the foreign modules
    that these import."""
    mine: set[str] = set()
    others: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name.partition(".")[0] not in PROJECT:
            others.add(name)
        elif name not in mine and (path := source(name, checkout)):
            mine.add(name)
            package = name if path.name == "__init__.py" else name.rpartition(".")[0]
            waiting += [*imports(path, package), *([package] if package else [])]
    return sorted(mine), sorted(others - {"__future__"})


def source(name: str, checkout: Path) -> Path | None:
    """Return a project's module's file; None when `name` is a name inside a module, not a
    module."""
    base = checkout.joinpath(*name.split("."))
    return next((p for p in (base / "__init__.py", base.with_suffix(".py")) if p.is_file()), None)


def imports(path: Path, package: str) -> Iterator[str]:
    """Yield the names of the modules that the source in `path` imports, also inside functions,
    except those for typing only."""
    for node in _running(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            yield base
            if base.partition(".")[0] in PROJECT:  # `from cod.wire import confd`
                yield from (f"{base}.{alias.name}" for alias in node.names)


def _running(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes except those under `if TYPE_CHECKING` and `if __name__ == "__main__"`, which
    do not run in a node's trampoline."""
    for node in ast.iter_child_nodes(tree):
        if not (
            isinstance(node, ast.If) and re.search("TYPE_CHECKING|__main__", ast.unparse(node.test))
        ):
            yield node
            yield from _running(node)


def _loader(root: Path) -> list[str]:
    """Return the unpacked packages' own loader, with their libraries before the build machine's."""
    return [str(root / LOADER), "--library-path", f"{root / LIBRARIES}:{root / 'usr' / LIBRARIES}"]


def run(root: Path, program: Path, *arguments: str | Path) -> str:
    """Run an unpacked program and return its output. It runs with its own libraries, and with
    nothing that could vary from run to run."""
    variables = {
        "PATH": os.defpath,
        "PYTHONHOME": str(root / "usr"),
        "PYTHONHASHSEED": "0",
        "LC_ALL": "C.UTF-8",
    }
    command = [*_loader(root), program, *arguments]
    return subprocess.run(
        command, env=variables, check=True, stdout=subprocess.PIPE, text=True
    ).stdout
