"""The command line reads no key of a reply that the API does not send: the keys that a function
reads of one value, and of what is in it, are all of one schema of the OpenAPI document."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cod.web.api.openapi import document

CLI = Path(__file__).resolve().parents[2] / "cod/cli"
LOCAL = "server"  # the folder of commands that work without the API
NOT_REPLIES = {
    "events.py line: value",  # an event: of one of three kinds
    "nodes/type.py _hardware: values",  # a report's attributes, by their paths
    "show.py client_of: options",  # the options that a person gave
    "people/login.py login: root",  # so are these
    "status.py status: found",  # several replies together, as in the next two
    "status.py _lines: found",
    "status.py picture: found",
    "wait.py : WAY",  # a table of its own
}
EACH = "[]"  # an item of a list
Path_ = tuple[str, ...]
Value = tuple[int, Path_]  # a variable, by its number, and the keys that lead into it


class Reads(ast.NodeVisitor):
    """Which keys a module reads. `found`: the paths by variable; `named`: what a variable is, for
    people. A loop over what a variable holds is followed; a name that is bound anew is another
    variable."""

    def __init__(self) -> None:
        self.found: dict[int, set[Path_]] = defaultdict(set)
        self.named: dict[int, str] = {}
        self._names: dict[str, Value] = {}
        self._where = ""

    def _bind(self, target: ast.expr, value: Value | None) -> None:
        if isinstance(target, ast.Name):
            if value is None:
                value = (len(self.named), ())
                self.named[value[0]] = f"{self._where}: {target.id}"
            self._names[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            for each in target.elts:
                self._bind(each, None)

    def _value(self, node: ast.expr) -> Value | None:
        """Return what the expression is of a variable; None: something else."""
        if isinstance(node, ast.Name):
            return self._names.get(node.id)
        if isinstance(node, ast.BinOp | ast.BoolOp):
            return self._value(node.left if isinstance(node, ast.BinOp) else node.values[0])
        key: ast.expr | None = None
        if isinstance(node, ast.Subscript):
            base, key = self._value(node.value), node.slice
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            base = self._value(node.func.value) if node.func.attr == "get" else None
            key = node.args[0]
        if key is None or base is None or not isinstance(key, ast.Constant):
            return None
        step = key.value if isinstance(key.value, str) else EACH
        return None if step.startswith("/") else (base[0], (*base[1], step))

    def _note(self, node: ast.expr) -> None:
        value = self._value(node)
        if value is not None and value[1]:
            self.found[value[0]].add(value[1])
        self.generic_visit(node)

    visit_Subscript = _note

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id == "table_of":
            number = len(self.named)
            self.named[number] = f"{self._where}: table_of"
            for column in node.args[1:]:
                cell = column.elts[1] if isinstance(column, ast.Tuple) else None
                if isinstance(cell, ast.Constant) and isinstance(cell.value, str):
                    self.found[number].add((cell.value,))
        self._note(node)

    def _scope(self, node: Any) -> None:
        before, where = dict(self._names), self._where
        self._where = getattr(node, "name", where or "")
        arguments = node.args
        for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            self._bind(ast.Name(each.arg), None)
        self.generic_visit(node)
        self._names, self._where = before, where

    visit_FunctionDef = visit_Lambda = _scope

    def _each(self, target: ast.expr, over: ast.expr) -> None:
        self.visit(over)
        value = self._value(over)
        self._bind(target, None if value is None else (value[0], (*value[1], EACH)))

    def visit_For(self, node: ast.For) -> None:
        self._each(node.target, node.iter)
        for each in (*node.body, *node.orelse):
            self.visit(each)

    def _comprehension(self, node: Any) -> None:
        before = dict(self._names)
        for one in node.generators:
            self._each(one.target, one.iter)
            for test in one.ifs:
                self.visit(test)
        for part in ("key", "value", "elt"):
            if hasattr(node, part):
                self.visit(getattr(node, part))
        self._names = before

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:
            self._bind(target, self._value(node.value))

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)
            self._bind(node.target, self._value(node.value))


@cache
def schemas() -> dict[str, Any]:
    """The document's schemas, by name."""
    found: dict[str, Any] = document()["components"]["schemas"]
    return found


def has(schema: Any, path: Path_) -> bool:
    """Return whether a value of that schema may have what the path leads to."""
    if "$ref" in schema:
        return has(schemas()[schema["$ref"].rpartition("/")[2]], path)
    if "anyOf" in schema:
        return any(has(each, path) for each in schema["anyOf"])
    if not path or not schema.keys() & {"type", "properties"}:
        return True
    key, rest = path[0], path[1:]
    if key == EACH:
        return schema["type"] == "array" and has(schema["items"], rest)
    if key in schema.get("properties", {}):
        return has(schema["properties"][key], rest)
    others = schema.get("additionalProperties", False)
    return bool(others) and has(others if isinstance(others, dict) else {}, rest)


def faults(source: str, name: str) -> Iterator[tuple[str, str]]:
    """What a module reads that no schema has: the variable, and a sentence."""
    reads = Reads()
    reads.visit(ast.parse(source))
    for number, paths in reads.found.items():
        of = f"{name} {reads.named[number]}"
        tops = ({"type": "array", "items": one} for one in schemas().values())
        if not any(all(has(one, path) for path in paths) for one in (*schemas().values(), *tops)):
            yield of, f"{of}: no reply has all of {sorted('.'.join(path) for path in paths)}"


@pytest.mark.slow
def test_each_key_is_of_a_reply() -> None:
    found = {
        of: fault
        for path in sorted(CLI.rglob("*.py"))
        if path.parent.name != LOCAL
        for of, fault in faults(path.read_text(), str(path.relative_to(CLI)))
    }
    assert found.keys() == NOT_REPLIES, "\n".join(found.values())


TABLE = "def table(values):\n    return [(one['name'], one['occurrences'], {}) for one in values]\n"


@pytest.mark.parametrize(
    ("cell", "right"),
    [
        ("one['next_start']", True),
        ("[each['refused'] for each in one['past']]", True),
        ("one['nexd_start']", False),
        ("one['power_driver']", False),  # of another noun
        ("[each['refusde'] for each in one['past']]", False),
        ("one.get('zones')", False),
    ],
)
def test_a_planted_key_is_refused(cell: str, right: bool) -> None:
    assert bool(list(faults(TABLE.format(cell), "planted.py"))) is not right
