"""The code as text: what tests of its structure read of every module."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def statements(module: str | ast.AST) -> Iterator[ast.AST]:
    """Yield a module, given as text or parsed, and its statements at every depth. Expressions, of
    which a tree is mostly made, are left out."""
    found: list[ast.AST] = [ast.parse(module) if isinstance(module, str) else module]
    for node in found:
        yield node
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, part, None)
            if isinstance(inner, list):  # not of a conditional expression
                found.extend(inner)
