"""Faults that are planted by a seed: one change each, inside a function, on a line of its own.

Lines are ranked by a digest of seed, file, function and text. A change elsewhere in the code keeps
the rank of a line, so that the same seed plants mostly the same faults before and after it.
"""

from __future__ import annotations

import ast
import hashlib
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
LOGGING = {"debug", "info", "warning", "error", "exception", "critical", "print", "_log", "log"}


@dataclass(frozen=True)
class Fault:
    """One change of one file.

    line       of the changed text, or of a statement that begins before it
    start, end bytes of the text that is replaced
    """

    path: str
    line: int
    statement: int
    function: str
    kind: str
    start: int
    end: int
    before: str
    after: str

    def planted(self, source: bytes) -> bytes:
        """Return the file's text with the fault in it."""
        return source[: self.start] + self.after.encode() + source[self.end :]

    @property
    def where(self) -> str:
        return f"{self.path}:{self.line}"


def plant(files: Sequence[Path], root: Path, seed: int, count: int) -> list[Fault]:
    """Return `count` faults in these files, at most one a line, the same for the same seed."""
    lines: dict[str, list[Fault]] = {}
    for path in sorted(files):
        for key, fault in _keyed(path.read_bytes(), str(path.relative_to(root)), seed):
            lines.setdefault(key, []).append(fault)
    chosen = list[Fault]()
    for key in sorted(lines):
        if len(chosen) == count:
            break
        ranked = sorted(lines[key], key=lambda fault: _digest(key, fault.kind, fault.before))
        source = (root / ranked[0].path).read_bytes()
        chosen += [fault for fault in ranked if _replaces(source, fault)][:1]
    return chosen


def _keyed(source: bytes, path: str, seed: int) -> Iterator[tuple[str, Fault]]:
    """Yield each possible fault with its line's key. A function's equal lines are numbered."""
    text = source.decode().splitlines()
    seen: dict[tuple[str, str], list[int]] = {}
    for fault in faults(source, path):
        line = text[fault.line - 1].strip()
        same = seen.setdefault((fault.function, line), [])
        if fault.line not in same:
            same.append(fault.line)
        yield _digest(seed, path, fault.function, line, same.index(fault.line)), fault


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def faults(source: bytes, path: str) -> Iterator[Fault]:
    """Yield every possible fault of a file."""
    starts = [0]
    for line in source.split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)
    for function, node, kind, after, statement in _changes(ast.parse(source), ()):
        assert isinstance(node, ast.expr | ast.stmt)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        after = f"({after})" if isinstance(node, ast.expr) else after
        before = source[start:end].decode()
        yield Fault(path, node.lineno, statement, function, kind, start, end, before, after)


Change = tuple[ast.AST, str, str, int]  # node, kind, new text, the statement's line


def _changes(node: ast.AST, names: tuple[str, ...]) -> Iterator[tuple[str, ast.AST, str, str, int]]:
    """Yield each change of the functions below a node that is outside functions."""
    for child in ast.iter_child_nodes(node):
        inside = (*names, child.name) if isinstance(child, Function | ast.ClassDef) else names
        if isinstance(child, Function):
            name = ".".join(inside)
            for statement in child.body:
                yield from ((name, *change) for change in _of_statement(statement))
        else:
            yield from _changes(child, inside)


def _of_statement(node: ast.stmt) -> Iterator[Change]:
    """Yield the faults of a statement and of all in it."""
    match node:
        case ast.Expr(value=ast.Constant()) | ast.Import() | ast.ImportFrom():
            return
        case ast.Expr(value=ast.Call() as call) if _called(call) in LOGGING:
            return
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Raise():
            yield node, "statement deleted", "pass", node.lineno
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield node, "statement deleted", "pass", node.lineno
        case ast.Continue() | ast.Break():
            yield node, "statement deleted", "pass", node.lineno
        case ast.Return(value=ast.expr() as value) if not _is_none(value):
            yield node, "returns None", "return None", node.lineno
        case ast.If(test=test) | ast.While(test=test) if not isinstance(test, ast.Compare):
            yield test, "condition negated", f"not ({ast.unparse(test)})", node.lineno
        case _:
            pass
    if isinstance(node, ast.Raise):  # what its message says is no behaviour
        return
    for child in _evaluated(node):
        if isinstance(child, ast.stmt):
            yield from _of_statement(child)
        else:
            yield from _of_expression(child, node.lineno)


