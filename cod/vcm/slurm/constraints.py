"""Constraints of Slurm jobs (-C), which require features of nodes."""

from __future__ import annotations

import re
from functools import cache

from cod.vcm.batch.commands import NotUnderstood

_TOKEN = re.compile(r"\s*([\w.:/=+-]+|[&|()\[\]])\s*")


@cache
def matches(constraint: str, features: frozenset[str]) -> bool:
    """Return whether a node with these features meets a constraint (-C) of names, '&' and '|' from
    left to right, and brackets. Raises `NotUnderstood` for other forms, such as counts
    ('gpu*2')."""
    tokens = _TOKEN.findall(constraint)
    if "".join(tokens) != re.sub(r"\s", "", constraint):
        raise NotUnderstood(f"the constraint {constraint!r}")
    rest = iter([*tokens, ""])

    def operand() -> bool:
        token = next(rest, "")
        if token in ("(", "["):
            return chain({"(": ")", "[": "]"}[token])
        if not token or token in "&|)]":
            raise NotUnderstood(f"the constraint {constraint!r}")
        return token in features

    def chain(end: str) -> bool:
        value = operand()
        while (token := next(rest, None)) != end:
            if token not in ("&", "|"):
                raise NotUnderstood(f"the constraint {constraint!r}")
            other = operand()
            value = (value and other) if token == "&" else (value or other)
        return value

    return chain("")
