"""Results of flows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Effect:
    """Something to do after the commit. Only wake-ups travel this way; everything else is a row
    (house rule 3).

    kind  'wake'     what: 'manager', 'orders' (confd sessions), 'power', 'switches',
                     'notices', 'consoles', 'settings'
    """

    kind: str
    what: str


@dataclass(frozen=True, slots=True)
class Result(Generic[V]):
    """The return value of a flow that has both an answer and effects."""

    value: V
    effects: tuple[Effect, ...] = ()


class Refused(Exception):
    """An input or request that a rule does not allow. The message is a sentence for the user;
    `field` names the part of the input.

    code  'invalid', 'not_found', 'conflict', 'forbidden', 'quota' or 'impossible', for programs
    """

    def __init__(self, code: str, sentence: str, field: str = "") -> None:
        super().__init__(sentence)
        self.code = code
        self.sentence = sentence
        self.field = field


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change of a request with which it would be possible, or be granted at once: to `count`
    nodes, of several types and blocks if `spread`."""

    count: int
    spread: bool


class Impossible(Refused):
    """A request for nodes that the site could never satisfy. `remedies`: changes with which it
    could."""

    def __init__(self, sentence: str, field: str, remedies: Sequence[Remedy]) -> None:
        super().__init__("impossible", sentence, field)
        self.remedies = tuple(remedies)


class SlowDown(Refused):
    """A request that is refused because of too many others. It may be repeated after `seconds`."""

    def __init__(self, seconds: float, why: str = "too many failed attempts") -> None:
        self.seconds = max(1, int(seconds + 0.999))
        super().__init__("slow_down", f"{why}: try again in {self.seconds} s")