def _evaluated(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node's children without annotations, decorators and defaults."""
    for field, value in ast.iter_fields(node):
        if field in {"annotation", "returns", "decorator_list", "args"} and not isinstance(
            node, ast.Call
        ):
            continue
        if field in {"ctx", "ops", "op", "pattern", "format_spec"}:
            continue
        yield from (child for child in _listed(value) if isinstance(child, ast.AST))


def _listed(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else (value,)


def _of_expression(node: ast.AST, line: int) -> Iterator[Change]:
    """Yield the faults of an expression, or of another part of a statement, and of all in it."""
    match node:
        case ast.Compare(ops=[op], left=left, comparators=[right]) if type(op) in COMPARISONS:
            changed = ast.Compare(left, [COMPARISONS[type(op)]()], [right])
            yield node, "comparison flipped", ast.unparse(changed), line
        case ast.BoolOp(op=op, values=values):
            other = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield node, "and/or swapped", ast.unparse(ast.BoolOp(other, values)), line
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node, "not removed", ast.unparse(operand), line
        case ast.IfExp(test=test) if not isinstance(test, ast.Compare):
            yield test, "condition negated", f"not ({ast.unparse(test)})", line
        case ast.BinOp(op=op, left=left, right=right) if (
            type(op) in ARITHMETIC and not _text(left) and not _text(right)
        ):
            made = ast.BinOp(left, ARITHMETIC[type(op)](), right)
            yield node, "operator changed", ast.unparse(made), line
        case ast.Constant(value=bool() as value):
            yield node, "constant changed", str(not value), line
        case ast.Constant(value=int() | float() as value):
            yield node, "one more", repr(value + 1), line
        case ast.Constant(value=str() | bytes() as value) if value:
            yield node, "constant changed", repr(value[:0]), line
        case ast.JoinedStr():
            return
        case ast.Call() as call if _called(call) in LOGGING:
            return
        case _:
            pass
    for child in _evaluated(node):
        if isinstance(child, ast.stmt):
            yield from _of_statement(child)
        else:
            yield from _of_expression(child, line)


def _called(call: ast.Call) -> str:
    """Return the last part of a called name."""
    return ast.unparse(call.func).rsplit(".", 1)[-1]


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _text(node: ast.expr) -> bool:
    """Tell whether an operand is certainly text, which cannot be subtracted."""
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )


def codes(source: bytes, path: str) -> dict[tuple[str, int], types.CodeType]:
    """Return the code of each function of a file, by its qualified name and first line."""
    waiting, found = [compile(source, path, "exec", dont_inherit=True)], {}
    for code in waiting:
        found[code.co_qualname, code.co_firstlineno] = code
        waiting += [part for part in code.co_consts if isinstance(part, types.CodeType)]
    return found


def changed_codes(source: bytes, path: str, fault: Fault) -> dict[tuple[str, int], types.CodeType]:
    """Return the code that a fault changes: of its function and of those around it."""
    old, new = codes(source, path), codes(fault.planted(source), path)
    return {
        key: new[key]
        for key, code in old.items()
        if key in new
        and code.co_name not in {"<module>"}
        and code.co_firstlineno <= fault.line
        and new[key] != code
    }


def _replaces(source: bytes, fault: Fault) -> bool:
    """Tell whether the fault compiles, changes a function, and leaves its free variables alone."""
    try:
        new = changed_codes(source, fault.path, fault)
    except SyntaxError:
        return False
    old = codes(source, fault.path)
    return bool(new) and all(old[key].co_freevars == code.co_freevars for key, code in new.items())
